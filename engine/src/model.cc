#include "model.h"

#include <algorithm>
#include <limits>

namespace burn {

namespace {

Aligned padded(const std::vector<float> &values, int pitch, float fill = 0.0f) {
    Aligned copy(static_cast<size_t>(pitch) * sizeof(float));
    float *to = copy.as<float>();
    std::copy(values.begin(), values.end(), to);
    std::fill(to + values.size(), to + pitch, fill);
    return copy;
}

// As `padded`, but empty if all slopes are 1, which changes nothing.
Aligned slopes_unless_ones(const std::vector<float> &slopes, int pitch) {
    const bool ones = std::all_of(slopes.begin(), slopes.end(), [](float s) { return s == 1.0f; });
    return ones ? Aligned{} : padded(slopes, pitch);
}

// Converts the bits [out][k · k][⌈in / 8⌉] to words [padded out][k · k][words].
std::vector<uint32_t> words_from_bits(const Layer &layer, int padded_out, int words) {
    const size_t taps = static_cast<size_t>(layer.kernel) * static_cast<size_t>(layer.kernel);
    const size_t bytes = (static_cast<size_t>(layer.in_channels) + 7) / 8;
    std::vector<uint32_t> to(static_cast<size_t>(padded_out) * taps * static_cast<size_t>(words));
    const size_t rows = static_cast<size_t>(layer.out_channels) * taps;
    for (size_t row = 0; row < rows; ++row) {
        std::memcpy(&to[row * static_cast<size_t>(words)], &layer.weight_bits[row * bytes], bytes);
    }
    return to;
}

// Returns whether taps in a row or column of the kernel lie outside the map, for pixels of a
// position class whose first or last such row or column does.
bool outside(int position_class, int kernel, int at, Outside first, Outside last) {
    if (kernel == 1) return false;
    return (at == 0 && (position_class & first)) || (at == 2 && (position_class & last));
}

// Returns the biases [position class][padded out] that follow from how the kernels count. They
// count the taps whose signs differ: none in rows of the kernel outside the map, but also those in
// columns outside it, where the signs read as -1.
// With n taps inside, and u(o) of the weights of such columns equal to +1,
//     d = in · n - 2 (count - u)   and so   m d + b = -2m · count + (b + m (in · n + 2u)).
Aligned class_biases(const Layer &layer, const std::vector<uint32_t> &bits, int out_pitch,
                     int words) {
    const int kernel = layer.kernel, taps = kernel * kernel;
    const int classes = kernel == 1 ? 1 : kNumClasses;
    Aligned all(static_cast<size_t>(classes * out_pitch) * sizeof(float));
    for (int o = 0; o < layer.out_channels; ++o) {
        std::vector<int> positive(static_cast<size_t>(taps));  // number of weights +1 in each tap
        for (int tap = 0; tap < taps; ++tap) {
            for (int word = 0; word < words; ++word) {
                const size_t at = (static_cast<size_t>(o) * static_cast<size_t>(taps) +
                                   static_cast<size_t>(tap)) *
                                      static_cast<size_t>(words) +
                                  static_cast<size_t>(word);
                positive[static_cast<size_t>(tap)] += __builtin_popcount(bits[at]);
            }
        }
        const size_t channel = static_cast<size_t>(o);
        for (int c = 0; c < classes; ++c) {
            int inside = 0, ones_outside = 0;
            for (int tap = 0; tap < taps; ++tap) {
                if (outside(c, kernel, tap / kernel, kTop, kBottom)) continue;
                if (outside(c, kernel, tap % kernel, kLeft, kRight)) {
                    ones_outside += positive[static_cast<size_t>(tap)];
                } else {
                    ++inside;
                }
            }
            const double shift =
                layer.multiplier[channel] *
                (static_cast<double>(layer.in_channels) * inside + 2.0 * ones_outside);
            all.as<float>()[c * out_pitch + o] =
                static_cast<float>(static_cast<double>(layer.bias[channel]) + shift);
        }
    }
    return all;
}

template <class T>
void forget(std::vector<T> &values) {
    std::vector<T>().swap(values);
}

Model::Ready make_binary(const Tier &tier, Layer &layer) {
    Model::Ready ready;
    ready.in_pitch = pitch_of(layer.in_channels);
    ready.out_pitch = pitch_of(layer.out_channels);
    const int words = words_of(layer.in_channels);
    const int padded_out = round_up(layer.out_channels, tier.group);
    const auto bits = words_from_bits(layer, padded_out, words);
    ready.weights = Aligned(tier.weight_bytes(padded_out, layer.kernel, words));
    tier.lay_out(bits.data(), padded_out, layer.kernel, words, ready.weights.as<void>());
    ready.bias = class_biases(layer, bits, ready.out_pitch, words);
    for (float &m : layer.multiplier) m *= -2.0f;
    ready.multiplier = padded(layer.multiplier, ready.out_pitch);
    ready.slope = padded(layer.slope, ready.out_pitch);
    ready.threshold =
        padded(layer.threshold, ready.in_pitch, std::numeric_limits<float>::quiet_NaN());
    ready.binary = {layer.kernel,
                    layer.stride,
                    words,
                    ready.out_pitch,
                    ready.weights.as<void>(),
                    ready.multiplier.as<float>(),
                    ready.bias.as<float>(),
                    ready.slope.as<float>()};
    return ready;
}

// Lays a matrix [out][in] out as [group][in][kLanes].
template <class Weight>
Aligned in_groups(const std::vector<Weight> &weight, int out, int in, int out_pitch) {
    Aligned groups(to_size(out_pitch) * to_size(in) * sizeof(Weight));
    Weight *to = groups.as<Weight>();
    for (int o = 0; o < out; ++o) {
        for (int i = 0; i < in; ++i) {
            to[(static_cast<ptrdiff_t>(o / kLanes) * in + i) * kLanes + o % kLanes] =
                weight[to_size(o) * to_size(in) + to_size(i)];
        }
    }
    return groups;
}

Model::Ready make_convolution(const Layer &layer) {
    Model::Ready ready;
    ready.out_pitch = pitch_of(layer.out_channels);
    ready.bias = padded(layer.bias, ready.out_pitch);
    const int taps = 3 * layer.kernel * layer.kernel;
    ready.weights = in_groups(layer.weight, layer.out_channels, taps, ready.out_pitch);
    return ready;
}

Model::Product make_product(const std::vector<float> &weight, const std::vector<float> &bias,
                            int out, int in) {
    Model::Product product;
    product.in_pitch = round_up(in, kLanes);
    product.out = out;
    product.bias = padded(bias, out);
    const size_t pitch = to_size(product.in_pitch);
    product.weights = Aligned(to_size(out) * pitch * sizeof(float));
    for (size_t o = 0; o < to_size(out); ++o) {
        std::copy_n(&weight[o * to_size(in)], in, product.weights.as<float>() + o * pitch);
    }
    return product;
}

Model::Product make_product(const Matrix &matrix) {
    return matrix.out ? make_product(matrix.weight, matrix.bias, matrix.out, matrix.in)
                      : Model::Product{};
}

Model::RoundedProduct make_product(const Rounded &rounded) {
    Model::RoundedProduct product;
    if (!rounded.out) return product;
    const int out_pitch = round_up(rounded.out, kLanes);
    product.in = rounded.in;
    product.num_groups = out_pitch / kLanes;
    product.weights = in_groups(rounded.weight, rounded.out, rounded.in, out_pitch);
    product.scale = padded(rounded.scale, out_pitch);
    product.bias = padded(rounded.bias, out_pitch);
    return product;
}

Model::Ready make_linear(const Layer &layer) {
    Model::Product product =
        make_product(layer.weight, layer.bias, layer.out_channels, layer.in_channels);
    Model::Ready ready;
    ready.in_pitch = product.in_pitch;
    ready.bias = std::move(product.bias);
    ready.weights = std::move(product.weights);
    return ready;
}

// The ReLU of a float layer is a slope of 0.
Model::Dense make_dense(const Matrix &matrix) {
    Model::Dense dense;
    dense.in = matrix.in;
    dense.out_pitch = pitch_of(matrix.out);
    dense.weights = in_groups(matrix.weight, matrix.out, matrix.in, dense.out_pitch);
    dense.bias = padded(matrix.bias, dense.out_pitch);
    dense.slope = padded({}, dense.out_pitch);
    return dense;
}

Model::Dense make_side(const Side &side) {
    Model::Dense dense = make_dense(side);
    dense.slope = padded(side.slope, dense.out_pitch);
    return dense;
}

// Returns the binary convolution of one group of one expert.
Layer part_of(const Layer &layer, int expert, int group) {
    const Gated &gated = layer.gated;
    Layer part;
    part.kind = Kind::binary_convolution;
    part.kernel = layer.kernel;
    part.stride = layer.stride;
    part.in_channels = layer.in_channels * gated.repeat / gated.groups;
    part.out_channels = layer.out_channels / gated.groups;
    auto slice = [&](const auto &values, int begin, size_t times, size_t count) {
        const auto first = values.begin() + static_cast<ptrdiff_t>(to_size(begin) * times);
        return std::decay_t<decltype(values)>(first, first + static_cast<ptrdiff_t>(count * times));
    };
    const size_t out = to_size(part.out_channels);
    const size_t row = layer.weight_bits.size() / to_size(gated.experts * layer.out_channels);
    const int begin = group * part.out_channels;
    part.weight_bits = slice(layer.weight_bits, expert * layer.out_channels + begin, row, out);
    part.multiplier = slice(layer.multiplier, expert * layer.out_channels + begin, 1, out);
    part.bias = slice(layer.bias, begin, 1, out);
    part.slope = slice(gated.inner_slope, begin, 1, out);
    return part;
}

Model::Ready make_gated(const Tier &tier, const Layer &layer) {
    const Gated &gated = layer.gated;
    Model::Ready ready;
    ready.in_pitch = pitch_of(layer.in_channels);
    ready.out_pitch = pitch_of(layer.out_channels);
    for (int expert = 0; expert < gated.experts; ++expert) {
        for (int group = 0; group < gated.groups; ++group) {
            Layer part = part_of(layer, expert, group);
            ready.parts.push_back(make_binary(tier, part));
        }
    }
    ready.threshold = Aligned(to_size(gated.repeat * ready.in_pitch) * sizeof(float));
    for (int i = 0; i < gated.repeat; ++i) {
        float *to = ready.threshold.as<float>() + static_cast<ptrdiff_t>(i) * ready.in_pitch;
        std::fill_n(to, ready.in_pitch, std::numeric_limits<float>::quiet_NaN());
        std::copy_n(&layer.threshold[to_size(i * layer.in_channels)], layer.in_channels, to);
    }
    ready.slope = slopes_unless_ones(layer.slope, ready.out_pitch);
    ready.scale = padded(gated.scale, ready.out_pitch);
    ready.shift = padded(gated.shift, ready.out_pitch);
    ready.mix = padded(gated.mix, ready.out_pitch);
    ready.shortcut_slope = slopes_unless_ones(gated.shortcut_slope, ready.in_pitch);
    ready.choice = make_product(gated.choice);
    ready.down = make_product(gated.down);
    ready.up = make_product(gated.up);
    for (const Side &side : gated.sides) ready.sides.push_back(make_side(side));
    return ready;
}

Model::Ready make_branched(const Layer &layer) {
    const Branched &b = layer.branched;
    Layer first;
    first.kernel = b.first_kernel;
    first.out_channels = b.first.out;
    first.weight = b.first.weight;
    first.bias = b.first.bias;
    Model::Ready ready = make_convolution(first);
    ready.slope = padded({}, ready.out_pitch);
    // A gate that changes nothing, because the kernel of a gate is what compares with thresholds.
    const int out_pitch = pitch_of(b.last.out);
    ready.scale = padded({}, out_pitch, 1.0f);
    ready.shift = padded({}, out_pitch);
    ready.narrow = make_dense(b.narrow);
    ready.widen = make_dense(b.widen);
    ready.last = make_dense(b.last);
    return ready;
}

}  // namespace

Model::Model(Program program, const std::string &isa)
    : program_(std::move(program)), tier_(&choose_tier(isa)) {
    for (Layer &layer : program_.layers) {
        switch (layer.kind) {
            case Kind::convolution: ready_.push_back(make_convolution(layer)); break;
            case Kind::binary_convolution: ready_.push_back(make_binary(*tier_, layer)); break;
            case Kind::global_mean: ready_.emplace_back(); break;
            case Kind::linear: ready_.push_back(make_linear(layer)); break;
            case Kind::gated_convolution: ready_.push_back(make_gated(*tier_, layer)); break;
            case Kind::branched_convolution: ready_.push_back(make_branched(layer)); break;
        }
        forget(layer.weight);
        forget(layer.weight_bits);
    }
}

Shape Model::output_shape(int height, int width, int layer) const {
    if (height < 1 || width < 1 || height > kMaxSide || width > kMaxSide ||
        static_cast<int64_t>(height) * width > kMaxPixels) {
        throw Error("an image of " + std::to_string(height) + " × " + std::to_string(width) +
                    " pixels: height and width must be 1 to " + std::to_string(kMaxSide) +
                    ", and their product at most " + std::to_string(kMaxPixels));
    }
    if (layer < 0 || layer >= num_layers()) {
        throw Error("there is no layer " + std::to_string(layer) + ": the model has " +
                    std::to_string(num_layers()) + " layers");
    }
    Shape shape{height, width, 3};
    for (int i = 0; i <= layer; ++i) {
        const Layer &at = program_.layers[static_cast<size_t>(i)];
        shape.channels = at.out_channels;
        if (at.kind == Kind::global_mean || at.kind == Kind::linear) {
            shape.height = shape.width = 1;
        } else {
            for (const int stride : {at.stride, at.branched.second_stride}) {
                shape.height = (shape.height + stride - 1) / stride;
                shape.width = (shape.width + stride - 1) / stride;
            }
        }
    }
    return shape;
}

}  // namespace burn
