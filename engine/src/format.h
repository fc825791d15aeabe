// Reads and checks a packed file (docs/project/pack-format.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace burn {

// An error that the caller can fix; the message says what is wrong and where.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

enum class Kind {
    convolution,
    binary_convolution,
    global_mean,
    linear,
    gated_convolution,
    branched_convolution
};

// Returns the name of a kind as the format spells it.
const char *kind_name(Kind kind);

// What the means are of from which a gated_convolution computes its gate.
enum class Gate { none, input, mixed };

// A matrix [out][in] with what is added to its products.
struct Matrix {
    int in = 0, out = 0;
    std::vector<float> weight, bias;
};

// A matrix of integers, with what its products are multiplied by and added to.
struct Rounded {
    int in = 0, out = 0;
    std::vector<int16_t> weight;  // [out][in]
    std::vector<float> scale, bias;
};

// A 1 × 1 convolution of a gated_convolution's shortcut; integers are multiplied by their scale.
struct Side : Matrix {
    std::vector<float> slope;
};

// What a gated_convolution has beyond a binary_convolution.
struct Gated {
    int repeat = 1, groups = 1, experts = 1;
    Gate gate = Gate::none;
    bool product = false;
    std::vector<float> inner_slope, scale, shift;  // [out]
    std::vector<float> mix;                        // [out], of a mixed gate
    std::vector<float> shortcut_slope;             // [in], of a shortcut without sides
    Matrix choice;                                 // of several experts
    Rounded down, up;                              // of a gate
    std::vector<Side> sides;
};

// What a branched_convolution has beyond its padding.
struct Branched {
    int second_stride = 1;
    int first_kernel = 1, widen_kernel = 1;
    Matrix first, widen;  // [out][k · k · in]
    Matrix narrow, last;
};

// A layer and its constants. Its kind determines which of them it has; the others are empty.
struct Layer {
    Kind kind{};
    std::string name;
    int in_channels = 0;
    int out_channels = 0;
    int kernel = 1;
    int stride = 1;
    bool shortcut = false;
    bool relu = false;
    std::vector<float> weight;  // convolution: [out][k][k][3]; linear: [out][in]
    // binary_convolution: [out][k][k][⌈in / 8⌉]; gated: [experts][out][k][k][⌈repeat · in / groups
    // / 8⌉]
    std::vector<uint8_t> weight_bits;
    std::vector<float> bias;        // [out]
    std::vector<float> padding;     // convolution, branched: [3]
    std::vector<float> threshold;   // binary: [in]; gated: [repeat][in]
    std::vector<float> multiplier;  // binary and gated: [out]
    std::vector<float> slope;       // binary_convolution: [out]
    std::vector<float> scale;       // global_mean: [out], or empty for 1
    std::vector<int> also;          // global_mean: indices of the earlier layers it averages too
    Gated gated;
    Branched branched;
};

// The content of a packed file.
struct Program {
    std::vector<Layer> layers;
    std::vector<std::string> classes;  // empty if there is no classifier
    int features = 0;                  // index of the layer whose output is the features
    // Pixels to which a photograph's short side is resized, and side of the square that is then cut
    // out; 0 if the file does not say.
    int image_resize = 0, image_size = 0;
};

// Parses the bytes of a packed file, which are not needed afterwards. Throws Error if they break a
// rule of the format.
Program parse_program(const void *bytes, size_t size);

// Returns the bytes of a file. Throws Error if it cannot be read, is not a regular file, is empty,
// or is longer than the 2^30 bytes that the format allows.
std::vector<uint8_t> read_file(const char *path);

}  // namespace burn
