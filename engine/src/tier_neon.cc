// NEON: 16 output channels × 8 input channels per instruction.
#include <arm_neon.h>

#include "byte_weights.h"
#include "operands.h"
#include "rows.h"

namespace burn {
namespace {

struct Neon {
    static constexpr int group = 16;
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
                                  const uint8_t *weights, int kernel, int words,
                                  Counts<P, G> &counts) {
        // 31 bytes of weights: 31 · 8 fits the byte of a sum, 32 · 8 does not.
        constexpr int kMost = 31;
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
        const int row_bytes = 4 * words * kernel;
        for (int row = 0; row < kernel; ++row) {
            const uint8_t *a = operands + row * row_step;
            int byte = 0;
            while (byte < row_bytes) {
                const int end = byte + left < row_bytes ? byte + left : row_bytes;
                left -= end - byte;
                for (; byte < end; ++byte, weights += group) {
                    const uint8x16_t w = vld1q_u8(weights);
#pragma GCC unroll 16
                    for (int p = 0; p < P; ++p) {
                        const uint8x16_t x = veorq_u8(w, vld1q_dup_u8(a + p * step + byte));
                        sums[p] = vaddq_u8(sums[p], vcntq_u8(x));
                    }
                }
                if (left == 0) {
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
constexpr Tier tier_neon =
    tier_of<Neon>("neon", supported,
                  {byte_weights_size<Neon::group>, lay_out_bytes<Neon::group>, operand_pixel<4>,
                   operand_row<4>, expand_plain});

}  // namespace burn
