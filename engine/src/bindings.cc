// The Python module burn_engine._core, built on the C interface.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <memory>
#include <sstream>

#include "../include/burn_engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

void check(int status) {
    if (status != 0) throw nb::value_error(burn_last_error());
}

struct Plan {
    std::unique_ptr<burn_plan, void (*)(burn_plan *)> plan;
    int input_height, input_width;
    int height, width, channels;
};

struct Model {
    std::unique_ptr<burn_model, void (*)(burn_model *)> model;
};

template <class T>
using Images = nb::ndarray<const T, nb::numpy, nb::ndim<4>, nb::c_contig, nb::device::cpu>;

template <class T>
nb::object run(Plan &plan, Images<T> images, burn_pixels type) {
    if (images.shape(1) != static_cast<size_t>(plan.input_height) ||
        images.shape(2) != static_cast<size_t>(plan.input_width) || images.shape(3) != 3) {
        throw nb::value_error("images do not have the size that the plan was made for");
    }
    const size_t count = images.shape(0);
    const size_t shape[4] = {count, static_cast<size_t>(plan.height),
                             static_cast<size_t>(plan.width), static_cast<size_t>(plan.channels)};
    std::unique_ptr<float[]> values(new float[shape[0] * shape[1] * shape[2] * shape[3] + 1]);
    int status = 0;
    {
        nb::gil_scoped_release release;
        status = burn_run(plan.plan.get(), images.data(), type, count, values.get());
    }
    check(status);
    float *data = values.release();
    nb::capsule owner(data, [](void *p) noexcept { delete[] static_cast<float *>(p); });
    return nb::cast(nb::ndarray<nb::numpy, float>(data, 4, shape, owner));
}

using Codes = nb::ndarray<const uint8_t, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class T>
nb::object array_of(std::unique_ptr<T[]> values, size_t rows, size_t columns) {
    const size_t shape[2] = {rows, columns};
    T *data = values.release();
    nb::capsule owner(data, [](void *p) noexcept { delete[] static_cast<T *>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T>(data, 2, shape, owner));
}

nb::tuple nearest(Codes codes, Codes queries, size_t k, std::optional<std::string> isa) {
    if (codes.shape(1) != queries.shape(1)) throw nb::value_error("codes differ in length");
    const size_t count = queries.shape(0);
    std::unique_ptr<int64_t[]> positions(new int64_t[count * k + 1]);
    std::unique_ptr<uint32_t[]> distances(new uint32_t[count * k + 1]);
    int status = 0;
    {
        nb::gil_scoped_release release;
        status =
            burn_nearest(isa ? isa->c_str() : nullptr, codes.data(), codes.shape(0), codes.shape(1),
                         queries.data(), count, k, positions.get(), distances.get());
    }
    check(status);
    return nb::make_tuple(array_of(std::move(positions), count, k),
                          array_of(std::move(distances), count, k));
}

using Photo = nb::ndarray<const uint8_t, nb::numpy, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

nb::object resize(Photo photo, int new_height, int new_width, int top, int left, int rows,
                  int columns) {
    const size_t most = std::numeric_limits<int>::max();
    if (photo.shape(2) != 3 || photo.shape(0) > most || photo.shape(1) > most) {
        throw nb::value_error("photo is not (height, width, 3)");
    }
    if (rows < 0 || columns < 0) throw nb::value_error("a size is negative");
    const size_t shape[3] = {static_cast<size_t>(rows), static_cast<size_t>(columns), 3};
    std::unique_ptr<uint8_t[]> values(new uint8_t[shape[0] * shape[1] * 3 + 1]);
    int status = 0;
    {
        nb::gil_scoped_release release;
        status = burn_resize(nullptr, photo.data(), static_cast<int>(photo.shape(0)),
                             static_cast<int>(photo.shape(1)), new_height, new_width, top, left,
                             rows, columns, values.get());
    }
    check(status);
    uint8_t *data = values.release();
    nb::capsule owner(data, [](void *p) noexcept { delete[] static_cast<uint8_t *>(p); });
    return nb::cast(nb::ndarray<nb::numpy, uint8_t>(data, 3, shape, owner));
}

}  // namespace

NB_MODULE(_core, m) {
    m.def("supported_isas", [] {
        std::istringstream names(burn_supported_isas());
        std::vector<std::string> list;
        for (std::string name; names >> name;) list.push_back(name);
        return list;
    });

    m.def("nearest", nearest, nb::arg("codes").noconvert(), nb::arg("queries").noconvert(), "k"_a,
          "isa"_a.none());

    m.def("resize", resize, nb::arg("photo").noconvert(), "new_height"_a, "new_width"_a, "top"_a,
          "left"_a, "rows"_a, "columns"_a);

    nb::class_<Plan>(m, "Plan")
        .def_prop_ro("shape",
                     [](const Plan &p) { return nb::make_tuple(p.height, p.width, p.channels); })
        .def_prop_ro("num_bytes", [](const Plan &p) { return burn_plan_bytes(p.plan.get()); })
        .def(
            "run", [](Plan &p, Images<uint8_t> i) { return run(p, i, BURN_UINT8); },
            nb::arg("images").noconvert())
        .def(
            "run", [](Plan &p, Images<float> i) { return run(p, i, BURN_FLOAT32); },
            nb::arg("images").noconvert());

    nb::class_<Model>(m, "Model")
        .def(
            "__init__",
            [](Model *self, nb::bytes data, std::optional<std::string> isa) {
                burn_model *model = nullptr;
                check(burn_load_memory(data.data(), data.size(), isa ? isa->c_str() : nullptr,
                                       &model));
                new (self) Model{{model, burn_free}};
            },
            "data"_a, "isa"_a.none())
        .def_prop_ro("isa", [](const Model &m) { return std::string(burn_isa(m.model.get())); })
        .def(
            "plan",
            [](const Model &m, int height, int width, int threads, int layer) {
                burn_plan *made = nullptr;
                check(burn_plan_create(m.model.get(), height, width, threads, layer, &made));
                Plan plan{{made, burn_plan_free}, height, width, 0, 0, 0};
                check(burn_output_shape(m.model.get(), height, width, layer, &plan.height,
                                        &plan.width, &plan.channels));
                return plan;
            },
            "height"_a, "width"_a, "threads"_a, "layer"_a, nb::keep_alive<0, 1>());
}
