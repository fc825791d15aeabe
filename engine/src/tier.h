// The interface of every instruction set's kernels. Each instruction set has one source file with
// compiler flags of its own. Those files include only this header and shared templates in anonymous
// namespaces, so that no wide instruction leaks into portable code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace burn {

// Number of floats in the vectors that hold a pixel's channels. Maps and constants are padded to
// whole vectors, the weights of binary convolutions to whole groups of Tier::group channels.
constexpr int kLanes = 16;

// Bits of a pixel's position class: the sides on which taps lie outside the map.
enum Outside { kTop = 1, kBottom = 2, kLeft = 4, kRight = 8, kNumClasses = 16 };

// A binary convolution as a tier reads it. Channels are padded; a word holds 32 channels.
struct BinaryLayer {
    int kernel = 1;
    int stride = 1;
    int in_words = 0;
    int out_channels = 0;               // a multiple of kLanes
    const void *weights = nullptr;      // laid out by Tier::lay_out
    const float *multiplier = nullptr;  // [out], of the number of taps whose signs differ
    const float *bias = nullptr;        // [position class][out]; kernel 1 has one class
    const float *slope = nullptr;       // [out]
};

// Some rows of a binary convolution, and everything that is computed from it.
struct BinaryRows {
    const BinaryLayer *layer = nullptr;
    int num_rows = 0;
    int width = 0;  // of the output
    // Operands (see Tier::expand), from those of the first tap of the first pixel.
    const uint8_t *operands = nullptr;
    ptrdiff_t operand_pixel = 0;  // bytes from one input pixel to the next
    ptrdiff_t operand_row = 0;    // bytes from one input row to the next
    // The position class of a pixel is row_class[row] | column_class[x].
    const uint8_t *row_class = nullptr;
    const uint8_t *column_class = nullptr;
    // Added before the slope; null if there is no shortcut. Output channel o takes channel o mod
    // shortcut_channels.
    const float *shortcut = nullptr;
    int shortcut_channels = 0;     // a multiple of kLanes
    ptrdiff_t shortcut_pixel = 0;  // floats from one pixel to the next
    ptrdiff_t shortcut_row = 0;    // floats from one row to the next
    float *out = nullptr;          // [row][x][out]
    ptrdiff_t out_pixel = 0;       // floats from one pixel to the next
    ptrdiff_t out_row = 0;         // floats from one row to the next
    // The sum over each row's pixels is added to these, [row][out]. Only without shortcut
    // and signs; null if nothing wants them.
    float *sums = nullptr;
    ptrdiff_t sums_row = 0;  // floats from one row to the next
    // Signs for the next layer: 1 where the output is at least the threshold. Null if it has none.
    const float *next_threshold = nullptr;  // [out], NaN in padded channels, which gives 0
    uint32_t *signs = nullptr;              // [row][x][sign_words]
    int sign_words = 0;
};

// Some rows of the first convolution.
struct StemRows {
    int kernel = 3;
    int stride = 1;
    int width = 0;                        // of the output
    int num_groups = 0;                   // of kLanes output channels
    const float *weights = nullptr;       // [group][kernel · kernel · 3][kLanes]
    const float *bias = nullptr;          // [group][kLanes]
    const float *const *input = nullptr;  // `kernel` rows of [pixel][3], with the border
    float *out = nullptr;                 // [x][out_pixel]
    ptrdiff_t out_pixel = 0;
    const float *next_threshold = nullptr;  // as in BinaryRows
    uint32_t *signs = nullptr;              // [x][sign_words]
    int sign_words = 0;
};

// Some rows of a gated_convolution's output: y = factor · u · (p) + shift + p, below 0 slope · y.
struct GatedRows {
    int num_rows = 0;
    int width = 0;
    int channels = 0;               // padded
    float *map = nullptr;           // u, which y replaces, [row][x][channels]
    const float *factor = nullptr;  // [channels]
    const float *shift = nullptr;   // [channels]
    const float *slope = nullptr;   // [channels]; null if it is 1
    // p before its slope, [row][x][shortcut_pixel]; null if there is no shortcut. Output channel o
    // takes channel o mod shortcut_channels.
    const float *shortcut = nullptr;
    const float *shortcut_slope = nullptr;  // [shortcut_channels]; null if it is 1, or applied
    int shortcut_channels = 0;              // a multiple of kLanes
    ptrdiff_t shortcut_pixel = 0;           // floats from one pixel to the next
    bool product = false;
    float *sums = nullptr;  // of each row's pixels, [row][channels]; null if nothing wants them
    const float *next_threshold = nullptr;  // as in BinaryRows
    uint32_t *signs = nullptr;              // [row][x][sign_words]
    int sign_words = 0;
};

// Pixels of a float 1 × 1 convolution: y where it is at least 0, else slope · y.
struct DenseRow {
    int width = 0;
    int in = 0;
    int num_groups = 0;              // of kLanes output channels
    const float *weights = nullptr;  // [group][in][kLanes]
    const float *bias = nullptr;     // [group][kLanes]
    const float *slope = nullptr;    // [group][kLanes]
    const float *input = nullptr;    // [x][in_pixel]
    ptrdiff_t in_pixel = 0;
    float *out = nullptr;  // [x][out_pixel]
    ptrdiff_t out_pixel = 0;
};

#if !defined(__wasm__)            // JavaScript resizes by itself
constexpr int kWeightBits = 22;   // behind the point of a weight
constexpr int kMixPixels = 4;     // that mix_pixels adds up at once
constexpr size_t kMixBytes = 16;  // that mix_rows computes at once

// How pixels of 3 bytes are made of those of another row.
struct PixelMix {
    int count = 0;                     // of the new pixels
    int steps = 0;                     // of kMixPixels pixels each
    const ptrdiff_t *first = nullptr;  // [count], the first byte that a new pixel is made of
    const int32_t *weights = nullptr;  // [count][steps · kMixPixels]
};
#endif

// The kernels of one instruction set.
struct Tier {
    const char *name;
    bool (*supported)();  // by this processor
    int group;            // output channels whose weights are stored together: 16, 32 or 64

    // The size of the weights in bytes, and the function that lays them out.
    // bits: [out][k · k][words], with out padded to whole groups.
    size_t (*weight_bytes)(int out_channels, int kernel, int words);
    void (*lay_out)(const uint32_t *bits, int out_channels, int kernel, int words, void *weights);

    // Operands of a convolution: bytes from one pixel to the next, bytes of a row, and the function
    // that writes a row from signs [pixel][words] with kernel / 2 pixels of zeros on each side.
    size_t (*operand_pixel)(int words, int kernel);
    uint64_t (*operand_row)(int width, int kernel, int words);
    void (*expand)(const uint32_t *signs, int width, int kernel, int stride, int words,
                   uint8_t *operands);

    void (*binary_rows)(const BinaryRows &);
    void (*stem_row)(const StemRows &);

    // Computes the mean of each 2 × 2 block of two rows [pixel][channels]. bottom is null if there
    // is no second row. The last block of an odd width has one column. slope [channels] is first
    // applied to values below 0; null if there is none.
    void (*mean_row)(const float *top, const float *bottom, const float *slope, int width,
                     int channels, float *out);

    // Computes the sum [channels] of pixels [width][channels].
    void (*sum_row)(const float *row, int width, int channels, float *sum);

    // Computes y where it is at least 0, else slope · y, of pixels [width][channels].
    void (*leaky_row)(const float *row, const float *slope, int width, int channels, float *out);

    // Writes signs [x][words] of a row, as BinaryRows has them, [width][channels].
    void (*sign_row)(const float *row, const float *threshold, int width, int channels, int words,
                     uint32_t *signs);

    void (*gated_rows)(const GatedRows &);
    void (*dense_row)(const DenseRow &);

    // Converts `count` bytes to floats from 0 to 1.
    void (*to_unit)(const uint8_t *bytes, size_t count, float *out);

    // Computes y[o] = bias[o] + Σ weight[o][i] x[i]. `in` is a multiple of kLanes.
    void (*linear)(const float *weight, const float *bias, const float *x, int in, int out,
                   float *y);

    // Computes y[o] = bias[o] + scale[o] · Σ weight[o / kLanes][i][o mod kLanes] x[i] of
    // `num_groups` groups of kLanes outputs.
    void (*rounded_linear)(const int16_t *weight, const float *scale, const float *bias,
                           const float *x, int in, int num_groups, float *y);

    // Replaces each of `count` values x by scale / (1 + e^-x).
    void (*sigmoid)(const float *scale, int count, float *x);

#if !defined(__wasm__)
    // Makes the pixels of a row. Of those that a new pixel is made of, kMixBytes bytes more are
    // read, also behind the row, and a byte behind the new ones is written.
    void (*mix_pixels)(const uint8_t *row, const PixelMix &mix, uint8_t *out);

    // Adds up `num_rows` rows of `count` bytes, a multiple of kMixBytes, times their weights. Each
    // row is `step` bytes behind the one before it.
    void (*mix_rows)(const uint8_t *rows, ptrdiff_t step, const int32_t *weights, int num_rows,
                     size_t count, uint8_t *out);
#endif

    // Counts the bits in which each code [count][bytes] differs from a query [bytes].
    void (*hamming)(const uint8_t *query, const uint8_t *codes, size_t count, size_t bytes,
                    uint32_t *distances);
};

// Returns the `count` tiers that this library was built with, best first. The last one runs on
// every processor.
const Tier *const *tiers(int *count);

// Returns the tier of a name; for "" that of the environment variable BURN_ENGINE_ISA or, if it is
// unset or empty, the best that this processor supports. Throws Error if it is not available.
const Tier &choose_tier(const std::string &isa);

}  // namespace burn
