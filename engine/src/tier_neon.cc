// NEON: 128 bits per instruction, of 128 input channels and one output channel where layers are
// wide (by_channel), else of 8 input channels and 16 output channels.
#include <arm_neon.h>

#include <cstring>

#include "byte_weights.h"
#include "operands.h"
#include "rows.h"

namespace burn {
namespace {

// Returns whether each sum is of one output channel. It needs one instruction for each 128 bits
// less, because nothing is repeated to all lanes, but a sum over the lanes at the end: with a
// single vector of signs that costs more than it saves.
bool by_channel(int kernel, int words) { return words % 4 == 0 && kernel * kernel * words >= 8; }

constexpr int kGroup = 16;
constexpr int kTogether = 4;  // output channels whose sums are computed at the same time

// Lays out [group][4 output channels][vector of 128 input channels][output channel of the four].
void lay_out_by_channel(const uint32_t *bits, int out_channels, int kernel, int words,
                        void *weights) {
    uint8_t *to = static_cast<uint8_t *>(weights);
    const ptrdiff_t num_words = static_cast<ptrdiff_t>(kernel) * kernel * words;
    for (int first = 0; first < out_channels; first += kTogether) {
        for (ptrdiff_t word = 0; word < num_words; word += 4) {
            for (int lane = 0; lane < kTogether; ++lane, to += 16) {
                std::memcpy(to, bits + (first + lane) * num_words + word, 16);
            }
        }
    }
}

void lay_out(const uint32_t *bits, int out_channels, int kernel, int words, void *weights) {
    const auto chosen = by_channel(kernel, words) ? lay_out_by_channel : lay_out_bytes<kGroup>;
    chosen(bits, out_channels, kernel, words, weights);
}

// Counts of P pixels and four output channels, as floats.
template <int P>
BURN_INLINE void count_four(const uint8_t *operands, ptrdiff_t step, ptrdiff_t row_step,
                            const uint8_t *weights, TapRows taps, int row_bytes,
                            float32x4_t *counts) {
    constexpr int kMost = 31;  // 31 · 8 fits the byte of a sum, 32 · 8 does not
    uint8x16_t sums[P][kTogether];
    uint16x8_t wide[P][kTogether];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
        for (int o = 0; o < kTogether; ++o) {
            sums[p][o] = vdupq_n_u8(0);
            wide[p][o] = vdupq_n_u16(0);
        }
    }
    auto flush = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
            for (int o = 0; o < kTogether; ++o) {
                wide[p][o] = vpadalq_u8(wide[p][o], sums[p][o]);
                sums[p][o] = vdupq_n_u8(0);
            }
        }
    };
    int left = kMost;
    weights += taps.begin * row_bytes * kTogether;
    for (int row = taps.begin; row < taps.end; ++row) {
        const uint8_t *a[P];
        for (int p = 0; p < P; ++p) a[p] = operands + row * row_step + p * step;
        int byte = 0;
        while (byte < row_bytes) {
            const int end = byte + 16 * left < row_bytes ? byte + 16 * left : row_bytes;
            left -= (end - byte) / 16;
            for (; byte < end; byte += 16, weights += 16 * kTogether) {
                uint8x16_t w[kTogether];
#pragma GCC unroll 4
                for (int o = 0; o < kTogether; ++o) w[o] = vld1q_u8(weights + 16 * o);
#pragma GCC unroll 4
                for (int p = 0; p < P; ++p) {
                    const uint8x16_t x = vld1q_u8(a[p] + byte);
#pragma GCC unroll 4
                    for (int o = 0; o < kTogether; ++o) {
                        sums[p][o] = vaddq_u8(sums[p][o], vcntq_u8(veorq_u8(w[o], x)));
                    }
                }
            }
            if (left == 0) {
                flush();
                left = kMost;
            }
        }
    }
    flush();
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
        const uint16x8_t first = vpaddq_u16(wide[p][0], wide[p][1]);
        const uint16x8_t last = vpaddq_u16(wide[p][2], wide[p][3]);
        counts[p * (kGroup / kTogether)] = vcvtq_f32_u32(vpaddlq_u16(vpaddq_u16(first, last)));
    }
}

// Counts of P pixels and a group, as floats: four of each pixel's channels after the other.
template <int P>
void count_by_channel(const uint8_t *operands, ptrdiff_t step, ptrdiff_t row_step,
                      const uint8_t *weights, int kernel, TapRows taps, int words,
                      float32x4_t *counts) {
    constexpr int kPixels = 4;  // with four channels 16 sums, which fit the registers
    constexpr int kParts = kGroup / kTogether;
    const int row_bytes = 4 * words * kernel;
    for (int part = 0; part < kParts; ++part, weights += kTogether * kernel * row_bytes) {
        if constexpr (P <= kPixels) {
            count_four<P>(operands, step, row_step, weights, taps, row_bytes, counts + part);
        } else {
            count_four<kPixels>(operands, step, row_step, weights, taps, row_bytes, counts + part);
            count_four<P - kPixels>(operands + kPixels * step, step, row_step, weights, taps,
                                    row_bytes, counts + kPixels * kParts + part);
        }
    }
}

struct Neon {
    static constexpr int group = kGroup;
    static constexpr int groups = 1;
    static constexpr int tile = 7;
    static constexpr int batch = 1;
    static constexpr int stem_tile = 4;

    static size_t group_bytes(int kernel, int words) {
        return byte_weights_size<group>(group, kernel, words);
    }

    struct Floats {
        float32x4_t v[4];
    };
    template <class Make>
    static BURN_INLINE Floats each(Make make) {
        return {{make(0), make(1), make(2), make(3)}};
    }
    static Floats load(const float *from) {
        return each([=](int i) { return vld1q_f32(from + 4 * i); });
    }
    static Floats load(const int16_t *from) {
        return each([=](int i) { return vcvtq_f32_s32(vmovl_s16(vld1_s16(from + 4 * i))); });
    }
    static void store(float *to, const Floats &x) {
        for (int i = 0; i < 4; ++i) vst1q_f32(to + 4 * i, x.v[i]);
    }
    static Floats all(float value) {
        return each([=](int) { return vdupq_n_f32(value); });
    }
    static Floats add(const Floats &a, const Floats &b) {
        return each([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
    }
    static Floats multiply_add(const Floats &a, const Floats &b, const Floats &c) {
        return each([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
    }
    static Floats leaky(const Floats &y, const Floats &slope) {
        return each([&](int i) {
            return vbslq_f32(vcgezq_f32(y.v[i]), y.v[i], vmulq_f32(y.v[i], slope.v[i]));
        });
    }
    static uint16_t at_least(const Floats &x, const Floats &threshold) {
        const uint32_t powers[4] = {1, 2, 4, 8};
        const uint32x4_t bit = vld1q_u32(powers);
        uint32_t mask = 0;
        for (int i = 0; i < 4; ++i) {
            mask |= vaddvq_u32(vandq_u32(vcgeq_f32(x.v[i], threshold.v[i]), bit)) << 4 * i;
        }
        return static_cast<uint16_t>(mask);
    }

    template <int P, int G>
    using Counts = FloatCounts<Neon, P, G>;

    template <int P, int G>
    static BURN_INLINE void count(const uint8_t *operands, ptrdiff_t step, ptrdiff_t row_step,
                                  const uint8_t *weights, int kernel, TapRows taps, int words,
                                  Counts<P, G> &counts) {
        if (by_channel(kernel, words)) {
            count_by_channel<P>(operands, step, row_step, weights, kernel, taps, words,
                                counts.values[0].v);
        } else {
            count_by_byte<P>(operands, step, row_step, weights, kernel, taps, words, counts);
        }
    }

    template <int P>
    static BURN_INLINE void count_by_byte(const uint8_t *operands, ptrdiff_t step,
                                          ptrdiff_t row_step, const uint8_t *weights, int kernel,
                                          TapRows taps, int words, Counts<P, 1> &counts) {
        constexpr int kMost =
            7;  // words of weights: 28 · 8 fits the byte of a sum, 32 · 8 does not
        uint8x16_t sums[P];
        uint16x8_t wide[P][2];
        for (int p = 0; p < P; ++p) {
            sums[p] = vdupq_n_u8(0);
            wide[p][0] = wide[p][1] = vdupq_n_u16(0);
        }
        auto flush = [&] {
            for (int p = 0; p < P; ++p) {
                wide[p][0] = vaddw_u8(wide[p][0], vget_low_u8(sums[p]));
                wide[p][1] = vaddw_high_u8(wide[p][1], sums[p]);
                sums[p] = vdupq_n_u8(0);
            }
        };
        int left = kMost;
        weights += taps.begin * kernel * words * 4 * group;
        for (int row = taps.begin; row < taps.end; ++row) {
            const uint8_t *a = operands + row * row_step;
            for (int word = 0; word < words * kernel; ++word, a += 4, weights += 4 * group) {
                uint8x16_t w[4];
                for (int byte = 0; byte < 4; ++byte) w[byte] = vld1q_u8(weights + byte * group);
#pragma GCC unroll 16
                for (int p = 0; p < P; ++p) {
                    uint32_t bits;
                    std::memcpy(&bits, a + p * step, 4);
                    const uint8x8_t x = vreinterpret_u8_u32(vdup_n_u32(bits));
                    uint8x16_t sum = sums[p];
                    sum = vaddq_u8(sum, vcntq_u8(veorq_u8(w[0], vdupq_lane_u8(x, 0))));
                    sum = vaddq_u8(sum, vcntq_u8(veorq_u8(w[1], vdupq_lane_u8(x, 1))));
                    sum = vaddq_u8(sum, vcntq_u8(veorq_u8(w[2], vdupq_lane_u8(x, 2))));
                    sums[p] = vaddq_u8(sum, vcntq_u8(veorq_u8(w[3], vdupq_lane_u8(x, 3))));
                }
                if (--left == 0) {
                    flush();
                    left = kMost;
                }
            }
        }
        flush();
        for (int p = 0; p < P; ++p) {
            counts.values[p] = {{vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide[p][0]))),
                                 vcvtq_f32_u32(vmovl_high_u16(wide[p][0])),
                                 vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide[p][1]))),
                                 vcvtq_f32_u32(vmovl_high_u16(wide[p][1]))}};
        }
    }
};

bool supported() { return true; }  // every aarch64 processor has NEON

}  // namespace

extern const Tier tier_neon;
constexpr Tier tier_neon = tier_of<Neon>(
    "neon", supported,
    {byte_weights_size<Neon::group>, lay_out, operand_pixel, operand_row, expand_plain});

}  // namespace burn
