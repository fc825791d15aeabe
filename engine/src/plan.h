// Memory, order and threads for running a model on images of one size.
#pragma once

#include <memory>
#include <vector>

#include "aligned.h"
#include "model.h"
#include "tier.h"
#include "workers.h"

namespace burn {

constexpr int kMaxThreads = 256;

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
