// What a plan consists of: maps, steps, phases and the memory of threads.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "aligned.h"
#include "plan.h"

namespace burn {

// The output of one step, which the next one reads: values, and operands of the binary convolution
// that reads them. A map inside a phase exists once per thread and keeps only the last few rows of
// its values.
struct Plan::Map {
    int height = 0, width = 0, pitch = 0;
    int kept_rows = 0;  // row y is stored at y mod kept_rows
    int kernel = 0;     // of the binary convolution that reads it; 0 if there is none
    int stride = 1;     // of that convolution
    int words = 0;      // of a pixel's signs
    const float *threshold = nullptr;  // of that convolution
    // Each group of its channels has operands of its own, operand_group bytes apart. A map that is
    // read several times has as many thresholds, `pitch` apart, and groups of each.
    int repeat = 1, groups = 1, group_channels = 0, group_words = 0;
    ptrdiff_t operand_pixel = 0, operand_row = 0, operand_group = 0;
    struct Memory {
        std::shared_ptr<Aligned> values;  // [kept_rows][width][pitch]
        Aligned operands;                 // with a border of kernel / 2 rows and pixels
    };
    std::vector<Memory> memory;  // one, or one for each thread
    float *sums = nullptr;       // of each row's pixels, [row][pitch]; null if nothing reads them
    bool averaged = false;       // by the global_mean
    Aligned averaged_sums;       // the sums, which must last until then

    const Memory &of(int thread) const {
        return memory.size() == 1 ? memory[0] : memory[to_size(thread)];
    }
    float *row(int thread, int y) const {
        return of(thread).values->as<float>() +
               static_cast<ptrdiff_t>(y % kept_rows) * width * pitch;
    }
    // Whether some means of 2 × 2 pixels are of fewer, so that their mean is not that of all
    // pixels.
    bool pools_unevenly(int pool_stride) const {
        return pool_stride == 2 && (height % 2 || width % 2);
    }
    float *sums_at(int y) const {
        return sums ? sums + static_cast<ptrdiff_t>(y) * pitch : nullptr;
    }
    uint8_t *operands_at(int thread, int padded_row, int group = 0) const {
        return of(thread).operands.as<uint8_t>() + group * operand_group + padded_row * operand_row;
    }
};

// Layers that run together, block of rows by block of rows: the first convolution, or a binary one
// with the 1 × 1 ones after it, which need no neighbours. Step i writes map i and reads map i - 1.
// A layer that needs all rows of a map at once is a step and a phase of its own.
struct Plan::Step {
    int first = 0, last = 0;     // layers
    bool alone = false;          // in its phase
    int kernel = 1, stride = 1;  // of the first layer
    int rows_at_once = 1;
    std::vector<uint8_t> row_class, column_class;  // of the first layer's pixels

    // The input rows that the kernel and the shortcut need for the output rows [begin, end).
    int first_needed(int begin) const { return std::max(0, begin * stride - kernel / 2); }
    int end_needed(int end, int height) const {
        return std::min(height, (end - 1) * stride + std::max(kernel / 2, stride - 1) + 1);
    }
};

// Steps between two barriers. A thread computes a band of the last step's rows. The steps before it
// compute the rows that this needs, a few at a time, so that they are still in the thread's cache
// when they are read. Rows at the edge of two bands are computed twice.
struct Plan::Phase {
    size_t first = 0, last = 0;  // steps
};

// The memory that one thread needs inside a step, for a block of rows.
struct Plan::Scratch {
    Aligned values[2];  // outputs of all layers but the last, alternating
    Aligned operands;   // of the layer that reads them
    Aligned signs;
    Aligned shortcut;
    Aligned rows[3];     // of a gated_convolution or branched_convolution
    Aligned vectors[4];  // means and gates of a gated_convolution
    Aligned group_values, group_signs, repeated_signs;
    Aligned image;  // rows of the image as floats
    const float *image_rows[7] = {};
    int next_image_row = 0;     // the first row that is not in `image` yet
    std::vector<int> next_row;  // of each step
};

// Clears the signs where the kernels, which write whole groups of channels, may leave half of a
// last word unwritten.
inline void clear_padding(uint32_t *signs, int words, int pitch, int pixels) {
    if (signs && pitch % 32 != 0) {
        std::fill_n(signs, static_cast<ptrdiff_t>(pixels) * words, 0u);
    }
}

inline DenseRow dense_row(const Model::Dense &dense, int width, const float *input,
                          ptrdiff_t in_pixel, float *out, ptrdiff_t out_pixel) {
    return {width,
            dense.in,
            dense.out_pitch / kLanes,
            dense.weights.as<float>(),
            dense.bias.as<float>(),
            dense.slope.as<float>(),
            input,
            in_pixel,
            out,
            out_pixel};
}

}  // namespace burn
