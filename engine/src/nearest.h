// Exact search among packed codes by the number of bits that differ.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tier.h"

namespace burn {

// Finds the k codes nearest to each query; burn_nearest in burn_engine.h has the arguments.
void nearest(const Tier &tier, const uint8_t *codes, size_t count, size_t bytes,
             const uint8_t *queries, size_t num_queries, size_t k, int64_t *positions,
             uint32_t *distances);

}  // namespace burn
