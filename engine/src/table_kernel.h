// Counts differing bits with byte shuffles. Four activations choose one of 16 tables; its entry w
// is the number of bits in which w differs from them, and four weights are the index. One shuffle
// and one addition count 4 input channels for as many output channels as a vector has bytes.
#pragma once

#include <cstring>

#include "byte_weights.h"
#include "operands.h"
#include "rows.h"

namespace burn {
namespace {

struct Tables {
    alignas(64) uint8_t of[16][16];
    constexpr Tables() : of{} {
        for (int a = 0; a < 16; ++a) {
            for (int w = 0; w < 16; ++w) {
                int count = 0;
                for (int bit = 0; bit < 4; ++bit) count += ((a ^ w) >> bit) & 1;
                of[a][w] = static_cast<uint8_t>(count);
            }
        }
    }
};
constexpr Tables kTables;

// Writes operands, each the offset of the table of four activations: two bytes for eight channels.
void expand_to_tables(const uint32_t *signs, int width, int kernel, int /*stride*/, int words,
                      uint8_t *operands) {
    const size_t border = static_cast<size_t>(kernel / 2) * operand_pixel<8>(words, kernel);
    const size_t num_bytes = static_cast<size_t>(width) * static_cast<size_t>(words) * 4;
    const uint8_t *bytes = reinterpret_cast<const uint8_t *>(signs);
    std::memset(operands, 0, border);
    operands += border;
    for (size_t i = 0; i < num_bytes; ++i) {
        operands[2 * i] = static_cast<uint8_t>(bytes[i] << 4);
        operands[2 * i + 1] = bytes[i] & 0xF0;
    }
    std::memset(operands + 2 * num_bytes, 0, border);
}

// A kernel, as rows.h describes it, from an instruction set. Isa has Floats, groups, tile and
// stem_tile as rows.h describes them, and
//   Vector: a vector of `group` bytes
//   zero, load_weights, low and high (nibbles of each byte), add_bytes
//   table: 16 bytes, repeated through the vector; lookup: a table's entry for each byte
//   widen_add: adds bytes to uint16_t [group]; widen: converts kLanes of these to Floats
template <class Isa>
struct TableKernel : Isa {
    using Vector = typename Isa::Vector;
    static constexpr int group = Isa::group;

    static size_t group_bytes(int kernel, int words) {
        return byte_weights_size<group>(group, kernel, words);
    }

    template <int P, int G>
    using Counts = FloatCounts<Isa, P, G * group / kLanes>;

    // Each table is loaded once for all G groups.
    template <int P, int G>
    static BURN_INLINE void count(const uint8_t *operands, ptrdiff_t step, ptrdiff_t row_step,
                                  const uint8_t *weights, int kernel, int words,
                                  Counts<P, G> &counts) {
        // 31 bytes of weights: 31 · 8 fits the byte of a sum, 32 · 8 does not.
        constexpr int kMost = 31;
        const size_t next_group = group_bytes(kernel, words);
        Vector sums[P * G];
        alignas(64) uint16_t wide[P * G * group] = {};
#pragma GCC unroll 32
        for (int i = 0; i < P * G; ++i) sums[i] = Isa::zero();
        int left = kMost;
        auto flush = [&] {
            for (int i = 0; i < P * G; ++i) Isa::widen_add(sums[i], wide + i * group);
        };
        const int row_bytes = 4 * words * kernel;
        for (int row = 0; row < kernel; ++row) {
            const uint8_t *a = operands + row * row_step;
            for (int byte = 0; byte < row_bytes;) {
                const int end = byte + left < row_bytes ? byte + left : row_bytes;
                left -= end - byte;
                for (; byte < end; ++byte, weights += group) {
                    Vector low[G], high[G];
#pragma GCC unroll 4
                    for (int g = 0; g < G; ++g) {
                        const Vector w =
                            Isa::load_weights(weights + static_cast<size_t>(g) * next_group);
                        low[g] = Isa::low(w);
                        high[g] = Isa::high(w);
                    }
#pragma GCC unroll 16
                    for (int p = 0; p < P; ++p) {
                        const uint8_t *at = a + p * step + 2 * byte;
                        const Vector first = Isa::table(kTables.of[0] + at[0]);
                        const Vector second = Isa::table(kTables.of[0] + at[1]);
#pragma GCC unroll 4
                        for (int g = 0; g < G; ++g) {
                            const Vector both = Isa::add_bytes(Isa::lookup(first, low[g]),
                                                               Isa::lookup(second, high[g]));
                            sums[p * G + g] = Isa::add_bytes(sums[p * G + g], both);
                        }
                    }
                }
                if (left == 0) {
                    flush();
#pragma GCC unroll 32
                    for (int i = 0; i < P * G; ++i) sums[i] = Isa::zero();
                    left = kMost;
                }
            }
        }
        flush();
        for (int i = 0; i < P * G * group / kLanes; ++i) {
            counts.values[i] = Isa::widen(wide + i * kLanes);
        }
    }
};

}  // namespace
}  // namespace burn
