// Operands that are the words of signs themselves, with a border of `kernel / 2` pixels on each
// side.
#pragma once

#include <cstring>

#include "tier.h"

namespace burn {
namespace {

inline size_t operand_pixel(int words, int /*kernel*/) { return static_cast<size_t>(words) * 4; }

inline uint64_t operand_row(int width, int kernel, int words) {
    return static_cast<uint64_t>(width + kernel / 2 * 2) * operand_pixel(words, kernel);
}

// Bits outside the map are 0.
inline void expand_plain(const uint32_t *signs, int width, int kernel, int /*stride*/, int words,
                         uint8_t *operands) {
    const size_t border = static_cast<size_t>(kernel / 2) * operand_pixel(words, kernel);
    const size_t row = static_cast<size_t>(width) * operand_pixel(words, kernel);
    std::memset(operands, 0, border);
    std::memcpy(operands + border, signs, row);
    std::memset(operands + border + row, 0, border);
}

}  // namespace
}  // namespace burn
