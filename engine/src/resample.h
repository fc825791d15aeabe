// Weighted sums of bytes, of which resizing consists: Tier::mix_pixels and Tier::mix_rows. Each
// tier compiles a copy of its own, so all of it is in an anonymous namespace.
#pragma once

#include <cstring>

#include "tier.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if !defined(__wasm__)
namespace burn {
namespace {

#if defined(__AVX2__)

// Sums of red, green and blue lie in a vector of 4. A weight is its low byte and 256 times the
// rest, so that instructions for 16 bits multiply, and add two products at once.
inline void mix_pixels(const uint8_t *row, const PixelMix &mix, uint8_t *out) {
    // Of 4 pixels the first two and the last two: red, red, green, green, blue, blue, 0, 0.
    const __m256i spread =
        _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,  //
                         6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    const __m256i low_byte =
        _mm256_setr_epi8(0, -1, 4, -1, 0, -1, 4, -1, 0, -1, 4, -1, -1, -1, -1, -1, 8, -1, 12, -1, 8,
                         -1, 12, -1, 8, -1, 12, -1, -1, -1, -1, -1);
    const __m256i rest =
        _mm256_setr_epi8(1, 2, 5, 6, 1, 2, 5, 6, 1, 2, 5, 6, -1, -1, -1, -1,  //
                         9, 10, 13, 14, 9, 10, 13, 14, 9, 10, 13, 14, -1, -1, -1, -1);
    const auto twice = [](const void *at) {
        return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i *>(at)));
    };
    const __m128i half = _mm_set1_epi32(1 << (kWeightBits - 1));
    const int32_t *weights = mix.weights;
    for (int x = 0; x < mix.count; ++x) {
        const uint8_t *from = row + mix.first[x];
        __m256i low = _mm256_setzero_si256(), high = low;
        for (int step = 0; step < mix.steps; ++step) {
            const __m256i four = _mm256_shuffle_epi8(twice(from), spread), w = twice(weights);
            low = _mm256_add_epi32(low, _mm256_madd_epi16(four, _mm256_shuffle_epi8(w, low_byte)));
            high = _mm256_add_epi32(high, _mm256_madd_epi16(four, _mm256_shuffle_epi8(w, rest)));
            weights += kMixPixels;
            from += 3 * kMixPixels;
        }
        const __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high, 8), low);
        __m128i pixel =
            _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        pixel = _mm_srai_epi32(_mm_add_epi32(pixel, half), kWeightBits);
        pixel = _mm_packs_epi32(pixel, pixel);
        const int bytes = _mm_cvtsi128_si32(_mm_packus_epi16(pixel, pixel));
        std::memcpy(out + 3 * x, &bytes, 4);
    }
}

inline void mix_rows(const uint8_t *rows, ptrdiff_t step, const int32_t *weights, int num_rows,
                     size_t count, uint8_t *out) {
    const __m256i half = _mm256_set1_epi32(1 << (kWeightBits - 1));
    for (size_t i = 0; i < count; i += kMixBytes) {
        __m256i first = half, last = half;  // of 8 bytes each
        const uint8_t *from = rows + i;
        for (int k = 0; k < num_rows; ++k, from += step) {
            const __m256i weight = _mm256_set1_epi32(weights[k]);
            const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
            first =
                _mm256_add_epi32(first, _mm256_mullo_epi32(_mm256_cvtepu8_epi32(bytes), weight));
            const __m256i others = _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8));
            last = _mm256_add_epi32(last, _mm256_mullo_epi32(others, weight));
        }
        // Packing takes the halves of both vectors in turn; the permutation puts them in order.
        const __m256i words =
            _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_srai_epi32(first, kWeightBits),
                                                        _mm256_srai_epi32(last, kWeightBits)),
                                     0xd8);
        const __m128i mixed =
            _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(out + i), mixed);
    }
}

#else

inline uint8_t rounded(int32_t sum) {
    const int32_t value = (sum + (1 << (kWeightBits - 1))) >> kWeightBits;
    return static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
}

inline void mix_pixels(const uint8_t *row, const PixelMix &mix, uint8_t *out) {
    const int32_t *weights = mix.weights;
    const int count = mix.steps * kMixPixels;
    for (int x = 0; x < mix.count; ++x, weights += count) {
        const uint8_t *from = row + mix.first[x];
        int32_t red = 0, green = 0, blue = 0;
        for (int k = 0; k < count; ++k, from += 3) {
            red += from[0] * weights[k];
            green += from[1] * weights[k];
            blue += from[2] * weights[k];
        }
        out[3 * x] = rounded(red);
        out[3 * x + 1] = rounded(green);
        out[3 * x + 2] = rounded(blue);
    }
}

inline void mix_rows(const uint8_t *rows, ptrdiff_t step, const int32_t *weights, int num_rows,
                     size_t count, uint8_t *out) {
    for (size_t i = 0; i < count; i += kMixBytes) {
        int32_t sums[kMixBytes] = {};
        const uint8_t *from = rows + i;
        for (int k = 0; k < num_rows; ++k, from += step) {
            const int32_t weight = weights[k];
            for (size_t j = 0; j < kMixBytes; ++j) sums[j] += from[j] * weight;
        }
        for (size_t j = 0; j < kMixBytes; ++j) out[i + j] = rounded(sums[j]);
    }
}

#endif

}  // namespace
}  // namespace burn
#endif
