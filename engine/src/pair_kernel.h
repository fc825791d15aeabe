// Counts differing bits with byte shuffles, for two pixels at once. Four activations of each of two
// pixels choose one of 256 tables; its entry w holds the number of bits in which w differs from the
// first pixel's in its low four bits, and from the second pixel's in its high four bits. One
// shuffle counts 4 input channels of 2 pixels for as many output channels as a vector has bytes.
//
// Three entries are at most 12 and 12, so their sum S still has both counts apart: S = l + 16 h.
// Two sums of bytes keep them: the total of S, which is L + 16 H modulo 256, and the total of S
// shifted right by four bits in words of 16 bits, which is H in odd bytes, and in even bytes H plus
// 16 times L of the odd byte above them. So H of odd bytes gives their L, that gives H of even
// bytes, and that their L, all modulo 256: exact as long as neither exceeds 255.
#pragma once

#include <cstring>

#include "rows.h"

namespace burn {
namespace {

struct PairTables {
    alignas(64) uint8_t of[256][16];
    constexpr PairTables() : of{} {
        for (int pair = 0; pair < 256; ++pair) {
            for (int w = 0; w < 16; ++w) {
                int count = 0;
                for (int bit = 0; bit < 4; ++bit) {
                    count += ((pair ^ w) >> bit) & 1;
                    count += (((pair >> 4 ^ w) >> bit) & 1) << 4;
                }
                of[pair][w] = static_cast<uint8_t>(count);
            }
        }
    }
};
constexpr PairTables kPairTables;

// Four input channels make a part. Parts are taken in threes, and a row of taps is padded to whole
// threes with zeros, whose tables' entry 0 is 0. A 3 × 3 kernel's row needs no padding.
constexpr int kThree = 3;

constexpr int parts_of_pixel(int words, int kernel) {
    return kernel == 1 ? (8 * words + kThree - 1) / kThree * kThree : 8 * words;
}

constexpr int parts_of_row(int words, int kernel) { return kernel * parts_of_pixel(words, kernel); }

// The operand of a part is the offset of its table, in two bytes.
inline size_t pair_operand_pixel(int words, int kernel) {
    return 2 * static_cast<size_t>(parts_of_pixel(words, kernel));
}

inline uint64_t pair_operand_row(int width, int kernel, int words) {
    return static_cast<uint64_t>(width + kernel / 2 * 2) * pair_operand_pixel(words, kernel);
}

// A kernel, as rows.h describes it, from an instruction set. Isa has Floats, groups, tile and
// stem_tile as rows.h describes them, and
//   Vector: a vector of `group` bytes
//   pair_word: writes the operands of 32 channels of two pixels, 16 bytes
//   groups_of_two_pairs: most groups for which registers hold the sums of two pairs of pixels
//   zero, load, store, add_bytes
//   add_in_place: add_bytes into the first operand's register, since a copy is one more instruction
//   keep: keeps the compiler from moving a value's computation
//   table: 16 bytes, repeated through the vector; lookup: a table's entry for each byte
//   right<n>, left<n>: shifts of words of 16 bits; low_bytes: the low byte of each word
//   add_words, subtract_words
//   widen: converts kLanes uint16_t to Floats
template <class Isa>
struct PairKernel : Isa {
    using Vector = typename Isa::Vector;
    using Floats = typename Isa::Floats;
    static constexpr int group = Isa::group;
    static constexpr int kMost = 21;  // threes that bytes can sum: 21 · 12 = 252

    static size_t group_bytes(int kernel, int words) {
        return static_cast<size_t>(kernel * parts_of_row(words, kernel)) * group;
    }

    static size_t weight_bytes(int out_channels, int kernel, int words) {
        return static_cast<size_t>(out_channels / group) * group_bytes(kernel, words);
    }

    // Lays weights out as [group][tap][part][output channel of the group]. Even bytes have the
    // first half of the group's channels and odd bytes the second, which flush() takes apart.
    static void lay_out(const uint32_t *bits, int out_channels, int kernel, int words,
                        void *weights) {
        uint8_t *to = static_cast<uint8_t *>(weights);
        const int taps = kernel * kernel;
        for (int first = 0; first < out_channels; first += group) {
            for (int tap = 0; tap < taps; ++tap) {
                for (int part = 0; part < parts_of_pixel(words, kernel); ++part) {
                    for (int byte = 0; byte < group; ++byte) {
                        const int channel = first + byte / 2 + byte % 2 * (group / 2);
                        const uint32_t *word = bits + (channel * taps + tap) * words;
                        const uint32_t bits_of_part =
                            part < 8 * words ? word[part / 8] >> part % 8 * 4 & 15 : 0;
                        *to++ = static_cast<uint8_t>(bits_of_part);
                    }
                }
            }
        }
    }

    // Writes operands of each pixel and the one that is `stride` further, its neighbour in the
    // output; beyond the map there are zeros.
    static void expand(const uint32_t *signs, int width, int kernel, int stride, int words,
                       uint8_t *operands) {
        const ptrdiff_t size = static_cast<ptrdiff_t>(width) * words;
        const ptrdiff_t next = static_cast<ptrdiff_t>(stride) * words;
        if (kernel == 1) {
            expand_even(signs, size, next, words, operands);
            return;
        }
        ptrdiff_t i = -words;
        const auto up_to = [&](ptrdiff_t end, auto word) {
            for (; i < end; ++i, operands += 16) Isa::pair_word(word(i), word(i + next), operands);
        };
        const auto inside = [&](ptrdiff_t at) { return signs[at]; };
        const auto anywhere = [&](ptrdiff_t at) { return at >= 0 && at < size ? signs[at] : 0; };
        up_to(0, anywhere);
        up_to(size - next, inside);
        up_to(size + words, anywhere);
    }

    // The pairs of a 1 × 1 kernel begin at even pixels, and their parts are padded to threes.
    static void expand_even(const uint32_t *signs, ptrdiff_t size, ptrdiff_t next, int words,
                            uint8_t *operands) {
        const auto bytes = static_cast<ptrdiff_t>(pair_operand_pixel(words, 1));
        for (ptrdiff_t first = 0; first < size; first += 2 * words, operands += 2 * bytes) {
            for (ptrdiff_t i = 0; i < words; ++i) {
                const ptrdiff_t second = first + i + next;
                Isa::pair_word(signs[first + i], second < size ? signs[second] : 0,
                               operands + 16 * i);
            }
            std::memset(operands + 16 * words, 0, static_cast<size_t>(bytes - 16 * words));
        }
    }

    // The counts of a tile.
    template <int P, int G>
    struct Counts {
        static_assert(P % 2 == 0);
        alignas(64) uint16_t counts[P / 2 * G][2][group];

        Floats at(int pixel, int vector) const {
            constexpr int kVectors = group / kLanes;  // of a group
            const auto &pair = counts[pixel / 2 * G + vector / kVectors];
            return Isa::widen(pair[pixel % 2] + vector % kVectors * kLanes);
        }
    };

    // Counts at most kMost threes of a row of taps, and at least one, for Q pairs of pixels and G
    // groups, and sets `counts` or adds to them. step: bytes from pair to pair. A function of its
    // own, because GCC runs out of registers where it is not.
    template <int Q, int G, bool add>
    __attribute__((noinline)) static void count_threes(const uint8_t *operands, ptrdiff_t step,
                                                       const uint8_t *weights, size_t next_group,
                                                       int threes, uint16_t (*counts)[2][group]) {
        Vector total[Q * G], high[Q * G];
#pragma GCC unroll 16
        for (int i = 0; i < Q * G; ++i) total[i] = high[i] = Isa::zero();
        const uint8_t *const end = operands + threes * (2 * kThree);
        do {
            Vector three[Q * G];
#pragma GCC unroll 3
            for (int k = 0; k < kThree; ++k) {
                Vector table[Q];
#pragma GCC unroll 8
                for (int q = 0; q < Q; ++q) {
                    uint16_t offset;
                    std::memcpy(&offset, operands + q * step + 2 * k, 2);
                    table[q] = Isa::table(kPairTables.of[0] + offset);
                }
#pragma GCC unroll 4
                for (int g = 0; g < G; ++g) {
                    Vector w = Isa::load(weights + static_cast<size_t>(g) * next_group + k * group);
                    if (Q > 1) Isa::keep(w);  // else the lookup itself reads it from memory
#pragma GCC unroll 8
                    for (int q = 0; q < Q; ++q) {
                        const Vector entry = Isa::lookup(table[q], w);
                        Vector &sum = three[q * G + g];
                        sum = k ? Isa::add_bytes(sum, entry) : entry;
                        Isa::keep(sum);
                    }
                }
            }
#pragma GCC unroll 16
            for (int i = 0; i < Q * G; ++i) {
                Isa::add_in_place(total[i], three[i]);
                Isa::add_in_place(high[i], Isa::template right<4>(three[i]));
            }
            operands += 2 * kThree;
            weights += kThree * group;
        } while (operands < end);
        const auto minus_16_times = [](Vector a, Vector b) {  // modulo 256
            return Isa::low_bytes(Isa::subtract_words(a, Isa::template left<4>(b)));
        };
        const auto put = [](uint16_t *to, Vector words) {
            Isa::store(to, add ? Isa::add_words(Isa::load(to), words) : words);
        };
#pragma GCC unroll 16
        for (int i = 0; i < Q * G; ++i) {
            const Vector high_odd = Isa::template right<8>(high[i]);
            const Vector low_odd = minus_16_times(Isa::template right<8>(total[i]), high_odd);
            const Vector high_even = minus_16_times(high[i], low_odd);
            const Vector low_even = minus_16_times(total[i], high_even);
            put(counts[i][0], low_even);
            put(counts[i][0] + group / 2, low_odd);
            put(counts[i][1], high_even);
            put(counts[i][1] + group / 2, high_odd);
        }
    }

    // Counts in a row of the kernel, of the tiles that have it inside the map. Two pairs at once
    // read each weight once for both. Where registers do not hold the sums of two pairs and all
    // groups, one pair at a time takes fewer instructions than fewer groups would.
    template <int G, bool add, class TileCounts>
    static void count_tiles(const Tile *tiles, int num_tiles, int row, ptrdiff_t offset,
                            ptrdiff_t step, const uint8_t *weights, size_t next_group, int threes,
                            TileCounts *counts) {
        static_assert(Isa::tile == 4);
        for (int i = 0; i < num_tiles; ++i) {
            if (!tiles[i].taps.contain(row)) continue;
            const uint8_t *operands = tiles[i].operands + offset;
            auto *to = counts[i].counts;
            if constexpr (G <= Isa::groups_of_two_pairs) {
                if (tiles[i].pixels > 2) {
                    count_threes<2, G, add>(operands, 2 * step, weights, next_group, threes, to);
                    continue;
                }
            }
            for (int pixel = 0; pixel < tiles[i].pixels; pixel += 2) {
                count_threes<1, G, add>(operands + pixel * step, 2 * step, weights, next_group,
                                        threes, to + pixel / 2 * G);
            }
        }
    }

    // Takes as many weights as bytes can count, and counts them in all tiles, so that they are read
    // from the first cache. It begins with the kernel's middle row, which every tile has inside the
    // map, so that this row sets the counts and the others add to them.
    template <int G>
    static void count_batch(const Tile *tiles, int num_tiles, ptrdiff_t step, ptrdiff_t row_step,
                            const uint8_t *weights, int kernel, int words,
                            Counts<Isa::tile, G> *counts) {
        const size_t next_group = group_bytes(kernel, words);
        const int row_threes = parts_of_row(words, kernel) / kThree;
        const int parts = (row_threes + kMost - 1) / kMost;  // of a row, of about the same size
        for (int i = 0; i < kernel; ++i) {
            const int row = (kernel / 2 + i) % kernel;
            for (int part = 0; part < parts; ++part) {
                const int first = row_threes * part / parts;
                const int threes = row_threes * (part + 1) / parts - first;
                const ptrdiff_t offset = row * row_step + first * (2 * kThree);
                const uint8_t *from = weights + (row * row_threes + first) * (kThree * group);
                if (i || part) {
                    count_tiles<G, true>(tiles, num_tiles, row, offset, step, from, next_group,
                                         threes, counts);
                } else {
                    count_tiles<G, false>(tiles, num_tiles, row, offset, step, from, next_group,
                                          threes, counts);
                }
            }
        }
    }
};

}  // namespace
}  // namespace burn
