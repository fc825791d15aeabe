// Fuzzes parse_program with libFuzzer; run.sh builds and runs it.
//
// Blind changes to a file seldom get past its length field, offsets and escaped program. So most of
// these take the file apart, change one part and write a valid shell around it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "../src/format.h"
#include "../src/json.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

namespace {

using Random = std::minstd_rand;

void must(bool holds) {
    if (!holds) std::abort();
}

// ---- Properties of every program that was accepted

void check_floats(const std::vector<float> &values, int count) {
    must(values.size() == static_cast<size_t>(count));
    for (const float value : values) must(std::isfinite(value));
}

void check_matrix(const burn::Matrix &matrix, int in, int out) {
    must(matrix.in == in && matrix.out == out);
    check_floats(matrix.weight, in * out);
    check_floats(matrix.bias, out);
}

void check_rounded(const burn::Rounded &matrix, int in, int out) {
    must(matrix.in == in && matrix.out == out);
    must(matrix.weight.size() == static_cast<size_t>(in * out));
    check_floats(matrix.scale, out);
    check_floats(matrix.bias, out);
}

void check_gated(const burn::Layer &layer) {
    const burn::Gated &gated = layer.gated;
    const int out = layer.out_channels, in = layer.in_channels;
    must(gated.groups >= 1 && gated.experts >= 1 && gated.experts <= 64);
    must(gated.repeat >= 1 && gated.repeat <= 16 && gated.groups % gated.repeat == 0);
    must(gated.repeat * in % gated.groups == 0 && out % gated.groups == 0);
    must(layer.shortcut || (!gated.product && gated.sides.empty()));
    for (const auto *vector : {&gated.inner_slope, &gated.scale, &gated.shift}) {
        check_floats(*vector, out);
    }
    const bool mixed = gated.gate == burn::Gate::mixed, gate = gated.gate != burn::Gate::none;
    const bool plain = layer.shortcut && gated.sides.empty();
    check_floats(gated.mix, mixed ? out : 0);
    check_floats(gated.shortcut_slope, plain ? in : 0);
    must(!(mixed || plain) || out % in == 0);
    check_matrix(gated.choice, gated.experts > 1 ? in : 0, gated.experts > 1 ? gated.experts : 0);
    const int inner = gated.down.out;
    must(!gate || inner >= 1);
    check_rounded(gated.down, gate ? (mixed ? out : in) : 0, inner);
    check_rounded(gated.up, inner, gate ? out : 0);
    int width = in;
    for (const burn::Side &side : gated.sides) {
        must(side.out >= 1 && side.in == width);
        must(side.weight.size() == static_cast<size_t>(width * side.out));
        width = side.out;
        check_floats(side.bias, width);
        check_floats(side.slope, width);
    }
    must(gated.sides.size() <= 2 && (gated.sides.empty() || width == out));
}

void check_branched(const burn::Layer &layer) {
    const burn::Branched &b = layer.branched;
    must(b.second_stride >= 1 && b.second_stride <= 2);
    must(b.first_kernel == layer.kernel && (b.widen_kernel == 1 || b.widen_kernel == 3));
    check_matrix(b.first, 3 * layer.kernel * layer.kernel, b.first.out);
    check_matrix(b.narrow, b.first.out, b.narrow.out);
    check_matrix(b.widen, b.narrow.out * b.widen_kernel * b.widen_kernel, b.widen.out);
    check_matrix(b.last, b.widen.out + b.first.out, layer.out_channels);
}

void check_layer(const burn::Layer &layer) {
    using burn::Kind;
    const int out = layer.out_channels, in = layer.in_channels;
    const bool gated = layer.kind == Kind::gated_convolution;
    const bool branched = layer.kind == Kind::branched_convolution;
    const bool binary = layer.kind == Kind::binary_convolution || gated;
    const bool first = layer.kind == Kind::convolution || branched;
    must(!layer.name.empty() && out >= 1 && in >= 1);
    must(layer.kernel % 2 == 1 && layer.kernel <= 7 && layer.stride >= 1 && layer.stride <= 2);
    const int taps = layer.kernel * layer.kernel;
    const bool weights = layer.kind == Kind::convolution || layer.kind == Kind::linear;
    check_floats(layer.weight, weights ? out * taps * in : 0);
    check_floats(layer.bias, branched ? 0 : out);
    check_floats(layer.padding, first ? 3 : 0);
    check_floats(layer.threshold, binary ? layer.gated.repeat * in : 0);
    check_floats(layer.multiplier, binary ? layer.gated.experts * out : 0);
    check_floats(layer.slope, binary ? out : 0);
    const int row = (layer.gated.repeat * in / layer.gated.groups + 7) / 8;
    must(layer.weight_bits.size() ==
         static_cast<size_t>(binary ? layer.gated.experts * out * taps * row : 0));
    must(gated || !layer.shortcut || out % in == 0);
    if (gated) check_gated(layer);
    if (branched) check_branched(layer);
}

void check_also(const std::vector<burn::Layer> &layers, size_t index) {
    const burn::Layer &layer = layers[index];
    must(layer.also.empty() || layer.kind == burn::Kind::global_mean);
    must(layer.also.size() <= 16);
    int channels = layer.in_channels, before = 0;
    for (const int one : layer.also) {
        must(one > before && static_cast<size_t>(one) + 1 < index);
        before = one;
        channels += layers[static_cast<size_t>(one)].out_channels;
    }
    must(layer.kind != burn::Kind::global_mean || layer.out_channels == channels);
}

void check_program(const burn::Program &program) {
    const size_t count = program.layers.size();
    must(count >= 3 && count <= 1000);
    int channels = 3;
    for (const burn::Layer &layer : program.layers) {
        must(layer.in_channels == channels);
        check_layer(layer);
        channels = layer.out_channels;
    }
    const size_t classes = program.classes.size();
    must(classes == 0 || classes == static_cast<size_t>(channels));
    must(static_cast<size_t>(program.features) == count - (classes ? 2 : 1));
    for (size_t i = 0; i < count; ++i) check_also(program.layers, i);
}

void check_message(const char *message) {
    must(std::strlen(message) < 1000);
    for (const char *c = message; *c != '\0'; ++c) must(*c >= ' ' && *c <= '~');
}

// ---- A file, taken apart

struct Tensor {
    std::string name;
    std::string dtype;
    std::vector<uint64_t> shape;
    std::string data;
};

struct Parts {
    std::string program;
    std::vector<Tensor> tensors;
};

std::string escaped(const std::string &text) {
    const char *hex = "0123456789abcdef";
    std::string out;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            out += std::string("\\") + c;
        } else if (byte < 0x20) {
            out += std::string("\\u00") + hex[byte >> 4] + hex[byte & 15];
        } else {
            out += c;
        }
    }
    return out;
}

std::string assemble(const std::string &header, const std::string &data) {
    const uint64_t length = header.size();
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    return bytes + header + data;
}

std::string write_parts(const Parts &parts) {
    std::string header = R"({"__metadata__":{"bnn":")" + escaped(parts.program) + "\"}";
    std::string data;
    for (const Tensor &tensor : parts.tensors) {
        std::string shape;
        for (const uint64_t length : tensor.shape) {
            shape += (shape.empty() ? "" : ",") + std::to_string(length);
        }
        header += ",\"" + escaped(tensor.name) + R"(":{"dtype":")" + escaped(tensor.dtype) +
                  R"(","shape":[)" + shape + R"(],"data_offsets":[)" + std::to_string(data.size());
        data += tensor.data;
        header += "," + std::to_string(data.size()) + "]}";
    }
    header += "}";
    header.append((8 - header.size() % 8) % 8, ' ');
    return assemble(header, data);
}

Tensor read_tensor(const burn::json::Member &member, const std::string &data) {
    Tensor tensor{member.key, {}, {}, {}};
    std::vector<uint64_t> offsets;
    for (const burn::json::Member &field : member.value.members()) {
        if (field.key == "dtype" && field.value.is(burn::json::Type::string)) {
            tensor.dtype = field.value.string();
        } else if (field.value.is(burn::json::Type::array)) {
            std::vector<uint64_t> &numbers = field.key == "shape" ? tensor.shape : offsets;
            for (const burn::json::Value &value : field.value.elements()) {
                numbers.push_back(value.unsigned_integer().value_or(0));
            }
        }
    }
    offsets.resize(2);
    const uint64_t begin = std::min<uint64_t>(offsets[0], data.size());
    tensor.data = data.substr(begin, offsets[1] > begin ? offsets[1] - begin : 0);
    return tensor;
}

// Takes a file apart. Throws burn::Error if it is too damaged.
Parts read_parts(const std::string &header, const std::string &data) {
    using burn::json::Type;
    const burn::json::Document document(header, "header");
    if (!document.root().is(Type::object)) throw burn::Error("no object");
    Parts parts;
    for (const burn::json::Member &member : document.root().members()) {
        if (!member.value.is(Type::object)) continue;
        if (member.key != "__metadata__") {
            parts.tensors.push_back(read_tensor(member, data));
        } else if (const auto program = member.value.find("bnn")) {
            if (program->is(Type::string)) parts.program = program->string();
        }
    }
    return parts;
}

// ---- Changes

size_t below(Random &random, size_t limit) { return random() % limit; }

void mutate(std::string &text, size_t room) {
    const size_t old_size = text.size();
    text.resize(old_size + room);
    text.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t *>(text.data()), old_size, text.size()));
}

// Replaces one of the program's words or numbers by another that may have a meaning there.
void change_word(std::string &program, Random &random) {
    static const char *const words[] = {
        // Numbers, at the edges of the allowed ranges or written in a form that is refused.
        "0", "1", "2", "3", "7", "-0", "1.0", "4096", "18446744073709551616", "1e9",
        // Values of the other types.
        "true", "false", "null", "[]", "{}", "\"\"",
        // Names of layers in the seeds.
        "\"image\"", "\"stem\"", "\"mean\"", "\"b\"",
        // Keys and kinds of the format.
        "\"kind\"", "\"name\"", "\"input\"", "\"stride\"", "\"shortcut\"", "\"relu\"",
        "\"convolution\"", "\"binary_convolution\"", "\"global_mean\"", "\"linear\"",
        "\"gated_convolution\"", "\"branched_convolution\"", "\"gate\"", "\"experts\"",
        "\"groups\"", "\"repeat\"", "\"side\"", "\"product\"", "\"none\"", "\"input\"", "\"mixed\"",
        "64", "65", "\"features\"", "\"classes\"", "\"origin\"", "\"resize\"", "\"size\"",
        "\"layers\"", "\"also\"", "\"b.1\"", "\"b.2\"", "[\"b.1\",\"b.1\"]"};
    const char *const separators = "{}[],: ";
    const size_t begin = program.find_first_not_of(separators, below(random, program.size() + 1));
    if (begin == std::string::npos) return;
    const size_t end = std::min(program.find_first_of(separators, begin), program.size());
    program.replace(begin, end - begin, words[below(random, std::size(words))]);
}

// Sets every layer's input to the name of the layer before it, if fields are written as in the
// seeds.
void relink(std::string &program) {
    const std::string name = "\"name\":\"";
    const std::string input = "\"input\":\"";
    std::string before = "image";
    size_t at = 0;
    while ((at = program.find(name, at)) != std::string::npos) {
        at += name.size();
        const std::string own = program.substr(at, program.find('"', at) - at);
        const size_t begin = program.find(input, at);
        if (begin == std::string::npos) return;
        const size_t value = begin + input.size();
        const size_t end = std::min(program.find('"', value), program.size());
        program.replace(value, end - value, before);
        before = own;
    }
}

void change_kind(std::string &program, Random &random) {
    static const char *const kinds[] = {"convolution", "binary_convolution", "global_mean",
                                        "linear"};
    const std::string key = "\"kind\":\"";
    const size_t begin = program.find(key, below(random, program.size() + 1));
    if (begin == std::string::npos) return;
    const size_t value = begin + key.size();
    const size_t end = std::min(program.find('"', value), program.size());
    program.replace(value, end - value, kinds[below(random, std::size(kinds))]);
}

// Moves, repeats or drops a piece between two braces, usually a layer.
void change_layer(std::string &program, Random &random) {
    const size_t begin = program.find('{', 1 + below(random, program.size() + 1));
    const size_t end = begin == std::string::npos ? begin : program.find('}', begin);
    if (end == std::string::npos) return;
    const std::string piece = program.substr(begin, end + 1 - begin);
    if (below(random, 2) == 0) program.erase(begin, piece.size() + 1);
    if (below(random, 2) == 0) {
        const size_t at = program.find('{', 1 + below(random, program.size() + 1));
        if (at != std::string::npos) program.insert(at, piece + ",");
    }
    if (below(random, 2) == 0) relink(program);
}

// Resizes a tensor's data to what its dtype and shape need, unless that is large.
void fit_data(Tensor &tensor) {
    uint64_t count = tensor.dtype == "F32" ? 4 : tensor.dtype == "I16" ? 2 : 1;
    for (const uint64_t length : tensor.shape) {
        if (length > 4096 || (count *= length) > 65'536) return;
    }
    tensor.data.resize(count);
}

void change_tensor(Parts &parts, Random &random) {
    if (parts.tensors.empty()) return;
    const size_t index = below(random, parts.tensors.size());
    Tensor &tensor = parts.tensors[index];
    const uint64_t lengths[] = {0, 1, 2, 3, 4, 8, 9, 17, 4096, 4097,
                                // Products of these overflow 64 bits.
                                uint64_t{1} << 32, ~uint64_t{0}};
    switch (below(random, 7)) {
        case 0:
            if (!tensor.shape.empty()) {
                uint64_t &length = tensor.shape[below(random, tensor.shape.size())];
                length = lengths[below(random, std::size(lengths))];
            }
            break;
        case 1: tensor.shape.push_back(lengths[below(random, std::size(lengths))]); break;
        case 2:
            tensor.dtype = tensor.dtype == "F32" ? "U8" : tensor.dtype == "U8" ? "I16" : "F32";
            break;
        case 3: tensor.data.resize(below(random, 100)); return;
        case 4: std::swap(tensor, parts.tensors[below(random, parts.tensors.size())]); return;
        case 5: parts.tensors.erase(parts.tensors.begin() + static_cast<ptrdiff_t>(index)); return;
        default: mutate(tensor.name, 4); return;
    }
    fit_data(tensor);
}

void change_data(Parts &parts, Random &random) {
    if (parts.tensors.empty()) return;
    std::string &data = parts.tensors[below(random, parts.tensors.size())].data;
    const size_t size = data.size();
    mutate(data, 0);
    data.resize(size);
}

std::string changed(const std::string &header, const std::string &data, Random &random) {
    std::string text = header;
    switch (below(random, 8)) {
        case 0: mutate(text, 64); return assemble(text, data);
        case 1: change_word(text, random); return assemble(text, data);
        default: break;
    }
    Parts parts = read_parts(header, data);
    do {
        switch (below(random, 6)) {
            case 0: mutate(parts.program, 64); break;
            case 1: change_word(parts.program, random); break;
            case 2: change_layer(parts.program, random); break;
            case 3: change_kind(parts.program, random); break;
            case 4: change_tensor(parts, random); break;
            default: change_data(parts, random); break;
        }
    } while (below(random, 3) == 0);
    return write_parts(parts);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    try {
        check_program(burn::parse_program(data, size));
    } catch (const burn::Error &error) {
        check_message(error.what());
    }
    return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size,
                                          unsigned seed) {
    Random random(seed);
    uint64_t length = 0;
    if (size < sizeof length || below(random, 10) == 0) {
        return LLVMFuzzerMutate(data, size, max_size);
    }
    std::memcpy(&length, data, sizeof length);
    length = std::min<uint64_t>(length, size - sizeof length);
    const char *text = reinterpret_cast<const char *>(data) + sizeof length;
    const std::string header(text, length);
    const std::string rest(text + length, size - sizeof length - length);
    try {
        const std::string out = changed(header, rest, random);
        if (out.size() > max_size) return size;
        std::memcpy(data, out.data(), out.size());
        return out.size();
    } catch (const burn::Error &) {
        return LLVMFuzzerMutate(data, size, max_size);
    }
}
