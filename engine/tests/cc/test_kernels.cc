// Compares every instruction set with a naive implementation of the format's formulas, on a grid of
// shapes. Counts must be equal, and everything computed from them within the error of floats.
//
//     test_kernels [--short] [ISA…]       --short: about a tenth of the grid, for emulators
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "../../src/plan.h"

namespace {

using burn::Kind;
using burn::Layer;
using Floats = std::vector<float>;

std::mt19937 random_bits(7);
int num_checks = 0;
bool is_short = false;

Floats uniform(size_t count, float low, float high) {
    std::uniform_real_distribution<float> draw(low, high);
    Floats values(count);
    for (float &value : values) value = draw(random_bits);
    return values;
}

Layer stem(int channels, int kernel, int stride) {
    Layer layer;
    layer.kind = Kind::convolution;
    layer.name = "stem";
    layer.in_channels = 3;
    layer.out_channels = channels;
    layer.kernel = kernel;
    layer.stride = stride;
    layer.weight = uniform(static_cast<size_t>(channels * kernel * kernel * 3), -1, 1);
    layer.bias = uniform(static_cast<size_t>(channels), -1, 1);
    layer.padding = {0.4f, 0.5f, 0.6f};
    return layer;
}

// exact: take constants with which the output is d itself.
Layer binary(int in, int out, int kernel, int stride, bool shortcut, bool exact) {
    Layer layer;
    layer.kind = Kind::binary_convolution;
    layer.name = "binary";
    layer.in_channels = in;
    layer.out_channels = out;
    layer.kernel = kernel;
    layer.stride = stride;
    layer.shortcut = shortcut;
    const size_t bytes = static_cast<size_t>(in + 7) / 8;
    layer.weight_bits.resize(static_cast<size_t>(out * kernel * kernel) * bytes);
    for (size_t i = 0; i < layer.weight_bits.size(); ++i) {
        layer.weight_bits[i] = static_cast<uint8_t>(random_bits());
        if (in % 8 && i % bytes == bytes - 1) {
            layer.weight_bits[i] &= static_cast<uint8_t>((1 << in % 8) - 1);
        }
    }
    const size_t n = static_cast<size_t>(out);
    layer.threshold = uniform(static_cast<size_t>(in), -0.5f, 0.5f);
    const float size = std::sqrt(static_cast<float>(in * kernel * kernel));
    layer.multiplier = exact ? Floats(n, 1.0f) : uniform(n, -1 / size, 1 / size);
    layer.bias = exact ? Floats(n, 0.0f) : uniform(n, -1, 1);
    layer.slope = exact ? Floats(n, 1.0f) : uniform(n, -0.5f, 1.5f);
    return layer;
}

Layer mean(int channels) {
    Layer layer;
    layer.kind = Kind::global_mean;
    layer.name = "mean";
    layer.in_channels = layer.out_channels = channels;
    layer.bias = uniform(static_cast<size_t>(channels), -1, 1);
    return layer;
}

Layer linear(int in, int out, bool relu) {
    Layer layer;
    layer.kind = Kind::linear;
    layer.name = "linear";
    layer.in_channels = in;
    layer.out_channels = out;
    layer.relu = relu;
    layer.weight = uniform(static_cast<size_t>(in * out), -1, 1);
    layer.bias = uniform(static_cast<size_t>(out), -1, 1);
    return layer;
}

struct Image {
    int height, width, channels;
    Floats values;
    float at(int y, int x, int c) const {
        return values[static_cast<size_t>((y * width + x) * channels + c)];
    }
};

float naive_shortcut(const Layer &layer, const Image &x, int i, int j, int o) {
    if (!layer.shortcut) return 0;
    const int c = o % layer.in_channels;
    if (layer.stride == 1) return x.at(i, j, c);
    float sum = 0;
    int count = 0;
    for (int y = 2 * i; y < std::min(2 * i + 2, x.height); ++y) {
        for (int z = 2 * j; z < std::min(2 * j + 2, x.width); ++z, ++count) sum += x.at(y, z, c);
    }
    return sum / static_cast<float>(count);
}

float naive(const Layer &layer, const Image &x, int i, int j, int o) {
    const int k = layer.kernel;
    const size_t channel = static_cast<size_t>(o);
    const size_t bytes = static_cast<size_t>(layer.in_channels + 7) / 8;
    int d = 0;
    double sum = 0;
    for (int a = 0; a < k; ++a) {
        for (int b = 0; b < k; ++b) {
            const int y = i * layer.stride + a - k / 2, z = j * layer.stride + b - k / 2;
            const bool inside = y >= 0 && y < x.height && z >= 0 && z < x.width;
            const size_t tap = static_cast<size_t>((o * k + a) * k + b);
            for (int c = 0; c < layer.in_channels; ++c) {
                const size_t in = static_cast<size_t>(c);
                if (layer.kind == Kind::convolution) {
                    sum += static_cast<double>(layer.weight[tap * 3 + in]) *
                           static_cast<double>(inside ? x.at(y, z, c) : layer.padding[in]);
                } else if (inside) {
                    const int weight = layer.weight_bits[tap * bytes + in / 8] >> c % 8 & 1;
                    const int sign = x.at(y, z, c) >= layer.threshold[in];
                    d += weight == sign ? 1 : -1;
                }
            }
        }
    }
    if (layer.kind == Kind::convolution) {
        return static_cast<float>(sum + static_cast<double>(layer.bias[channel]));
    }
    const float y = layer.multiplier[channel] * static_cast<float>(d) + layer.bias[channel] +
                    naive_shortcut(layer, x, i, j, o);
    return y >= 0 ? y : layer.slope[channel] * y;
}

[[noreturn]] void fail(const std::string &what) {
    std::fprintf(stderr, "FAILED: %s\n", what.c_str());
    std::exit(1);
}

std::string describe(const char *isa, const Layer &layer, const Image &x, int threads) {
    char text[200];
    std::snprintf(text, sizeof text,
                  "%s, %s, %d x %d x %d -> %d channels, kernel %d, stride %d, "
                  "shortcut %d, %d threads",
                  isa, burn::kind_name(layer.kind), x.height, x.width, x.channels,
                  layer.out_channels, layer.kernel, layer.stride, layer.shortcut, threads);
    return text;
}

Image output(const burn::Model &model, const Image &image, int threads, int layer) {
    burn::Plan plan(model, image.height, image.width, threads, layer);
    const burn::Shape s = plan.shape();
    Image made{s.height, s.width, s.channels, {}};
    const size_t size = static_cast<size_t>(s.height * s.width * s.channels);
    made.values.resize(2 * size);
    Floats twice(image.values);  // a second image in the same run, which must give the same output
    twice.insert(twice.end(), image.values.begin(), image.values.end());
    plan.run(twice.data(), burn::Pixels::float32, 2, made.values.data());
    if (!std::equal(made.values.begin(), made.values.begin() + static_cast<ptrdiff_t>(size),
                    made.values.begin() + static_cast<ptrdiff_t>(size))) {
        fail("two runs of the same image differ");
    }
    made.values.resize(size);
    return made;
}

// Checks every layer whose output is a map, on the output of the layer before it that the engine
// computed.
void check_maps(const burn::Program &program, const char *isa, const Image &image, int threads,
                bool exact) {
    const burn::Model model(program, isa);
    Image x = image;
    for (size_t i = 0; i < program.layers.size(); ++i) {
        const Layer &layer = program.layers[i];
        if (layer.kind != Kind::convolution && layer.kind != Kind::binary_convolution) break;
        const Image y = output(model, image, threads, static_cast<int>(i));
        // The error of y: the folded bias and the product are as large as in · k², and rounded to
        // 24 bits.
        const double taps = layer.in_channels * layer.kernel * layer.kernel;
        const double tolerance =
            exact && i > 0 ? 0 : 2e-7 * (10 + (i > 0 ? std::sqrt(taps) : taps));
        for (int a = 0; a < y.height; ++a) {
            for (int b = 0; b < y.width; ++b) {
                for (int o = 0; o < y.channels; ++o) {
                    const float expected = naive(layer, x, a, b, o);
                    ++num_checks;
                    if (!(std::abs(static_cast<double>(y.at(a, b, o) - expected)) <= tolerance)) {
                        char text[100];
                        std::snprintf(text, sizeof text, ": at %d, %d, %d: %g, not %g", a, b, o,
                                      static_cast<double>(y.at(a, b, o)),
                                      static_cast<double>(expected));
                        fail(describe(isa, layer, x, threads) + text);
                    }
                }
            }
        }
        x = y;
    }
}

Image random_image(int height, int width) {
    return {height, width, 3, uniform(static_cast<size_t>(height * width * 3), 0, 1)};
}

void check_exact(const char *isa) {
    const int channels[] = {1,  8,  9,  16,  24,  31,  32,  33,  40,
                            48, 64, 96, 100, 128, 160, 256, 512, 1024};
    int turn = 0;
    for (const int in : channels) {
        if (is_short && in > 100) break;
        for (const int kernel : {1, 3}) {
            for (const int stride : {1, 2}) {
                const int out = channels[turn * 7 % 18] > 256 ? 80 : channels[turn * 7 % 18];
                const int height = 1 + turn % 5, width = in > 128 ? 1 + turn % 9 : 1 + turn % 31;
                burn::Program program;
                program.layers = {stem(in, 1, 1), binary(in, out, kernel, stride, false, true)};
                check_maps(program, isa, random_image(height, width), 1 + turn % 3, true);
                ++turn;
            }
        }
    }
    if (is_short) return;
    // So many input channels that every kernel with byte sums flushes them in between, and output
    // channels for four groups at once, for two and for one.
    burn::Program program;
    program.layers = {stem(1024, 1, 1), binary(1024, 224, 3, 1, false, true)};
    check_maps(program, isa, random_image(7, 7), 2, true);
}

// Checks the largest and the smallest counts side by side: all activations are 1, and an output
// channel's weights are all 1, all 0 or alternate. Sums in small numbers must not run over.
void check_extremes(const char *isa) {
    for (const int in : {32, 64, 96, 248, 256, 512, 1024}) {
        if (is_short && in > 256) break;
        for (const int kernel : {1, 3}) {
            burn::Program program;
            program.layers = {stem(in, 1, 1), binary(in, 136, kernel, 1, false, true)};
            Layer &layer = program.layers[1];
            for (float &threshold : layer.threshold) threshold = -1000;
            const size_t bytes = layer.weight_bits.size() / 136;
            for (size_t i = 0; i < layer.weight_bits.size(); ++i) {
                const uint8_t weights[] = {255, 0, 255, 0, 0, 0x55, 255};
                layer.weight_bits[i] = weights[i / bytes % 7];
            }
            check_maps(program, isa, random_image(4, 5), 1, true);
        }
    }
}

// Checks chains of layers as networks have them: every kind of shortcut, consecutive 1 × 1 layers,
// odd sizes.
void check_chains(const char *isa) {
    for (const int width : {8, 9, 16, 24, 32, 48, 64, 72}) {
        for (const int size : {1, 2, 5, 8, 15, 29}) {
            if (is_short && (width > 32 || size > 8)) break;
            burn::Program program;
            const int w = width;
            program.layers = {stem(w, 3, 1 + size % 2),
                              binary(w, w, 3, 1, true, false),
                              binary(w, 2 * w, 1, 1, true, false),
                              binary(2 * w, 2 * w, 1, 1, true, false),
                              binary(2 * w, 6 * w, 3, 2, true, false),
                              binary(6 * w, w, 1, 1, false, false),
                              binary(w, 3 * w, 3, 1, true, false),
                              binary(3 * w, 3 * w, 1, 2, true, false),
                              binary(3 * w, 3 * w, 3, 2, false, false)};
            check_maps(program, isa, random_image(size, size + size / 2), 1 + size % 3, false);
        }
    }
    // Maps so large that several steps run in one phase, each thread on its band of rows.
    for (const int threads : {1, 2, 5}) {
        if (is_short && threads != 2) continue;
        burn::Program program;
        program.layers = {stem(16, 3, 1),
                          binary(16, 16, 3, 1, true, false),
                          binary(16, 32, 1, 1, true, false),
                          binary(32, 32, 3, 2, true, false),
                          binary(32, 96, 1, 1, true, false),
                          binary(96, 96, 3, 1, true, false),
                          binary(96, 96, 1, 1, true, false),
                          binary(96, 96, 1, 2, true, false),
                          binary(96, 32, 3, 1, false, false)};
        check_maps(program, isa, random_image(71, 83), threads, false);
        // The same with blocks of several rows.
        program.layers = {stem(48, 3, 2), binary(48, 144, 1, 1, true, false),
                          binary(144, 144, 3, 1, true, false), binary(144, 48, 3, 2, false, false),
                          binary(48, 32, 1, 1, false, false)};
        check_maps(program, isa, random_image(53, 45), threads, false);
    }
    for (const int kernel : {1, 3, 5, 7}) {
        for (const int stride : {1, 2}) {
            burn::Program program;
            program.layers = {stem(40, kernel, stride)};
            for (const int size : {1, 2, 6, 17}) {
                check_maps(program, isa, random_image(size, 2 * size - 1), 2, false);
            }
        }
    }
}

void check_vectors(const char *isa) {
    const int features = 37, classes = 5;
    burn::Program program;
    program.layers = {stem(features, 1, 1), binary(features, features, 1, 1, true, false),
                      mean(features), linear(features, 70, true), linear(70, classes, false)};
    const burn::Model model(program, isa);
    const Image image = random_image(6, 5);
    const Image map = output(model, image, 2, 1);
    std::vector<double> vector(features);
    for (int c = 0; c < features; ++c) {
        double sum = 0;
        for (int i = 0; i < 30; ++i) sum += static_cast<double>(map.at(i / 5, i % 5, c));
        vector[static_cast<size_t>(c)] =
            sum / 30 + static_cast<double>(program.layers[2].bias[static_cast<size_t>(c)]);
    }
    for (int at = 2; at < 5; ++at) {
        const Layer &layer = program.layers[static_cast<size_t>(at)];
        if (at > 2) {
            std::vector<double> next;
            for (size_t o = 0; o < layer.bias.size(); ++o) {
                double sum = static_cast<double>(layer.bias[o]);
                for (size_t i = 0; i < vector.size(); ++i) {
                    sum += vector[i] * static_cast<double>(layer.weight[o * vector.size() + i]);
                }
                next.push_back(layer.relu ? std::max(sum, 0.0) : sum);
            }
            vector = next;
        }
        const Image found = output(model, image, 2, at);
        for (size_t i = 0; i < vector.size(); ++i, ++num_checks) {
            if (std::abs(vector[i] - static_cast<double>(found.values[i])) > 1e-4) {
                fail(std::string(isa) + ": vectors after the maps differ");
            }
        }
    }
}

}  // namespace

int main(int argc, char **argv) {
    is_short = argc > 1 && std::string(argv[1]) == "--short";
    std::vector<std::string> isas(argv + 1 + is_short, argv + argc);
    int count = 0;
    const burn::Tier *const *all = burn::tiers(&count);
    for (int i = 0; argc == 1 + is_short && i < count; ++i) {
        if (all[i]->supported()) isas.push_back(all[i]->name);
    }
    for (const std::string &isa : isas) {
        random_bits.seed(7);
        num_checks = 0;
        check_exact(isa.c_str());
        check_extremes(isa.c_str());
        check_chains(isa.c_str());
        check_vectors(isa.c_str());
        std::printf("%s: %d values\n", isa.c_str(), num_checks);
    }
    return 0;
}
