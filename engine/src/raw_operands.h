// Operands that are the signs themselves, with a border of zero bits around them.
#pragma once

#include <cstring>

#include "tier.h"

namespace burn {
namespace {

size_t operand_pixel(int words) { return static_cast<size_t>(words) * 4; }

size_t operand_row(int width, int kernel, int words) {
    return static_cast<size_t>(width + kernel / 2 * 2) * operand_pixel(words);
}

void expand(const uint32_t *signs, int width, int kernel, int words, uint8_t *operands) {
    const size_t border = static_cast<size_t>(kernel / 2 * words) * 4;
    const size_t row = static_cast<size_t>(width) * static_cast<size_t>(words) * 4;
    std::memset(operands, 0, border);
    std::memcpy(operands + border, signs, row);
    std::memset(operands + border + row, 0, border);
}

}  // namespace
}  // namespace burn
