// The number of bits in which codes differ, for instruction sets that count the bits of a word.
#pragma once

#include <cstring>

#include "tier.h"

namespace burn {
namespace {

inline uint32_t differing_bits(const uint8_t *a, const uint8_t *b, size_t bytes) {
    uint64_t sum = 0, x = 0, y = 0;
    size_t at = 0;
    for (; at + 8 <= bytes; at += 8) {
        std::memcpy(&x, a + at, 8);
        std::memcpy(&y, b + at, 8);
        sum += static_cast<uint64_t>(__builtin_popcountll(x ^ y));
    }
    for (; at < bytes; ++at) {
        sum += static_cast<uint64_t>(__builtin_popcount(static_cast<unsigned>(a[at] ^ b[at])));
    }
    return static_cast<uint32_t>(sum);
}

// Tier::hamming. The most frequent length is a constant, so that its loop is unrolled.
inline void hamming_plain(const uint8_t *query, const uint8_t *codes, size_t count, size_t bytes,
                          uint32_t *distances) {
    const auto all = [&](auto length) {
        for (size_t i = 0; i < count; ++i) {
            distances[i] = differing_bits(query, codes + i * length(), length());
        }
    };
    if (bytes == 64) {
        all([] { return size_t{64}; });
    } else {
        all([=] { return bytes; });
    }
}

}  // namespace
}  // namespace burn
