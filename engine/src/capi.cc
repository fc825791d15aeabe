// The C interface: every exception is caught here and becomes the message of burn_last_error.
#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <thread>

#include "../include/burn_engine.h"
#include "nearest.h"
#include "plan.h"
#include "resize.h"

struct burn_model : burn::Model {
    using Model::Model;
};
struct burn_plan : burn::Plan {
    using Plan::Plan;
};

namespace {

constexpr size_t kMostCodeBytes = size_t{1} << 20;
constexpr int kMostSide = 1 << 20;  // of an image that is resized

thread_local std::string last_error;

void set_last_error(const char *reason) {
    try {
        last_error = reason;
    } catch (...) {  // there is no memory for the message, which stays empty
    }
}

template <class Action>
int guarded(Action action) {
    try {
        last_error.clear();
        action();
        return 0;
    } catch (const std::bad_alloc &) {
        set_last_error("out of memory");
    } catch (const std::exception &error) {
        set_last_error(error.what());
    } catch (...) {
        set_last_error("unknown error");
    }
    return 1;
}

template <class T>
const T &given(const T *pointer, const char *what) {
    if (!pointer) throw burn::Error(std::string(what) + " is null");
    return *pointer;
}

const burn::Layer *layer_at(const burn_model *model, int layer) {
    if (!model || layer < 0 || layer >= model->num_layers()) return nullptr;
    return &model->program().layers[static_cast<size_t>(layer)];
}

int resolved(const burn_model *model, int layer) {
    return layer == -1 ? given(model, "model").num_layers() - 1 : layer;
}

}  // namespace

extern "C" {

const char *burn_last_error(void) { return last_error.c_str(); }

const char *burn_version(void) { return BURN_ENGINE_VERSION; }

const char *burn_supported_isas(void) {
    struct Names {
        char text[160] = "";
        Names() {
            int count = 0;
            const burn::Tier *const *all = burn::tiers(&count);
            for (int i = 0; i < count; ++i) {
                if (!all[i]->supported()) continue;
                if (*text) std::strcat(text, " ");
                std::strcat(text, all[i]->name);
            }
        }
    };
    static const Names names;
    return names.text;
}

int burn_load(const char *path, const char *isa, burn_model **model) {
    return guarded([&] {
        given(path, "path");
        given(model, "model");
        const auto bytes = burn::read_file(path);
        burn::Program program;
        try {
            program = burn::parse_program(bytes.data(), bytes.size());
        } catch (const burn::Error &error) {
            throw burn::Error(std::string(path) + ": " + error.what());
        }
        *model = new burn_model(std::move(program), isa ? isa : "");
    });
}

int burn_load_memory(const void *bytes, size_t size, const char *isa, burn_model **model) {
    return guarded([&] {
        if (!bytes) throw burn::Error("bytes is null");
        given(model, "model");
        *model = new burn_model(burn::parse_program(bytes, size), isa ? isa : "");
    });
}

void burn_free(burn_model *model) { delete model; }

const char *burn_isa(const burn_model *model) { return model ? model->tier().name : ""; }

int burn_num_layers(const burn_model *model) { return model ? model->num_layers() : 0; }

const char *burn_layer_name(const burn_model *model, int layer) {
    const burn::Layer *at = layer_at(model, layer);
    return at ? at->name.c_str() : "";
}

const char *burn_layer_kind(const burn_model *model, int layer) {
    const burn::Layer *at = layer_at(model, layer);
    return at ? burn::kind_name(at->kind) : "";
}

int burn_find_layer(const burn_model *model, const char *name) {
    for (int i = 0; name && i < burn_num_layers(model); ++i) {
        if (layer_at(model, i)->name == name) return i;
    }
    return -1;
}

int burn_features_layer(const burn_model *model) { return model ? model->program().features : -1; }

int burn_image_resize(const burn_model *model) { return model ? model->program().image_resize : 0; }

int burn_image_size(const burn_model *model) { return model ? model->program().image_size : 0; }

int burn_num_classes(const burn_model *model) {
    return model ? static_cast<int>(model->program().classes.size()) : 0;
}

const char *burn_class_name(const burn_model *model, int index) {
    if (index < 0 || index >= burn_num_classes(model)) return "";
    return model->program().classes[static_cast<size_t>(index)].c_str();
}

int burn_output_shape(const burn_model *model, int height, int width, int layer, int *out_height,
                      int *out_width, int *out_channels) {
    return guarded([&] {
        const burn::Shape shape =
            given(model, "model").output_shape(height, width, resolved(model, layer));
        if (out_height) *out_height = shape.height;
        if (out_width) *out_width = shape.width;
        if (out_channels) *out_channels = shape.channels;
    });
}

int burn_plan_create(const burn_model *model, int height, int width, int threads, int layer,
                     burn_plan **plan) {
    return guarded([&] {
        given(plan, "plan");
        // More threads than processors wait for each other and are ten times slower than one.
        const int processors = static_cast<int>(std::thread::hardware_concurrency());
        if (threads <= burn::kMaxThreads && processors > 0) threads = std::min(threads, processors);
        *plan =
            new burn_plan(given(model, "model"), height, width, threads, resolved(model, layer));
    });
}

void burn_plan_free(burn_plan *plan) { delete plan; }

size_t burn_plan_bytes(const burn_plan *plan) { return plan ? plan->num_bytes() : 0; }

int burn_run(burn_plan *plan, const void *images, burn_pixels type, size_t count, float *outputs) {
    return guarded([&] {
        given(plan, "plan");
        // Reading an enum that holds none of its values is undefined in C++.
        unsigned number = 0;
        static_assert(sizeof number == sizeof type);
        std::memcpy(&number, &type, sizeof type);
        if (number != BURN_UINT8 && number != BURN_FLOAT32) {
            throw burn::Error("type is not a burn_pixels value");
        }
        if (count == 0) return;
        if (!images || !outputs) throw burn::Error("images or outputs is null");
        plan->run(images, type == BURN_UINT8 ? burn::Pixels::uint8 : burn::Pixels::float32, count,
                  outputs);
    });
}

int burn_nearest(const char *isa, const uint8_t *codes, size_t count, size_t bytes,
                 const uint8_t *queries, size_t num_queries, size_t k, int64_t *positions,
                 uint32_t *distances) {
    return guarded([&] {
        const burn::Tier &tier = burn::choose_tier(isa ? isa : "");
        if (bytes < 1 || bytes > kMostCodeBytes) throw burn::Error("bytes is not 1 to 2^20");
        if (k < 1 || k > count) throw burn::Error("k is not 1 to the number of codes");
        if (num_queries == 0) return;
        if (!codes || !queries || !positions || !distances) throw burn::Error("a pointer is null");
        burn::nearest(tier, codes, count, bytes, queries, num_queries, k, positions, distances);
    });
}

#if !defined(__wasm__)
int burn_resize(const char *isa, const uint8_t *pixels, int height, int width, int new_height,
                int new_width, int top, int left, int rows, int columns, uint8_t *out) {
    return guarded([&] {
        const burn::Tier &tier = burn::choose_tier(isa ? isa : "");
        for (const int side : {height, width, new_height, new_width}) {
            if (side < 1 || side > kMostSide) throw burn::Error("a side is not 1 to 2^20 pixels");
        }
        if (top < 0 || left < 0 || rows < 1 || columns < 1 || rows > new_height - top ||
            columns > new_width - left) {
            throw burn::Error("the part does not lie in the resized image");
        }
        if (!pixels || !out) throw burn::Error("a pointer is null");
        burn::resize(tier, pixels, height, width, new_height, new_width, top, left, rows, columns,
                     out);
    });
}
#endif

}  // extern "C"
