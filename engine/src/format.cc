#include "format.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "json.h"

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the packed file is little-endian, and so must the machine be"
#endif
static_assert(sizeof(float) == 4 && std::numeric_limits<float>::is_iec559);

namespace burn {

namespace {

using json::printable;
using json::Type;
using json::Value;
using Shape = std::vector<uint64_t>;

constexpr uint64_t last_format = 5;
constexpr uint64_t max_file_size = uint64_t{1} << 30;
constexpr uint64_t max_header_size = 10'000'000;
constexpr uint64_t length_size = 8;
constexpr size_t max_layers = 1000;
constexpr uint64_t max_image_size = 4096;
constexpr uint64_t max_channels = 4096;
constexpr uint64_t max_experts = 64;
constexpr uint64_t max_repeat = 16;
constexpr size_t max_also = 16;
constexpr uint64_t max_linear_outputs = 1'000'000;

[[noreturn]] void fail(const std::string &where, const std::string &what) {
    throw Error(where + ": " + what);
}

std::string quoted(std::string_view text) { return "'" + printable(text) + "'"; }

std::string number_text(uint64_t number) { return std::to_string(number); }

std::string shape_text(const Shape &shape) {
    std::string out;
    for (const uint64_t length : shape) out += (out.empty() ? "" : ", ") + number_text(length);
    return "[" + out + "]";
}

// ---- JSON objects with a known set of keys

// A JSON object from the file, and the name by which messages call it.
class Fields {
  public:
    Fields(const Value &object, std::string where) : object_(object), where_(std::move(where)) {
        if (!object.is(Type::object)) fail("needs to be an object");
    }

    std::optional<Value> find(const char *key) const { return object_.find(key); }

    Value need(const char *key, Type type) const {
        const std::optional<Value> value = find(key);
        if (!value) fail(std::string("has no '") + key + "'");
        if (!value->is(type)) fail(key, *value, type_name(type));
        return *value;
    }

    std::string string(const char *key) const { return need(key, Type::string).string(); }
    bool boolean(const char *key) const { return need(key, Type::boolean).boolean(); }

    uint64_t integer(const char *key, uint64_t least, uint64_t most) const {
        const Value value = need(key, Type::number);
        const std::optional<uint64_t> number = value.unsigned_integer();
        if (!number || *number < least || *number > most) {
            fail(key, value, "an integer from " + number_text(least) + " to " + number_text(most));
        }
        return *number;
    }

    void only(std::initializer_list<std::string_view> known) const {
        for (const json::Member &member : object_.members()) {
            if (std::find(known.begin(), known.end(), member.key) == known.end()) {
                fail("has an unknown key " + quoted(member.key));
            }
        }
    }

    [[noreturn]] void fail(const std::string &what) const { burn::fail(where_, what); }

    [[noreturn]] void fail(const char *key, const Value &found, const std::string &needed) const {
        fail("'" + std::string(key) + "' is " + printable(found.source()) + ", needs " + needed);
    }

  private:
    static const char *type_name(Type type) {
        switch (type) {
            case Type::null: return "null";
            case Type::boolean: return "true or false";
            case Type::number: return "a number";
            case Type::string: return "a string";
            case Type::array: return "an array";
            case Type::object: return "an object";
        }
        return "";
    }

    Value object_;
    std::string where_;
};

// ---- The shell: header and tensors, which every safetensors file has

enum class Dtype { f32, u8, i16 };

uint64_t size_of(Dtype dtype) {
    return dtype == Dtype::f32 ? sizeof(float) : dtype == Dtype::i16 ? sizeof(int16_t) : 1;
}

const char *dtype_name(Dtype dtype) {
    switch (dtype) {
        case Dtype::f32: return "F32";
        case Dtype::u8: return "U8";
        case Dtype::i16: return "I16";
    }
    return "";
}

struct Tensor {
    Dtype dtype{};
    Shape shape;
    uint64_t begin = 0;  // counted from the first byte of data
    uint64_t end = 0;
};

using Tensors = std::map<std::string, Tensor>;

std::string tensor_text(const std::string &name) { return "tensor " + quoted(name); }

struct Shell {
    std::string header;
    const uint8_t *data = nullptr;
    uint64_t data_size = 0;
};

Shell open_shell(const uint8_t *bytes, size_t size) {
    if (size > max_file_size) {
        fail("file", number_text(size) + " bytes long, at most 2^30 are allowed");
    }
    if (size < length_size + 2) {
        fail("file", number_text(size) + " bytes long, too short for a header");
    }
    uint64_t length = 0;
    std::memcpy(&length, bytes, length_size);
    const uint64_t behind = size - length_size;
    if (length < 2 || length > max_header_size) {
        fail("header", "length is " + number_text(length) + ", needs to be 2 to 10000000");
    }
    if (length > behind) {
        fail("header", "length is " + number_text(length) + ", but only " + number_text(behind) +
                           " bytes follow");
    }
    const uint8_t *text = bytes + length_size;
    return {std::string(text, text + length), text + length, behind - length};
}

// Returns the number of bytes of a tensor, or nothing if 64 bits cannot hold it. No size is 0.
std::optional<uint64_t> byte_count(const Tensor &tensor) {
    uint64_t count = size_of(tensor.dtype);
    for (const uint64_t length : tensor.shape) {
        if (count > std::numeric_limits<uint64_t>::max() / length) return std::nullopt;
        count *= length;
    }
    return count;
}

Shape read_integers(const Fields &fields, const char *key, size_t most) {
    const Value array = fields.need(key, Type::array);
    if (array.count() > most) {
        fields.fail(key, array, "no more than " + number_text(most) + " integers");
    }
    Shape integers;
    for (const Value &element : array.elements()) {
        const std::optional<uint64_t> number =
            element.is(Type::number) ? element.unsigned_integer() : std::nullopt;
        if (!number) fields.fail(key, array, "integers from 0 to 2^64 - 1");
        integers.push_back(*number);
    }
    return integers;
}

Tensor read_tensor(const Value &entry, const std::string &name, uint64_t data_size,
                   uint64_t format) {
    const Fields fields(entry, tensor_text(name));
    fields.only({"dtype", "shape", "data_offsets"});
    Tensor tensor;
    const std::string dtype = fields.string("dtype");
    const auto is_named = [&](Dtype one) { return dtype == dtype_name(one); };
    if (is_named(Dtype::u8)) {
        tensor.dtype = Dtype::u8;
    } else if (is_named(Dtype::i16) && format > 1) {
        tensor.dtype = Dtype::i16;
    } else if (!is_named(Dtype::f32)) {
        fields.fail("dtype", fields.need("dtype", Type::string),
                    format > 1 ? "\"F32\", \"U8\" or \"I16\"" : "\"F32\" or \"U8\"");
    }
    tensor.shape = read_integers(fields, "shape", 4);
    if (tensor.shape.empty() || std::count(tensor.shape.begin(), tensor.shape.end(), 0u) != 0) {
        fields.fail("'shape' is " + shape_text(tensor.shape) +
                    ", needs 1 to 4 sizes of at least 1");
    }
    const Shape offsets = read_integers(fields, "data_offsets", 2);
    if (offsets.size() != 2) fields.fail("'data_offsets' needs two integers");
    tensor.begin = offsets[0];
    tensor.end = offsets[1];
    const std::string range = "data_offsets " + shape_text(offsets);
    if (tensor.begin > tensor.end) fields.fail(range + " end before they begin");
    if (tensor.end > data_size) {
        fields.fail(range + " reach beyond the " + number_text(data_size) + " bytes of data");
    }
    const std::optional<uint64_t> bytes = byte_count(tensor);
    const std::string shape = dtype_name(tensor.dtype) + (" of shape " + shape_text(tensor.shape));
    if (!bytes) fields.fail(shape + " has more bytes than 64 bits can count");
    if (*bytes != tensor.end - tensor.begin) {
        fields.fail(range + " hold " + number_text(tensor.end - tensor.begin) + " bytes, " + shape +
                    " needs " + number_text(*bytes));
    }
    return tensor;
}

// Throws unless the tensors follow each other from the first byte of data to the last.
void check_layout(const Tensors &tensors, uint64_t data_size, uint64_t data_position) {
    using Item = Tensors::value_type;
    std::vector<const Item *> order;
    for (const Item &item : tensors) order.push_back(&item);
    std::sort(order.begin(), order.end(), [](const Item *a, const Item *b) {
        return a->second.begin != b->second.begin ? a->second.begin < b->second.begin
                                                  : a->second.end < b->second.end;
    });
    uint64_t end = 0;
    for (const Item *item : order) {
        const auto &[name, tensor] = *item;
        if (tensor.begin != end) {
            fail(tensor_text(name), "begins at " + number_text(tensor.begin) +
                                        (tensor.begin < end ? ", an overlap" : ", after a gap") +
                                        ": the one before it ends at " + number_text(end));
        }
        const uint64_t position = data_position + tensor.begin;
        const uint64_t size = size_of(tensor.dtype);
        if (position % size != 0) {
            fail(tensor_text(name), std::string(dtype_name(tensor.dtype)) + " at byte " +
                                        number_text(position) +
                                        " of the file, needs a multiple of " + number_text(size));
        }
        end = tensor.end;
    }
    if (end != data_size) {
        fail("file", number_text(data_size - end) + " bytes of data after the last tensor");
    }
}

// The tensors of the file. Each must be taken exactly once, by the layer that it belongs to.
class Data {
  public:
    Data(const Shell &shell, const Value &header, uint64_t format) : bytes_(shell.data) {
        for (const json::Member &member : header.members()) {
            if (member.key == "__metadata__") continue;
            tensors_.emplace(member.key,
                             read_tensor(member.value, member.key, shell.data_size, format));
        }
        check_layout(tensors_, shell.data_size, length_size + shell.header.size());
    }

    // Returns the shape of a tensor from which the layer takes its sizes.
    const Shape &shape(const Layer &layer, const std::string &field) const {
        return find(layer, field)->second.shape;
    }

    std::vector<float> floats(const Layer &layer, const std::string &field, const Shape &shape) {
        const Tensor tensor = take(layer, field, Dtype::f32, shape);
        std::vector<float> values((tensor.end - tensor.begin) / sizeof(float));
        std::memcpy(values.data(), bytes_ + tensor.begin, tensor.end - tensor.begin);
        check_finite(values, layer, field);
        return values;
    }

    std::vector<uint8_t> bytes(const Layer &layer, const std::string &field, const Shape &shape) {
        const Tensor tensor = take(layer, field, Dtype::u8, shape);
        return {bytes_ + tensor.begin, bytes_ + tensor.end};
    }

    std::vector<int16_t> integers(const Layer &layer, const std::string &field,
                                  const Shape &shape) {
        const Tensor tensor = take(layer, field, Dtype::i16, shape);
        std::vector<int16_t> values((tensor.end - tensor.begin) / sizeof(int16_t));
        std::memcpy(values.data(), bytes_ + tensor.begin, tensor.end - tensor.begin);
        return values;
    }

    void check_all_taken() const {
        if (tensors_.empty()) return;
        fail(tensor_text(tensors_.begin()->first), "belongs to no layer of the program");
    }

    [[noreturn]] static void refuse(const Layer &layer, const std::string &field,
                                    const std::string &what) {
        fail("layer " + quoted(layer.name), "tensor " + printable(layer.name + "." + field) + what);
    }

    [[noreturn]] static void refuse_shape(const Layer &layer, const std::string &field,
                                          const Shape &shape, const std::string &needed) {
        refuse(layer, field, " has shape " + shape_text(shape) + ", needs " + needed);
    }

  private:
    Tensors::const_iterator find(const Layer &layer, const std::string &field) const {
        const auto found = tensors_.find(layer.name + "." + field);
        if (found == tensors_.end()) refuse(layer, field, " is missing");
        return found;
    }

    Tensor take(const Layer &layer, const std::string &field, Dtype dtype, const Shape &shape) {
        const auto found = find(layer, field);
        Tensor tensor = found->second;
        if (tensor.dtype != dtype) {
            refuse(layer, field,
                   std::string(" is ") + dtype_name(tensor.dtype) + ", needs " + dtype_name(dtype));
        }
        if (tensor.shape != shape) refuse_shape(layer, field, tensor.shape, shape_text(shape));
        tensors_.erase(found);
        return tensor;
    }

    // Checks the bits, because std::isfinite is compiled away under -ffast-math.
    static void check_finite(const std::vector<float> &values, const Layer &layer,
                             const std::string &field) {
        constexpr uint32_t exponent = 0x7F800000;
        for (size_t i = 0; i < values.size(); ++i) {
            uint32_t bits = 0;
            std::memcpy(&bits, &values[i], sizeof bits);
            if ((bits & exponent) != exponent) continue;
            const char *found = (bits & ~exponent) << 1 != 0 ? "a NaN" : "an infinity";
            refuse(layer, field, std::string(" holds ") + found + " at index " + number_text(i));
        }
    }

    const uint8_t *bytes_;
    Tensors tensors_;
};

std::string read_metadata(const Value &header) {
    const Fields fields(header, "header");
    const Value metadata = fields.need("__metadata__", Type::object);
    for (const json::Member &member : metadata.members()) {
        if (!member.value.is(Type::string)) {
            fail("__metadata__", quoted(member.key) + " needs to be a string");
        }
    }
    return Fields(metadata, "__metadata__").string("bnn");
}

// ---- The layers

std::optional<Kind> kind_of(const std::string &name) {
    for (const Kind kind : {Kind::convolution, Kind::binary_convolution, Kind::global_mean,
                            Kind::linear, Kind::gated_convolution, Kind::branched_convolution}) {
        if (name == kind_name(kind)) return kind;
    }
    return std::nullopt;
}

uint64_t first_format_of(Kind kind) {
    return kind == Kind::gated_convolution || kind == Kind::branched_convolution ? 2 : 1;
}

bool is_first(Kind kind) { return kind == Kind::convolution || kind == Kind::branched_convolution; }

bool is_binary(Kind kind) {
    return kind == Kind::binary_convolution || kind == Kind::gated_convolution;
}

bool may_follow(Kind before, Kind kind) {
    if (is_first(kind)) return false;
    if (is_binary(kind)) return is_first(before) || is_binary(before);
    if (kind == Kind::global_mean) return is_binary(before);
    return before == Kind::global_mean || before == Kind::linear;
}

bool is_name(const std::string &name) {
    constexpr std::string_view allowed =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.";
    return !name.empty() && name.size() <= 100 &&
           name.find_first_not_of(allowed) == std::string::npos && name != "image";
}

uint64_t unsigned_of(int number) { return static_cast<uint64_t>(number); }

// Returns the shape of a weight, which needs to be [times · out, k, k, depth].
Shape kernel_shape(const Layer &layer, const Data &data, const std::string &field,
                   std::initializer_list<uint64_t> kernels, uint64_t depth, uint64_t times = 1) {
    const Shape &shape = data.shape(layer, field);
    const bool fits = shape.size() == 4 && shape[0] >= 1 && shape[0] <= times * max_channels &&
                      shape[0] % times == 0 &&
                      std::find(kernels.begin(), kernels.end(), shape[1]) != kernels.end() &&
                      shape[1] == shape[2] && shape[3] == depth;
    if (!fits) {
        std::string list;
        for (const uint64_t k : kernels) list += (list.empty() ? "" : ", ") + number_text(k);
        const std::string out = times > 1 ? number_text(times) + " * out" : "out";
        Data::refuse_shape(layer, field, shape,
                           "[" + out + ", k, k, " + number_text(depth) + "] with out in 1 to " +
                               number_text(max_channels) + " and k in " + list);
    }
    return shape;
}

// Sets the output channels and the kernel from the weight.
void read_kernel(Layer &layer, const Data &data, std::initializer_list<uint64_t> kernels,
                 uint64_t depth, uint64_t times = 1) {
    const Shape shape = kernel_shape(layer, data, "weight", kernels, depth, times);
    layer.out_channels = static_cast<int>(shape[0] / times);
    layer.kernel = static_cast<int>(shape[1]);
}

Shape weight_shape(const Layer &layer, uint64_t depth) {
    const uint64_t k = unsigned_of(layer.kernel);
    return {unsigned_of(layer.out_channels), k, k, depth};
}

void read_convolution(Layer &layer, const Fields &fields, Data &data) {
    fields.only({"kind", "name", "input", "stride"});
    constexpr uint64_t colours = 3;
    layer.stride = static_cast<int>(fields.integer("stride", 1, 2));
    read_kernel(layer, data, {1, 3, 5, 7}, colours);
    layer.weight = data.floats(layer, "weight", weight_shape(layer, colours));
    layer.bias = data.floats(layer, "bias", {unsigned_of(layer.out_channels)});
    layer.padding = data.floats(layer, "padding", {colours});
}

// A compute kernel sums whole bytes, so bits after the last channel would be counted.
void check_spare_bits(const Layer &layer, uint64_t row_bytes) {
    const Gated &gated = layer.gated;
    const unsigned used =
        static_cast<unsigned>(layer.in_channels * gated.repeat / gated.groups) % 8;
    if (used == 0) return;
    for (uint64_t last = row_bytes - 1; last < layer.weight_bits.size(); last += row_bytes) {
        if (layer.weight_bits[last] >> used == 0) continue;
        Data::refuse(layer, "weight",
                     " has bits set after the last channel, in byte " + number_text(last));
    }
}

void check_multiple(const Layer &layer, const Fields &fields, const std::string &what) {
    if (layer.out_channels % layer.in_channels == 0) return;
    fields.fail("has " + what + ", but its " + std::to_string(layer.out_channels) +
                " outputs are not a multiple of its " + std::to_string(layer.in_channels) +
                " inputs");
}

void read_binary_convolution(Layer &layer, const Fields &fields, Data &data) {
    fields.only({"kind", "name", "input", "stride", "shortcut"});
    layer.stride = static_cast<int>(fields.integer("stride", 1, 2));
    layer.shortcut = fields.boolean("shortcut");
    const uint64_t in = unsigned_of(layer.in_channels);
    const uint64_t row_bytes = (in + 7) / 8;
    read_kernel(layer, data, {1, 3}, row_bytes);
    if (layer.shortcut) check_multiple(layer, fields, "a shortcut");
    layer.weight_bits = data.bytes(layer, "weight", weight_shape(layer, row_bytes));
    check_spare_bits(layer, row_bytes);
    const uint64_t out = unsigned_of(layer.out_channels);
    layer.threshold = data.floats(layer, "threshold", {in});
    layer.multiplier = data.floats(layer, "multiplier", {out});
    layer.bias = data.floats(layer, "bias", {out});
    layer.slope = data.floats(layer, "slope", {out});
}

// Returns the shape of a matrix [out, in]; out is 0 if the layer does not determine it.
Shape matrix_shape(const Layer &layer, const Data &data, const std::string &part, int out, int in) {
    const Shape &shape = data.shape(layer, part + ".weight");
    const bool fits = shape.size() == 2 && shape[1] == unsigned_of(in) &&
                      (out ? shape[0] == unsigned_of(out) : shape[0] <= max_channels);
    if (!fits) {
        const std::string needed = out ? std::to_string(out) : "1 to " + number_text(max_channels);
        Data::refuse_shape(layer, part + ".weight", shape,
                           "[" + needed + ", " + std::to_string(in) + "]");
    }
    return shape;
}

Matrix read_matrix(const Layer &layer, Data &data, const std::string &part, int out, int in) {
    const Shape shape = matrix_shape(layer, data, part, out, in);
    Matrix matrix;
    matrix.in = in;
    matrix.out = static_cast<int>(shape[0]);
    matrix.weight = data.floats(layer, part + ".weight", shape);
    matrix.bias = data.floats(layer, part + ".bias", {shape[0]});
    return matrix;
}

void read_rounded(Rounded &matrix, const Layer &layer, Data &data, const std::string &part, int out,
                  int in) {
    const Shape shape = matrix_shape(layer, data, part, out, in);
    matrix.in = in;
    matrix.out = static_cast<int>(shape[0]);
    matrix.weight = data.integers(layer, part + ".weight", shape);
    matrix.scale = data.floats(layer, part + ".scale", {shape[0]});
    matrix.bias = data.floats(layer, part + ".bias", {shape[0]});
}

Matrix in_floats(const Rounded &rounded) {
    Matrix matrix{rounded.in, rounded.out, std::vector<float>(rounded.weight.size()), rounded.bias};
    for (size_t i = 0; i < rounded.weight.size(); ++i) {
        matrix.weight[i] = rounded.scale[i / static_cast<size_t>(rounded.in)] * rounded.weight[i];
    }
    return matrix;
}

std::vector<Side> read_sides(const Layer &layer, Data &data, uint64_t count, uint64_t format) {
    std::vector<Side> sides;
    for (uint64_t i = 0; i < count; ++i) {
        const std::string part = "side." + number_text(i);
        const int in = sides.empty() ? layer.in_channels : sides.back().out;
        const int out = i + 1 == count ? layer.out_channels : 0;
        Side side;
        if (format > 3) {
            static_cast<Matrix &>(side) = read_matrix(layer, data, part, out, in);
        } else {
            Rounded rounded;
            read_rounded(rounded, layer, data, part, out, in);
            static_cast<Matrix &>(side) = in_floats(rounded);
        }
        side.slope = data.floats(layer, part + ".slope", {unsigned_of(side.out)});
        sides.push_back(std::move(side));
    }
    return sides;
}

Gate gate_of(const Fields &fields) {
    const std::string gate = fields.string("gate");
    if (gate == "none") return Gate::none;
    if (gate == "input") return Gate::input;
    if (gate == "mixed") return Gate::mixed;
    fields.fail("gate", fields.need("gate", Type::string), "\"none\", \"input\" or \"mixed\"");
}

void read_gated_convolution(Layer &layer, const Fields &fields, Data &data, uint64_t format) {
    fields.only({"kind", "name", "input", "stride", "repeat", "groups", "experts", "gate",
                 "product", "shortcut", "side"});
    Gated &gated = layer.gated;
    layer.stride = static_cast<int>(fields.integer("stride", 1, 2));
    gated.repeat = static_cast<int>(fields.integer("repeat", 1, max_repeat));
    gated.groups = static_cast<int>(fields.integer("groups", 1, max_channels));
    gated.experts = static_cast<int>(fields.integer("experts", 1, max_experts));
    gated.gate = gate_of(fields);
    gated.product = fields.boolean("product");
    layer.shortcut = fields.boolean("shortcut");
    const uint64_t sides = fields.integer("side", 0, 2);
    if (!layer.shortcut && (gated.product || sides)) {
        fields.fail(std::string("has ") + (gated.product ? "a product" : "sides") +
                    " without a shortcut");
    }
    if (layer.in_channels * gated.repeat % gated.groups != 0 || gated.groups % gated.repeat != 0) {
        fields.fail("has " + std::to_string(gated.groups) + " groups of " +
                    std::to_string(layer.in_channels) + " inputs repeated " +
                    std::to_string(gated.repeat) + " times, which is not a multiple");
    }
    const uint64_t used = unsigned_of(layer.in_channels * gated.repeat / gated.groups);
    const uint64_t row_bytes = (used + 7) / 8, experts = unsigned_of(gated.experts);
    read_kernel(layer, data, {1, 3}, row_bytes, experts);
    if (layer.out_channels % gated.groups != 0) {
        fields.fail("has " + std::to_string(gated.groups) + " groups of " +
                    std::to_string(layer.out_channels) + " outputs, which is not a multiple");
    }
    if (layer.shortcut && !sides) check_multiple(layer, fields, "a shortcut");
    if (gated.gate == Gate::mixed) check_multiple(layer, fields, "a mixed gate");
    const uint64_t in = unsigned_of(layer.in_channels), out = unsigned_of(layer.out_channels);
    const uint64_t k = unsigned_of(layer.kernel);
    layer.weight_bits = data.bytes(layer, "weight", {experts * out, k, k, row_bytes});
    check_spare_bits(layer, row_bytes);
    layer.threshold = data.floats(layer, "threshold", {in * unsigned_of(gated.repeat)});
    layer.multiplier = data.floats(layer, "multiplier", {experts * out});
    layer.bias = data.floats(layer, "bias", {out});
    layer.slope = data.floats(layer, "slope", {out});
    gated.inner_slope = data.floats(layer, "inner_slope", {out});
    gated.scale = data.floats(layer, "scale", {out});
    gated.shift = data.floats(layer, "shift", {out});
    if (gated.experts > 1) {
        gated.choice = read_matrix(layer, data, "choice", gated.experts, layer.in_channels);
    }
    if (gated.gate != Gate::none) {
        const int taken = gated.gate == Gate::input ? layer.in_channels : layer.out_channels;
        read_rounded(gated.down, layer, data, "gate.down", 0, taken);
        read_rounded(gated.up, layer, data, "gate.up", layer.out_channels, gated.down.out);
    }
    if (gated.gate == Gate::mixed) gated.mix = data.floats(layer, "mix", {out});
    if (layer.shortcut && !sides) {
        gated.shortcut_slope = data.floats(layer, "shortcut_slope", {in});
    }
    gated.sides = read_sides(layer, data, sides, format);
}

Matrix read_float_kernel(const Layer &layer, Data &data, const std::string &part,
                         std::initializer_list<uint64_t> kernels, int in, int &kernel) {
    const Shape shape = kernel_shape(layer, data, part + ".weight", kernels, unsigned_of(in));
    kernel = static_cast<int>(shape[1]);
    Matrix matrix;
    matrix.in = kernel * kernel * in;
    matrix.out = static_cast<int>(shape[0]);
    matrix.weight = data.floats(layer, part + ".weight", shape);
    matrix.bias = data.floats(layer, part + ".bias", {shape[0]});
    return matrix;
}

void read_branched_convolution(Layer &layer, const Fields &fields, Data &data) {
    fields.only({"kind", "name", "input", "stride", "second_stride"});
    constexpr int colours = 3;
    Branched &b = layer.branched;
    layer.stride = static_cast<int>(fields.integer("stride", 1, 2));
    b.second_stride = static_cast<int>(fields.integer("second_stride", 1, 2));
    b.first = read_float_kernel(layer, data, "first", {1, 3, 5, 7}, colours, b.first_kernel);
    layer.padding = data.floats(layer, "padding", {unsigned_of(colours)});
    b.narrow = read_matrix(layer, data, "narrow", 0, b.first.out);
    b.widen = read_float_kernel(layer, data, "widen", {1, 3}, b.narrow.out, b.widen_kernel);
    b.last = read_matrix(layer, data, "last", 0, b.widen.out + b.first.out);
    layer.kernel = b.first_kernel;
    layer.out_channels = b.last.out;
}

// Returns the indices of the layers besides the last whose maps a global_mean averages.
std::vector<int> read_also(const Fields &fields, const std::vector<Layer> &layers) {
    const Value array = fields.need("also", Type::array);
    if (array.count() > max_also) {
        fields.fail("also has " + number_text(array.count()) + " names, at most " +
                    number_text(max_also) + " are allowed");
    }
    std::vector<int> also;
    for (const Value &value : array.elements()) {
        const std::string name = value.is(Type::string) ? value.string() : "";
        const auto found = std::find_if(layers.begin(), layers.end() - 1, [&](const Layer &layer) {
            return is_binary(layer.kind) && layer.name == name;
        });
        const int index = static_cast<int>(found - layers.begin());
        const std::string names = "also names " + printable(value.source());
        if (found == layers.end() - 1) {
            fields.fail(names + ", which is no binary or gated convolution before " +
                        quoted(layers.back().name));
        }
        if (!also.empty() && index <= also.back()) {
            fields.fail(names + " after " + quoted(layers[static_cast<size_t>(also.back())].name) +
                        ", needs each name once, in the order of the program");
        }
        also.push_back(index);
    }
    return also;
}

void read_global_mean(Layer &layer, const Fields &fields, const std::vector<Layer> &layers,
                      Data &data, uint64_t format) {
    bool scaled = false;
    layer.out_channels = layer.in_channels;
    if (format < 3) {
        fields.only({"kind", "name", "input"});
    } else if (format < 5) {
        fields.only({"kind", "name", "input", "scaled"});
        scaled = fields.boolean("scaled");
    } else {
        fields.only({"kind", "name", "input", "scaled", "also"});
        scaled = fields.boolean("scaled");
        layer.also = read_also(fields, layers);
        for (const int one : layer.also)
            layer.out_channels += layers[static_cast<size_t>(one)].out_channels;
    }
    layer.bias = data.floats(layer, "bias", {unsigned_of(layer.out_channels)});
    if (scaled) layer.scale = data.floats(layer, "scale", {unsigned_of(layer.out_channels)});
}

void read_linear(Layer &layer, const Fields &fields, Data &data) {
    fields.only({"kind", "name", "input", "relu"});
    layer.relu = fields.boolean("relu");
    const uint64_t in = unsigned_of(layer.in_channels);
    const Shape &shape = data.shape(layer, "weight");
    if (shape.size() != 2 || shape[0] < 1 || shape[0] > max_linear_outputs || shape[1] != in) {
        const std::string most = number_text(max_linear_outputs);
        Data::refuse_shape(layer, "weight", shape,
                           "[out, " + number_text(in) + "] with out in 1 to " + most);
    }
    const uint64_t out = shape[0];
    layer.out_channels = static_cast<int>(out);
    layer.weight = data.floats(layer, "weight", {out, in});
    layer.bias = data.floats(layer, "bias", {out});
}

// Checks that the layer is the next one of the chain whose beginning is `layers`.
void check_place(const Layer &layer, const std::vector<Layer> &layers, const Fields &fields) {
    for (const Layer &other : layers) {
        if (other.name == layer.name) fields.fail("there is another layer with this name");
    }
    const Layer *before = layers.empty() ? nullptr : &layers.back();
    const std::string input = fields.string("input");
    const std::string needed = before ? before->name : "image";
    if (input != needed) {
        fields.fail("'input' is " + quoted(input) + ", needs '" + needed +
                    "': a program is a chain");
    }
    if (before ? may_follow(before->kind, layer.kind) : is_first(layer.kind)) return;
    fields.fail(std::string("a ") + kind_name(layer.kind) + " cannot " +
                (before ? std::string("follow a ") + kind_name(before->kind) : "be the first"));
}

Layer read_layer(const Value &value, const std::vector<Layer> &layers, Data &data,
                 uint64_t format) {
    const Fields unnamed(value, "layers[" + number_text(layers.size()) + "]");
    Layer layer;
    layer.name = unnamed.string("name");
    if (!is_name(layer.name)) {
        unnamed.fail("'name' is " + quoted(layer.name) +
                     ", needs 1 to 100 characters of A-Z a-z 0-9 _ . and not to be 'image'");
    }
    const Fields fields(value, "layer " + quoted(layer.name));
    const std::string kind = fields.string("kind");
    const std::optional<Kind> known = kind_of(kind);
    if (!known || first_format_of(*known) > format) fields.fail("unknown kind " + quoted(kind));
    layer.kind = *known;
    check_place(layer, layers, fields);
    layer.in_channels = layers.empty() ? 3 : layers.back().out_channels;
    switch (layer.kind) {
        case Kind::convolution: read_convolution(layer, fields, data); break;
        case Kind::binary_convolution: read_binary_convolution(layer, fields, data); break;
        case Kind::global_mean: read_global_mean(layer, fields, layers, data, format); break;
        case Kind::linear: read_linear(layer, fields, data); break;
        case Kind::gated_convolution: read_gated_convolution(layer, fields, data, format); break;
        case Kind::branched_convolution: read_branched_convolution(layer, fields, data); break;
    }
    return layer;
}

// ---- The program

uint64_t read_format(const Fields &program) {
    const Value found = program.need("format", Type::number);
    const std::optional<uint64_t> format = found.unsigned_integer();
    if (format && *format >= 1 && *format <= last_format) return *format;
    const bool newer = format && *format > last_format;
    fail("program", "format is " + printable(found.source()) +
                        ", this reader knows 1, 2, 3, 4 and 5" +
                        (newer ? ": update burn-engine" : ""));
}

std::vector<Layer> read_layers(const Fields &program, Data &data, uint64_t format) {
    const Value array = program.need("layers", Type::array);
    const size_t count = array.count();
    if (count < 3 || count > max_layers) {
        program.fail("has " + number_text(count) + " layers, needs 3 to 1000");
    }
    std::vector<Layer> layers;
    for (const Value &value : array.elements()) {
        layers.push_back(read_layer(value, layers, data, format));
    }
    const Kind last = layers.back().kind;
    if (last != Kind::global_mean && last != Kind::linear) {
        program.fail(std::string("ends with a ") + kind_name(last) +
                     ", needs a global_mean or linear");
    }
    return layers;
}

bool has_control_character(std::string_view text) {
    return std::any_of(text.begin(), text.end(),
                       [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
}

std::vector<std::string> read_classes(const Fields &program, const Layer &last) {
    if (!program.find("classes")) return {};
    const Value array = program.need("classes", Type::array);
    if (last.kind != Kind::linear) {
        program.fail("has 'classes', but its last layer is not a linear: " + quoted(last.name));
    }
    if (array.count() != unsigned_of(last.out_channels)) {
        program.fail("has " + number_text(array.count()) + " classes, but the last layer " +
                     quoted(last.name) + " has " + std::to_string(last.out_channels) + " outputs");
    }
    std::vector<std::string> classes;
    for (const Value &value : array.elements()) {
        if (!value.is(Type::string)) {
            program.fail("classes[" + number_text(classes.size()) + "] needs to be a string");
        }
        classes.push_back(value.string());
        if (has_control_character(classes.back())) {
            program.fail("class " + quoted(classes.back()) + " has a control character");
        }
    }
    std::vector<std::string_view> sorted(classes.begin(), classes.end());
    std::sort(sorted.begin(), sorted.end());
    if (sorted.front().empty()) program.fail("has a class whose name is empty");
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) program.fail("has class " + quoted(*twice) + " twice");
    return classes;
}

int read_features(const Fields &program, const std::vector<Layer> &layers, bool has_classes) {
    const std::string name = program.string("features");
    const size_t index = layers.size() - (has_classes ? 2 : 1);
    if (name != layers[index].name) {
        const std::string which = has_classes ? "the last layer but one" : "the last layer";
        program.fail("'features' is " + quoted(name) + ", needs '" + layers[index].name + "', " +
                     which);
    }
    return static_cast<int>(index);
}

void read_image(const Fields &fields, Program &program) {
    const std::optional<Value> image = fields.find("image");
    if (!image) return;
    const Fields sizes(*image, "program: 'image'");
    sizes.only({"resize", "size"});
    const uint64_t resize = sizes.integer("resize", 1, max_image_size);
    program.image_resize = static_cast<int>(resize);
    program.image_size = static_cast<int>(sizes.integer("size", 1, resize));
}

Program read_program(const Fields &fields, Data &data, uint64_t format) {
    fields.only({"format", "layers", "features", "classes", "image", "origin"});
    if (fields.find("origin")) fields.need("origin", Type::object);
    Program program;
    read_image(fields, program);
    program.layers = read_layers(fields, data, format);
    program.classes = read_classes(fields, program.layers.back());
    program.features = read_features(fields, program.layers, !program.classes.empty());
    return program;
}

// ---- Files

struct Descriptor {
    int number;
    explicit Descriptor(int n) : number(n) {}
    Descriptor(const Descriptor &) = delete;
    Descriptor &operator=(const Descriptor &) = delete;
    ~Descriptor() {
        if (number >= 0) close(number);
    }
};

[[noreturn]] void fail_with_errno(const char *path) {
    fail(path, std::generic_category().message(errno));
}

// Reads `size` bytes. Throws Error if the file turns out to have fewer.
std::vector<uint8_t> read_bytes(int file, size_t size, const char *path) {
    std::vector<uint8_t> bytes(size);
    size_t have = 0;
    while (have < size) {
        const ssize_t got = read(file, bytes.data() + have, size - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail_with_errno(path);
        if (got == 0) fail(path, "became shorter while it was read");
        have += static_cast<size_t>(got);
    }
    return bytes;
}

}  // namespace

const char *kind_name(Kind kind) {
    switch (kind) {
        case Kind::convolution: return "convolution";
        case Kind::binary_convolution: return "binary_convolution";
        case Kind::global_mean: return "global_mean";
        case Kind::linear: return "linear";
        case Kind::gated_convolution: return "gated_convolution";
        case Kind::branched_convolution: return "branched_convolution";
    }
    return "";
}

Program parse_program(const void *bytes, size_t size) {
    const Shell shell = open_shell(static_cast<const uint8_t *>(bytes), size);
    const json::Document header(shell.header, "header");
    if (!header.root().is(Type::object)) fail("header", "needs to be an object");
    const std::string text = read_metadata(header.root());
    const json::Document document(text, "program");
    const Fields fields(document.root(), "program");
    // First, because another format may have other keys and tensors.
    const uint64_t format = read_format(fields);
    Data data(shell, header.root(), format);
    Program program = read_program(fields, data, format);
    data.check_all_taken();
    return program;
}

std::vector<uint8_t> read_file(const char *path) {
    // Without O_NONBLOCK, opening a FIFO would wait for a writer.
    const Descriptor file(open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    struct stat status{};
    if (file.number < 0 || fstat(file.number, &status) != 0) fail_with_errno(path);
    if (S_ISDIR(status.st_mode)) fail(path, std::generic_category().message(EISDIR));
    if (!S_ISREG(status.st_mode)) fail(path, "not a regular file");
    if (status.st_size <= 0) fail(path, "an empty file");
    const auto size = static_cast<uint64_t>(status.st_size);
    if (size > max_file_size) {
        fail(path, number_text(size) + " bytes long, at most 2^30 are allowed");
    }
    return read_bytes(file.number, static_cast<size_t>(size), path);
}

}  // namespace burn
