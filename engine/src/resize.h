// Resizes photographs as docs/project/pack-format.md says.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tier.h"

namespace burn {

// Resizes an image and cuts out a part; burn_resize in burn_engine.h has the arguments.
void resize(const Tier &tier, const uint8_t *pixels, int height, int width, int new_height,
            int new_width, int top, int left, int rows, int columns, uint8_t *out);

}  // namespace burn
