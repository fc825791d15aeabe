// The table of the instruction sets that this library was built with, and the choice among them.
#include <cstdlib>
#include <string>

#include "format.h"
#include "tier.h"

namespace burn {

extern const Tier tier_avx512_vpopcnt, tier_avx512_bw, tier_avx2, tier_neon, tier_wasm,
    tier_portable;

const Tier *const *tiers(int *count) {
    static const Tier *const kTiers[] = {
#if defined(__x86_64__)
        &tier_avx512_vpopcnt,
        &tier_avx512_bw,
        &tier_avx2,
#elif defined(__aarch64__)
        &tier_neon,
#elif defined(__wasm_simd128__)
        &tier_wasm,
#endif
#if !defined(BURN_ENGINE_NO_PORTABLE)
        &tier_portable,
#endif
    };
    *count = static_cast<int>(sizeof kTiers / sizeof *kTiers);
    return kTiers;
}

const Tier &choose_tier(const std::string &isa) {
    std::string wanted = isa;
    if (const char *set = std::getenv("BURN_ENGINE_ISA"); wanted.empty() && set) wanted = set;
    int count = 0;
    const Tier *const *all = tiers(&count);
    std::string names;
    for (int i = 0; i < count; ++i) {
        if (!all[i]->supported()) continue;
        if (wanted.empty() || wanted == all[i]->name) return *all[i];
        names += (names.empty() ? "" : ", ") + std::string(all[i]->name);
    }
    throw Error("instruction set '" + wanted.substr(0, 100) +
                "' is not available on this processor; choose from " + names);
}

}  // namespace burn
