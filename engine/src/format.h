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

enum class Kind { convolution, binary_convolution, global_mean, linear };

// Returns the name of a kind as the format spells it.
const char *kind_name(Kind kind);

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
    std::vector<float> weight;         // convolution: [out][k][k][3]; linear: [out][in]
    std::vector<uint8_t> weight_bits;  // binary_convolution: [out][k][k][⌈in / 8⌉]
    std::vector<float> bias;           // [out]
    std::vector<float> padding;        // convolution: [3]
    std::vector<float> threshold;      // binary_convolution: [in]
    std::vector<float> multiplier;     // binary_convolution: [out]
    std::vector<float> slope;          // binary_convolution: [out]
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
