// AVX2: tables of counts by byte shuffles, 32 output channels × 4 input channels per instruction.
#include <immintrin.h>

#include "table_kernel.h"

namespace burn {
namespace {

struct Avx2 {
    using Vector = __m256i;
    static constexpr int group = 32;
    static constexpr int groups = 2;
    static constexpr int tile = 4;
    static constexpr int stem_tile = 4;

    static Vector zero() { return _mm256_setzero_si256(); }
    static Vector load_weights(const uint8_t *from) {
        return _mm256_load_si256(reinterpret_cast<const __m256i *>(from));
    }
    static Vector table(const uint8_t *from) {
        return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i *>(from)));
    }
    static Vector low(Vector v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
    static Vector high(Vector v) { return low(_mm256_srli_epi16(v, 4)); }
    static Vector lookup(Vector table, Vector index) { return _mm256_shuffle_epi8(table, index); }
    static Vector add_bytes(Vector a, Vector b) { return _mm256_add_epi8(a, b); }

    static void widen_add(Vector bytes, uint16_t *to) {
        __m256i *wide = reinterpret_cast<__m256i *>(to);
        const __m256i first = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(bytes));
        const __m256i second = _mm256_cvtepu8_epi16(_mm256_extracti128_si256(bytes, 1));
        _mm256_store_si256(wide, _mm256_add_epi16(_mm256_load_si256(wide), first));
        _mm256_store_si256(wide + 1, _mm256_add_epi16(_mm256_load_si256(wide + 1), second));
    }

    struct Floats {
        __m256 low, high;
    };
    static Floats load(const float *from) {
        return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
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

using Kernel = TableKernel<Avx2>;

bool supported() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

}  // namespace

extern const Tier tier_avx2;
const Tier tier_avx2 = {
    "avx2",
    supported,
    Kernel::group,
    // Weights
    byte_weights_size<Kernel::group>,
    lay_out_bytes<Kernel::group>,
    // Operands
    operand_pixel<8>,
    operand_row<8>,
    expand_to_tables,
    // Kernels
    binary_rows<Kernel>,
    stem_row<Kernel>,
    mean_row<Kernel>,
    sum_row<Kernel>,
    leaky_row<Kernel>,
    sign_row<Kernel>,
    gated_row<Kernel>,
    dense_row<Kernel>,
    to_unit,
    linear<Kernel>,
};

}  // namespace burn
