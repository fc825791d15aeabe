// Tests the reader of packed files: valid files, and files that break each rule of
// docs/project/pack-format.md once.
//
//   test_format [FOLDER]     FOLDER: malformed .bnn files (tests/attacks/packed), all to be refused
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "../../src/format.h"
#include "../../src/json.h"

namespace {

int failures = 0;

void check(bool holds, const std::string &what) {
    if (holds) return;
    ++failures;
    std::printf("FAILED: %s\n", what.c_str());
}

// ---- A small valid file, which tests change before it is written

struct Tensor {
    std::string name;
    std::string dtype;
    std::vector<uint64_t> shape;
    std::string data;
};

struct File {
    std::string program;
    std::vector<Tensor> tensors;
    std::string more_metadata;  // members, each with a comma in front
    std::string more_header;
    bool align = true;

    Tensor &tensor(const std::string &name) {
        for (Tensor &tensor : tensors) {
            if (tensor.name == name) return tensor;
        }
        std::abort();
    }
};

std::string floats(const std::vector<float> &values) {
    std::string bytes(values.size() * sizeof(float), '\0');
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

Tensor float_tensor(const std::string &name, const std::vector<uint64_t> &shape) {
    size_t count = 1;
    for (const uint64_t length : shape) count *= length;
    std::vector<float> values;
    for (size_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i) * 0.5f - 1.0f);
    return {name, "F32", shape, floats(values)};
}

// Layers: convolution 3 -> 3, binary 3 -> 6, binary 6 -> 6, mean, linear 6 -> 4, classifier 4 -> 2.
File small_file() {
    File file;
    file.program =
        R"({"format":1,"layers":[)"
        R"({"kind":"convolution","name":"stem","input":"image","stride":2},)"
        R"({"kind":"binary_convolution","name":"b.1","input":"stem","stride":2,"shortcut":true},)"
        R"({"kind":"binary_convolution","name":"b.2","input":"b.1","stride":1,"shortcut":false},)"
        R"({"kind":"global_mean","name":"mean","input":"b.2"},)"
        R"({"kind":"linear","name":"fc","input":"mean","relu":true},)"
        R"({"kind":"linear","name":"top","input":"fc","relu":false}],)"
        R"("features":"fc","classes":["cat","dög"],)"
        R"("image":{"resize":8,"size":7},"origin":{"from":[1.5,null,"x"]}})";
    file.tensors = {
        float_tensor("stem.weight", {3, 3, 3, 3}),
        float_tensor("stem.bias", {3}),
        float_tensor("stem.padding", {3}),
        float_tensor("b.1.threshold", {3}),
        float_tensor("b.1.multiplier", {6}),
        float_tensor("b.1.bias", {6}),
        float_tensor("b.1.slope", {6}),
        float_tensor("b.2.threshold", {6}),
        float_tensor("b.2.multiplier", {6}),
        float_tensor("b.2.bias", {6}),
        float_tensor("b.2.slope", {6}),
        float_tensor("mean.bias", {6}),
        float_tensor("fc.weight", {4, 6}),
        float_tensor("fc.bias", {4}),
        float_tensor("top.weight", {2, 4}),
        float_tensor("top.bias", {2}),
        {"b.1.weight", "U8", {6, 3, 3, 1}, std::string(54, '\x05')},
        {"b.2.weight", "U8", {6, 1, 1, 1}, std::string(6, '\x3f')},
    };
    return file;
}

void replace(std::string &text, const std::string &old_text, const std::string &new_text) {
    const size_t at = text.find(old_text);
    if (at == std::string::npos || text.find(old_text, at + 1) != std::string::npos) {
        std::printf("not there exactly once: %s\n", old_text.c_str());
        std::exit(2);
    }
    text.replace(at, old_text.size(), new_text);
}

std::string escaped(const std::string &text) {
    std::string out;
    for (const char c : text) {
        const size_t control = std::string("\t\r\n").find(c);
        if (c == '"' || c == '\\' || control != std::string::npos) out += '\\';
        out += control == std::string::npos ? c : "trn"[control];
    }
    return out;
}

// Returns the file: length field, header, data.
std::string assemble(const std::string &header, const std::string &data) {
    const uint64_t length = header.size();
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    return bytes + header + data;
}

std::string header_of(const File &file) {
    std::string header =
        R"({"__metadata__":{"bnn":")" + escaped(file.program) + "\"" + file.more_metadata + "}";
    size_t begin = 0;
    for (const Tensor &tensor : file.tensors) {
        std::string shape;
        for (const uint64_t length : tensor.shape) {
            shape += (shape.empty() ? "" : ",") + std::to_string(length);
        }
        const size_t end = begin + tensor.data.size();
        const std::string offsets = std::to_string(begin) + "," + std::to_string(end);
        header += ",\"" + tensor.name + R"(":{"dtype":")" + tensor.dtype + R"(","shape":[)" +
                  shape + R"(],"data_offsets":[)" + offsets + "]}";
        begin = end;
    }
    header += file.more_header + "}";
    while (file.align && header.size() % 4 != 0) header += ' ';
    return header;
}

std::string data_of(const File &file) {
    std::string data;
    for (const Tensor &tensor : file.tensors) data += tensor.data;
    return data;
}

std::string written(const File &file) { return assemble(header_of(file), data_of(file)); }

// Parses a copy without spare capacity, so that the sanitizer sees every read beyond the end.
burn::Program parse(const std::string &bytes) {
    const std::vector<char> exact(bytes.begin(), bytes.end());
    return burn::parse_program(exact.data(), exact.size());
}

void accepted(const std::string &what, const std::string &bytes) {
    try {
        parse(bytes);
    } catch (const burn::Error &error) {
        check(false, what + ": refused: " + error.what());
    }
}

void refused_bytes(const std::string &what, const std::string &reason, const std::string &bytes) {
    try {
        parse(bytes);
        check(false, what + ": accepted");
    } catch (const burn::Error &error) {
        const bool named = std::string(error.what()).find(reason) != std::string::npos;
        check(named, what + ": message is: " + error.what());
    }
}

using Change = std::function<void(File &)>;

void accepted_file(const std::string &what, const Change &change) {
    File file = small_file();
    change(file);
    accepted(what, written(file));
}

void refused(const std::string &what, const std::string &reason, const Change &change) {
    File file = small_file();
    change(file);
    refused_bytes(what, reason, written(file));
}

void refused_program(const std::string &reason, const std::string &old_text,
                     const std::string &new_text) {
    refused(old_text + " -> " + new_text, reason,
            [&](File &file) { replace(file.program, old_text, new_text); });
}

void refused_header(const std::string &reason, const std::string &old_text,
                    const std::string &new_text) {
    const File file = small_file();
    std::string header = header_of(file);
    replace(header, old_text, new_text);
    while (header.size() % 4 != 0) header += ' ';
    refused_bytes(old_text + " -> " + new_text, reason, assemble(header, data_of(file)));
}

void drop_tensor(File &file, const std::string &name) {
    for (size_t i = 0; i < file.tensors.size(); ++i) {
        if (file.tensors[i].name != name) continue;
        file.tensors.erase(file.tensors.begin() + static_cast<std::ptrdiff_t>(i));
        return;
    }
    std::abort();
}

// ---- Tests

void test_valid() {
    const File file = small_file();
    const burn::Program program = parse(written(file));
    check(program.layers.size() == 6, "six layers");
    check(program.features == 4, "features are the linear before the classifier");
    check(program.classes == std::vector<std::string>({"cat", "dög"}), "classes");
    const burn::Layer &stem = program.layers[0];
    check(stem.kind == burn::Kind::convolution && stem.name == "stem", "stem");
    check(stem.in_channels == 3 && stem.out_channels == 3 && stem.kernel == 3, "stem's sizes");
    check(stem.stride == 2 && stem.weight.size() == 81 && stem.weight[2] == 0.0f, "stem's weight");
    check(stem.padding.size() == 3 && stem.bias.size() == 3, "stem's constants");
    const burn::Layer &first = program.layers[1];
    check(first.in_channels == 3 && first.out_channels == 6 && first.stride == 2, "b.1's sizes");
    check(first.shortcut && !program.layers[2].shortcut, "shortcuts");
    check(first.weight_bits == std::vector<uint8_t>(54, 5), "b.1's bits");
    check(first.threshold.size() == 3 && first.multiplier.size() == 6, "b.1's constants");
    check(first.slope.size() == 6 && first.slope[5] == 1.5f && first.bias.size() == 6, "b.1's");
    check(program.layers[3].out_channels == 6 && program.layers[3].bias.size() == 6, "mean");
    check(program.layers[4].relu && program.layers[4].weight.size() == 24, "fc");
    check(!program.layers[5].relu && program.layers[5].out_channels == 2, "top");
}

// A file without classes, linear layers or optional keys.
File smallest_file() {
    File file = small_file();
    file.program =
        R"({"format":1,"layers":[)"
        R"({"kind":"convolution","name":"stem","input":"image","stride":2},)"
        R"({"kind":"binary_convolution","name":"b.1","input":"stem","stride":2,"shortcut":true},)"
        R"({"kind":"global_mean","name":"mean","input":"b.1"}],"features":"mean"})";
    for (const char *name : {"b.2.threshold", "b.2.multiplier", "b.2.bias", "b.2.slope",
                             "b.2.weight", "fc.weight", "fc.bias", "top.weight", "top.bias"}) {
        drop_tensor(file, name);
    }
    return file;
}

void test_other_valid() {
    accepted("smallest", written(smallest_file()));
    check(parse(written(smallest_file())).features == 2, "features of the smallest file");
    accepted_file("linear as features", [](File &file) {
        replace(file.program, R"("classes":["cat","dög"],)", "");
        replace(file.program, R"("features":"fc")", R"("features":"top")");
    });
    accepted_file("classifier right after the mean", [](File &file) {
        replace(file.program, R"({"kind":"linear","name":"fc","input":"mean","relu":true},)", "");
        replace(file.program, R"("input":"fc")", R"("input":"mean")");
        replace(file.program, R"("features":"fc")", R"("features":"mean")");
        drop_tensor(file, "fc.weight");
        drop_tensor(file, "fc.bias");
        file.tensor("top.weight") = float_tensor("top.weight", {2, 6});
    });
    accepted_file("other metadata", [](File &f) { f.more_metadata = R"(,"format":"pt")"; });
    accepted_file("escapes", [](File &file) {
        replace(file.program, "cat", R"(\u0063\ud83d\ude00)");
        replace(file.program, R"("from")", R"("fr\u006fm\n")");
        replace(file.program, R"("relu":true)", R"("r\u0065lu":true)");
    });
    accepted_file("odd numbers where nobody reads them", [](File &file) {
        replace(file.program, "1.5",
                "-0, -0.0E-7, 99999999999999999999999, 0e99999999999, 1e-99999999999, "
                "1.7976931348623158e308, -17976931348623158E+292, " +
                    std::string(100, '9') + ", 0." + std::string(92, '0') + "1e401");
    });
    accepted_file("depth 16", [](File &file) {
        replace(file.program, R"(null)", std::string(13, '[') + std::string(13, ']'));
    });
    accepted_file("tensors in another order",
                  [](File &file) { std::swap(file.tensors[0], file.tensors[7]); });
    accepted_file("white space", [](File &file) {
        replace(file.program, R"({"format":1,)", R"( { "format" : 1 ,)");
        replace(file.program, R"("features":)", "\t\r\n\"features\"\n:\t");
    });
    accepted_file("a kernel without a shortcut of any width", [](File &file) {
        replace(file.program, R"("shortcut":true)", R"("shortcut":false)");
    });
}

void test_shell() {
    const std::string bytes = written(small_file());
    refused_bytes("empty", "0 bytes long", "");
    refused_bytes("nine bytes", "9 bytes long", bytes.substr(0, 9));
    for (size_t size = 0; size < bytes.size(); size += size < 1000 ? 1 : 7) {
        refused_bytes("truncated to " + std::to_string(size), "", bytes.substr(0, size));
    }
    refused_bytes("truncated by one", "reach beyond", bytes.substr(0, bytes.size() - 1));
    refused_bytes("one more byte", "1 bytes of data after the last tensor", bytes + "x");
    const auto with_length = [&bytes](uint64_t length) {
        std::string changed = bytes;
        std::memcpy(changed.data(), &length, sizeof length);
        return changed;
    };
    const std::string short_length = "needs to be 2 to 10000000";
    refused_bytes("length 0", short_length, with_length(0));
    refused_bytes("length 1", short_length, with_length(1));
    refused_bytes("length 10000001", short_length, with_length(10'000'001));
    refused_bytes("length 2^64 - 1", short_length, with_length(~uint64_t{0}));
    refused_bytes("length 2^64 - 8", short_length, with_length(~uint64_t{0} - 7));
    refused_bytes("length 10000000", "but only", with_length(10'000'000));
    refused_bytes("header without metadata", "has no '__metadata__'", assemble("{}", ""));
    refused_bytes("header an array", "header: needs to be an object", assemble("[]", ""));
    refused_bytes("header a number", "header: needs to be an object", assemble("12", ""));
    try {
        burn::parse_program(bytes.data(), (size_t{1} << 30) + 1);  // refused before it is read
        check(false, "a file of 2^30 + 1 bytes was accepted");
    } catch (const burn::Error &error) {
        check(std::strstr(error.what(), "2^30") != nullptr, error.what());
    }
}

void test_tensors() {
    const std::string bias = R"("stem.bias":{"dtype":"F32","shape":[3],"data_offsets":[324,336]})";
    const auto entry = [&](const std::string &reason, const std::string &changed) {
        refused_header(reason, bias, "\"stem.bias\":" + changed);
    };
    entry("tensor 'stem.bias': needs to be an object", "3");
    entry("has no 'dtype'", R"({"shape":[3],"data_offsets":[324,336]})");
    entry("has no 'shape'", R"({"dtype":"F32","data_offsets":[324,336]})");
    entry("has no 'data_offsets'", R"({"dtype":"F32","shape":[3]})");
    entry("unknown key 'more'", R"({"dtype":"F32","shape":[3],"data_offsets":[324,336],"more":1})");
    entry("'dtype' is \"F16\", needs", R"({"dtype":"F16","shape":[3],"data_offsets":[324,336]})");
    entry("'dtype' is 1, needs a string", R"({"dtype":1,"shape":[3],"data_offsets":[324,336]})");
    const auto shape = [&](const std::string &reason, const std::string &changed) {
        entry(reason, R"({"dtype":"F32","shape":)" + changed + R"(,"data_offsets":[324,336]})");
    };
    shape("needs an array", "3");
    shape("needs integers", "[3.0]");
    shape("needs integers", "[true]");
    shape("needs integers", "[-3]");
    shape("needs integers", "[3e0]");
    shape("needs integers", "[18446744073709551616]");
    shape("no more than 4 integers", "[1,1,1,1,3]");
    shape("F32 of shape [4] needs 16", "[4]");
    shape("'shape' is [], needs 1 to 4 sizes of at least 1", "[]");
    shape("'shape' is [3, 0], needs 1 to 4 sizes of at least 1", "[3,0]");
    shape("needs an array", "null");
    shape("more bytes than 64 bits can count", "[4611686018427387904]");
    shape("more bytes than 64 bits can count", "[4294967296,4294967296,3]");
    shape("more bytes than 64 bits can count", "[3,6148914691236517206]");
    const auto offsets = [&](const std::string &reason, const std::string &changed) {
        entry(reason, R"({"dtype":"F32","shape":[3],"data_offsets":)" + changed + "}");
    };
    offsets("needs two integers", "[324]");
    offsets("no more than 2 integers", "[324,336,336]");
    offsets("needs integers", "[324,336.0]");
    offsets("needs integers", "[-12,0]");
    offsets("end before they begin", "[336,324]");
    offsets("reach beyond", "[324,18446744073709551615]");
    offsets("reach beyond", "[18446744073709551604,18446744073709551615]");
    offsets("hold 16 bytes", "[324,340]");
    offsets("an overlap", "[320,332]");
    offsets("an overlap", "[0,12]");
    offsets("after a gap", "[325,337]");
    refused("unaligned", "needs a multiple of 4", [](File &file) {
        file.tensors.insert(file.tensors.begin(), {"extra", "U8", {1}, "x"});
    });
    refused("header of odd length", "needs a multiple of 4", [](File &file) {
        file.align = false;
        while (header_of(file).size() % 4 != 1) file.more_metadata += ' ';
    });
    refused("missing", "layer 'fc': tensor fc.bias is missing",
            [](File &file) { drop_tensor(file, "fc.bias"); });
    refused("extra", "tensor 'zzz': belongs to no layer",
            [](File &file) { file.tensors.push_back({"zzz", "U8", {1}, "x"}); });
    refused("extra and empty", "'shape' is [7, 0], needs 1 to 4 sizes",
            [](File &file) { file.tensors.push_back({"zzz", "F32", {7, 0}, ""}); });
    refused("twice", "key 'stem.bias' appears twice",
            [](File &file) { file.tensors.push_back(file.tensors[1]); });
}

void test_metadata() {
    const std::string other = "'other' needs to be a string";
    refused("a number", other, [](File &file) { file.more_metadata = R"(,"other":1)"; });
    refused("an object", other, [](File &file) { file.more_metadata = R"(,"other":{})"; });
    refused("bnn twice", "appears twice", [](File &file) { file.more_metadata = R"(,"bnn":"")"; });
    refused_header("has no 'bnn'", R"("bnn")", R"("bnm")");
    refused_header("has no '__metadata__'", "__metadata__", "_metadata_");
    refused_header("needs an object", R"("__metadata__":{)", R"("__metadata__":1,"x":{)");
}

void test_program() {
    const auto whole = [](const std::string &reason, const std::string &program) {
        refused(program, reason, [&](File &file) { file.program = program; });
    };
    whole("program: not valid JSON", "");
    whole("program: needs to be an object", "[]");
    whole("program: needs to be an object", "\"format\"");
    whole("has no 'format'", "{}");
    whole("has no 'layers'", R"({"format":1})");
    whole("format is 6, this reader knows 1, 2, 3, 4 and 5: update burn-engine",
          R"({"format":6,"new":[]})");
    whole("'layers' is {}, needs an array", R"({"format":1,"layers":{}})");
    refused("another format's tensors", "format is 6, this reader knows 1, 2, 3, 4 and 5",
            [](File &file) {
                replace(file.program, R"("format":1)", R"("format":6)");
                file.tensor("top.bias").dtype = "I64";
            });
    refused_program("format is 1.0, this reader knows", R"("format":1)", R"("format":1.0)");
    refused_program("needs a number", R"("format":1)", R"("format":true)");
    refused_program("needs a number", R"("format":1)", R"("format":"1")");
    refused_program("unknown key 'also'", R"("format":1)", R"("format":1,"also":1)");
    refused_program("has no 'features'", R"("features":"fc",)", "");
    refused_program("needs a string", R"("features":"fc")", R"("features":4)");
    refused_program("needs 'fc', the last layer but one", R"("features":"fc")",
                    R"("features":"mean")");
    refused_program("needs 'top', the last layer", R"("classes":["cat","dög"],)", "");
    refused_program("needs an object", R"("origin":{"from":[1.5,null,"x"]})", R"("origin":"me")");
    refused_program("needs an object", R"("origin":{"from":[1.5,null,"x"]})", R"("origin":null)");
    const auto classes = [](const std::string &reason, const std::string &changed) {
        refused_program(reason, R"(["cat","dög"])", changed);
    };
    classes("has 0 classes", "[]");
    classes("has 1 classes, but the last layer 'top' has 2 outputs", R"(["cat"])");
    classes("has 3 classes", R"(["a","b","c"])");
    classes("class 'cat' twice", R"(["cat","\u0063at"])");
    classes("empty", R"(["cat",""])");
    classes("classes[1] needs to be a string", R"(["cat",2])");
    classes("needs an array", "null");
    classes("class 'a?b' has a control character", R"(["cat","a\tb"])");
    classes("has a control character", R"(["cat","\u0000"])");
    classes("has a control character", R"(["cat","\u001f"])");
    classes("has a control character", "[\"cat\",\"a\x7f\"]");
    accepted_file("characters at the border of control characters",
                  [](File &file) { replace(file.program, "dög", " ~\u0080"); });
    classes("needs an array", R"({"cat":"dog"})");
    const auto image = [](const std::string &reason, const std::string &changed) {
        refused_program(reason, R"({"resize":8,"size":7})", changed);
    };
    image("'image': needs to be an object", "null");
    image("has no 'size'", R"({"resize":8})");
    image("has no 'resize'", R"({"size":8})");
    image("unknown key 'x'", R"({"resize":8,"size":7,"x":1})");
    image("'size' is 9, needs an integer from 1 to 8", R"({"resize":8,"size":9})");
    image("'size' is 0", R"({"resize":8,"size":0})");
    image("'resize' is 4097", R"({"resize":4097,"size":7})");
    image("'size' is 7.0", R"({"resize":8,"size":7.0})");
    image("'size' is true", R"({"resize":8,"size":true})");
}

// The small file with the means of b.1's map too.
File file_of_two_maps(const std::string &also) {
    File file = small_file();
    replace(file.program, R"("format":1)", R"("format":5)");
    replace(file.program, R"("input":"b.2")", R"("input":"b.2","scaled":false,"also":)" + also);
    file.tensor("mean.bias") = float_tensor("mean.bias", {12});
    file.tensor("fc.weight") = float_tensor("fc.weight", {4, 12});
    return file;
}

void test_several_maps() {
    const burn::Layer mean = parse(written(file_of_two_maps(R"(["b.1"])"))).layers[3];
    check(mean.also == std::vector<int>{1}, "the maps of a global_mean");
    check(mean.in_channels == 6 && mean.out_channels == 12, "the channels of two maps");
    const auto also = [](const std::string &reason, const std::string &names) {
        refused_bytes("also " + names, "layer 'mean': " + reason, written(file_of_two_maps(names)));
    };
    also("'also' is null, needs an array", "null");
    also("also has 17 names, at most 16 are allowed",
         R"(["b.1","b.1","b.1","b.1","b.1","b.1","b.1","b.1","b.1",)"
         R"("b.1","b.1","b.1","b.1","b.1","b.1","b.1","b.1"])");
    const std::string none = ", which is no binary or gated convolution before 'b.2'";
    for (const char *name : {"1", R"("b.3")", R"("b.2")", R"("mean")", R"("fc")", R"("stem")"}) {
        also(std::string("also names ") + name + none, std::string("[") + name + "]");
    }
    also(R"(also names "b.1" after 'b.1', needs each name once, in the order of the program)",
         R"(["b.1","b.1"])");
    also("tensor mean.bias has shape [12], needs [6]", "[]");
    refused_bytes("also in format 4", "has an unknown key 'also'", [] {
        File file = file_of_two_maps(R"(["b.1"])");
        replace(file.program, R"("format":5)", R"("format":4)");
        return written(file);
    }());
}

void test_chain() {
    const std::string name = R"("name":"b.2")";
    const std::string bad_name = "needs 1 to 100 characters";
    refused_program(bad_name, name, R"("name":"")");
    refused_program(bad_name, name, R"("name":"b-2")");
    refused_program(bad_name, name, R"("name":"b.2\u0000")");
    refused_program(bad_name, name, R"("name":"b.é")");
    refused_program(bad_name, name, R"("name":"image")");
    refused_program(bad_name, name, "\"name\":\"" + std::string(101, 'b') + "\"");
    refused_program("layer 'b.1': there is another layer with this name", name, R"("name":"b.1")");
    refused_program("layers[2]: 'name' is 2, needs a string", name, R"("name":2)");
    refused_program("layers[2]: has no 'name'", name + ",", "");
    refused_program("has no 'kind'", R"("kind":"global_mean",)", "");
    refused_program("unknown kind 'lstm'", R"("kind":"global_mean")", R"("kind":"lstm")");
    refused_program("has no 'input'", R"("input":"b.2")", R"("inputs":"b.2")");
    const std::string input = R"("input":"b.1")";
    refused_program("layer 'b.2': 'input' is 'b.2', needs 'b.1'", input, R"("input":"b.2")");
    refused_program("'input' is 'mean', needs 'b.1'", input, R"("input":"mean")");
    refused_program("'input' is 'stem', needs 'b.1'", input, R"("input":"stem")");
    refused_program("'input' is 'image', needs 'b.1'", input, R"("input":"image")");
    refused_program("'input' is 'fc', needs 'image'", R"("input":"image")", R"("input":"fc")");
    refused_program("layers[3]: needs to be an object",
                    R"({"kind":"global_mean","name":"mean","input":"b.2"})", "[]");
    refused_program("a linear cannot follow a binary_convolution", R"("kind":"global_mean")",
                    R"("kind":"linear")");
    refused_program("a global_mean cannot be the first", R"("kind":"convolution")",
                    R"("kind":"global_mean")");
    refused_program("a convolution cannot follow a binary_convolution",
                    R"("binary_convolution","name":"b.2")", R"("convolution","name":"b.2")");
    refused_program("a global_mean cannot follow a convolution",
                    R"("binary_convolution","name":"b.1")", R"("global_mean","name":"b.1")");
    refused_program("a global_mean cannot follow a linear", R"("linear","name":"top")",
                    R"("global_mean","name":"top")");
}

void test_ends_and_counts() {
    refused("ends with a binary_convolution", "needs a global_mean or linear", [](File &file) {
        const size_t begin = file.program.find(R"(,{"kind":"global_mean")");
        const size_t end = file.program.find("],\"features\"");
        file.program.erase(begin, end - begin);
    });
    refused("classes after a mean", "its last layer is not a linear: 'mean'", [](File &file) {
        file = smallest_file();
        replace(file.program, R"("features")", R"("classes":["a"],"features")");
    });
    refused("two layers", "has 2 layers, needs 3 to 1000",
            [](File &file) { file.program = R"({"format":1,"layers":[{},{}]})"; });
    refused("1,001 layers", "has 1001 layers, needs 3 to 1000", [](File &file) {
        std::string layers = "0";
        for (int i = 0; i < 1000; ++i) layers += ",0";
        file.program = R"({"format":1,"layers":[)" + layers + "]}";
    });
}

void test_layer_fields() {
    const std::string stem = R"("input":"image","stride":2)";
    refused_program("layer 'stem': 'stride' is 0", stem, R"("input":"image","stride":0)");
    refused_program("'stride' is 3, needs an integer from 1 to 2", stem,
                    R"("input":"image","stride":3)");
    refused_program("'stride' is 2.0", stem, R"("input":"image","stride":2.0)");
    refused_program("'stride' is true", stem, R"("input":"image","stride":true)");
    refused_program("'stride' is -1", stem, R"("input":"image","stride":-1)");
    refused_program("has no 'stride'", stem, R"("input":"image")");
    refused_program("unknown key 'shortcut'", stem, stem + R"(,"shortcut":true)");
    const std::string binary = R"("input":"b.1","stride":1,"shortcut":false)";
    const auto changed = [&binary](const std::string &reason, const std::string &text) {
        refused_program(reason, binary, R"("input":"b.1",)" + text);
    };
    changed("layer 'b.2': has no 'stride'", R"("shortcut":false)");
    changed("layer 'b.2': has no 'shortcut'", R"("stride":1)");
    changed("'stride' is 3", R"("stride":3,"shortcut":false)");
    changed("'shortcut' is 0, needs true or false", R"("stride":1,"shortcut":0)");
    changed("unknown key 'groups'", R"("stride":1,"shortcut":false,"groups":1)");
    refused_program("layer 'mean': has an unknown key 'stride'", R"("input":"b.2")",
                    R"("input":"b.2","stride":1)");
    refused_program("layer 'fc': has no 'relu'", R"(,"relu":true)", "");
    refused_program("'relu' is 1, needs true or false", R"("relu":true)", R"("relu":1)");
    refused_program("layer 'top': has an unknown key 'bias'", R"("relu":false)",
                    R"("relu":false,"bias":true)");
}

void test_shapes() {
    const auto reshaped = [](const std::string &name, const std::vector<uint64_t> &shape,
                             const std::string &reason) {
        refused(name, reason, [&](File &file) {
            Tensor &tensor = file.tensor(name);
            const Tensor other = float_tensor(name, shape);
            const bool bits = tensor.dtype == "U8";
            tensor.shape = shape;
            tensor.data = bits ? std::string(other.data.size() / 4, '\0') : other.data;
        });
    };
    reshaped("b.1.threshold", {2}, "layer 'b.1': tensor b.1.threshold has shape [2], needs [3]");
    reshaped("b.1.threshold", {3, 1}, "has shape [3, 1], needs [3]");
    reshaped("stem.weight", {3, 2, 2, 3},
             "needs [out, k, k, 3] with out in 1 to 4096 and k in 1, 3, 5, 7");
    reshaped("stem.weight", {3, 3, 1, 3}, "has shape [3, 3, 1, 3]");
    reshaped("stem.weight", {3, 3, 3, 4}, "has shape [3, 3, 3, 4]");
    reshaped("stem.weight", {3, 9}, "has shape [3, 9]");
    reshaped("stem.weight", {3, 9, 9, 3}, "has shape [3, 9, 9, 3]");
    reshaped("stem.weight", {0, 3, 3, 3}, "'shape' is [0, 3, 3, 3], needs 1 to 4 sizes");
    reshaped("stem.weight", {4097, 1, 1, 3}, "has shape [4097, 1, 1, 3]");
    reshaped("stem.padding", {4}, "stem.padding has shape [4], needs [3]");
    reshaped("stem.bias", {6}, "stem.bias has shape [6], needs [3]");
    reshaped("b.1.weight", {6, 5, 5, 1},
             "needs [out, k, k, 1] with out in 1 to 4096 and k in 1, 3");
    reshaped("b.1.weight", {6, 3, 3, 2}, "has shape [6, 3, 3, 2]");
    reshaped("b.1.weight", {7, 3, 3, 1},
             "has a shortcut, but its 7 outputs are not a multiple of its 3 inputs");
    reshaped("b.1.weight", {9, 3, 3, 1}, "b.1.multiplier has shape [6], needs [9]");
    reshaped("b.1.weight", {4098, 1, 1, 1}, "has shape [4098, 1, 1, 1]");
    reshaped("b.2.multiplier", {5}, "b.2.multiplier has shape [5], needs [6]");
    reshaped("b.2.bias", {}, "'shape' is [], needs 1 to 4 sizes");
    reshaped("b.2.slope", {1}, "b.2.slope has shape [1], needs [6]");
    reshaped("mean.bias", {7}, "mean.bias has shape [7], needs [6]");
    reshaped("fc.weight", {4, 7}, "needs [out, 6] with out in 1 to 1000000");
    reshaped("fc.weight", {0, 6}, "'shape' is [0, 6], needs 1 to 4 sizes");
    reshaped("fc.weight", {24}, "has shape [24]");
    reshaped("fc.bias", {5}, "fc.bias has shape [5], needs [4]");
    reshaped("fc.weight", {1000001, 6}, "has shape [1000001, 6]");
}

void test_dtypes() {
    const auto retyped = [](const std::string &name, const std::string &reason) {
        refused(name, reason, [&](File &file) {
            Tensor &tensor = file.tensor(name);
            const bool bits = tensor.dtype == "U8";
            tensor.dtype = bits ? "F32" : "U8";
            tensor.data.resize(bits ? tensor.data.size() * 4 : tensor.data.size() / 4);
            if (tensor.data.size() % 4 == 0) return;
            std::swap(tensor, file.tensors.back());  // else the tensors after it are not aligned
        });
    };
    retyped("b.1.weight", "layer 'b.1': tensor b.1.weight is F32, needs U8");
    retyped("fc.weight", "layer 'fc': tensor fc.weight is U8, needs F32");
    retyped("top.weight", "layer 'top': tensor top.weight is U8, needs F32");
}

void test_constants() {
    const float inf = std::numeric_limits<float>::infinity();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const auto holds = [](const std::string &name, float value, const std::string &reason) {
        refused(name, reason, [&](File &file) {
            Tensor &tensor = file.tensor(name);
            std::memcpy(&tensor.data[tensor.data.size() - 4], &value, 4);
        });
    };
    for (const Tensor &tensor : small_file().tensors) {
        if (tensor.dtype == "U8") continue;
        holds(tensor.name, nan, "tensor " + tensor.name + " holds a NaN at index ");
        holds(tensor.name, inf, "tensor " + tensor.name + " holds an infinity at index ");
        holds(tensor.name, -inf, "tensor " + tensor.name + " holds an infinity at index ");
    }
    const auto bit = [](const std::string &name, size_t at, char value) {
        refused(name, "bits set after the last channel, in byte " + std::to_string(at),
                [&](File &file) { file.tensor(name).data[at] = value; });
    };
    bit("b.1.weight", 0, '\x08');
    bit("b.1.weight", 53, '\x80');
    bit("b.2.weight", 5, '\x40');
    accepted_file("largest and subnormal floats", [](File &file) {
        const float largest = std::numeric_limits<float>::max();
        const float least = std::numeric_limits<float>::denorm_min();
        file.tensor("top.bias").data = floats({largest, -least});
    });
}

void test_json() {
    const auto json = [](const std::string &reason, const std::string &text) {
        try {
            const burn::json::Document document(text, "here");
            check(false, "accepted: " + text);
        } catch (const burn::Error &error) {
            const std::string message = error.what();
            check(message.rfind("here: not valid JSON: ", 0) == 0, message);
            check(message.find(reason) != std::string::npos, text + ": " + message);
        }
    };
    json("expected a value", "");
    json("expected a value", "NaN");
    json("expected a value", "[Infinity]");
    json("expected a digit", "-Infinity");
    json("expected a value", "[1,]");
    json("expected a string", "{\"a\":1,}");
    json("expected a string", "{1:1}");
    json("expected ':'", "{\"a\"}");
    json("expected ',' or '}'", "{\"a\":1 \"b\":2}");
    json("expected ',' or ']'", "[1 2]");
    json("expected ',' or ']'", "[1");
    json("something follows", "1 2");
    json("something follows", "01");
    json("something follows", std::string("1\0", 2));
    json("expected a digit", "1.");
    json("expected a digit", "1e+");
    json("expected a digit", "-");
    json("more than 100 characters", std::string(101, '9'));
    json("more than 100 characters", "-0." + std::string(98, '0'));
    json("more than 100 characters", "[1e" + std::string(1'000'000, '0') + "]");
    json("not finite", "1e309");
    json("not finite", "[-1.7976931348623159e308]");
    json("not finite", "1E+99999999999999999999999999");
    json("not finite", "0." + std::string(90, '0') + "1e400");
    json("expected a value", "+1");
    json("expected a value", ".5");
    json("expected a value", "tru");
    json("something follows", "truer");
    json("expected a value", "'a'");
    json("does not end", "\"a");
    json("control character", "\"a\n\"");
    json("control character", std::string("\"\0\"", 3));
    json("unknown escape", "\"\\x\"");
    json("unknown escape", "\"\\");
    json("hexadecimal", "\"\\u12g4\"");
    json("hexadecimal", "\"\\u12");
    json("half a surrogate", "\"\\ud800\"");
    json("half a surrogate", "\"\\ud800\\u0041\"");
    json("half a surrogate", "\"\\udc00\"");
    json("hexadecimal", "\"\\ud800\\n\"");
    for (const char *bytes : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80",
                              "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff",
                              "\xc3", "\xe2\x82", "\xf0\x9f\x98", "\xe2\x28\xa1"}) {
        json("not UTF-8", std::string("\"") + bytes);
        json("not UTF-8", std::string("\"") + bytes + "\"");
    }
    json("expected a value", "\xef\xbb\xbf{}");
    json("appears twice", R"({"a":1,"b":2,"\u0061":3})");
    json("appears twice", R"([{"a":{"":1,"":2}}])");
    json("16 levels", std::string(17, '['));
    json("16 levels", std::string(1'000'000, '['));
    json("expected a value", std::string(16, '['));
}

void test_json_values() {
    const std::string text =
        R"({"a":[1,1.0,1e0,-1,-0,true,18446744073709551615,18446744073709551616],)"
        R"("b":"\u00e9\ud83d\ude00\"\\\/\b\f\n\r\t","":{},"c":null})";
    const burn::json::Document document(text, "here");
    const auto members = document.root().members();
    check(members.size() == 4 && document.root().count() == 4, "members");
    check(members[0].key == "a" && members[2].key.empty(), "keys");
    const auto numbers = members[0].value.elements();
    check(numbers.size() == 8, "elements");
    check(numbers[0].unsigned_integer() == 1u, "1");
    check(!numbers[1].unsigned_integer() && !numbers[2].unsigned_integer(), "1.0 and 1e0");
    check(!numbers[3].unsigned_integer() && numbers[4].unsigned_integer() == 0u, "-1 and -0");
    check(numbers[5].is(burn::json::Type::boolean) && numbers[5].boolean(), "true");
    check(numbers[6].unsigned_integer() == ~uint64_t{0}, "2^64 - 1");
    check(!numbers[7].unsigned_integer(), "2^64");
    check(members[1].value.string() == "\u00e9\U0001F600\"\\/\b\f\n\r\t", "escapes");
    check(document.root().find("c") && !document.root().find("d"), "find");
    check(members[2].value.elements().empty() && members[2].value.count() == 0, "empty");
}

void test_printable() {
    using burn::json::printable;
    check(printable("a\x1b[2Jb\xc3\xa9\x7f") == "a?[2Jb???", "unprintable");
    check(printable(std::string(100, 'a')) == std::string(100, 'a'), "100 characters");
    check(printable(std::string(5000, 'a')) == std::string(97, 'a') + "...", "5,000 characters");
    refused("a long name", std::string(97, '?') + "...'",
            [](File &file) { file.tensors.push_back({std::string(400, '\x7f'), "U8", {1}, "x"}); });
}

void refused_path(const std::string &path, const std::string &reason) {
    try {
        burn::read_file(path.c_str());
        check(false, path + ": read");
    } catch (const burn::Error &error) {
        check(std::strstr(error.what(), reason.c_str()) != nullptr, error.what());
        check(std::strstr(error.what(), path.c_str()) != nullptr, error.what());
    }
}

void write_file(const std::string &path, const std::string &bytes) {
    std::FILE *file = std::fopen(path.c_str(), "wb");
    if (file == nullptr) std::abort();
    std::fwrite(bytes.data(), 1, bytes.size(), file);
    std::fclose(file);
}

void test_read_file() {
    char name[] = "/tmp/test_format.XXXXXX";
    if (mkdtemp(name) == nullptr) std::abort();
    const std::string folder = name;
    const std::string bytes = written(small_file());
    write_file(folder + "/good", bytes);
    const std::vector<uint8_t> read = burn::read_file((folder + "/good").c_str());
    check(std::string(read.begin(), read.end()) == bytes, "what was read is what was written");
    write_file(folder + "/empty", "");
    write_file(folder + "/large", "x");
    check(truncate((folder + "/large").c_str(), (off_t{1} << 30) + 1) == 0, "truncate");
    check(mkfifo((folder + "/fifo").c_str(), 0600) == 0, "mkfifo");
    refused_path(folder + "/none", "No such file or directory");
    refused_path(folder, "Is a directory");
    refused_path(folder + "/empty", "an empty file");
    refused_path(folder + "/large", "at most 2^30 are allowed");
    refused_path(folder + "/fifo", "not a regular file");
    refused_path("/dev/zero", "not a regular file");
    std::filesystem::remove_all(folder);
}

void test_folder(const char *folder) {
    int count = 0;
    for (const auto &entry : std::filesystem::directory_iterator(folder)) {
        if (entry.path().extension() != ".bnn") continue;
        ++count;
        try {
            const std::vector<uint8_t> bytes = burn::read_file(entry.path().c_str());
            burn::parse_program(bytes.data(), bytes.size());
            check(false, entry.path().string() + ": accepted");
        } catch (const burn::Error &error) {
            std::printf("%-44s %s\n", entry.path().filename().c_str(), error.what());
        }
    }
    check(count > 0, "no .bnn files in the folder");
}

}  // namespace

int main(int argc, char **argv) {
    test_valid();
    test_other_valid();
    test_shell();
    test_tensors();
    test_metadata();
    test_program();
    test_chain();
    test_several_maps();
    test_ends_and_counts();
    test_layer_fields();
    test_shapes();
    test_dtypes();
    test_constants();
    test_json();
    test_json_values();
    test_printable();
    test_read_file();
    if (argc > 1) test_folder(argv[1]);
    if (failures == 0) std::printf("test_format: passed\n");
    return failures == 0 ? 0 : 1;
}
