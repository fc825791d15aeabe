#include "resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace burn {
namespace {

// The interpolation's polynomials with a = -1/2.
double bicubic(double x) {
    x = std::fabs(x);
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    if (x < 2) return (((x - 5) * x + 8) * x - 4) * -0.5;
    return 0;
}

// Of which inputs some outputs are made.
struct Mix {
    size_t places = 0;              // for the weights of an output; those that it lacks are 0
    std::vector<int> first, count;  // [output]
    std::vector<int32_t> weights;   // [output][places], with kWeightBits bits behind the point
};

// Returns the mix of `outputs` outputs from `begin` on, where a side of `from` pixels gets `to`.
// `places` is rounded up to a multiple of `multiple`. The operations are Pillow's and in its order,
// so that the integers are the same.
Mix mix_of(int from, int to, int begin, int outputs, size_t multiple) {
    const double scale = static_cast<double>(from) / to;
    const double stretch = std::max(scale, 1.0);
    const double support = 2 * stretch;
    const size_t most = static_cast<size_t>(2 * support) + 2;
    Mix mix;
    mix.places = (most + multiple - 1) / multiple * multiple;
    mix.weights.resize(static_cast<size_t>(outputs) * mix.places);
    std::vector<double> shares(most);
    for (int i = 0; i < outputs; ++i) {
        const double middle = (begin + i + 0.5) * scale;
        const int first = std::max(static_cast<int>(middle - support + 0.5), 0);
        const int count = std::min(static_cast<int>(middle + support + 0.5), from) - first;
        double sum = 0;
        for (int k = 0; k < count; ++k) {
            const double share = bicubic((k + first - middle + 0.5) * (1 / stretch));
            shares[static_cast<size_t>(k)] = share;
            sum += share;
        }
        int32_t *weights = mix.weights.data() + static_cast<size_t>(i) * mix.places;
        for (int k = 0; k < count; ++k) {
            const double weight = shares[static_cast<size_t>(k)] / sum * (1 << kWeightBits);
            weights[k] = static_cast<int32_t>(weight < 0 ? weight - 0.5 : weight + 0.5);
        }
        mix.first.push_back(first);
        mix.count.push_back(count);
    }
    return mix;
}

}  // namespace

void resize(const Tier &tier, const uint8_t *pixels, int height, int width, int new_height,
            int new_width, int top, int left, int rows, int columns, uint8_t *out) {
    const Mix across = mix_of(width, new_width, left, columns, kMixPixels);
    const Mix down = mix_of(height, new_height, top, rows, 1);
    std::vector<ptrdiff_t> first_bytes;
    for (const int first : across.first) first_bytes.push_back(ptrdiff_t{3} * first);
    PixelMix pixel_mix;
    pixel_mix.count = columns;
    pixel_mix.steps = static_cast<int>(across.places) / kMixPixels;
    pixel_mix.first = first_bytes.data();
    pixel_mix.weights = across.weights.data();

    const size_t row_bytes = 3 * static_cast<size_t>(width);
    const size_t out_bytes = 3 * static_cast<size_t>(columns);
    const size_t step = (out_bytes + kMixBytes) / kMixBytes * kMixBytes;  // at least a byte more
    const int begin = down.first.front(), end = down.first.back() + down.count.back();
    std::vector<uint8_t> narrow(static_cast<size_t>(end - begin) * step), mixed(step);
    // mix_pixels reads some bytes behind a row, so that rows near the end are copied.
    const size_t behind = 3 * across.places + kMixBytes;
    std::vector<uint8_t> copy(row_bytes + behind);
    for (int y = begin; y < end; ++y) {
        const uint8_t *row = pixels + static_cast<size_t>(y) * row_bytes;
        if (static_cast<size_t>(height - 1 - y) * row_bytes < behind) {
            std::memcpy(copy.data(), row, row_bytes);
            row = copy.data();
        }
        tier.mix_pixels(row, pixel_mix, narrow.data() + static_cast<size_t>(y - begin) * step);
    }
    for (int y = 0; y < rows; ++y) {
        const size_t at = static_cast<size_t>(y);
        tier.mix_rows(narrow.data() + static_cast<size_t>(down.first[at] - begin) * step,
                      static_cast<ptrdiff_t>(step), down.weights.data() + at * down.places,
                      down.count[at], step, mixed.data());
        std::memcpy(out + at * out_bytes, mixed.data(), out_bytes);
    }
}

}  // namespace burn
