// AVX-512 without a population count: tables of counts, 64 output channels × 4 input channels per
// instruction.
#include <immintrin.h>

#include "floats_avx512.h"
#include "table_kernel.h"
#include "x86_features.h"

namespace burn {
namespace {

struct Avx512Bw : FloatsAvx512 {
    using Vector = __m512i;
    static constexpr int group = 64;
    static constexpr int groups = 2;
    static constexpr int tile = 7;
    static constexpr int batch = 1;
    static constexpr int stem_tile = 7;

    static Vector zero() { return _mm512_setzero_si512(); }
    static Vector load_weights(const uint8_t *from) { return _mm512_load_si512(from); }
    static Vector table(const uint8_t *from) {
        return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i *>(from)));
    }
    static Vector low(Vector v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
    static Vector high(Vector v) { return low(_mm512_srli_epi16(v, 4)); }
    static Vector lookup(Vector table, Vector index) { return _mm512_shuffle_epi8(table, index); }
    static Vector add_bytes(Vector a, Vector b) { return _mm512_add_epi8(a, b); }

    static void widen_add(Vector bytes, uint16_t *to) {
        const __m512i first = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(bytes));
        const __m512i second = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(bytes, 1));
        _mm512_store_si512(to, _mm512_add_epi16(_mm512_load_si512(to), first));
        _mm512_store_si512(to + 32, _mm512_add_epi16(_mm512_load_si512(to + 32), second));
    }
};

using Kernel = TableKernel<Avx512Bw>;

bool supported() { return x86_features().avx512; }

}  // namespace

extern const Tier tier_avx512_bw;
constexpr Tier tier_avx512_bw =
    tier_of<Kernel>("avx512-bw", supported,
                    {byte_weights_size<Kernel::group>, lay_out_bytes<Kernel::group>,
                     operand_pixel<8>, operand_row<8>, expand_to_tables});

}  // namespace burn
