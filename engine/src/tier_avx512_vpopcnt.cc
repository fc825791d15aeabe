// AVX-512 with VPOPCNTDQ: 16 output channels × 32 input channels per instruction.
//
// A plain loop takes three instructions per vector: xor, population count, add. Of three vectors
// x1, x2, x3 a full adder leaves two to count: s = x1 ^ x2 ^ x3, and c = majority, which counts
// twice.
// With p = x1 ^ x2 they are s = p ^ x3 and c = p ? x3 : x1 = p ? ~s : x1. Each x is a ^ w, of an
// activation and a weight, so p = (a1 ^ a2) ^ (w1 ^ w2). With those two xors computed beforehand,
// x1 and p take one instruction each, s and c one ternary logic each: 4 + 2 counts + 2 adds = 8
// instructions instead of 9.
#include <immintrin.h>

#include "floats_avx512.h"
#include "rows.h"
#include "x86_features.h"

namespace burn {
namespace {

struct Vpopcnt : FloatsAvx512 {
    static constexpr int group = 16;
    static constexpr int groups = 1;
    static constexpr int tile = 7;
    static constexpr int batch = 1;
    static constexpr int stem_tile = 7;

    static size_t group_bytes(int kernel, int words) {
        return static_cast<size_t>(kernel) * static_cast<size_t>(kernel * words) * 64;
    }

    // Counts a triple of words for P pixels, `step` words apart. The triple's operands are at `a`,
    // a + second and a + third.
    template <int P>
    static BURN_INLINE void add_triple(const uint32_t *a, ptrdiff_t step, ptrdiff_t second,
                                       ptrdiff_t third, const __m512i *w, __m512i *ones,
                                       __m512i *twos) {
        const __m512i w1 = w[0], w12 = w[1], w3 = w[2];
        for (int i = 0; i < 3; ++i) {
            _mm_prefetch(reinterpret_cast<const char *>(w + 24 + i), _MM_HINT_T0);
        }
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) {
            const uint32_t *at = a + p * step;
            const __m512i x1 = _mm512_xor_si512(w1, _mm512_set1_epi32(static_cast<int>(at[0])));
            const __m512i x12 =
                _mm512_xor_si512(w12, _mm512_set1_epi32(static_cast<int>(at[second])));
            const __m512i sum = _mm512_ternarylogic_epi32(
                x12, w3, _mm512_set1_epi32(static_cast<int>(at[third])), 0x96);
            const __m512i carry = _mm512_ternarylogic_epi32(x12, sum, x1, 0x3A);
            ones[p] = _mm512_add_epi32(ones[p], _mm512_popcnt_epi32(sum));
            twos[p] = _mm512_add_epi32(twos[p], _mm512_popcnt_epi32(carry));
        }
    }

    template <int P, int G>
    using Counts = FloatCounts<Vpopcnt, P, G>;

    template <int P, int G>
    static BURN_INLINE void count(const uint8_t *operands, ptrdiff_t pixel_step, ptrdiff_t row_step,
                                  const uint8_t *weights, int kernel, TapRows taps, int words,
                                  Counts<P, G> &counts) {
        const ptrdiff_t step = pixel_step / 4;
        const __m512i *w = reinterpret_cast<const __m512i *>(weights);
        __m512i ones[P], twos[P];
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) ones[p] = twos[p] = _mm512_setzero_si512();
        if (kernel == 3) {
            const ptrdiff_t differences = row_step / 8;  // the second half of a row
            w += taps.begin * 3 * words;
            for (int row = taps.begin; row < taps.end; ++row) {
                const uint32_t *a = reinterpret_cast<const uint32_t *>(operands + row * row_step);
                for (int word = 0; word < words; ++word, w += 3) {
                    add_triple<P>(a + word, step, differences, 2 * words, w, ones, twos);
                }
            }
        } else {
            const uint32_t *a = reinterpret_cast<const uint32_t *>(operands);
            int word = 0;
            for (; word + 3 <= words; word += 3, w += 3) {
                add_triple<P>(a + word, step, 1, 2, w, ones, twos);
            }
            for (; word < words; ++word, ++w) {
                const __m512i weight = *w;
#pragma GCC unroll 16
                for (int p = 0; p < P; ++p) {
                    const __m512i x = _mm512_xor_si512(
                        weight, _mm512_set1_epi32(static_cast<int>(a[p * step + word])));
                    ones[p] = _mm512_add_epi32(ones[p], _mm512_popcnt_epi32(x));
                }
            }
        }
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) {
            counts.values[p] =
                _mm512_cvtepi32_ps(_mm512_add_epi32(ones[p], _mm512_add_epi32(twos[p], twos[p])));
        }
    }
};

bool supported() { return x86_features().vpopcntdq; }

size_t weight_bytes(int out_channels, int kernel, int words) {
    return static_cast<size_t>(out_channels / Vpopcnt::group) * Vpopcnt::group_bytes(kernel, words);
}

// Lays weights out as [group][row of taps][word][3][16], with the three taps of a row as w1,
// w1 ^ w2, w3. The words of a 1 × 1 kernel are taken in threes in the same way, and words that are
// left over stay as they are.
void lay_out(const uint32_t *bits, int out_channels, int kernel, int words, void *weights) {
    uint32_t *to = static_cast<uint32_t *>(weights);
    const ptrdiff_t taps = kernel * kernel;
    for (int first = 0; first < out_channels; first += kLanes) {
        auto put = [&](auto value) {
            for (int lane = 0; lane < kLanes; ++lane) {
                *to++ = value(bits + (first + lane) * taps * words);
            }
        };
        auto put_triple = [&](int at, int step) {
            put([=](const uint32_t *w) { return w[at]; });
            put([=](const uint32_t *w) { return w[at] ^ w[at + step]; });
            put([=](const uint32_t *w) { return w[at + 2 * step]; });
        };
        if (kernel == 3) {
            for (int row = 0; row < 3; ++row) {
                for (int word = 0; word < words; ++word) put_triple(3 * row * words + word, words);
            }
        } else {
            int word = 0;
            for (; word + 3 <= words; word += 3) put_triple(word, 1);
            for (; word < words; ++word) put([=](const uint32_t *w) { return w[word]; });
        }
    }
}

size_t operand_pixel(int words, int /*kernel*/) { return static_cast<size_t>(words) * 4; }

uint64_t operand_row(int width, int kernel, int words) {
    return static_cast<uint64_t>(kernel == 3 ? 2 * (width + 2) : width) *
           operand_pixel(words, kernel);
}

// Writes, for a 3 × 3 kernel, the row with its border and then its xor with itself one pixel
// further. For a 1 × 1 kernel the second of three words is replaced by its xor with the first.
void expand(const uint32_t *signs, int width, int kernel, int /*stride*/, int words,
            uint8_t *operands) {
    uint32_t *to = reinterpret_cast<uint32_t *>(operands);
    const ptrdiff_t size = static_cast<ptrdiff_t>(width) * words;
    if (kernel == 1) {
        std::memcpy(to, signs, static_cast<size_t>(size) * 4);
        for (int x = 0; x < width; ++x, to += words) {
            for (int word = 0; word + 3 <= words; word += 3) to[word + 1] ^= to[word];
        }
        return;
    }
    const size_t border = static_cast<size_t>(words) * 4;
    std::memset(to, 0, border);
    std::memcpy(to + words, signs, static_cast<size_t>(size) * 4);
    std::memset(to + words + size, 0, border);
    uint32_t *differences = to + size + 2 * words;
    for (ptrdiff_t i = 0; i < size + words; ++i) differences[i] = to[i] ^ to[i + words];
}

// The differences of a code with the query, in eight sums. The last bytes are read under a mask.
BURN_INLINE __m512i differing(__m512i sums, const uint8_t *query, const uint8_t *code,
                              __mmask64 mask) {
    const __m512i x =
        _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, query), _mm512_maskz_loadu_epi8(mask, code));
    return _mm512_add_epi64(sums, _mm512_popcnt_epi64(x));
}

// In each quarter, the sum of a's two numbers and that of b's.
BURN_INLINE __m512i added_in_pairs(__m512i a, __m512i b) {
    return _mm512_add_epi64(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

// The sums of quarters 0 and 1, and of 2 and 3, of a and then of b.
BURN_INLINE __m512i added_quarters(__m512i a, __m512i b) {
    return _mm512_add_epi64(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xDD));
}

// Tier::hamming of codes of 64 bytes, eight at a time: three steps add the eight counts of each.
// Returns how many codes were compared.
size_t hamming_of_eights(__m512i query, const uint8_t *codes, size_t count, uint32_t *distances) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8, codes += 512) {
        __m512i bits[8];
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) {
            fetch_ahead(codes + 64 * j);
            const __m512i code = _mm512_loadu_si512(codes + 64 * j);
            bits[j] = _mm512_popcnt_epi64(_mm512_xor_si512(query, code));
        }
        const __m512i pairs[4] = {
            added_in_pairs(bits[0], bits[1]), added_in_pairs(bits[2], bits[3]),
            added_in_pairs(bits[4], bits[5]), added_in_pairs(bits[6], bits[7])};
        const __m512i sums =
            added_quarters(added_quarters(pairs[0], pairs[1]), added_quarters(pairs[2], pairs[3]));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(distances + i),
                            _mm512_cvtepi64_epi32(sums));
    }
    return i;
}

void hamming(const uint8_t *query, const uint8_t *codes, size_t count, size_t bytes,
             uint32_t *distances) {
    if (bytes == 64) {
        const __m512i whole_query = _mm512_loadu_si512(query);
        const size_t done = hamming_of_eights(whole_query, codes, count, distances);
        codes += 64 * done;
        distances += done;
        count -= done;
    }
    const size_t whole = bytes / 64 * 64;
    const __mmask64 rest = (__mmask64{1} << bytes % 64) - 1;
    for (size_t i = 0; i < count; ++i, codes += bytes) {
        __m512i sums = _mm512_setzero_si512();
        for (size_t at = 0; at < whole; at += 64) {
            sums = differing(sums, query + at, codes + at, ~__mmask64{0});
        }
        if (rest) sums = differing(sums, query + whole, codes + whole, rest);
        distances[i] = static_cast<uint32_t>(_mm512_reduce_add_epi64(sums));
    }
}

}  // namespace

extern const Tier tier_avx512_vpopcnt;
constexpr Tier tier_avx512_vpopcnt =
    tier_of<Vpopcnt>("avx512-vpopcnt", supported,
                     {weight_bytes, lay_out, operand_pixel, operand_row, expand, hamming});

}  // namespace burn
