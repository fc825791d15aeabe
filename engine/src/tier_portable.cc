// Plain C++, for every processor: one output channel × 32 input channels at a time.
#include "operands.h"
#include "rows.h"

namespace burn {
namespace {

struct Portable {
    static constexpr int group = 16;
    static constexpr int groups = 1;
    static constexpr int tile = 1;
    static constexpr int batch = 1;
    static constexpr int stem_tile = 1;

    static size_t group_bytes(int kernel, int words) {
        return static_cast<size_t>(kernel * kernel) * static_cast<size_t>(words) * 4 * group;
    }

    struct Floats {
        float v[kLanes];
    };
    template <class Make>
    static BURN_INLINE Floats each(Make make) {
        Floats made;
        for (int i = 0; i < kLanes; ++i) made.v[i] = make(i);
        return made;
    }
    static Floats load(const float *from) {
        return each([=](int i) { return from[i]; });
    }
    static Floats load(const int16_t *from) {
        return each([=](int i) { return static_cast<float>(from[i]); });
    }
    static void store(float *to, const Floats &x) {
        for (int i = 0; i < kLanes; ++i) to[i] = x.v[i];
    }
    static Floats all(float value) {
        return each([=](int) { return value; });
    }
    static Floats add(const Floats &a, const Floats &b) {
        return each([&](int i) { return a.v[i] + b.v[i]; });
    }
    static Floats multiply_add(const Floats &a, const Floats &b, const Floats &c) {
        return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
    }
    static Floats leaky(const Floats &y, const Floats &slope) {
        return each([&](int i) { return y.v[i] >= 0 ? y.v[i] : y.v[i] * slope.v[i]; });
    }
    static uint16_t at_least(const Floats &x, const Floats &threshold) {
        uint32_t mask = 0;
        for (int i = 0; i < kLanes; ++i) {
            mask |= static_cast<uint32_t>(x.v[i] >= threshold.v[i]) << i;
        }
        return static_cast<uint16_t>(mask);
    }

    template <int P, int G>
    using Counts = FloatCounts<Portable, P, G>;

    template <int P, int G>
    static BURN_INLINE void count(const uint8_t *operands, ptrdiff_t step, ptrdiff_t row_step,
                                  const uint8_t *weights, int kernel, TapRows taps, int words,
                                  Counts<P, G> &counts) {
        const uint32_t *w = reinterpret_cast<const uint32_t *>(weights);
        const int row_words = kernel * words;
        for (int p = 0; p < P; ++p) {
            for (int lane = 0; lane < group; ++lane) {
                const uint32_t *channel = w + (lane * kernel + taps.begin) * row_words;
                int count = 0;
                for (int row = taps.begin; row < taps.end; ++row) {
                    const uint32_t *a =
                        reinterpret_cast<const uint32_t *>(operands + p * step + row * row_step);
                    for (int i = 0; i < row_words; ++i) {
                        count += __builtin_popcount(a[i] ^ *channel++);
                    }
                }
                counts.values[p].v[lane] = static_cast<float>(count);
            }
        }
    }
};

bool supported() { return true; }

size_t weight_bytes(int out_channels, int kernel, int words) {
    return static_cast<size_t>(out_channels / Portable::group) *
           Portable::group_bytes(kernel, words);
}

void lay_out(const uint32_t *bits, int out_channels, int kernel, int words, void *weights) {
    std::memcpy(weights, bits, weight_bytes(out_channels, kernel, words));
}

}  // namespace

extern const Tier tier_portable;
constexpr Tier tier_portable = tier_of<Portable>(
    "portable", supported, {weight_bytes, lay_out, operand_pixel, operand_row, expand_plain});

}  // namespace burn
