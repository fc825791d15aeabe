// How a plan runs a branched_convolution.
#include <algorithm>

#include "plan_parts.h"

namespace burn {

// Computes a branched_convolution: first all rows of the first convolution and of the narrow one,
// then the rows of the output.
void Plan::run_branched(const Input &image, int thread) {
    const Layer &layer = model_.program().layers[0];
    const Branched &b = layer.branched;
    const Model::Ready &ready = model_.ready(0);
    const Tier &tier = model_.tier();
    const Map &out = maps_[0];
    Scratch &scratch = scratch_[to_size(thread)];
    const int threads = workers_.size(), width = first_.width;
    const ptrdiff_t first_row = static_cast<ptrdiff_t>(width) * ready.out_pitch;
    const ptrdiff_t narrow_row = static_cast<ptrdiff_t>(width) * ready.narrow.out_pitch;
    const int begin = first_.height * thread / threads;
    scratch.next_image_row = begin * layer.stride - layer.kernel / 2;
    for (int y = begin; y < first_.height * (thread + 1) / threads; ++y) {
        float *values = first_values_.as<float>() + y * first_row;
        StemRows r;
        r.kernel = layer.kernel;
        r.stride = layer.stride;
        r.width = width;
        r.num_groups = ready.out_pitch / kLanes;
        r.weights = ready.weights.as<float>();
        r.bias = ready.bias.as<float>();
        r.input = image_rows(image, y, thread);
        r.out = values;
        r.out_pixel = ready.out_pitch;
        tier.stem_row(r);
        tier.leaky_row(values, ready.slope.as<float>(), width, ready.out_pitch, values);
        tier.dense_row(dense_row(ready.narrow, width, values, ready.out_pitch,
                                 narrow_values_.as<float>() + y * narrow_row,
                                 ready.narrow.out_pitch));
    }
    workers_.barrier();
    float *taps = scratch.rows[0].as<float>(), *wide = scratch.rows[1].as<float>();
    float *both = scratch.rows[2].as<float>();
    const int k = b.widen_kernel, stride = b.second_stride;
    const int from = b.first.out, narrow = b.narrow.out, widened = b.widen.out, in = b.last.in;
    for (int y = out.height * thread / threads; y < out.height * (thread + 1) / threads; ++y) {
        float *to = taps;
        for (int x = 0; x < out.width; ++x) {
            for (int tap = 0; tap < k * k; ++tap, to += narrow) {
                const int row = y * stride + tap / k - k / 2, column = x * stride + tap % k - k / 2;
                if (row < 0 || row >= first_.height || column < 0 || column >= width) {
                    std::fill_n(to, narrow, 0.0f);
                } else {
                    std::copy_n(narrow_values_.as<float>() + row * narrow_row +
                                    static_cast<ptrdiff_t>(column) * ready.narrow.out_pitch,
                                narrow, to);
                }
            }
        }
        tier.dense_row(
            dense_row(ready.widen, out.width, taps, b.widen.in, wide, ready.widen.out_pitch));
        for (int x = 0; x < out.width; ++x) {
            float *pixel = both + static_cast<ptrdiff_t>(x) * in;
            std::copy_n(wide + static_cast<ptrdiff_t>(x) * ready.widen.out_pitch, widened, pixel);
            float *largest = pixel + widened;
            std::fill_n(largest, from, 0.0f);  // no value of the first convolution is below it
            for (int row = std::max(0, y * stride - 1);
                 row < std::min(first_.height, y * stride + 2); ++row) {
                for (int column = std::max(0, x * stride - 1);
                     column < std::min(width, x * stride + 2); ++column) {
                    const float *value = first_values_.as<float>() + row * first_row +
                                         static_cast<ptrdiff_t>(column) * ready.out_pitch;
                    for (int c = 0; c < from; ++c) largest[c] = std::max(largest[c], value[c]);
                }
            }
        }
        tier.dense_row(dense_row(ready.last, out.width, both, in, out.row(0, y), out.pitch));
        if (!out.kernel) continue;
        GatedRows r;
        r.num_rows = 1;
        r.width = out.width;
        r.channels = out.pitch;
        r.map = out.row(0, y);
        r.factor = ready.scale.as<float>();
        r.shift = ready.shift.as<float>();
        r.sums = out.sums_at(y);
        r.next_threshold = out.threshold;
        r.signs = scratch.signs.as<uint32_t>();
        r.sign_words = out.words;
        clear_padding(r.signs, r.sign_words, out.pitch, out.width);
        tier.gated_rows(r);
        write_operands(out, thread, y, r.signs);
    }
}

}  // namespace burn
