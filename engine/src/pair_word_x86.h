// The operands of pair_kernel.h by instructions that every 64-bit x86 processor has.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace burn {
namespace {

struct PairWordX86 {
    static void pair_word(uint32_t first, uint32_t second, uint8_t *to) {
        const __m128i low = _mm_set1_epi8(0x0F), high = _mm_set1_epi8(static_cast<char>(0xF0));
        const __m128i a = _mm_cvtsi32_si128(static_cast<int>(first));
        const __m128i b = _mm_cvtsi32_si128(static_cast<int>(second));
        const __m128i firsts =
            _mm_unpacklo_epi8(_mm_and_si128(_mm_slli_epi16(a, 4), high), _mm_and_si128(a, high));
        const __m128i seconds =
            _mm_unpacklo_epi8(_mm_and_si128(b, low), _mm_and_si128(_mm_srli_epi16(b, 4), low));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm_unpacklo_epi8(firsts, seconds));
    }
};

}  // namespace
}  // namespace burn
