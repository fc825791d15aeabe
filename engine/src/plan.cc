#include "plan.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "plan_parts.h"

namespace burn {

namespace {

// In bytes. The values of a larger map leave the cache before they are read.
constexpr size_t kLargeMap = 256 * 1024;

// Returns the position classes of the rows or columns of an output: `first` and `last` are the bits
// of those where a 3 × 3 kernel reaches beyond the input.
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

Shape strided(Shape shape, int stride) {
    shape.height = (shape.height + stride - 1) / stride;
    shape.width = (shape.width + stride - 1) / stride;
    return shape;
}

// Returns whether the shortcut can be read from the layer's input, channel o mod in, without being
// prepared.
bool shortcut_in_place(const Layer &layer) {
    return layer.stride == 1 &&
           (layer.in_channels == layer.out_channels || layer.in_channels % kLanes == 0);
}

// Returns the number of channels after which a shortcut that is read in place repeats.
int in_place_channels(const Layer &layer, const Model::Ready &ready) {
    return layer.in_channels == layer.out_channels ? ready.in_pitch : layer.in_channels;
}

// Returns whether a layer needs the sums of its input's rows, for a gate or to choose an expert.
bool needs_sums(const Layer &layer) {
    return layer.kind == Kind::gated_convolution &&
           (layer.gated.gate != Gate::none || layer.gated.experts > 1);
}

int checked_threads(int threads) {
    if (threads < 1 || threads > kMaxThreads) {
        throw Error("threads: " + std::to_string(threads) + " is not in 1 to " +
                    std::to_string(kMaxThreads));
    }
    return threads;
}

void grow(uint64_t &size, uint64_t to) { size = std::max(size, to); }

// Of sizes in memory that are multiplied, before `Aligned` knows whether that much can exist.
uint64_t wide(int n) { return static_cast<uint64_t>(n); }

// Copies channels [first, first + count) of each pixel's signs. words, to_words: of a pixel.
void copy_channels(const uint32_t *signs, int pixels, int words, int first, int count, int to_words,
                   uint32_t *to) {
    for (int x = 0; x < pixels; ++x, signs += words, to += to_words) {
        for (int word = 0; word < to_words; ++word) {
            const int left = count - 32 * word;  // channels that are still to be copied
            uint32_t bits = 0;
            if (left > 0) {
                const int at = first + 32 * word, shift = at % 32;
                bits = signs[at / 32] >> shift;
                if (shift && at / 32 + 1 < words) bits |= signs[at / 32 + 1] << (32 - shift);
                if (left < 32) bits &= (1u << left) - 1;
            }
            to[word] = bits;
        }
    }
}

}  // namespace

Plan::~Plan() = default;

Plan::Plan(const Model &model, int height, int width, int threads, int layer)
    : model_(model),
      last_layer_(layer),
      input_{height, width, 3},
      shape_(model.output_shape(height, width, layer)),
      workers_(checked_threads(threads)) {
    make_steps();
    make_phases();
    make_maps();
    make_scratch();
}

// Returns the layers whose maps a global_mean that is run averages.
std::vector<int> Plan::averaged_layers() const {
    const auto &layers = model_.program().layers;
    for (int i = 0; i <= last_layer_; ++i) {
        if (layers[to_size(i)].kind != Kind::global_mean) continue;
        std::vector<int> averaged = layers[to_size(i)].also;
        averaged.push_back(i - 1);
        return averaged;
    }
    return {};
}

void Plan::make_steps() {
    const auto &layers = model_.program().layers;
    Shape shape = input_;
    const std::vector<int> averaged = averaged_layers();
    const auto is_averaged = [&](int layer) {
        return std::find(averaged.begin(), averaged.end(), layer) != averaged.end();
    };
    for (int i = 0; i <= last_layer_;) {
        const Layer &first = layers[to_size(i)];
        if (first.kind == Kind::global_mean || first.kind == Kind::linear) break;
        Step step;
        step.first = step.last = i;
        step.kernel = first.kernel;
        step.stride = first.stride;
        step.alone =
            first.kind == Kind::gated_convolution || first.kind == Kind::branched_convolution;
        const Shape before = shape;
        shape = strided(shape, first.stride);
        if (i == 0) first_ = shape;
        shape = strided(shape, first.branched.second_stride);
        if (i > 0) {
            while (!step.alone && step.last < last_layer_ && !is_averaged(step.last)) {
                const Layer &next = layers[to_size(step.last + 1)];
                if (next.kind != Kind::binary_convolution || next.kernel != 1 || next.stride != 1) {
                    break;
                }
                ++step.last;
            }
            step.row_class =
                classes(shape.height, before.height, first.kernel, first.stride, kTop, kBottom);
            step.column_class =
                classes(shape.width, before.width, first.kernel, first.stride, kLeft, kRight);
            // Enough pixels to use a group's weights several times while they are in the cache.
            step.rows_at_once = std::clamp(56 / shape.width, 1, shape.height);
        }
        Map map;
        map.height = shape.height;
        map.width = shape.width;
        map.pitch = pitch_of(layers[to_size(step.last)].out_channels);
        map.averaged = is_averaged(step.last);
        maps_.push_back(std::move(map));
        i = step.last + 1;
        steps_.push_back(std::move(step));
    }
}

void Plan::make_phases() {
    Phase phase;
    for (size_t i = 1; i < steps_.size(); ++i) {
        const Map &between = maps_[i - 1];
        const Step &reader = steps_[i];
        const Layer &layer = model_.program().layers[to_size(reader.first)];
        const uint64_t bytes =
            wide(between.height) * to_size(between.width) * to_size(between.pitch) * sizeof(float);
        // A shortcut that is read in place over several rows needs them contiguous in memory.
        const bool rows_apart = reader.rows_at_once == 1 || !shortcut_in_place(layer);
        // Every further 3 × 3 convolution adds rows that are computed twice, at the edges of bands.
        // Its rows at such edges would be summed twice.
        const bool together = !reader.alone && !steps_[i - 1].alone && !between.averaged;
        if (together && bytes > kLargeMap && rows_apart && i - phase.first < 3) {
            phase.last = i;
        } else {
            phases_.push_back(phase);
            phase.first = phase.last = i;
        }
    }
    phases_.push_back(phase);
}

void Plan::make_maps() {
    const auto &layers = model_.program().layers;
    const Tier &tier = model_.tier();
    const int threads = workers_.size();
    uint64_t whole[2] = {}, sums[2] = {};  // of the maps between phases, alternating
    for (size_t p = 0; p < phases_.size(); ++p) {
        for (size_t i = phases_[p].first; i <= phases_[p].last; ++i) {
            Map &map = maps_[i];
            const Step &step = steps_[i];
            const bool inside = i < phases_[p].last;
            map.kept_rows = map.height;
            if (inside) {
                const Step &reader = steps_[i + 1];
                // From the first row of the reader's shortcut to the last that its kernel reads.
                const int needed = (reader.rows_at_once - 1) * reader.stride +
                                   std::max(reader.kernel / 2, reader.stride - 1) + 1;
                map.kept_rows = std::min(map.height, needed);
            }
            const uint64_t values = wide(map.kept_rows) * to_size(map.width) * to_size(map.pitch);
            if (!inside) grow(whole[p % 2], values);
            uint64_t operands = 0;
            if (step.last < last_layer_ && i + 1 < steps_.size()) {
                const Layer &reader = layers[to_size(step.last + 1)];
                map.kernel = reader.kernel;
                map.stride = reader.stride;
                map.words = words_of(reader.in_channels);
                map.threshold = model_.ready(step.last + 1).threshold.as<float>();
                map.repeat = reader.gated.repeat;
                map.groups = reader.gated.groups;
                map.group_channels = reader.in_channels * map.repeat / map.groups;
                map.group_words = words_of(map.group_channels);
                const uint64_t row = tier.operand_row(map.width, map.kernel, map.group_words);
                map.operand_pixel =
                    static_cast<ptrdiff_t>(tier.operand_pixel(map.group_words, map.kernel));
                map.operand_row = static_cast<ptrdiff_t>(row);
                const uint64_t group = wide(map.height + map.kernel / 2 * 2) * row;
                map.operand_group = static_cast<ptrdiff_t>(group);
                operands = wide(map.groups) * group;
                if (needs_sums(reader)) grow(sums[p % 2], wide(map.height) * to_size(map.pitch));
            }
            for (int thread = 0; thread < (inside ? threads : 1); ++thread) {
                Map::Memory memory;
                if (inside) memory.values = std::make_shared<Aligned>(values * sizeof(float));
                memory.operands = Aligned(operands);
                map.memory.push_back(std::move(memory));
            }
        }
    }
    const std::shared_ptr<Aligned> turns[2] = {std::make_shared<Aligned>(whole[0] * sizeof(float)),
                                               std::make_shared<Aligned>(whole[1] * sizeof(float))};
    for (int i = 0; i < 2; ++i) map_sums_[i] = Aligned(sums[i] * sizeof(float));
    for (size_t p = 0; p < phases_.size(); ++p) {
        Map &map = maps_[phases_[p].last];
        const int reader = steps_[phases_[p].last].last + 1;
        map.memory[0].values = turns[p % 2];
        if (map.averaged) {
            map.averaged_sums = Aligned(wide(map.height) * to_size(map.pitch) * sizeof(float));
            map.sums = map.averaged_sums.as<float>();
        } else if (reader <= last_layer_ && needs_sums(layers[to_size(reader)])) {
            map.sums = map_sums_[p % 2].as<float>();
        }
    }
}

void Plan::make_scratch() {
    const auto &layers = model_.program().layers;
    const Tier &tier = model_.tier();
    uint64_t values[2] = {}, operands = 0, signs = 0, shortcut = 0, vector = 0, most_pixels = 0;
    uint64_t row = 0, group_values = 0, group_signs = 0, repeated_signs = 0;
    uint64_t pooled_sums = 0, output_sums = 0;
    for (size_t i = 0; i < steps_.size(); ++i) {
        const Step &step = steps_[i];
        const Map &out = maps_[i];
        grow(group_signs, wide(out.width) * to_size(out.group_words));
        if (out.repeat > 1) grow(repeated_signs, wide(out.width) * to_size(out.words));
        if (step.alone && i > 0) {
            const Map &in = maps_[i - 1];
            const Layer &layer = layers[to_size(step.first)];
            const auto &ready = model_.ready(step.first);
            const uint64_t in_pitch = wide(ready.in_pitch), out_pitch = wide(ready.out_pitch);
            const uint64_t pixels = wide(step.rows_at_once) * to_size(out.width);
            if (in.pools_unevenly(layer.stride)) grow(pooled_sums, wide(out.height) * in_pitch);
            grow(output_sums, wide(out.height) * out_pitch);
            grow(row, pixels * std::max(in_pitch, out_pitch));
            for (const auto &side : ready.sides) grow(row, pixels * to_size(side.out_pitch));
            grow(group_values, pixels * to_size(ready.parts[0].out_pitch));
            for (const int size : {layer.in_channels, layer.out_channels, layer.gated.experts,
                                   layer.gated.down.out}) {
                grow(vector, wide(round_up(size, kLanes)));
            }
        } else if (step.alone) {
            const auto &ready = model_.ready(0);
            const Branched &b = layers[0].branched;
            const uint64_t first = wide(first_.height) * to_size(first_.width);
            first_values_ = Aligned(first * to_size(ready.out_pitch) * sizeof(float));
            narrow_values_ = Aligned(first * to_size(ready.narrow.out_pitch) * sizeof(float));
            const uint64_t width = wide(out.width);
            for (const int size : {b.widen.in, ready.widen.out_pitch, b.last.in}) {
                grow(row, width * to_size(size));
            }
        }
        const uint64_t pixels = wide(step.rows_at_once) * to_size(maps_[i].width);
        grow(most_pixels, pixels);
        for (int at = step.first; at <= step.last; ++at) {
            const Layer &layer = layers[to_size(at)];
            const uint64_t words = wide(words_of(layer.out_channels));
            const uint64_t pitch = wide(pitch_of(layer.out_channels));
            grow(signs, pixels * words);
            if (at < step.last) {
                grow(values[(at - step.first) % 2], pixels * pitch);
                grow(operands, wide(step.rows_at_once) *
                                   tier.operand_row(maps_[i].width, 1, static_cast<int>(words)));
            }
            if (layer.kind == Kind::binary_convolution && layer.shortcut &&
                !shortcut_in_place(layer)) {
                const uint64_t in_pitch = wide(pitch_of(layer.in_channels));
                grow(shortcut, pixels * std::max(pitch, in_pitch));
            }
        }
    }
    for (int i = steps_.back().last; i <= last_layer_; ++i) {
        const Layer &layer = layers[to_size(i)];
        grow(vector, wide(round_up(layer.in_channels, kLanes)));
        grow(vector, wide(round_up(layer.out_channels, kLanes)));
    }
    const Layer &stem = layers[0];
    const int image_width = std::max(input_.width, (first_.width - 1) * stem.stride + 1);
    const uint64_t image = wide(stem.kernel) * to_size(3 * (image_width + stem.kernel));
    no_class_.resize(static_cast<size_t>(most_pixels));
    for (int thread = 0; thread < workers_.size(); ++thread) {
        Scratch scratch;
        for (int i = 0; i < 2; ++i) scratch.values[i] = Aligned(values[i] * sizeof(float));
        scratch.operands = Aligned(operands);
        scratch.signs = Aligned(signs * sizeof(uint32_t));
        scratch.shortcut = Aligned(shortcut * sizeof(float));
        for (auto &one : scratch.rows) one = Aligned(row * sizeof(float));
        for (auto &one : scratch.vectors) one = Aligned(row ? vector * sizeof(float) : 0);
        scratch.group_values = Aligned(group_values * sizeof(float));
        scratch.group_signs = Aligned(group_signs * sizeof(uint32_t));
        scratch.repeated_signs = Aligned(repeated_signs * sizeof(uint32_t));
        scratch.image = Aligned(image * sizeof(float));
        scratch.next_row.resize(steps_.size());
        scratch_.push_back(std::move(scratch));
    }
    for (auto &one : vectors_) one = Aligned(vector * sizeof(float));
    pooled_sums_ = Aligned(pooled_sums * sizeof(float));
    output_sums_ = Aligned(output_sums * sizeof(float));
}

size_t Plan::num_bytes() const {
    size_t total = 0;
    for (const Aligned *one : {&vectors_[0], &vectors_[1], &first_values_, &narrow_values_,
                               &map_sums_[0], &map_sums_[1], &pooled_sums_, &output_sums_}) {
        total += one->bytes();
    }
    std::vector<const Aligned *> seen;
    for (const Map &map : maps_) {
        total += map.averaged_sums.bytes();
        for (const Map::Memory &memory : map.memory) {
            total += memory.operands.bytes();
            const Aligned *values = memory.values.get();
            if (std::find(seen.begin(), seen.end(), values) != seen.end()) continue;
            total += values->bytes();
            seen.push_back(values);
        }
    }
    for (const auto &s : scratch_) {
        total += s.values[0].bytes() + s.values[1].bytes() + s.operands.bytes() + s.signs.bytes() +
                 s.shortcut.bytes() + s.image.bytes() + s.group_values.bytes() +
                 s.group_signs.bytes() + s.repeated_signs.bytes();
        for (const Aligned &one : s.rows) total += one.bytes();
        for (const Aligned &one : s.vectors) total += one.bytes();
    }
    return total;
}

void Plan::run(const void *images, Pixels type, size_t count, float *outputs) {
    const size_t bytes = to_size(input_.height) * to_size(input_.width) * 3 *
                         (type == Pixels::uint8 ? 1 : sizeof(float));
    const size_t floats = to_size(shape_.height) * to_size(shape_.width) * to_size(shape_.channels);
    workers_.run([&](int thread) {
        for (size_t i = 0; i < count; ++i) {
            const Input image{static_cast<const uint8_t *>(images) + i * bytes, type};
            for (const Phase &phase : phases_) {
                if (!steps_[phase.first].alone) {
                    run_phase(phase, image, thread);
                } else if (phase.first == 0) {
                    run_branched(image, thread);
                } else {
                    run_gated(phase.first, thread);
                }
                workers_.barrier();
            }
            if (thread == 0) finish(outputs + i * floats);
            workers_.barrier();
        }
    });
}

void Plan::run_phase(const Phase &phase, const Input &image, int thread) {
    Scratch &scratch = scratch_[to_size(thread)];
    const int height = maps_[phase.last].height;
    const int end = height * (thread + 1) / workers_.size();
    int begin = height * thread / workers_.size();
    if (begin == end) return;
    for (size_t step = phase.last + 1; step-- > phase.first;) {
        scratch.next_row[step] = begin;
        begin = steps_[step].first_needed(begin);
    }
    if (phase.first == 0) {
        const Layer &stem = model_.program().layers[0];
        scratch.next_image_row = scratch.next_row[0] * stem.stride - stem.kernel / 2;
    }
    make_rows(phase, phase.last, end, image, thread);
}

// Computes the rows of a step's output up to `end`, and those of the steps before it as they are
// needed.
void Plan::make_rows(const Phase &phase, size_t step, int end, const Input &image, int thread) {
    int &next = scratch_[to_size(thread)].next_row[step];
    const int kept = maps_[step].kept_rows;
    while (next < end) {
        // A block of rows is contiguous in memory, so it ends where the kept rows wrap around.
        const int rows = std::min({steps_[step].rows_at_once, end - next, kept - next % kept});
        if (step > phase.first) {
            const int needed = steps_[step].end_needed(next + rows, maps_[step - 1].height);
            make_rows(phase, step - 1, needed, image, thread);
        }
        if (step == 0) {
            for (int y = next; y < next + rows; ++y) run_stem(image, y, thread);
        } else {
            run_binary(step, next, rows, thread);
        }
        next += rows;
    }
}

// Returns the rows of the image, as floats with a border, from which the first convolution computes
// row y of its output. The rows of a thread are asked for in order.
const float *const *Plan::image_rows(const Input &image, int y, int thread) {
    const Layer &layer = model_.program().layers[0];
    const Tier &tier = model_.tier();
    Scratch &scratch = scratch_[to_size(thread)];
    const int border = layer.kernel / 2;
    const ptrdiff_t pitch =
        static_cast<ptrdiff_t>(scratch.image.bytes() / sizeof(float)) / layer.kernel / 3 * 3;
    auto fill = [&](float *to, ptrdiff_t pixels) {
        for (ptrdiff_t x = 0; x < pixels; ++x) std::copy_n(layer.padding.data(), 3, to + 3 * x);
    };
    // A row of the image is stored at (row + border) mod kernel; the rows above the image count
    // from -border.
    auto place = [&](int row) {
        return scratch.image.as<float>() + (row + border) % layer.kernel * pitch;
    };
    auto prepare = [&](int row) {
        float *to = place(row);
        if (row < 0 || row >= input_.height) {
            fill(to, pitch / 3);
            return;
        }
        fill(to, border);
        float *pixels = to + 3 * border;
        const size_t count = to_size(input_.width) * 3;
        if (image.type == Pixels::uint8) {
            tier.to_unit(image.bytes + to_size(row) * count, count, pixels);
        } else {
            std::memcpy(pixels, image.bytes + to_size(row) * count * sizeof(float),
                        count * sizeof(float));
        }
        fill(pixels + count, pitch / 3 - border - input_.width);
    };
    const int first = y * layer.stride - border;
    int &next = scratch.next_image_row;
    for (next = std::max(next, first); next < first + layer.kernel; ++next) prepare(next);
    for (int k = 0; k < layer.kernel; ++k) scratch.image_rows[k] = place(first + k);
    return scratch.image_rows;
}

// Computes one row of the first convolution.
void Plan::run_stem(const Input &image, int y, int thread) {
    const Layer &layer = model_.program().layers[0];
    const Model::Ready &ready = model_.ready(0);
    const Map &out = maps_[0];
    Scratch &scratch = scratch_[to_size(thread)];
    StemRows r;
    r.kernel = layer.kernel;
    r.stride = layer.stride;
    r.width = out.width;
    r.num_groups = ready.out_pitch / kLanes;
    r.weights = ready.weights.as<float>();
    r.bias = ready.bias.as<float>();
    r.input = image_rows(image, y, thread);
    r.out = out.row(thread, y);
    r.out_pixel = out.pitch;
    if (out.kernel) {
        r.next_threshold = out.threshold;
        r.signs = scratch.signs.as<uint32_t>();
        r.sign_words = out.words;
    }
    clear_padding(r.signs, r.sign_words, ready.out_pitch, out.width);
    model_.tier().stem_row(r);
    if (out.sums) model_.tier().sum_row(r.out, out.width, out.pitch, out.sums_at(y));
    if (out.kernel) write_operands(out, thread, y, r.signs);
}

// Writes the operands of row y of a map, for the binary convolution that reads it.
void Plan::write_operands(const Map &map, int thread, int y, const uint32_t *signs) {
    const Tier &tier = model_.tier();
    const int row = y + map.kernel / 2;
    if (map.groups == 1) {
        tier.expand(signs, map.width, map.kernel, map.stride, map.words,
                    map.operands_at(thread, row));
        return;
    }
    uint32_t *part = scratch_[to_size(thread)].group_signs.as<uint32_t>();
    const int each = map.groups / map.repeat;
    for (int group = 0; group < map.groups; ++group) {
        if (group && group % each == 0) {  // the signs for the next thresholds
            uint32_t *again = scratch_[to_size(thread)].repeated_signs.as<uint32_t>();
            clear_padding(again, map.words, map.pitch, map.width);
            tier.sign_row(map.row(thread, y), map.threshold + group / each * map.pitch, map.width,
                          map.pitch, map.words, again);
            signs = again;
        }
        const uint32_t *own = signs;
        if (each > 1) {
            copy_channels(signs, map.width, map.words, group % each * map.group_channels,
                          map.group_channels, map.group_words, part);
            own = part;
        }
        tier.expand(own, map.width, map.kernel, map.stride, map.group_words,
                    map.operands_at(thread, row, group));
    }
}

// Prepares rows of a shortcut that cannot be read in place: means of 2 × 2 pixels at stride 2, and
// repeated channels. row(y): the values of a row of the layer's input.
template <class Row>
void Plan::prepare_shortcut(const Layer &layer, const Model::Ready &ready, const Shape &in,
                            int begin, int width, const Row &row, BinaryRows &r,
                            Scratch &scratch) const {
    const bool repeat = layer.in_channels != layer.out_channels && layer.in_channels % kLanes != 0;
    const ptrdiff_t pitch = repeat ? ready.out_pitch : ready.in_pitch;
    float *to = scratch.shortcut.as<float>();
    for (int i = 0; i < r.num_rows; ++i) {
        float *at = to + i * width * pitch;
        const int y = (begin + i) * layer.stride;
        const float *from = row(y);
        if (layer.stride == 2) {
            const float *below = y + 1 < in.height ? row(y + 1) : nullptr;
            model_.tier().mean_row(from, below, nullptr, in.width, ready.in_pitch, at);
            from = at;
        }
        if (!repeat) continue;
        // Backwards, because the means are stored where this loop writes.
        for (int x = width - 1; x >= 0; --x) {
            float values[kLanes * 256];
            std::copy_n(from + static_cast<ptrdiff_t>(x) * ready.in_pitch, layer.in_channels,
                        values);
            for (int o = 0; o < layer.out_channels; ++o) {
                at[x * pitch + o] = values[o % layer.in_channels];
            }
        }
    }
    r.shortcut = to;
    r.shortcut_channels = repeat ? ready.out_pitch : in_place_channels(layer, ready);
    r.shortcut_pixel = pitch;
    r.shortcut_row = width * pitch;
}

// Computes a block of rows of a step, layer by layer.
void Plan::run_binary(size_t index, int y, int rows, int thread) {
    const Step &step = steps_[index];
    const Map &in = maps_[index - 1], &out = maps_[index];
    const Tier &tier = model_.tier();
    Scratch &scratch = scratch_[to_size(thread)];
    for (int at = step.first; at <= step.last; ++at) {
        const Layer &layer = model_.program().layers[to_size(at)];
        const Model::Ready &ready = model_.ready(at);
        const float *before = scratch.values[(at - step.first + 1) % 2].as<float>();
        const ptrdiff_t before_row = static_cast<ptrdiff_t>(out.width) * ready.in_pitch;
        BinaryRows r;
        r.layer = &ready.binary;
        r.num_rows = rows;
        r.width = out.width;
        if (at == step.first) {
            r.operands = in.operands_at(thread, y * layer.stride);
            r.operand_pixel = in.operand_pixel;
            r.operand_row = in.operand_row;
            r.row_class = step.row_class.data() + y;
            r.column_class = step.column_class.data();
        } else {
            r.operands = scratch.operands.as<uint8_t>();
            r.operand_pixel = static_cast<ptrdiff_t>(tier.operand_pixel(ready.binary.in_words, 1));
            r.operand_row =
                static_cast<ptrdiff_t>(tier.operand_row(out.width, 1, ready.binary.in_words));
            r.row_class = r.column_class = no_class_.data();
        }
        if (layer.shortcut && shortcut_in_place(layer)) {
            r.shortcut = at == step.first ? in.row(thread, y) : before;
            r.shortcut_row = before_row;
            r.shortcut_pixel = ready.in_pitch;
            r.shortcut_channels = in_place_channels(layer, ready);
        } else if (layer.shortcut && at == step.first) {
            prepare_shortcut(
                layer, ready, {in.height, in.width, 0}, y, out.width,
                [&](int row) { return in.row(thread, row); }, r, scratch);
        } else if (layer.shortcut) {
            prepare_shortcut(
                layer, ready, {rows, out.width, 0}, 0, out.width,
                [&](int row) { return before + row * before_row; }, r, scratch);
        }
        const bool last = at == step.last;
        r.out = last ? out.row(thread, y) : scratch.values[(at - step.first) % 2].as<float>();
        r.out_pixel = ready.out_pitch;
        r.out_row = out.width * r.out_pixel;
        const int kernel = last ? out.kernel : 1;  // of the layer that reads the output
        if (kernel) {
            r.next_threshold = last ? out.threshold : model_.ready(at + 1).threshold.as<float>();
            r.signs = scratch.signs.as<uint32_t>();
            r.sign_words = last ? out.words : model_.ready(at + 1).binary.in_words;
        }
        clear_padding(r.signs, r.sign_words, ready.out_pitch, rows * out.width);
        tier.binary_rows(r);
        for (int row = 0; last && out.sums && row < rows; ++row) {
            tier.sum_row(out.row(thread, y + row), out.width, out.pitch, out.sums_at(y + row));
        }
        if (!kernel) continue;
        for (int row = 0; row < rows; ++row) {
            const uint32_t *signs =
                r.signs + static_cast<ptrdiff_t>(row) * out.width * r.sign_words;
            if (last) {
                write_operands(out, thread, y + row, signs);
                continue;
            }
            tier.expand(signs, out.width, 1, 1, r.sign_words,
                        scratch.operands.as<uint8_t>() +
                            to_size(row) * tier.operand_row(out.width, 1, r.sign_words));
        }
    }
}

// Computes the means of the maps, the last one's first. Each map's rows were summed one by one,
// because long sums of floats lose digits, and their sums are added in order, whatever the threads
// that made them. sum: memory for the sum of a map.
void Plan::mean_of_maps(const Layer &mean, float *sum, float *means) const {
    int first = 0;
    const auto append = [&](const Map &map, int channels) {
        model_.tier().sum_row(map.sums, map.height, map.pitch, sum);
        for (int c = 0; c < channels; ++c) {
            const float value = sum[c] / static_cast<float>(map.height * map.width);
            const size_t at = to_size(first + c);
            const float scale = mean.scale.empty() ? 1.0f : mean.scale[at];
            means[at] = scale * value + mean.bias[at];
        }
        first += channels;
    };
    append(maps_.back(), mean.in_channels);
    for (size_t i = 0; i + 1 < steps_.size(); ++i) {
        const Layer &layer = model_.program().layers[to_size(steps_[i].last)];
        if (maps_[i].averaged) append(maps_[i], layer.out_channels);
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
            std::copy_n(map.row(0, 0) + static_cast<ptrdiff_t>(i) * map.pitch, channels,
                        output + static_cast<ptrdiff_t>(i) * channels);
        }
        return;
    }
    float *vector = vectors_[0].as<float>(), *other = vectors_[1].as<float>();
    mean_of_maps(layers[to_size(++at)], other, vector);
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
