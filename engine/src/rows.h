// The loops around a tier's kernel: counts for a tile of pixels, then everything computed from
// them. All of it is in an anonymous namespace, because each tier compiles a copy of its own.
#pragma once

#include <cstring>

#include "hamming.h"
#include "resample.h"
#include "tier.h"

#define BURN_INLINE inline __attribute__((always_inline))

namespace burn {
namespace {

// The constants of a tile's output channels, in vectors of kLanes channels.
template <class Kernel, int kVectors>
struct ChannelConstants {
    typename Kernel::Floats multiplier[kVectors], slope[kVectors], threshold[kVectors];
    ptrdiff_t shortcut[kVectors];  // position of these channels in a pixel's shortcut

    ChannelConstants(const BinaryRows &r, int channel) {
        for (int v = 0; v < kVectors; ++v) {
            const int c = channel + v * kLanes;
            multiplier[v] = Kernel::load(r.layer->multiplier + c);
            slope[v] = Kernel::load(r.layer->slope + c);
            threshold[v] = r.next_threshold ? Kernel::load(r.next_threshold + c) : Kernel::all(0);
            shortcut[v] = r.shortcut ? c % r.shortcut_channels : 0;
        }
    }
};

// A kernel counts in which signs differ. It has:
//   group: number of output channels whose weights are stored together
//   groups: number of groups that it computes at once, a power of two; as the last channels have
//     fewer, half of it, and so on
//   tile: number of pixels that it computes at once; stem_tile: the same in the first convolution
//   batch: number of tiles whose counts it makes before anything is computed from them
//   group_bytes(kernel, words): size in bytes of the weights of one group
//   count<P, G>(operands, pixel_step, row_step, weights, kernel, taps, words, counts): counts, in
//     the rows `taps` of the kernel, the taps whose signs differ, of P pixels of a row and G groups
//     of output channels; operands and weights are those of the kernel's first row; Counts<P, G>:
//     the counts, whose at(pixel, vector) are Floats
//   count_batch<G>(tiles, num_tiles, pixel_step, row_step, weights, kernel, words, counts), if
//   batch
//     is not 1: the same for some tiles of up to `tile` pixels, each with its own rows
//   Floats: a vector of kLanes floats, with the functions load (of float or int16_t), store, all
//   (one value everywhere),
//     add, multiply_add (a · b + c), leaky (y where it is at least 0, else slope · y) and at_least
//     (16 bits)

// The rows of a kernel that lie inside the map for all pixels of a row.
struct TapRows {
    int begin = 0, end = 0;

    TapRows() = default;
    TapRows(int kernel, uint8_t row_class)
        : begin(row_class & kTop ? 1 : 0), end(row_class & kBottom ? kernel - 1 : kernel) {}
    bool contain(int row) const { return begin <= row && row < end; }
};

// Some pixels of a row, and their operands.
struct Tile {
    int row = 0, x = 0, pixels = 0;
    TapRows taps;
    const uint8_t *operands = nullptr;

    Tile() = default;
    Tile(const BinaryRows &r, int y, int first, int count)
        : row(y),
          x(first),
          pixels(count),
          taps(r.layer->kernel, r.row_class[y]),
          operands(r.operands + y * r.layer->stride * r.operand_row +
                   first * r.layer->stride * r.operand_pixel) {}
};

// Counts that are converted already, of P pixels and V vectors of channels.
template <class Kernel, int P, int V>
struct FloatCounts {
    using Floats = typename Kernel::Floats;
    Floats values[P * V];
    const Floats &at(int pixel, int vector) const { return values[pixel * V + vector]; }
};

// Computes everything from the counts of a tile's pixels and V vectors of output channels from
// `channel`. P: the number of pixels, if it is known, or else 0.
template <class Kernel, int P, int V, bool has_shortcut, bool has_signs, class Counts>
BURN_INLINE void finish(const BinaryRows &r, const ChannelConstants<Kernel, V> &constants,
                        const Tile &tile, int channel, const Counts &counts) {
    using Floats = typename Kernel::Floats;
    const int row = tile.row, x = tile.x;
    const ptrdiff_t out_channels = r.layer->out_channels;
    // Local copies, because the compiler must assume that storing floats changes what r points to.
    const uint8_t *column_class = r.column_class + x;
    const float *bias = r.layer->bias + r.row_class[row] * out_channels + channel;
    const ptrdiff_t shortcut_pixel = r.shortcut_pixel;
    const float *shortcut =
        has_shortcut ? r.shortcut + row * r.shortcut_row + x * shortcut_pixel : nullptr;
    const ptrdiff_t out_pixel = r.out_pixel;
    float *out = r.out + row * r.out_row + x * out_pixel + channel;
    const ptrdiff_t sign_pixel = 2 * r.sign_words;
    uint16_t *signs = nullptr;
    if (has_signs) {
        signs = reinterpret_cast<uint16_t *>(r.signs) +
                (static_cast<ptrdiff_t>(row) * r.width + x) * sign_pixel + channel / kLanes;
    }
    constexpr bool may_sum = !has_shortcut && !has_signs;
    Floats total[V];
    if constexpr (may_sum) {
        for (Floats &sum : total) sum = Kernel::all(0.0f);
    }
    const auto compute = [&](int p) __attribute__((always_inline)) {
        const float *pixel_bias = bias + column_class[p] * out_channels;
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
            Floats y = Kernel::multiply_add(counts.at(p, v), constants.multiplier[v],
                                            Kernel::load(pixel_bias + v * kLanes));
            if (has_shortcut) y = Kernel::add(y, Kernel::load(shortcut + constants.shortcut[v]));
            const Floats z = Kernel::leaky(y, constants.slope[v]);
            Kernel::store(out + v * kLanes, z);
            if (may_sum) total[v] = Kernel::add(total[v], z);
            if (has_signs) signs[v] = Kernel::at_least(z, constants.threshold[v]);
        }
        shortcut += shortcut_pixel;
        out += out_pixel;
        signs += sign_pixel;
    };
    if constexpr (P > 0) {  // the counts may be in registers
#pragma GCC unroll 32
        for (int p = 0; p < P; ++p) compute(p);
    } else {
#pragma GCC unroll 1
        for (int p = 0; p < tile.pixels; ++p) compute(p);
    }
    if constexpr (may_sum) {
        if (!r.sums) return;
        float *sums = r.sums + row * r.sums_row + channel;
        for (int v = 0; v < V; ++v) {
            float *sum = sums + v * kLanes;
            Kernel::store(sum, Kernel::add(Kernel::load(sum), total[v]));
        }
    }
}

// Counts and computes a tile of P pixels.
template <class Kernel, int P, int G, int V, bool has_shortcut, bool has_signs>
BURN_INLINE void count_and_finish(const BinaryRows &r, const ChannelConstants<Kernel, V> &constants,
                                  const Tile &tile, int channel, const uint8_t *weights) {
    const BinaryLayer &layer = *r.layer;
    typename Kernel::template Counts<P, G> counts;
    Kernel::template count<P, G>(tile.operands, layer.stride * r.operand_pixel, r.operand_row,
                                 weights, layer.kernel, tile.taps, layer.in_words, counts);
    finish<Kernel, P, V, has_shortcut, has_signs>(r, constants, tile, channel, counts);
}

// Counts and computes the last tile of a row, of at most P pixels.
template <class Kernel, int P, int G, int V, bool has_shortcut, bool has_signs>
void last_tile(const BinaryRows &r, const ChannelConstants<Kernel, V> &constants, const Tile &tile,
               int channel, const uint8_t *weights) {
    if constexpr (P > 0) {
        if (tile.pixels == P) {
            count_and_finish<Kernel, P, G, V, has_shortcut, has_signs>(r, constants, tile, channel,
                                                                       weights);
        } else {
            last_tile<Kernel, P - 1, G, V, has_shortcut, has_signs>(r, constants, tile, channel,
                                                                    weights);
        }
    }
}

// Counts all pixels of G groups of output channels from `channel`, and computes V vectors of them.
template <class Kernel, int G, int V, bool has_shortcut, bool has_signs>
void all_pixels(const BinaryRows &r, int channel, const uint8_t *weights) {
    constexpr int P = Kernel::tile;
    const ChannelConstants<Kernel, V> constants(r, channel);
    if constexpr (Kernel::batch == 1) {
        for (int row = 0; row < r.num_rows; ++row) {
            int x = 0;
            for (; x + P <= r.width; x += P) {
                count_and_finish<Kernel, P, G, V, has_shortcut, has_signs>(
                    r, constants, Tile(r, row, x, P), channel, weights);
            }
            last_tile<Kernel, P - 1, G, V, has_shortcut, has_signs>(
                r, constants, Tile(r, row, x, r.width - x), channel, weights);
        }
    } else {
        const BinaryLayer &layer = *r.layer;
        Tile tiles[Kernel::batch];
        typename Kernel::template Counts<P, G> counts[Kernel::batch];
        int num_tiles = 0;
        const auto compute = [&] {
            Kernel::template count_batch<G>(tiles, num_tiles, layer.stride * r.operand_pixel,
                                            r.operand_row, weights, layer.kernel, layer.in_words,
                                            counts);
            for (int i = 0; i < num_tiles; ++i) {
                finish<Kernel, 0, V, has_shortcut, has_signs>(r, constants, tiles[i], channel,
                                                              counts[i]);
            }
            num_tiles = 0;
        };
        for (int row = 0; row < r.num_rows; ++row) {
            for (int x = 0; x < r.width; x += P) {
                tiles[num_tiles++] = Tile(r, row, x, r.width - x < P ? r.width - x : P);
                if (num_tiles == Kernel::batch) compute();
            }
        }
        if (num_tiles) compute();
    }
}

// Computes the last output channels, at most V vectors of a group.
template <class Kernel, int V, bool has_shortcut, bool has_signs>
void last_channels(const BinaryRows &r, int channel, const uint8_t *weights) {
    if constexpr (V > 0) {
        if (channel + V * kLanes == r.layer->out_channels) {
            all_pixels<Kernel, 1, V, has_shortcut, has_signs>(r, channel, weights);
        } else {
            last_channels<Kernel, V - 1, has_shortcut, has_signs>(r, channel, weights);
        }
    }
}

// Computes all pixels of the output channels from `channel`, G groups at a time as long as so many
// are left, then fewer. weights: those of these channels.
template <class Kernel, int G, bool has_shortcut, bool has_signs>
void channels_from(const BinaryRows &r, int channel, const uint8_t *weights) {
    constexpr int kVectors = Kernel::group / kLanes;
    const BinaryLayer &layer = *r.layer;
    const size_t group_bytes = Kernel::group_bytes(layer.kernel, layer.in_words);
    while (channel + G * Kernel::group <= layer.out_channels) {
        all_pixels<Kernel, G, G * kVectors, has_shortcut, has_signs>(r, channel, weights);
        channel += G * Kernel::group;
        weights += G * group_bytes;
    }
    if constexpr (G > 1) {
        channels_from<Kernel, G / 2, has_shortcut, has_signs>(r, channel, weights);
    } else {
        last_channels<Kernel, kVectors - 1, has_shortcut, has_signs>(r, channel, weights);
    }
}

template <class Kernel, bool has_shortcut, bool has_signs>
void all_channels(const BinaryRows &r) {
    channels_from<Kernel, Kernel::groups, has_shortcut, has_signs>(
        r, 0, static_cast<const uint8_t *>(r.layer->weights));
}

template <class Kernel>
void binary_rows(const BinaryRows &r) {
    if (r.shortcut) {
        r.signs ? all_channels<Kernel, true, true>(r) : all_channels<Kernel, true, false>(r);
    } else {
        r.signs ? all_channels<Kernel, false, true>(r) : all_channels<Kernel, false, false>(r);
    }
}

template <class Kernel, int P>
inline void stem_tile(const StemRows &r, int group, int x) {
    const int row_taps = 3 * r.kernel;
    const float *weights = r.weights + static_cast<ptrdiff_t>(group) * r.kernel * row_taps * kLanes;
    const int step = 3 * r.stride;
    using Floats = typename Kernel::Floats;
    Floats sum[P];
#pragma GCC unroll 32
    for (int p = 0; p < P; ++p) sum[p] = Kernel::load(r.bias + group * kLanes);
    for (int row = 0; row < r.kernel; ++row) {
        const float *input = r.input[row] + x * step;
        for (int tap = 0; tap < row_taps; ++tap) {
            const Floats weight = Kernel::load(weights);
            weights += kLanes;
#pragma GCC unroll 32
            for (int p = 0; p < P; ++p) {
                sum[p] = Kernel::multiply_add(weight, Kernel::all(input[p * step + tap]), sum[p]);
            }
        }
    }
    const Floats threshold =
        r.next_threshold ? Kernel::load(r.next_threshold + group * kLanes) : Kernel::all(0);
    float *out = r.out + x * r.out_pixel + group * kLanes;
    const ptrdiff_t out_pixel = r.out_pixel, sign_pixel = 2 * r.sign_words;
    uint16_t *signs = reinterpret_cast<uint16_t *>(r.signs);
    if (signs) signs += x * sign_pixel + group;
#pragma GCC unroll 32
    for (int p = 0; p < P; ++p) {
        Kernel::store(out + p * out_pixel, sum[p]);
        if (signs) signs[p * sign_pixel] = Kernel::at_least(sum[p], threshold);
    }
}

template <class Kernel>
void stem_row(const StemRows &r) {
    constexpr int P = Kernel::stem_tile;
    for (int group = 0; group < r.num_groups; ++group) {
        int x = 0;
        for (; x + P <= r.width; x += P) stem_tile<Kernel, P>(r, group, x);
        for (; x < r.width; ++x) stem_tile<Kernel, 1>(r, group, x);
    }
}

template <class Kernel, bool has_slope>
void mean_row_with(const float *top, const float *bottom, const float *slope, int width,
                   int channels, float *out) {
    const auto quarter = Kernel::all(0.25f), zero = Kernel::all(0.0f);
    for (int x = 0; x < width; x += 2, out += channels) {
        const ptrdiff_t left = static_cast<ptrdiff_t>(x) * channels;
        const ptrdiff_t right = x + 1 < width ? left + channels : left;
        for (int c = 0; c < channels; c += kLanes) {
            const auto value = [&](const float *row,
                                   ptrdiff_t pixel) __attribute__((always_inline)) {
                const auto y = Kernel::load(row + pixel + c);
                return has_slope ? Kernel::leaky(y, Kernel::load(slope + c)) : y;
            };
            const auto above = Kernel::add(value(top, left), value(top, right));
            const auto below = Kernel::add(value(bottom, left), value(bottom, right));
            Kernel::store(out + c, Kernel::multiply_add(Kernel::add(above, below), quarter, zero));
        }
    }
}

template <class Kernel>
void mean_row(const float *top, const float *bottom, const float *slope, int width, int channels,
              float *out) {
    if (!bottom) bottom = top;  // the mean of a row with itself
    slope ? mean_row_with<Kernel, true>(top, bottom, slope, width, channels, out)
          : mean_row_with<Kernel, false>(top, bottom, slope, width, channels, out);
}

// Rows are worked on in blocks of this many vectors of channels. Pixels are a power of two of bytes
// apart in many maps, so single vectors of a row's pixels would share a few sets of the cache.
constexpr int kBlock = 2;

template <class Kernel, int V>
void sum_block(const float *row, int width, int channels, float *sum) {
    typename Kernel::Floats total[V];
    for (int v = 0; v < V; ++v) total[v] = Kernel::all(0.0f);
    for (int x = 0; x < width; ++x, row += channels) {
        for (int v = 0; v < V; ++v) {
            total[v] = Kernel::add(total[v], Kernel::load(row + v * kLanes));
        }
    }
    for (int v = 0; v < V; ++v) Kernel::store(sum + v * kLanes, total[v]);
}

template <class Kernel>
void sum_row(const float *row, int width, int channels, float *sum) {
    int c = 0;
    for (; c + kBlock * kLanes <= channels; c += kBlock * kLanes) {
        sum_block<Kernel, kBlock>(row + c, width, channels, sum + c);
    }
    for (; c < channels; c += kLanes) sum_block<Kernel, 1>(row + c, width, channels, sum + c);
}

template <class Kernel>
void leaky_row(const float *row, const float *slope, int width, int channels, float *out) {
    for (int x = 0; x < width; ++x, row += channels, out += channels) {
        for (int c = 0; c < channels; c += kLanes) {
            Kernel::store(out + c, Kernel::leaky(Kernel::load(row + c), Kernel::load(slope + c)));
        }
    }
}

template <class Kernel>
void sign_row(const float *row, const float *threshold, int width, int channels, int words,
              uint32_t *signs) {
    for (int x = 0; x < width; ++x, row += channels) {
        uint16_t *to = reinterpret_cast<uint16_t *>(signs) + static_cast<ptrdiff_t>(x) * 2 * words;
        for (int c = 0; c < channels; c += kLanes) {
            to[c / kLanes] = Kernel::at_least(Kernel::load(row + c), Kernel::load(threshold + c));
        }
    }
}

// Computes the V vectors of channels from `c` of all pixels. has_slopes: whether any slope is
// not 1.
template <class Kernel, int V, bool has_shortcut, bool product, bool has_slopes>
void gated_block(const GatedRows &r, int c) {
    using Floats = typename Kernel::Floats;
    const auto zero = Kernel::all(0.0f), one = Kernel::all(1.0f);
    Floats factor[V], shift[V], slope[V], out_slope[V], threshold[V];
    ptrdiff_t from[V] = {};
    for (int v = 0; v < V; ++v) {
        const int at = c + v * kLanes;
        factor[v] = Kernel::load(r.factor + at);
        shift[v] = Kernel::load(r.shift + at);
        out_slope[v] = r.slope ? Kernel::load(r.slope + at) : one;
        threshold[v] = r.signs ? Kernel::load(r.next_threshold + at) : zero;
        if (has_shortcut) from[v] = at % r.shortcut_channels;
        slope[v] = r.shortcut_slope ? Kernel::load(r.shortcut_slope + from[v]) : one;
    }
    const ptrdiff_t channels = r.channels, shortcut_pixel = r.shortcut_pixel;
    const ptrdiff_t sign_pixel = 2 * r.sign_words;
    const float *shortcut = r.shortcut;
    float *map = r.map + c;
    uint16_t *signs = r.signs ? reinterpret_cast<uint16_t *>(r.signs) + c / kLanes : nullptr;
    for (int row = 0; row < r.num_rows; ++row) {
        Floats total[V];
        for (Floats &sum : total) sum = zero;
        for (int x = 0; x < r.width; ++x) {
            for (int v = 0; v < V; ++v) {
                Floats y = Kernel::load(map + v * kLanes);
                if (has_shortcut) {
                    Floats p = Kernel::load(shortcut + from[v]);
                    if (has_slopes) p = Kernel::leaky(p, slope[v]);
                    if (product) y = Kernel::multiply_add(y, p, zero);
                    y = Kernel::multiply_add(y, factor[v], Kernel::add(p, shift[v]));
                } else {
                    y = Kernel::multiply_add(y, factor[v], shift[v]);
                }
                if (has_slopes) y = Kernel::leaky(y, out_slope[v]);
                Kernel::store(map + v * kLanes, y);
                total[v] = Kernel::add(total[v], y);
                if (signs) signs[v] = Kernel::at_least(y, threshold[v]);
            }
            map += channels;
            if (has_shortcut) shortcut += shortcut_pixel;
            if (signs) signs += sign_pixel;
        }
        if (!r.sums) continue;
        for (int v = 0; v < V; ++v) {
            Kernel::store(r.sums + row * channels + c + v * kLanes, total[v]);
        }
    }
}

template <class Kernel, bool has_shortcut, bool product, bool has_slopes>
void gated_blocks(const GatedRows &r) {
    int c = 0;
    for (; c + kBlock * kLanes <= r.channels; c += kBlock * kLanes) {
        gated_block<Kernel, kBlock, has_shortcut, product, has_slopes>(r, c);
    }
    for (; c < r.channels; c += kLanes) {
        gated_block<Kernel, 1, has_shortcut, product, has_slopes>(r, c);
    }
}

template <class Kernel>
void gated_rows(const GatedRows &r) {
    const bool slopes = r.slope || r.shortcut_slope;
    if (!r.shortcut) {
        gated_blocks<Kernel, false, false, true>(r);
    } else if (r.product) {
        slopes ? gated_blocks<Kernel, true, true, true>(r)
               : gated_blocks<Kernel, true, true, false>(r);
    } else {
        slopes ? gated_blocks<Kernel, true, false, true>(r)
               : gated_blocks<Kernel, true, false, false>(r);
    }
}

template <class Kernel, int P>
inline void dense_tile(const DenseRow &r, int group, int x) {
    const float *weights = r.weights + static_cast<ptrdiff_t>(group) * r.in * kLanes;
    const float *input = r.input + x * r.in_pixel;
    const ptrdiff_t in_pixel = r.in_pixel;
    typename Kernel::Floats sum[P];
#pragma GCC unroll 32
    for (int p = 0; p < P; ++p) sum[p] = Kernel::load(r.bias + group * kLanes);
    for (int i = 0; i < r.in; ++i) {
        const auto weight = Kernel::load(weights);
        weights += kLanes;
#pragma GCC unroll 32
        for (int p = 0; p < P; ++p) {
            sum[p] = Kernel::multiply_add(weight, Kernel::all(input[p * in_pixel + i]), sum[p]);
        }
    }
    const auto slope = Kernel::load(r.slope + group * kLanes);
    float *out = r.out + x * r.out_pixel + group * kLanes;
#pragma GCC unroll 32
    for (int p = 0; p < P; ++p) Kernel::store(out + p * r.out_pixel, Kernel::leaky(sum[p], slope));
}

template <class Kernel>
void dense_row(const DenseRow &r) {
    constexpr int P = Kernel::stem_tile;
    for (int group = 0; group < r.num_groups; ++group) {
        int x = 0;
        for (; x + P <= r.width; x += P) dense_tile<Kernel, P>(r, group, x);
        for (; x < r.width; ++x) dense_tile<Kernel, 1>(r, group, x);
    }
}

void to_unit(const uint8_t *bytes, size_t count, float *out) {
    for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>(bytes[i]) * (1.0f / 255.0f);
}

// Returns Σ weight[i] x[i]. `in` is a multiple of kLanes.
template <class Kernel>
float dot_product(const float *weight, const float *x, int in) {
    typename Kernel::Floats sums[4];
    for (auto &sum : sums) sum = Kernel::all(0.0f);
    int i = 0;
    for (; i + 4 * kLanes <= in; i += 4 * kLanes) {
#pragma GCC unroll 4
        for (int s = 0; s < 4; ++s) {
            const int at = i + s * kLanes;
            sums[s] =
                Kernel::multiply_add(Kernel::load(weight + at), Kernel::load(x + at), sums[s]);
        }
    }
    for (; i < in; i += kLanes) {
        sums[0] = Kernel::multiply_add(Kernel::load(weight + i), Kernel::load(x + i), sums[0]);
    }
    float lanes[kLanes];
    Kernel::store(lanes, Kernel::add(Kernel::add(sums[0], sums[1]), Kernel::add(sums[2], sums[3])));
    float total = 0;
    for (const float lane : lanes) total += lane;
    return total;
}

template <class Kernel>
void linear(const float *weight, const float *bias, const float *x, int in, int out, float *y) {
    for (int o = 0; o < out; ++o) {
        y[o] = bias[o] + dot_product<Kernel>(weight + static_cast<ptrdiff_t>(o) * in, x, in);
    }
}

// Each lane sums for an output of its own, so that nothing is added up across lanes.
template <class Kernel>
void rounded_linear(const int16_t *weight, const float *scale, const float *bias, const float *x,
                    int in, int num_groups, float *y) {
    for (int group = 0; group < num_groups; ++group) {
        typename Kernel::Floats sums[4];  // as many as hide how long an addition takes
        for (auto &sum : sums) sum = Kernel::all(0.0f);
        int i = 0;
        for (; i + 4 <= in; i += 4, weight += 4 * kLanes) {
#pragma GCC unroll 4
            for (int s = 0; s < 4; ++s) {
                sums[s] = Kernel::multiply_add(Kernel::load(weight + s * kLanes),
                                               Kernel::all(x[i + s]), sums[s]);
            }
        }
        for (; i < in; ++i, weight += kLanes) {
            sums[0] = Kernel::multiply_add(Kernel::load(weight), Kernel::all(x[i]), sums[0]);
        }
        const auto total =
            Kernel::add(Kernel::add(sums[0], sums[1]), Kernel::add(sums[2], sums[3]));
        const int o = group * kLanes;
        Kernel::store(y + o,
                      Kernel::multiply_add(total, Kernel::load(scale + o), Kernel::load(bias + o)));
    }
}

// Written plainly, since compilers make vectors of it. e^x = 2^n · e^r with |r| at most ln(2) / 2,
// for which a polynomial of degree 6 has a relative error of 2e-8.
void sigmoid(const float *scale, int count, float *x) {
    constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: floats of this size are integers
    for (int i = 0; i < count; ++i) {
        float value = -x[i];
        value = value > 87.0f ? 87.0f : value;
        value = value < -87.0f ? -87.0f : value;
        const float n = (value * 1.44269504f + kRound) - kRound;
        const float r = (value - n * 0.693359375f) + n * 2.12194440e-4f;  // ln(2) in two parts
        float power = 1.0f / 720;
        for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
            power = power * r + c;
        }
        const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
        float two_to_n;
        std::memcpy(&two_to_n, &bits, sizeof bits);
        x[i] = scale[i] / (1.0f + power * two_to_n);
    }
}

// How an instruction set stores weights and operands, and compares codes: the functions of Tier
// with these names.
struct Layout {
    decltype(Tier::weight_bytes) weight_bytes;
    decltype(Tier::lay_out) lay_out;
    decltype(Tier::operand_pixel) operand_pixel;
    decltype(Tier::operand_row) operand_row;
    decltype(Tier::expand) expand;
    decltype(Tier::hamming) hamming = hamming_plain;
};

// Returns the tier of a kernel.
template <class Kernel>
constexpr Tier tier_of(const char *name, bool (*supported)(), const Layout &layout) {
    return {
        name,
        supported,
        Kernel::group,
        layout.weight_bytes,
        layout.lay_out,
        layout.operand_pixel,
        layout.operand_row,
        layout.expand,
        binary_rows<Kernel>,
        stem_row<Kernel>,
        mean_row<Kernel>,
        sum_row<Kernel>,
        leaky_row<Kernel>,
        sign_row<Kernel>,
        gated_rows<Kernel>,
        dense_row<Kernel>,
        to_unit,
        linear<Kernel>,
        rounded_linear<Kernel>,
        sigmoid,
#if !defined(__wasm__)
        mix_pixels,
        mix_rows,
#endif
        layout.hamming,
    };
}

}  // namespace
}  // namespace burn
