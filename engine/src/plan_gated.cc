// How a plan runs a gated_convolution.
#include <algorithm>

#include "plan_parts.h"

namespace burn {

namespace {

// Adds `rows` sums [row][channels] up in order, whatever the threads that made them, and divides.
void means_of(const Tier &tier, const float *sums, int rows, int channels, int pixels,
              float *means) {
    tier.sum_row(sums, rows, channels, means);
    for (int c = 0; c < channels; ++c) means[c] /= static_cast<float>(pixels);
}

}  // namespace

// Computes a gated_convolution. Its gate may depend on the whole map, so all threads wait for each
// other before it is applied.
void Plan::run_gated(size_t index, int thread) {
    const Step &step = steps_[index];
    const Layer &layer = model_.program().layers[to_size(step.first)];
    const Map &out = maps_[index];
    const int threads = workers_.size();
    const auto blocks = [&](auto compute) {
        const int end = out.height * (thread + 1) / threads;
        for (int y = out.height * thread / threads; y < end; y += step.rows_at_once) {
            compute(y, std::min(step.rows_at_once, end - y));
        }
    };
    sum_pooled(index, thread);
    const int expert = choose_expert(index, thread);
    const bool mixed = layer.gated.gate == Gate::mixed;
    const float *factors = mixed ? nullptr : gate_factors(index, thread);
    blocks([&](int y, int rows) {
        convolve_gated(index, expert, y, rows, thread);
        if (!mixed) apply_gate(index, factors, y, rows, thread);
    });
    if (!mixed) return;
    workers_.barrier();
    factors = gate_factors(index, thread);
    blocks([&](int y, int rows) { apply_gate(index, factors, y, rows, thread); });
}

// Sums, for a mixed gate, the rows of the means of 2 × 2 pixels of the input, unless their mean is
// that of the pixels, whose rows the step before has summed.
void Plan::sum_pooled(size_t index, int thread) {
    const Layer &layer = model_.program().layers[to_size(steps_[index].first)];
    const Map &in = maps_[index - 1], &out = maps_[index];
    const Tier &tier = model_.tier();
    const int threads = workers_.size();
    if (layer.gated.gate == Gate::mixed && in.pools_unevenly(layer.stride)) {
        float *means = scratch_[to_size(thread)].rows[0].as<float>();
        const int end = out.height * (thread + 1) / threads;
        for (int y = out.height * thread / threads; y < end; ++y) {
            pool_row(in, y, nullptr, means);
            tier.sum_row(means, out.width, in.pitch,
                         pooled_sums_.as<float>() + static_cast<ptrdiff_t>(y) * in.pitch);
        }
    }
}

// Computes row y of the means of 2 × 2 pixels.
void Plan::pool_row(const Map &map, int y, const float *slope, float *means) {
    const float *below = 2 * y + 1 < map.height ? map.row(0, 2 * y + 1) : nullptr;
    model_.tier().mean_row(map.row(0, 2 * y), below, slope, map.width, map.pitch, means);
}

// Computes the means of the input, where they are needed, and returns the expert that they choose.
int Plan::choose_expert(size_t index, int thread) {
    const Layer &layer = model_.program().layers[to_size(steps_[index].first)];
    const Gated &gated = layer.gated;
    if (gated.gate != Gate::input && gated.experts == 1) return 0;
    const Map &in = maps_[index - 1];
    const Tier &tier = model_.tier();
    Scratch &scratch = scratch_[to_size(thread)];
    float *means = scratch.vectors[0].as<float>(), *values = scratch.vectors[1].as<float>();
    means_of(tier, in.sums, in.height, in.pitch, in.height * in.width, means);
    if (gated.experts == 1) return 0;
    const Model::Product &choice = model_.ready(steps_[index].first).choice;
    tier.linear(choice.weights.as<float>(), choice.bias.as<float>(), means, choice.in_pitch,
                choice.out, values);
    return static_cast<int>(std::max_element(values, values + choice.out) - values);
}

// Computes a block of rows before the gate, and for a mixed gate their sums over pixels.
void Plan::convolve_gated(size_t index, int expert, int y, int rows, int thread) {
    const Step &step = steps_[index];
    const Map &in = maps_[index - 1], &out = maps_[index];
    const Layer &layer = model_.program().layers[to_size(step.first)];
    const Model::Ready &ready = model_.ready(step.first);
    const int groups = layer.gated.groups, channels = layer.out_channels / groups;
    const bool mixed = layer.gated.gate == Gate::mixed;
    float *values = out.row(0, y);
    float *sums = output_sums_.as<float>() + static_cast<ptrdiff_t>(y) * out.pitch;
    if (mixed) std::fill_n(sums, static_cast<ptrdiff_t>(rows) * out.pitch, 0.0f);
    for (int group = 0; group < groups; ++group) {
        const Model::Ready &part = ready.parts[to_size(expert * groups + group)];
        // A part with padded channels would write into those of the next.
        const bool in_place = groups == 1 || part.out_pitch == channels;
        BinaryRows r;
        r.layer = &part.binary;
        r.num_rows = rows;
        r.width = out.width;
        r.operands = in.operands_at(0, y * layer.stride, group);
        r.operand_pixel = in.operand_pixel;
        r.operand_row = in.operand_row;
        r.row_class = step.row_class.data() + y;
        r.column_class = step.column_class.data();
        r.out = in_place ? values + static_cast<ptrdiff_t>(group) * channels
                         : scratch_[to_size(thread)].group_values.as<float>();
        r.out_pixel = in_place ? out.pitch : part.out_pitch;
        r.out_row = out.width * r.out_pixel;
        if (mixed && in_place) {
            r.sums = sums + static_cast<ptrdiff_t>(group) * channels;
            r.sums_row = out.pitch;
        }
        model_.tier().binary_rows(r);
        if (in_place) continue;
        for (ptrdiff_t pixel = 0; pixel < static_cast<ptrdiff_t>(rows) * out.width; ++pixel) {
            std::copy_n(r.out + pixel * part.out_pitch, channels,
                        values + pixel * out.pitch + static_cast<ptrdiff_t>(group) * channels);
        }
        if (!mixed) continue;
        for (int row = 0; row < rows; ++row) {
            const float *pixel = r.out + row * r.out_row;
            float *sum = sums + static_cast<ptrdiff_t>(row) * out.pitch +
                         static_cast<ptrdiff_t>(group) * channels;
            for (int x = 0; x < out.width; ++x, pixel += part.out_pitch) {
                for (int c = 0; c < channels; ++c) sum[c] += pixel[c];
            }
        }
    }
}

// Returns scale · gate for each channel, in the thread's memory.
const float *Plan::gate_factors(size_t index, int thread) {
    const Layer &layer = model_.program().layers[to_size(steps_[index].first)];
    const Model::Ready &ready = model_.ready(steps_[index].first);
    const Gated &gated = layer.gated;
    if (gated.gate == Gate::none) return ready.scale.as<float>();
    const Map &in = maps_[index - 1], &out = maps_[index];
    const Tier &tier = model_.tier();
    Scratch &scratch = scratch_[to_size(thread)];
    float *taken = scratch.vectors[0].as<float>();  // the means of the input, if it is "input"
    float *inner = scratch.vectors[1].as<float>();
    float *factors = scratch.vectors[2].as<float>();
    if (gated.gate == Gate::mixed) {
        float *pooled = scratch.vectors[3].as<float>();
        const int pixels = out.height * out.width;
        means_of(tier, output_sums_.as<float>(), out.height, out.pitch, pixels, taken);
        if (in.pools_unevenly(layer.stride)) {
            means_of(tier, pooled_sums_.as<float>(), out.height, in.pitch, pixels, pooled);
        } else {
            means_of(tier, in.sums, in.height, in.pitch, in.height * in.width, pooled);
        }
        const float *mix = ready.mix.as<float>();
        for (int first = 0; first < layer.out_channels; first += layer.in_channels) {
            for (int c = 0; c < layer.in_channels; ++c) {
                const int o = first + c;
                taken[o] = mix[o] * pooled[c] + (1 - mix[o]) * taken[o];
            }
        }
    }
    auto product = [&](const Model::RoundedProduct &matrix, const float *x, float *y) {
        tier.rounded_linear(matrix.weights.as<int16_t>(), matrix.scale.as<float>(),
                            matrix.bias.as<float>(), x, matrix.in, matrix.num_groups, y);
    };
    product(ready.down, taken, inner);
    for (int i = 0; i < gated.down.out; ++i) inner[i] = std::max(inner[i], 0.0f);
    product(ready.up, inner, factors);
    tier.sigmoid(ready.scale.as<float>(), layer.out_channels, factors);
    std::fill(factors + layer.out_channels, factors + ready.out_pitch, 0.0f);
    return factors;
}

// Computes a block of rows of the output from the values before the gate and the shortcut.
void Plan::apply_gate(size_t index, const float *factors, int y, int rows, int thread) {
    const Layer &layer = model_.program().layers[to_size(steps_[index].first)];
    const Model::Ready &ready = model_.ready(steps_[index].first);
    const Map &out = maps_[index];
    GatedRows r;
    r.num_rows = rows;
    r.width = out.width;
    r.channels = out.pitch;
    r.map = out.row(0, y);
    r.factor = factors;
    r.shift = ready.shift.as<float>();
    r.slope = ready.slope.as<float>();
    r.product = layer.gated.product;
    r.sums = out.sums_at(y);
    if (layer.shortcut) gated_shortcut(index, y, thread, r);
    if (out.kernel) {
        r.next_threshold = out.threshold;
        r.signs = scratch_[to_size(thread)].signs.as<uint32_t>();
        r.sign_words = out.words;
    }
    clear_padding(r.signs, r.sign_words, out.pitch, rows * out.width);
    model_.tier().gated_rows(r);
    if (!out.kernel) return;
    for (int row = 0; row < rows; ++row) {
        write_operands(out, thread, y + row,
                       r.signs + static_cast<ptrdiff_t>(row) * out.width * out.words);
    }
}

// Prepares the shortcut of a block of rows from row y: the mean of pixels, copied channels or
// convolutions, where there are such.
void Plan::gated_shortcut(size_t index, int y, int thread, GatedRows &r) {
    const Layer &layer = model_.program().layers[to_size(steps_[index].first)];
    const Model::Ready &ready = model_.ready(steps_[index].first);
    const Map &in = maps_[index - 1], &out = maps_[index];
    const Tier &tier = model_.tier();
    Scratch &scratch = scratch_[to_size(thread)];
    const int pixels = r.num_rows * r.width;
    const bool repeat = ready.sides.empty() && layer.in_channels != layer.out_channels;
    r.shortcut = in.row(0, y * layer.stride);
    r.shortcut_slope = ready.shortcut_slope.as<float>();
    r.shortcut_pixel = in.pitch;
    r.shortcut_channels = repeat ? layer.in_channels : in.pitch;
    // The slope comes before the mean of pixels, and before channels are copied.
    if (layer.stride == 2) {
        float *means = scratch.rows[0].as<float>();
        const ptrdiff_t row_size = static_cast<ptrdiff_t>(r.width) * in.pitch;
        for (int row = 0; row < r.num_rows; ++row) {
            pool_row(in, y + row, r.shortcut_slope, means + row * row_size);
        }
        r.shortcut = means;
        r.shortcut_slope = nullptr;
    }
    if (repeat && layer.in_channels % kLanes != 0) {
        float *to = scratch.rows[1].as<float>();
        for (ptrdiff_t pixel = 0; pixel < pixels; ++pixel, to += out.pitch) {
            for (int o = 0; o < layer.out_channels; ++o) {
                const int c = o % layer.in_channels;
                const float value = r.shortcut[pixel * in.pitch + c];
                to[o] = r.shortcut_slope && value < 0 ? r.shortcut_slope[c] * value : value;
            }
            std::fill(to + layer.out_channels, to + out.pitch, 0.0f);
        }
        r.shortcut = scratch.rows[1].as<float>();
        r.shortcut_slope = nullptr;
        r.shortcut_pixel = r.shortcut_channels = out.pitch;
    }
    float *turns[2] = {scratch.rows[1].as<float>(), scratch.rows[2].as<float>()};
    for (const Model::Dense &side : ready.sides) {
        tier.dense_row(
            dense_row(side, pixels, r.shortcut, r.shortcut_pixel, turns[0], side.out_pitch));
        r.shortcut = turns[0];
        r.shortcut_pixel = r.shortcut_channels = side.out_pitch;
        std::swap(turns[0], turns[1]);
    }
}

}  // namespace burn
