// AVX-512 without a population count: tables of counts by byte shuffles, 64 output channels × 4
// input channels × 2 pixels per instruction.
#include <immintrin.h>

#include "floats_avx512.h"
#include "pair_kernel.h"
#include "pair_word_x86.h"
#include "x86_features.h"

namespace burn {
namespace {

struct Avx512Bw : FloatsAvx512, PairWordX86 {
    using Vector = __m512i;
    static constexpr int group = 64;
    static constexpr int groups = 4;
    static constexpr int tile = 4;
    static constexpr int batch = 16;
    static constexpr int stem_tile = 7;
    static constexpr int groups_of_two_pairs = 4;

    using FloatsAvx512::load;
    using FloatsAvx512::store;
    static Vector zero() { return _mm512_setzero_si512(); }
    static Vector load(const void *from) { return _mm512_load_si512(from); }
    static void store(void *to, Vector v) { _mm512_store_si512(to, v); }
    static BURN_INLINE void keep(Vector &v) { asm("" : "+v"(v)); }
    static Vector table(const uint8_t *from) {
        const __m128i entries = _mm_load_si128(reinterpret_cast<const __m128i *>(from));
        return _mm512_maskz_broadcast_i32x4(0xFFFF, entries);  // GCC 12 warns of the unmasked one
    }
    static Vector lookup(Vector table, Vector index) { return _mm512_shuffle_epi8(table, index); }
    static Vector add_bytes(Vector a, Vector b) { return _mm512_add_epi8(a, b); }
    static BURN_INLINE void add_in_place(Vector &sum, Vector v) {
        asm("vpaddb %1, %0, %0" : "+v"(sum) : "v"(v));
    }
    template <int n>
    static Vector right(Vector v) {
        return _mm512_srli_epi16(v, n);
    }
    template <int n>
    static Vector left(Vector v) {
        return _mm512_slli_epi16(v, n);
    }
    static Vector low_bytes(Vector v) { return _mm512_and_si512(v, _mm512_set1_epi16(255)); }
    static Vector add_words(Vector a, Vector b) { return _mm512_add_epi16(a, b); }
    static Vector subtract_words(Vector a, Vector b) { return _mm512_sub_epi16(a, b); }
};

using Kernel = PairKernel<Avx512Bw>;

bool supported() { return x86_features().avx512; }

}  // namespace

extern const Tier tier_avx512_bw;
constexpr Tier tier_avx512_bw = tier_of<Kernel>(
    "avx512-bw", supported,
    {Kernel::weight_bytes, Kernel::lay_out, pair_operand_pixel, pair_operand_row, Kernel::expand});

}  // namespace burn
