// The table of the instruction sets that this library was built with.
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

}  // namespace burn
