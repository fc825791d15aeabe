// A packed network, prepared for one instruction set.
#pragma once

#include <string>
#include <vector>

#include "aligned.h"
#include "format.h"
#include "tier.h"

namespace burn {

// Limits of an image in pixels: of each side, and of their product.
constexpr int kMaxSide = 16384;
constexpr int kMaxPixels = 1 << 26;

inline size_t to_size(int n) { return static_cast<size_t>(n); }
inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

// Channels are padded to whole vectors, their signs to whole words.
inline int pitch_of(int channels) { return round_up(channels, kLanes); }
inline int words_of(int channels) { return round_up(channels, 32) / 32; }

// The size of a map in pixels and channels. Height and width of a vector are 1.
struct Shape {
    int height = 1, width = 1, channels = 1;
};

// Read-only after construction, so threads may share it.
class Model {
  public:
    // isa: name of a tier; empty for the environment variable BURN_ENGINE_ISA or, if that is unset
    // or empty, the best tier. Throws Error if this processor does not support the tier.
    Model(Program program, const std::string &isa);

    const Program &program() const { return program_; }
    const Tier &tier() const { return *tier_; }
    int num_layers() const { return static_cast<int>(program_.layers.size()); }

    // Returns the shape of the output of `layer` for images of height × width pixels. Throws Error
    // if the size is not allowed or there is no such layer.
    Shape output_shape(int height, int width, int layer) const;

    // A float 1 × 1 convolution as Tier::dense_row reads it.
    struct Dense {
        int in = 0, out_pitch = 0;
        Aligned weights, bias, slope;
    };
    // A matrix as Tier::linear reads it.
    struct Product {
        int in_pitch = 0, out = 0;
        Aligned weights, bias;
    };
    // A matrix as Tier::rounded_linear reads it.
    struct RoundedProduct {
        int in = 0, num_groups = 0;
        Aligned weights, scale, bias;
    };
    // The constants of a layer in the tier's layout, with padded channels.
    struct Ready {
        int in_pitch = 0, out_pitch = 0;  // padded channels
        Aligned weights, multiplier, bias, slope, threshold;
        BinaryLayer binary;
        // Of a gated_convolution: [experts][groups] binary convolutions, and the rest. Its slopes
        // are empty where all are 1.
        std::vector<Ready> parts;
        Aligned scale, shift, mix, shortcut_slope;
        Product choice;
        RoundedProduct down, up;
        std::vector<Dense> sides;
        // Of a branched_convolution. The first has the layout of a convolution.
        Dense narrow, widen, last;
    };
    const Ready &ready(int layer) const { return ready_[static_cast<size_t>(layer)]; }

  private:
    Program program_;
    const Tier *tier_;
    std::vector<Ready> ready_;
};

}  // namespace burn
