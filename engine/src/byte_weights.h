// Lays weights out as [group][tap][byte of 8 input channels][output channel of the group].
#pragma once

#include "tier.h"

namespace burn {
namespace {

template <int group>
size_t byte_weights_size(int out_channels, int kernel, int words) {
    return static_cast<size_t>(out_channels) * static_cast<size_t>(kernel * kernel) *
           static_cast<size_t>(words) * 4;
}

template <int group>
void lay_out_bytes(const uint32_t *bits, int out_channels, int kernel, int words, void *weights) {
    uint8_t *to = static_cast<uint8_t *>(weights);
    const ptrdiff_t num_words = static_cast<ptrdiff_t>(kernel) * kernel * words;
    for (int first = 0; first < out_channels; first += group) {
        for (ptrdiff_t byte = 0; byte < 4 * num_words; ++byte) {
            for (int lane = 0; lane < group; ++lane) {
                const uint32_t word = bits[(first + lane) * num_words + byte / 4];
                *to++ = static_cast<uint8_t>(word >> 8 * (byte % 4));
            }
        }
    }
}

}  // namespace
}  // namespace burn
