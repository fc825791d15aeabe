#include "model.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace burn {

namespace {

int round_up(int n, int to) { return (n + to - 1) / to * to; }

// How a tier pads: channels to whole groups, words to whole groups too, since a group's signs are
// written at once.
int pitch_of(const Tier &tier, int channels) { return round_up(channels, tier.group); }
int words_of(const Tier &tier, int channels) {
    return round_up(pitch_of(tier, channels), 32) / 32;
}

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
                "' is not to be had on this processor: " + names);
}

Aligned padded(const std::vector<float> &values, int pitch, float fill = 0.0f) {
    Aligned copy(static_cast<size_t>(pitch) * sizeof(float));
    float *to = copy.as<float>();
    std::copy(values.begin(), values.end(), to);
    std::fill(to + values.size(), to + pitch, fill);
    return copy;
}

// [out][k · k][⌈in / 8⌉] bytes -> [padded out][k · k][words].
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

// Where a kernel's tap at this place lies outside, by position class.
bool outside(int position_class, int kernel, int row, int column) {
    if (kernel == 1) return false;
    return (row == 0 && (position_class & kTop)) || (row == 2 && (position_class & kBottom)) ||
           (column == 0 && (position_class & kLeft)) || (column == 2 && (position_class & kRight));
}

// The kernels count the taps whose signs differ, those outside the map included, which read as -1:
// with n taps inside and u(o) of the outside weights +1,
//     d = in · n - 2 (count - u)   and so   m d + b = -2m · count + (b + m (in · n + 2u)).
Aligned class_biases(const Layer &layer, const std::vector<uint32_t> &bits, int out_pitch,
                     int words) {
    const int kernel = layer.kernel, taps = kernel * kernel;
    const int classes = kernel == 1 ? 1 : kNumClasses;
    Aligned all(static_cast<size_t>(classes * out_pitch) * sizeof(float));
    for (int o = 0; o < layer.out_channels; ++o) {
        std::vector<int> positive(static_cast<size_t>(taps));  // weights of +1 in each tap
        for (int tap = 0; tap < taps; ++tap) {
            for (int word = 0; word < words; ++word) {
                const size_t at = (static_cast<size_t>(o) * static_cast<size_t>(taps) +
                                   static_cast<size_t>(tap)) * static_cast<size_t>(words) +
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
            const double shift = layer.multiplier[channel] *
                                 (static_cast<double>(layer.in_channels) * inside + 2.0 * ones_outside);
            all.as<float>()[c * out_pitch + o] =
                static_cast<float>(static_cast<double>(layer.bias[channel]) + shift);
        }
    }
    return all;
}

template <class T>
void forget(std::vector<T> &values) { std::vector<T>().swap(values); }

Model::Ready make_binary(const Tier &tier, Layer &layer) {
    Model::Ready ready;
    ready.in_pitch = pitch_of(tier, layer.in_channels);
    ready.out_pitch = pitch_of(tier, layer.out_channels);
    ready.in_words = words_of(tier, layer.in_channels);
    const auto bits = words_from_bits(layer, ready.out_pitch, ready.in_words);
    ready.weights = Aligned(tier.weight_bytes(ready.out_pitch, layer.kernel, ready.in_words));
    tier.lay_out(bits.data(), ready.out_pitch, layer.kernel, ready.in_words,
                 ready.weights.as<void>());
    ready.bias = class_biases(layer, bits, ready.out_pitch, ready.in_words);
    for (float &m : layer.multiplier) m *= -2.0f;
    ready.multiplier = padded(layer.multiplier, ready.out_pitch);
    ready.slope = padded(layer.slope, ready.out_pitch);
    ready.threshold =
        padded(layer.threshold, ready.in_pitch, std::numeric_limits<float>::infinity());
    ready.binary = {layer.kernel,
                    layer.stride,
                    ready.in_words,
                    ready.out_pitch,
                    ready.weights.as<void>(),
                    ready.multiplier.as<float>(),
                    ready.bias.as<float>(),
                    ready.slope.as<float>()};
    return ready;
}

// [out][taps] -> [group][taps][kLanes]
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
    ready.out_pitch = layer.out_channels;
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
                    " pixels: sides are 1 to " + std::to_string(kMaxSide) + " and together at most " +
                    std::to_string(kMaxPixels) + " pixels");
    }
    if (layer < 0 || layer >= num_layers()) {
        throw Error("there is no layer " + std::to_string(layer) + ": the model has " +
                    std::to_string(num_layers()));
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

// What one step leaves for the next: values, and operands of the binary convolution that reads them.
struct Plan::Map {
    int height = 0, width = 0, pitch = 0;
    std::shared_ptr<Aligned> values;  // [height][width][pitch]
    int kernel = 0;                   // of its reader; 0: none
    int words = 0;
    const float *threshold = nullptr;  // of its reader
    ptrdiff_t operand_pixel = 0, operand_row = 0;
    Aligned operands;  // with kernel / 2 rows and pixels around

    float *row(int y) const {
        return values->as<float>() + static_cast<ptrdiff_t>(y) * width * pitch;
    }
    uint8_t *operands_at(int padded_row) const {
        return operands.as<uint8_t>() + padded_row * operand_row;
    }
};

// Layers that run together, block of rows by block of rows: the first convolution, or a binary one
// with the 1 × 1 ones behind it, which need no neighbours.
struct Plan::Step {
    int first = 0, last = 0;  // layers
    int rows_at_once = 1;
    std::vector<uint8_t> row_class, column_class;  // of the first layer's pixels
};

// What one thread needs inside a step, for a block of rows.
struct Plan::Scratch {
    Aligned values[2];  // outputs of all layers but the last, in turn
    Aligned operands;   // of the layer that reads them
    Aligned signs;
    Aligned shortcut;
    Aligned image;      // rows of the image as floats
};

namespace {

size_t to_size(int n) { return static_cast<size_t>(n); }

std::vector<uint8_t> classes(int size, int input_size, int kernel, int stride, Outside first,
                             Outside last) {
    std::vector<uint8_t> all(to_size(size));
    if (kernel == 1) return all;
    for (int i = 0; i < size; ++i) {
        if (i * stride < 1) all[to_size(i)] |= static_cast<uint8_t>(first);
        if (i * stride + 1 >= input_size) all[to_size(i)] |= static_cast<uint8_t>(last);
    }
    return all;
}

// Whether o mod in can be read in place of a prepared shortcut.
bool shortcut_in_place(const Layer &layer) {
    return layer.stride == 1 &&
           (layer.in_channels == layer.out_channels || layer.in_channels % kLanes == 0);
}

// Channels of a shortcut's pixels, after which they begin again.
int in_place_channels(const Layer &layer, const Model::Ready &ready) {
    return layer.in_channels == layer.out_channels ? ready.in_pitch : layer.in_channels;
}

// Signs are written in groups of channels, which may leave half of a last word untouched.
void clear_padding(uint32_t *signs, int words, int pitch, int pixels) {
    if (signs && pitch % 32 != 0) {
        std::fill_n(signs, static_cast<ptrdiff_t>(pixels) * words, 0u);
    }
}

}  // namespace

Plan::~Plan() = default;

Plan::Plan(const Model &model, int height, int width, int threads, int layer)
    : model_(model),
      last_layer_(layer),
      input_{height, width, 3},
      shape_(model.output_shape(height, width, layer)),
      workers_((threads < 1 || threads > kMaxThreads)
                   ? throw Error("threads: " + std::to_string(threads) + " is not in 1 to " +
                                 std::to_string(kMaxThreads))
                   : threads) {
    const auto &layers = model.program().layers;
    const Tier &tier = model.tier();
    size_t values[2] = {}, scratch_values[2] = {}, operands = 0, signs = 0, shortcut = 0;
    Shape shape{height, width, 3};
    size_t image = 0, vector = 0;
    for (int i = 0; i <= layer;) {
        const Layer &first = layers[to_size(i)];
        if (first.kind == Kind::global_mean || first.kind == Kind::linear) {
            vector = std::max({vector, to_size(round_up(first.in_channels, kLanes)),
                               to_size(round_up(first.out_channels, kLanes))});
            ++i;
            continue;
        }
        Step step;
        step.first = step.last = i;
        const Shape before = shape;
        shape.height = (shape.height + first.stride - 1) / first.stride;
        shape.width = (shape.width + first.stride - 1) / first.stride;
        if (first.kind == Kind::binary_convolution) {
            while (step.last < layer) {
                const Layer &next = layers[to_size(step.last + 1)];
                if (next.kind != Kind::binary_convolution || next.kernel != 1 || next.stride != 1) {
                    break;
                }
                ++step.last;
            }
            step.row_class = classes(shape.height, before.height, first.kernel, first.stride, kTop,
                                     kBottom);
            step.column_class = classes(shape.width, before.width, first.kernel, first.stride,
                                        kLeft, kRight);
            // Enough pixels to use a group's weights several times while they are near.
            step.rows_at_once = std::clamp(56 / shape.width, 1, shape.height);
            no_class_.resize(std::max({no_class_.size(), to_size(shape.width),
                                       to_size(step.rows_at_once)}));
        } else {
            image = to_size(first.kernel) *
                    to_size(3 * (std::max(before.width, (shape.width - 1) * first.stride + 1) +
                                 first.kernel));
        }
        for (int at = step.first; at <= step.last; ++at) {
            const Layer &one = layers[to_size(at)];
            const int pixels = step.rows_at_once * shape.width;
            const int words = words_of(tier, one.out_channels);
            const int pitch = pitch_of(tier, one.out_channels);
            signs = std::max(signs, to_size(pixels) * to_size(words));
            if (at < step.last) {
                auto &most = scratch_values[(at - step.first) % 2];
                most = std::max(most, to_size(pixels) * to_size(pitch));
                operands = std::max(operands, to_size(pixels) * tier.operand_bytes(1, words));
            }
            if (one.kind == Kind::binary_convolution && one.shortcut && !shortcut_in_place(one)) {
                shortcut = std::max(
                    shortcut, to_size(pixels) * to_size(std::max(pitch, pitch_of(tier, one.in_channels))));
            }
        }
        Map map;
        map.height = shape.height;
        map.width = shape.width;
        map.pitch = pitch_of(tier, layers[to_size(step.last)].out_channels);
        if (step.last < layer && layers[to_size(step.last + 1)].kind == Kind::binary_convolution) {
            const Layer &reader = layers[to_size(step.last + 1)];
            map.kernel = reader.kernel;
            map.words = words_of(tier, reader.in_channels);
            map.threshold = model.ready(step.last + 1).threshold.as<float>();
            map.operand_pixel = static_cast<ptrdiff_t>(tier.operand_bytes(map.kernel, map.words));
            const int border = 2 * (map.kernel / 2);
            map.operand_row = map.operand_pixel * (map.width + border);
            map.operands = Aligned(to_size(map.height + border) * static_cast<size_t>(map.operand_row));
        }
        auto &most = values[maps_.size() % 2];
        most = std::max(most, to_size(map.height) * to_size(map.width) * to_size(map.pitch));
        maps_.push_back(std::move(map));
        i = step.last + 1;
        steps_.push_back(std::move(step));
    }
    const std::shared_ptr<Aligned> turns[2] = {
        std::make_shared<Aligned>(values[0] * sizeof(float)),
        std::make_shared<Aligned>(values[1] * sizeof(float))};
    for (size_t i = 0; i < maps_.size(); ++i) maps_[i].values = turns[i % 2];
    for (int thread = 0; thread < threads; ++thread) {
        Scratch scratch;
        for (int i = 0; i < 2; ++i) scratch.values[i] = Aligned(scratch_values[i] * sizeof(float));
        scratch.operands = Aligned(operands);
        scratch.signs = Aligned(signs * sizeof(uint32_t));
        scratch.shortcut = Aligned(shortcut * sizeof(float));
        scratch.image = Aligned(image * sizeof(float));
        scratch_.push_back(std::move(scratch));
    }
    for (auto &one : vectors_) one = Aligned(vector * sizeof(float));
}

size_t Plan::num_bytes() const {
    size_t total = vectors_[0].bytes() + vectors_[1].bytes();
    for (size_t i = 0; i < maps_.size(); ++i) {
        total += maps_[i].operands.bytes() + (i < 2 ? maps_[i].values->bytes() : 0);
    }
    for (const auto &s : scratch_) {
        total += s.values[0].bytes() + s.values[1].bytes() + s.operands.bytes() + s.signs.bytes() +
                 s.shortcut.bytes() + s.image.bytes();
    }
    return total;
}

void Plan::run(const void *images, Pixels type, size_t count, float *outputs) {
    const Shape input = input_;
    const size_t bytes = to_size(input.height) * to_size(input.width) * 3 *
                         (type == Pixels::uint8 ? 1 : sizeof(float));
    const size_t floats = to_size(shape_.height) * to_size(shape_.width) * to_size(shape_.channels);
    workers_.run([&](int thread) {
        for (size_t i = 0; i < count; ++i) {
            const uint8_t *image = static_cast<const uint8_t *>(images) + i * bytes;
            run_stem(image, type, thread);
            workers_.meet();
            for (size_t step = 1; step < steps_.size(); ++step) {
                run_binary(step, thread);
                workers_.meet();
            }
            if (thread == 0) finish(outputs + i * floats);
            workers_.meet();
        }
    });
}

void Plan::run_stem(const uint8_t *image, Pixels type, int thread) {
    const Layer &layer = model_.program().layers[0];
    const Model::Ready &ready = model_.ready(0);
    const Tier &tier = model_.tier();
    const Map &out = maps_[0];
    Scratch &scratch = scratch_[to_size(thread)];
    const int border = layer.kernel / 2;
    const int width = input_.width;
    const ptrdiff_t pitch = static_cast<ptrdiff_t>(scratch.image.bytes() / sizeof(float)) /
                            layer.kernel;
    auto fill = [&](float *to, ptrdiff_t pixels) {
        for (ptrdiff_t x = 0; x < pixels; ++x) std::copy_n(layer.padding.data(), 3, to + 3 * x);
    };
    // Input row y stands in place y mod kernel (rows above the image count from -border).
    auto place = [&](int y) {
        return scratch.image.as<float>() + (y + border) % layer.kernel * pitch;
    };
    auto prepare = [&](int y) {
        float *to = place(y);
        if (y < 0 || y >= input_.height) {
            fill(to, pitch / 3);
            return;
        }
        fill(to, border);
        float *pixels = to + 3 * border;
        const size_t count = to_size(width) * 3;
        if (type == Pixels::uint8) {
            tier.to_unit(image + to_size(y) * count, count, pixels);
        } else {
            std::memcpy(pixels, image + to_size(y) * count * sizeof(float), count * sizeof(float));
        }
        fill(pixels + count, pitch / 3 - border - width);
    };
    const int begin = out.height * thread / workers_.size();
    const int end = out.height * (thread + 1) / workers_.size();
    int next = begin * layer.stride - border;  // the first row that is not there yet
    for (int y = begin; y < end; ++y) {
        const int first = y * layer.stride - border;
        for (next = std::max(next, first); next < first + layer.kernel; ++next) prepare(next);
        const float *rows[7];
        for (int k = 0; k < layer.kernel; ++k) rows[k] = place(first + k);
        StemRows r;
        r.kernel = layer.kernel;
        r.stride = layer.stride;
        r.width = out.width;
        r.num_groups = ready.out_pitch / kLanes;
        r.weights = ready.weights.as<float>();
        r.bias = ready.bias.as<float>();
        r.input = rows;
        r.out = out.row(y);
        r.out_pixel = out.pitch;
        if (out.kernel) {
            r.next_threshold = out.threshold;
            r.signs = scratch.signs.as<uint32_t>();
            r.sign_words = out.words;
        }
        clear_padding(r.signs, r.sign_words, ready.out_pitch, out.width);
        tier.stem_row(r);
        if (out.kernel) {
            tier.expand(r.signs, out.width, out.kernel, out.words,
                        out.operands_at(y + out.kernel / 2));
        }
    }
}

// Rows of a layer's shortcut that cannot be read in place: means of 2 × 2, channels repeated.
void Plan::prepare_shortcut(const Layer &layer, const Model::Ready &ready, const Map &in, int begin,
                            int rows, int width, BinaryRows &r, Scratch &scratch) const {
    const Tier &tier = model_.tier();
    const bool repeat = layer.in_channels != layer.out_channels && layer.in_channels % kLanes != 0;
    const ptrdiff_t pitch = repeat ? ready.out_pitch : ready.in_pitch;
    float *to = scratch.shortcut.as<float>();
    for (int row = 0; row < rows; ++row) {
        float *at = to + row * width * pitch;
        const int y = (begin + row) * layer.stride;
        const float *from = r.shortcut + row * r.shortcut_row;
        if (layer.stride == 2) {
            const float *below = y + 1 < in.height ? from + in.width * in.pitch : nullptr;
            tier.mean_row(from, below, in.width, ready.in_pitch, at);
            from = at;
        }
        if (!repeat) continue;
        for (int x = width - 1; x >= 0; --x) {  // from the back: the means stand where it writes
            const float *pixel = from + static_cast<ptrdiff_t>(x) * ready.in_pitch;
            float values[4096];
            std::copy_n(pixel, layer.in_channels, values);
            for (int o = 0; o < layer.out_channels; ++o) {
                at[x * pitch + o] = values[o % layer.in_channels];
            }
        }
    }
    r.shortcut = to;
    r.shortcut_channels = static_cast<int>(repeat ? pitch : in_place_channels(layer, ready));
    r.shortcut_pixel = pitch;
    r.shortcut_row = width * pitch;
}

void Plan::run_binary(size_t index, int thread) {
    const Step &step = steps_[index];
    const Map &in = maps_[index - 1], &out = maps_[index];
    const Tier &tier = model_.tier();
    Scratch &scratch = scratch_[to_size(thread)];
    const int begin = out.height * thread / workers_.size();
    const int end = out.height * (thread + 1) / workers_.size();
    for (int y = begin; y < end; y += step.rows_at_once) {
        const int rows = std::min(step.rows_at_once, end - y);
        for (int at = step.first; at <= step.last; ++at) {
            const Layer &layer = model_.program().layers[to_size(at)];
            const Model::Ready &ready = model_.ready(at);
            BinaryRows r;
            r.layer = &ready.binary;
            r.num_rows = rows;
            r.width = out.width;
            if (at == step.first) {
                r.operands = in.operands_at(y * layer.stride);
                r.operand_pixel = in.operand_pixel;
                r.operand_row = in.operand_row;
                r.row_class = step.row_class.data() + y;
                r.column_class = step.column_class.data();
                r.shortcut = in.row(y * layer.stride);
                r.shortcut_row = static_cast<ptrdiff_t>(layer.stride) * in.width * in.pitch;
            } else {
                r.operands = scratch.operands.as<uint8_t>();
                r.operand_pixel = static_cast<ptrdiff_t>(tier.operand_bytes(1, ready.in_words));
                r.operand_row = r.operand_pixel * out.width;
                r.row_class = r.column_class = no_class_.data();
                r.shortcut = scratch.values[(at - step.first + 1) % 2].as<float>();
                r.shortcut_row = static_cast<ptrdiff_t>(out.width) * ready.in_pitch;
            }
            r.shortcut_pixel = ready.in_pitch;
            r.shortcut_channels = in_place_channels(layer, ready);
            if (!layer.shortcut) {
                r.shortcut = nullptr;
            } else if (!shortcut_in_place(layer)) {
                prepare_shortcut(layer, ready, in, y, rows, out.width, r, scratch);
            }
            r.out_row = static_cast<ptrdiff_t>(out.width) * ready.out_pitch;
            const bool last = at == step.last;
            r.out = last ? out.row(y) : scratch.values[(at - step.first) % 2].as<float>();
            const int kernel = last ? out.kernel : 1;
            if (kernel) {
                r.next_threshold = last ? out.threshold : model_.ready(at + 1).threshold.as<float>();
                r.signs = scratch.signs.as<uint32_t>();
                r.sign_words = last ? out.words : model_.ready(at + 1).in_words;
            }
            clear_padding(r.signs, r.sign_words, ready.out_pitch, rows * out.width);
            tier.binary_rows(r);
            if (!kernel) continue;
            for (int row = 0; row < rows; ++row) {
                const uint32_t *signs =
                    r.signs + static_cast<ptrdiff_t>(row) * out.width * r.sign_words;
                uint8_t *to =
                    last ? out.operands_at(y + row + kernel / 2)
                         : scratch.operands.as<uint8_t>() +
                               to_size(row) * to_size(out.width) * tier.operand_bytes(1, r.sign_words);
                tier.expand(signs, out.width, kernel, r.sign_words, to);
            }
        }
    }
}

void Plan::finish(float *output) {
    const auto &layers = model_.program().layers;
    const Map &map = maps_.back();
    const int pixels = map.height * map.width;
    int at = steps_.back().last;
    const int channels = layers[to_size(at)].out_channels;
    if (at == last_layer_) {
        for (int i = 0; i < pixels; ++i) {
            std::copy_n(map.row(0) + static_cast<ptrdiff_t>(i) * map.pitch, channels,
                        output + static_cast<ptrdiff_t>(i) * channels);
        }
        return;
    }
    float *vector = vectors_[0].as<float>(), *other = vectors_[1].as<float>();
    const Layer &mean = layers[to_size(++at)];
    std::fill_n(vector, channels, 0.0f);
    for (int y = 0; y < map.height; ++y) {  // row by row: long sums of floats lose digits
        std::fill_n(other, channels, 0.0f);
        for (int x = 0; x < map.width; ++x) {
            const float *pixel = map.row(y) + static_cast<ptrdiff_t>(x) * map.pitch;
            for (int c = 0; c < channels; ++c) other[c] += pixel[c];
        }
        for (int c = 0; c < channels; ++c) vector[c] += other[c];
    }
    for (int c = 0; c < channels; ++c) {
        vector[c] = vector[c] / static_cast<float>(pixels) + mean.bias[to_size(c)];
    }
    while (at < last_layer_) {
        const Layer &layer = layers[to_size(++at)];
        const Model::Ready &ready = model_.ready(at);
        std::fill(vector + layer.in_channels, vector + ready.in_pitch, 0.0f);
        model_.tier().linear(ready.weights.as<float>(), ready.bias.as<float>(), vector,
                             ready.in_pitch, layer.out_channels, other);
        if (layer.relu) {
            for (int o = 0; o < layer.out_channels; ++o) other[o] = std::max(other[o], 0.0f);
        }
        std::swap(vector, other);
    }
    std::copy_n(vector, shape_.channels, output);
}

}  // namespace burn
