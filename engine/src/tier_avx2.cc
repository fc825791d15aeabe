// AVX2: tables of counts by byte shuffles, 32 output channels × 4 input channels × 2 pixels per
// instruction.
#include <immintrin.h>

#include "pair_kernel.h"
#include "pair_word_x86.h"
#include "x86_features.h"

namespace burn {
namespace {

struct Avx2 : PairWordX86 {
    using Vector = __m256i;
    static constexpr int group = 32;
    static constexpr int groups = 4;
    static constexpr int tile = 4;
    static constexpr int batch = 16;
    static constexpr int stem_tile = 4;
    static constexpr int groups_of_two_pairs = 2;

    static Vector zero() { return _mm256_setzero_si256(); }
    static Vector load(const void *from) {
        return _mm256_load_si256(static_cast<const __m256i *>(from));
    }
    static void store(void *to, Vector v) { _mm256_store_si256(static_cast<__m256i *>(to), v); }
    static BURN_INLINE void keep(Vector &v) { asm("" : "+x"(v)); }
    static Vector table(const uint8_t *from) {
        return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i *>(from)));
    }
    static Vector lookup(Vector table, Vector index) { return _mm256_shuffle_epi8(table, index); }
    static Vector add_bytes(Vector a, Vector b) { return _mm256_add_epi8(a, b); }
    static BURN_INLINE void add_in_place(Vector &sum, Vector v) {
        asm("vpaddb %1, %0, %0" : "+x"(sum) : "x"(v));
    }
    template <int n>
    static Vector right(Vector v) {
        return _mm256_srli_epi16(v, n);
    }
    template <int n>
    static Vector left(Vector v) {
        return _mm256_slli_epi16(v, n);
    }
    static Vector low_bytes(Vector v) { return _mm256_and_si256(v, _mm256_set1_epi16(255)); }
    static Vector add_words(Vector a, Vector b) { return _mm256_add_epi16(a, b); }
    static Vector subtract_words(Vector a, Vector b) { return _mm256_sub_epi16(a, b); }

    struct Floats {
        __m256 low, high;
    };
    static Floats load(const float *from) {
        return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
    }
    static Floats load(const int16_t *from) {
        const auto eight = [](const int16_t *at) {
            const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i *>(at));
            return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(narrow));
        };
        return {eight(from), eight(from + 8)};
    }
    static void store(float *to, Floats v) {
        _mm256_storeu_ps(to, v.low);
        _mm256_storeu_ps(to + 8, v.high);
    }
    static Floats all(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
    static Floats add(Floats a, Floats b) {
        return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
    }
    static Floats multiply_add(Floats a, Floats b, Floats c) {
        return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
    }
    // A blend selects by the sign bit, which -0 has too; slope · -0 still equals 0.
    static Floats leaky(Floats y, Floats slope) {
        return {_mm256_blendv_ps(y.low, _mm256_mul_ps(y.low, slope.low), y.low),
                _mm256_blendv_ps(y.high, _mm256_mul_ps(y.high, slope.high), y.high)};
    }
    static uint16_t at_least(Floats x, Floats threshold) {
        const int low = _mm256_movemask_ps(_mm256_cmp_ps(x.low, threshold.low, _CMP_GE_OQ));
        const int high = _mm256_movemask_ps(_mm256_cmp_ps(x.high, threshold.high, _CMP_GE_OQ));
        return static_cast<uint16_t>(low | high << 8);
    }
    static Floats widen(const uint16_t *counts) {
        const auto eight = [](const uint16_t *from) {
            const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
            return _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(narrow));
        };
        return {eight(counts), eight(counts + 8)};
    }
};

using Kernel = PairKernel<Avx2>;

bool supported() { return x86_features().avx2; }

}  // namespace

extern const Tier tier_avx2;
constexpr Tier tier_avx2 = tier_of<Kernel>(
    "avx2", supported,
    {Kernel::weight_bytes, Kernel::lay_out, pair_operand_pixel, pair_operand_row, Kernel::expand});

}  // namespace burn
