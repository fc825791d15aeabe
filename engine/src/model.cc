#include "model.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace burn {

namespace {

const Tier &choose_tier(const std::string &isa) {
    std::string wanted = isa;
    if (const char *set = std::getenv("BURN_ENGINE_ISA"); wanted.empty() && set) wanted = set;
    int count = 0;
    const Tier *const *all = tiers(&count);
    std::string names;
    for (int i = 0; i < count; ++i) {
        if (!all[i]->supported()) continue;
        if (wanted.empty() || wanted == all[i]->name) return *all[i];
        names += (names.empty() ? "" : ", ") + std::string(all[i]->name);
    }
    throw Error("instruction set '" + wanted.substr(0, 100) +
                "' is not available on this processor; choose from " + names);
}

Aligned padded(const std::vector<float> &values, int pitch, float fill = 0.0f) {
    Aligned copy(static_cast<size_t>(pitch) * sizeof(float));
    float *to = copy.as<float>();
    std::copy(values.begin(), values.end(), to);
    std::fill(to + values.size(), to + pitch, fill);
    return copy;
}

// Converts the bits [out][k · k][⌈in / 8⌉] to words [padded out][k · k][words].
std::vector<uint32_t> words_from_bits(const Layer &layer, int out_pitch, int words) {
    const size_t taps = static_cast<size_t>(layer.kernel) * static_cast<size_t>(layer.kernel);
    const size_t bytes = (static_cast<size_t>(layer.in_channels) + 7) / 8;
    std::vector<uint32_t> to(static_cast<size_t>(out_pitch) * taps * static_cast<size_t>(words));
    const size_t rows = static_cast<size_t>(layer.out_channels) * taps;
    for (size_t row = 0; row < rows; ++row) {
        std::memcpy(&to[row * static_cast<size_t>(words)], &layer.weight_bits[row * bytes], bytes);
    }
    return to;
}

// Returns whether the tap in this row and column of the kernel lies outside the map, for a pixel of
// this position class.
bool outside(int position_class, int kernel, int row, int column) {
    if (kernel == 1) return false;
    return (row == 0 && (position_class & kTop)) || (row == 2 && (position_class & kBottom)) ||
           (column == 0 && (position_class & kLeft)) || (column == 2 && (position_class & kRight));
}

// Returns the biases [position class][padded out] that follow from how the kernels count. They
// count the taps whose signs differ, including those outside the map, where the signs read as -1.
// With n taps inside, and u(o) of the weights outside equal to +1,
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
                if (outside(c, kernel, tap / kernel, tap % kernel)) {
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
    ready.in_pitch = pitch_of(tier, layer.in_channels);
    ready.out_pitch = pitch_of(tier, layer.out_channels);
    const int words = words_of(tier, layer.in_channels);
    const auto bits = words_from_bits(layer, ready.out_pitch, words);
    ready.weights = Aligned(tier.weight_bytes(ready.out_pitch, layer.kernel, words));
    tier.lay_out(bits.data(), ready.out_pitch, layer.kernel, words, ready.weights.as<void>());
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

// Lays the weights [out][taps] out as [group][taps][kLanes].
Model::Ready make_convolution(const Tier &tier, const Layer &layer) {
    Model::Ready ready;
    ready.out_pitch = pitch_of(tier, layer.out_channels);
    ready.bias = padded(layer.bias, ready.out_pitch);
    const int taps = 3 * layer.kernel * layer.kernel;
    ready.weights = Aligned(static_cast<size_t>(ready.out_pitch * taps) * sizeof(float));
    float *to = ready.weights.as<float>();
    for (int o = 0; o < layer.out_channels; ++o) {
        for (int tap = 0; tap < taps; ++tap) {
            to[(o / kLanes * taps + tap) * kLanes + o % kLanes] =
                layer.weight[static_cast<size_t>(o * taps + tap)];
        }
    }
    return ready;
}

Model::Ready make_linear(const Layer &layer) {
    Model::Ready ready;
    ready.in_pitch = round_up(layer.in_channels, kLanes);
    ready.bias = padded(layer.bias, layer.out_channels);
    const size_t in = static_cast<size_t>(layer.in_channels);
    const size_t pitch = static_cast<size_t>(ready.in_pitch);
    ready.weights = Aligned(static_cast<size_t>(layer.out_channels) * pitch * sizeof(float));
    for (size_t o = 0; o < static_cast<size_t>(layer.out_channels); ++o) {
        std::copy_n(&layer.weight[o * in], in, ready.weights.as<float>() + o * pitch);
    }
    return ready;
}

}  // namespace

Model::Model(Program program, const std::string &isa)
    : program_(std::move(program)), tier_(&choose_tier(isa)) {
    for (Layer &layer : program_.layers) {
        switch (layer.kind) {
            case Kind::convolution: ready_.push_back(make_convolution(*tier_, layer)); break;
            case Kind::binary_convolution: ready_.push_back(make_binary(*tier_, layer)); break;
            case Kind::global_mean: ready_.emplace_back(); break;
            case Kind::linear: ready_.push_back(make_linear(layer)); break;
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
            shape.height = (shape.height + at.stride - 1) / at.stride;
            shape.width = (shape.width + at.stride - 1) / at.stride;
        }
    }
    return shape;
}

}  // namespace burn
