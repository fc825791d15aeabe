// A packed network made ready for one instruction set.
#pragma once

#include <string>
#include <vector>

#include "aligned.h"
#include "format.h"
#include "tier.h"

namespace burn {

constexpr int kMaxSide = 16384;
constexpr int kMaxPixels = 1 << 26;

inline size_t to_size(int n) { return static_cast<size_t>(n); }
inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

// How a tier pads: channels to whole groups, words of signs to whole groups too, since a group's
// are written at once.
inline int pitch_of(const Tier &tier, int channels) { return round_up(channels, tier.group); }
inline int words_of(const Tier &tier, int channels) {
    return round_up(pitch_of(tier, channels), 32) / 32;
}

struct Shape {
    int height = 1, width = 1, channels = 1;
};

// Read-only once made: threads share it.
class Model {
  public:
    // isa: a tier's name, or empty for BURN_ENGINE_ISA or the best. Throws Error.
    Model(Program program, const std::string &isa);

    const Program &program() const { return program_; }
    const Tier &tier() const { return *tier_; }
    int num_layers() const { return static_cast<int>(program_.layers.size()); }

    // Of what `layer` gives for images of this size. Throws Error for sizes that are not allowed.
    Shape output_shape(int height, int width, int layer) const;

    // Constants of a layer in the tier's layout; channels padded.
    struct Ready {
        int in_pitch = 0, out_pitch = 0;  // channels, padded
        Aligned weights, multiplier, bias, slope, threshold;
        BinaryLayer binary;
    };
    const Ready &ready(int layer) const { return ready_[static_cast<size_t>(layer)]; }

  private:
    Program program_;
    const Tier *tier_;
    std::vector<Ready> ready_;
};

}  // namespace burn
