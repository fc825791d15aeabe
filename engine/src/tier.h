// What every instruction set's kernels look like from outside. One instruction set a source file,
// each compiled with its own flags: this header and shared templates in anonymous namespaces are
// all that those files include, so that no wide instruction leaks into portable code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace burn {

// A pixel's channels are handled in vectors of this many floats; a layer's constants are padded to
// whole groups (Tier::group, a multiple of it).
constexpr int kLanes = 16;

// Where taps fall outside the map: bits of a pixel's position class.
enum Outside { kTop = 1, kBottom = 2, kLeft = 4, kRight = 8, kNumClasses = 16 };

// A binary convolution as a tier wants it. `channels` are padded, words are of 32 channels.
struct BinaryLayer {
    int kernel = 1;
    int stride = 1;
    int in_words = 0;
    int out_channels = 0;
    const void *weights = nullptr;       // laid out by Tier::lay_out
    const float *multiplier = nullptr;   // [out]: of the number of taps whose signs differ
    const float *bias = nullptr;         // [position class][out]; kernel 1 has one class
    const float *slope = nullptr;        // [out]
};

// Some rows of a binary convolution, with everything that comes after it.
struct BinaryRows {
    const BinaryLayer *layer = nullptr;
    int num_rows = 0;
    int width = 0;                       // of the output
    // Operands (see Tier::expand) of the first tap of the first pixel.
    const uint8_t *operands = nullptr;
    ptrdiff_t operand_pixel = 0;         // bytes from one input pixel to the next
    ptrdiff_t operand_row = 0;           // ... from one input row to the next
    // Position class of a pixel: row_class[row] | column_class[x].
    const uint8_t *row_class = nullptr;
    const uint8_t *column_class = nullptr;
    // Added before the slope; null for none. Channel o takes o mod shortcut_channels.
    const float *shortcut = nullptr;
    int shortcut_channels = 0;           // a multiple of kLanes
    ptrdiff_t shortcut_pixel = 0;        // floats
    ptrdiff_t shortcut_row = 0;
    float *out = nullptr;                // [row][x][out], out_row floats from one row to the next
    ptrdiff_t out_row = 0;
    // Signs for the next layer: a bit where the output is at least the threshold. Null: none.
    const float *next_threshold = nullptr;  // [out], NaN in padded channels: never reached
    uint32_t *signs = nullptr;              // [row][x][sign_words]
    int sign_words = 0;
};

// Some rows of the first convolution.
struct StemRows {
    int kernel = 3;
    int stride = 1;
    int width = 0;                       // of the output
    int num_groups = 0;                  // of kLanes output channels
    const float *weights = nullptr;      // [group][kernel · kernel · 3][kLanes]
    const float *bias = nullptr;         // [group][kLanes]
    const float *const *input = nullptr;  // kernel rows of [pixel][3], the border included
    float *out = nullptr;                // [x][out_pixel]
    ptrdiff_t out_pixel = 0;
    const float *next_threshold = nullptr;
    uint32_t *signs = nullptr;           // [x][sign_words]
    int sign_words = 0;
};

struct Tier {
    const char *name;
    bool (*supported)();
    int group;  // output channels that a kernel computes at once: 16, 32 or 64

    // Bytes that the weights take, and their layout. bits: [out][k · k][words] of 32 channels each,
    // out padded to whole groups.
    size_t (*weight_bytes)(int out_channels, int kernel, int words);
    void (*lay_out)(const uint32_t *bits, int out_channels, int kernel, int words, void *weights);

    // Operands of the convolution that reads them: bytes from one pixel to the next, bytes of a row,
    // and the row itself from signs [pixel][words], with kernel / 2 pixels of zero bits on each side.
    size_t (*operand_pixel)(int words);
    size_t (*operand_row)(int width, int kernel, int words);
    void (*expand)(const uint32_t *signs, int width, int kernel, int words, uint8_t *operands);

    void (*binary_rows)(const BinaryRows &);
    void (*stem_row)(const StemRows &);

    // Mean of each 2 × 2 block of two rows [pixel][channels]; bottom is null where there is none, and
    // the last block of an odd width has one column.
    void (*mean_row)(const float *top, const float *bottom, int width, int channels, float *out);

    // Bytes to the scale 0 to 1.
    void (*to_unit)(const uint8_t *bytes, size_t count, float *out);

    // out[o] = bias[o] + Σ weight[o][i] x[i]; `in` is a multiple of kLanes.
    void (*linear)(const float *weight, const float *bias, const float *x, int in, int out,
                   float *y);
};

// Those that this library was built with, best first. The last one runs everywhere.
const Tier *const *tiers(int *count);

}  // namespace burn
