// A vector of kLanes floats with AVX-512, and the operations that rows.h requires of a kernel.
#pragma once

#include <immintrin.h>

#include "tier.h"

namespace burn {
namespace {

struct FloatsAvx512 {
    using Floats = __m512;

    static Floats load(const float *from) { return _mm512_loadu_ps(from); }
    static Floats load(const int16_t *from) {
        const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
        return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(narrow));
    }
    static void store(float *to, Floats v) { _mm512_storeu_ps(to, v); }
    static Floats all(float value) { return _mm512_set1_ps(value); }
    static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
    static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
    static Floats leaky(Floats y, Floats slope) {
        const __mmask16 negative = _mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_LT_OQ);
        return _mm512_mask_mul_ps(y, negative, y, slope);
    }
    static uint16_t at_least(Floats x, Floats threshold) {
        return _mm512_cmp_ps_mask(x, threshold, _CMP_GE_OQ);
    }
    static Floats widen(const uint16_t *counts) {
        const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(counts));
        return _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(narrow));
    }
};

}  // namespace
}  // namespace burn
