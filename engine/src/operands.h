// Operands that have the same size for every word of signs, with a border of `kernel / 2` pixels on
// each side.
#pragma once

#include <cstring>

#include "tier.h"

namespace burn {
namespace {

template <int bytes_a_word>
size_t operand_pixel(int words, int /*kernel*/) {
    return static_cast<size_t>(words) * bytes_a_word;
}

template <int bytes_a_word>
size_t operand_row(int width, int kernel, int words) {
    return static_cast<size_t>(width + kernel / 2 * 2) * operand_pixel<bytes_a_word>(words, kernel);
}

// Writes the signs themselves as operands; bits outside the map are 0.
inline void expand_plain(const uint32_t *signs, int width, int kernel, int /*stride*/, int words,
                         uint8_t *operands) {
    const size_t border = static_cast<size_t>(kernel / 2) * operand_pixel<4>(words, kernel);
    const size_t row = static_cast<size_t>(width) * operand_pixel<4>(words, kernel);
    std::memset(operands, 0, border);
    std::memcpy(operands + border, signs, row);
    std::memset(operands + border + row, 0, border);
}

}  // namespace
}  // namespace burn
