// The memory, the order and the threads in which a model runs on images of one size.
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

// Runs a model on images of one size, one run at a time. The model must outlive the plan.
class Plan {
  public:
    // height, width: size of the images in pixels. threads: 1 to kMaxThreads. layer: index of the
    // last layer to run. Throws Error for values out of range.
    Plan(const Model &model, int height, int width, int threads, int layer);
    ~Plan();

    const Shape &shape() const { return shape_; }
    size_t num_bytes() const;

    // images: count × height × width × 3 numbers, bytes or floats from 0 to 1. outputs: count times
    // the floats of shape(). Throws Error in a process that was forked from the plan's.
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

    std::vector<int> averaged_layers() const;
    void make_steps();
    void make_phases();
    void make_maps();
    void make_scratch();
    void run_phase(const Phase &phase, const Input &image, int thread);
    void make_rows(const Phase &phase, size_t step, int end, const Input &image, int thread);
    const float *const *image_rows(const Input &image, int y, int thread);
    void run_stem(const Input &image, int y, int thread);
    void run_branched(const Input &image, int thread);
    void run_binary(size_t step, int y, int rows, int thread);
    void write_operands(const Map &map, int thread, int y, const uint32_t *signs);
    void run_gated(size_t step, int thread);
    void sum_pooled(size_t step, int thread);
    void pool_row(const Map &map, int y, const float *slope, float *means);
    int choose_expert(size_t step, int thread);
    void convolve_gated(size_t step, int expert, int y, int rows, int thread);
    const float *gate_factors(size_t step, int thread);
    void apply_gate(size_t step, const float *factors, int y, int rows, int thread);
    void gated_shortcut(size_t step, int y, int thread, GatedRows &r);
    template <class Row>
    void prepare_shortcut(const Layer &layer, const Model::Ready &ready, const Shape &in, int begin,
                          int width, const Row &row, BinaryRows &r, Scratch &scratch) const;
    void mean_of_maps(const Layer &mean, float *sum, float *means) const;
    void finish(float *output);

    const Model &model_;
    int last_layer_;
    Shape input_, shape_;
    std::vector<Step> steps_;
    std::vector<Map> maps_;  // the output of each step
    std::vector<Phase> phases_;
    std::vector<Scratch> scratch_;
    Shape first_;                           // of the first convolution's output
    Aligned first_values_, narrow_values_;  // of a branched_convolution
    Aligned map_sums_[2];                   // Map::sums for gates, of the maps by turns
    Aligned pooled_sums_, output_sums_;     // [row][channels], of a gated_convolution
    std::vector<uint8_t> no_class_;  // position classes of 1 × 1 kernels, which have no border
    Aligned vectors_[2];
    Workers workers_;
};

}  // namespace burn
