// In a file of its own, which is compiled without the instructions that it asks for. The compilers'
// __builtin_cpu_supports would do, but Zig's library, with which the wheels are linked, answers no
// to everything.
#include "x86_features.h"

#include <cpuid.h>

namespace burn {

X86Features x86_features() {
    X86Features found;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_FMA)) return found;
    // The registers that the operating system saves: 16 bytes and 32; masks and 64.
    unsigned saved, high;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    constexpr unsigned kWide = 0x06, kWidest = 0xe6;
    if ((saved & kWide) != kWide || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
    found.avx2 = b & bit_AVX2;
    constexpr unsigned kAvx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    found.avx512 = (saved & kWidest) == kWidest && (b & kAvx512) == kAvx512;
    found.vpopcntdq = found.avx512 && (c & bit_AVX512VPOPCNTDQ);
    return found;
}

}  // namespace burn
