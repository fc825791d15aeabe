// The packed file, read and checked (docs/pack-format.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace burn {

// What the caller can mend; the message says what was wrong and where.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

enum class Kind { convolution, binary_convolution, global_mean, linear };

const char *kind_name(Kind kind);

// One layer with its constants. Which of them it has depends on its kind; the others are empty.
struct Layer {
    Kind kind{};
    std::string name;
    int in_channels = 0;
    int out_channels = 0;
    int kernel = 1;
    int stride = 1;
    bool shortcut = false;
    bool relu = false;
    std::vector<float> weight;       // convolution: [out][k][k][3]; linear: [out][in]
    std::vector<uint8_t> weight_bits;  // binary_convolution: [out][k][k][⌈in / 8⌉]
    std::vector<float> bias;         // [out]
    std::vector<float> padding;      // convolution: [3]
    std::vector<float> threshold;    // binary_convolution: [in]
    std::vector<float> multiplier;   // binary_convolution: [out]
    std::vector<float> slope;        // binary_convolution: [out]
};

struct Program {
    std::vector<Layer> layers;
    std::vector<std::string> classes;  // empty: no classifier
    int features = 0;                  // index of the layer whose output is the features
    int image_resize = 0, image_size = 0;  // how a photograph becomes an input; 0: not said
};

// Throws Error for a file that breaks any rule of the format.
Program parse_program(const void *bytes, size_t size);

// The whole file. Throws Error where it cannot be read or is longer than the format allows.
std::vector<uint8_t> read_file(const char *path);

}  // namespace burn
