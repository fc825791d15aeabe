// A packed network made ready for one instruction set, and the memory to run it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aligned.h"
#include "format.h"
#include "tier.h"
#include "workers.h"

namespace burn {

constexpr int kMaxSide = 16384;
constexpr int kMaxPixels = 1 << 26;
constexpr int kMaxThreads = 256;

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
        int in_words = 0;
        Aligned weights, multiplier, bias, slope, threshold;
        BinaryLayer binary;
    };
    const Ready &ready(int layer) const { return ready_[static_cast<size_t>(layer)]; }

  private:
    Program program_;
    const Tier *tier_;
    std::vector<Ready> ready_;
};

enum class Pixels { uint8, float32 };

// Memory and threads for images of one size. One run at a time.
class Plan {
  public:
    // layer: the last one to run. Throws Error.
    Plan(const Model &model, int height, int width, int threads, int layer);
    ~Plan();

    const Shape &shape() const { return shape_; }
    size_t num_bytes() const;
    void run(const void *images, Pixels type, size_t count, float *outputs);

  private:
    struct Map;
    struct Step;
    struct Phase;
    struct Scratch;
    struct Input {
        const uint8_t *bytes;
        Pixels type;
    };

    void make_steps();
    void make_phases();
    void make_maps();
    void make_scratch();
    void run_phase(const Phase &phase, const Input &image, int thread);
    void make_rows(const Phase &phase, size_t step, int end, const Input &image, int thread);
    void run_stem(const Input &image, int y, int thread);
    void run_binary(size_t step, int y, int rows, int thread);
    template <class Row>
    void prepare_shortcut(const Layer &layer, const Model::Ready &ready, const Shape &in, int begin,
                          int width, const Row &row, BinaryRows &r, Scratch &scratch) const;
    void finish(float *output);

    const Model &model_;
    int last_layer_;
    Shape input_, shape_;
    std::vector<Step> steps_;
    std::vector<Map> maps_;  // what each step writes
    std::vector<Phase> phases_;
    std::vector<Scratch> scratch_;
    std::vector<uint8_t> no_class_;  // position classes of kernels without a border
    Aligned vectors_[2];
    Workers workers_;
};

}  // namespace burn
