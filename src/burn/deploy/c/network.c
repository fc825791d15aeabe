/* Runs the network in the constants below; network.h describes the interface.
 *
 * A map exists only in part where that is enough: a layer computes a row of its output as soon as
 * the rows of its input that this needs are there, and its input keeps only those rows, in a ring:
 * row y is at y mod the number of rows that are kept. The layers between two maps that are kept
 * whole are a phase. `burn export` has chosen the phases with the smallest arena and the place of
 * everything in it.
 */
#include "network.h"

#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "signs are packed into words for a little-endian processor"
#endif

/* Tests define this to see each row that a layer computes. */
#ifndef BURN_TRACE
#define BURN_TRACE(layer, row, values, count) ((void)0)
#endif

/* @types */

/* A layer from map to map. The first one is the convolution of the image, of which only sizes,
 * places and positive_shift are used. Places are offsets into the arena in bytes. */
struct layer {
    const uint32_t *weight;   /* signs: [out_channels][words of a patch], see find_patch */
    const value_t *threshold; /* [in_channels] */
    const sum_t *multiplier;  /* this and the next two: [out_channels] */
    const sum_t *bias;
    const sum_t *slope;
    uint32_t signs_at;  /* of the input: [signs_rows][in_size][bytes of a pixel's signs] */
    uint32_t values_at; /* of the output: [values_rows][out_size][out_channels] */
    uint16_t signs_rows, values_rows;
    uint16_t in_size, out_size; /* height and width of the maps in pixels */
    uint16_t in_channels, out_channels;
    uint8_t kernel, stride, shortcut;
    uint8_t shortcut_shift, positive_shift, negative_shift; /* with integers, see docs */
};

/* Layers that run together: the input of the first one is whole before they start. */
struct phase {
    uint16_t first, last;
};

struct linear {
    const weight_t *weight; /* [outputs][inputs] */
    const sum_t *bias;      /* [outputs] */
    uint32_t input_at, output_at;
    uint32_t inputs, outputs;
    uint8_t relu, shift;
};

/* @constants */

#if BURN_INTEGER

/* Returns the integer nearest to x / 2^shift, rounding halves up; shift is 0 to 30. */
static int32_t rounded(int32_t x, uint32_t shift) {
    x += (int32_t)(1u << shift >> 1);
    return x < 0 ? ~(~x >> shift) : x >> shift; /* C leaves open what >> does below 0 */
}

static int64_t rounded_long(int64_t x, uint32_t shift) {
    x += (int64_t)((uint64_t)1 << shift >> 1);
    return x < 0 ? ~(~x >> shift) : x >> shift;
}

#endif

/* -Os alone calls small functions in the innermost loops, and puts large ones in line where these
 * loops then run out of registers. */
#ifdef __GNUC__
#define BURN_INLINE static inline __attribute__((always_inline))
#define BURN_APART static __attribute__((noinline))
#else
#define BURN_INLINE static inline
#define BURN_APART static
#endif

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Returns eight sums of four bits each of x. */
BURN_INLINE uint32_t sums_of_4(uint32_t x) {
    x -= x >> 1 & 0x55555555u;
    return (x & 0x33333333u) + (x >> 2 & 0x33333333u);
}

/* Returns the sum of eight sums of 4 bits, which are at most 15 each. */
BURN_INLINE uint32_t sum_of_8(uint32_t x) {
    x = (x & 0x0F0F0F0Fu) + (x >> 4 & 0x0F0F0F0Fu);
    return x * 0x01010101u >> 24; /* at most 4 * 30 */
}

/* Counts, for each output, the bits in which its weights differ from the patch in `words` words.
 *
 * weight: these words of the first output; those of the next are `pitch` words further.
 * adds: whether the number is added to the count, or replaces it. */
BURN_APART void count_different(const uint32_t *weight, uint32_t pitch, const uint32_t *patch,
                                uint32_t words, uint32_t outputs, int adds, uint16_t *counts) {
    const uint32_t rest = words % 3;
    const uint32_t *const end = patch + (words - rest);
    for (; outputs; --outputs, weight += pitch, ++counts) {
        const uint32_t *a = weight, *b = patch;
        uint32_t total = adds ? *counts : 0;
        while (b != end) {
            /* Three words fit into sums of 4 bits (12), and thirty into sums of 8 bits (240). */
            const uint32_t *const stop = end - b > 30 ? b + 30 : end;
            uint32_t bytes = 0;
            do {
                const uint32_t x =
                    sums_of_4(a[0] ^ b[0]) + sums_of_4(a[1] ^ b[1]) + sums_of_4(a[2] ^ b[2]);
                bytes += (x & 0x0F0F0F0Fu) + (x >> 4 & 0x0F0F0F0Fu);
                a += 3;
                b += 3;
            } while (b != stop);
            bytes = (bytes & 0x00FF00FFu) + (bytes >> 8 & 0x00FF00FFu);
            total += (bytes + (bytes >> 16)) & 0xFFFFu;
        }
        if (rest) {
            uint32_t x = sums_of_4(a[0] ^ b[0]);
            if (rest == 2) x += sums_of_4(a[1] ^ b[1]);
            total += sum_of_8(x);
        }
        *counts = (uint16_t)total;
    }
}

#if BURN_MASKS

/* The same for the bits where the mask has ones; the counts are replaced. */
BURN_APART void count_masked(const uint32_t *weight, uint32_t pitch, const uint32_t *patch,
                             const uint32_t *mask, uint32_t words, uint32_t outputs,
                             uint16_t *counts) {
    for (; outputs; --outputs, weight += pitch) {
        uint32_t total = 0;
        for (uint32_t i = 0; i < words; ++i) {
            total += sum_of_8(sums_of_4((weight[i] ^ patch[i]) & mask[i]));
        }
        *counts++ = (uint16_t)total;
    }
}

#endif

/* The signs under a kernel, in the order of the weights: pixel after pixel, whole bytes for each,
 * and zeros up to a whole word. */
struct patch {
    uint32_t *words;
    uint32_t *mask; /* ones where the map is, for patches that end outside it */
    uint32_t masked;
    uint32_t pixels;    /* inside the map */
    uint32_t num_spans; /* of words inside the map */
    uint32_t begin[3], length[3];
};

/* Collects the signs under the kernel for the output pixel at `row` and `column`. */
static void find_patch(const struct layer *layer, const uint8_t *signs, uint32_t row,
                       uint32_t column, struct patch *patch) {
    const uint32_t kernel = layer->kernel, border = kernel / 2, size = layer->in_size;
    const uint32_t bytes = (layer->in_channels + 7u) / 8;
    const uint32_t top = row * layer->stride, left = column * layer->stride; /* plus the border */
    const uint32_t begin_y = top < border ? border - top : 0;
    const uint32_t begin_x = left < border ? border - left : 0;
    const uint32_t end_y = smaller(kernel, size + border - top);
    const uint32_t end_x = smaller(kernel, size + border - left);
    const uint32_t width = end_x - begin_x, line = kernel * bytes;
    const uint32_t num_words = (kernel * line + 3) / 4;
    uint8_t *to = (uint8_t *)patch->words + begin_y * line + begin_x * bytes;

    patch->words[num_words - 1] = 0;
    for (uint32_t y = begin_y; y < end_y; ++y) {
        const uint32_t from =
            (top + y - border) % layer->signs_rows * size + left + begin_x - border;
        memcpy(to, signs + from * bytes, width * bytes);
        to += line;
    }
    patch->pixels = (end_y - begin_y) * width;
    patch->masked = 0;
    patch->num_spans = 1;
    if (patch->pixels == kernel * kernel) {
        patch->begin[0] = 0;
        patch->length[0] = num_words;
        return;
    }
#if BURN_MASKS
    if (bytes % 4) { /* words with signs of two pixels: from the first to the last one inside */
        const uint32_t first = begin_y * line / 4, end = (end_y * line + 3) / 4;
        uint32_t y = 0, x = 0, byte = 0, word = 0;
        for (uint32_t i = 0; i < 4 * end; ++i) {
            const uint32_t inside = y >= begin_y && y < end_y && x >= begin_x && x < end_x;
            word = word >> 8 | (inside ? 0xFF000000u : 0);
            if (i % 4 == 3) patch->mask[i / 4] = word;
            if (++byte == bytes) {
                byte = 0;
                if (++x == kernel) x = 0, ++y;
            }
        }
        patch->masked = 1;
        patch->begin[0] = first;
        patch->length[0] = end - first;
        return;
    }
#endif
    if (width == kernel) {
        patch->begin[0] = begin_y * line / 4;
        patch->length[0] = (end_y - begin_y) * line / 4;
        return;
    }
    patch->num_spans = end_y - begin_y;
    for (uint32_t i = 0; i < patch->num_spans; ++i) {
        patch->begin[i] = ((begin_y + i) * line + begin_x * bytes) / 4;
        patch->length[i] = width * bytes / 4;
    }
}

/* Finds the shortcut of an output pixel: the input at its place, or the mean of the two by two
 * pixels there that exist. */
static void find_shortcut(const struct layer *layer, const uint8_t *arena, uint32_t row,
                          uint32_t column, sum_t *shortcut) {
    const struct layer *before = layer - 1;
    const value_t *map = (const value_t *)(const void *)(arena + before->values_at);
    const uint32_t channels = layer->in_channels, size = layer->in_size;
    const uint32_t top = row * layer->stride, left = column * layer->stride;
    const uint32_t right = smaller(left + layer->stride, size) - 1;
    const uint32_t bottom = smaller(top + layer->stride, size) - 1;
    const uint32_t upper = top % before->values_rows * size;
    const uint32_t lower = bottom % before->values_rows * size;
    const value_t *a = map + (upper + left) * channels, *b = map + (upper + right) * channels;
    const value_t *c = map + (lower + left) * channels, *d = map + (lower + right) * channels;
#if BURN_INTEGER
    const int32_t scale = (int32_t)(1u << layer->shortcut_shift);
#endif
    if (layer->stride == 1) {
        for (uint32_t i = 0; i < channels; ++i) {
#if BURN_INTEGER
            shortcut[i] = a[i] * scale;
#else
            shortcut[i] = a[i];
#endif
        }
        return;
    }
    for (uint32_t i = 0; i < channels; ++i) { /* at the edge, pixels count two or four times */
#if BURN_INTEGER
        shortcut[i] = ((int32_t)a[i] + b[i] + c[i] + d[i]) * scale;
#else
        shortcut[i] = ((a[i] + b[i]) + (c[i] + d[i])) * 0.25f;
#endif
    }
}

/* Computes an output pixel from the counts of different bits among `inside` bits. */
BURN_APART void finish_pixel(const struct layer *layer, int32_t inside, const uint16_t *counts,
                             const sum_t *shortcut, value_t *output) {
    const sum_t *multiplier = layer->multiplier, *bias = layer->bias, *slope = layer->slope;
    const uint32_t channels = layer->shortcut ? layer->in_channels : 0;
    uint32_t channel = 0;
    for (uint32_t left = layer->out_channels; left; --left) {
        const int32_t sum = inside - 2 * (int32_t)*counts++;
        sum_t y = *multiplier++ * (sum_t)sum + *bias++;
        const sum_t factor = *slope++;
        if (channels) {
            y += shortcut[channel];
            if (++channel == channels) channel = 0;
        }
#if BURN_INTEGER
        if (y >= 0) {
            *output++ = (value_t)rounded(y, layer->positive_shift);
        } else { /* the upper half of the product */
            const uint64_t product = (uint64_t)((int64_t)y * factor);
            const int32_t upper = (int32_t)(uint32_t)(product >> 32);
            *output++ = (value_t)rounded(upper, layer->negative_shift);
        }
#else
        *output++ = y >= 0 ? y : factor * y;
#endif
    }
}

/* Computes one row of a binary layer's output. */
static void run_binary_row(const struct layer *layer, uint8_t *arena, uint32_t row,
                           value_t *output) {
    const uint32_t bytes = (layer->in_channels + 7u) / 8, outputs = layer->out_channels;
    const uint32_t words = (layer->kernel * layer->kernel * bytes + 3) / 4;
    uint16_t *counts = (uint16_t *)(void *)(arena + BURN_COUNTS_AT);
    sum_t *shortcut = (sum_t *)(void *)(arena + BURN_SHORTCUT_AT);
    struct patch patch;
    patch.words = (uint32_t *)(void *)(arena + BURN_PATCH_AT);
    patch.mask = (uint32_t *)(void *)(arena + BURN_MASK_AT);
    for (uint32_t column = 0; column < layer->out_size; ++column, output += outputs) {
        find_patch(layer, arena + layer->signs_at, row, column, &patch);
        if (layer->shortcut) find_shortcut(layer, arena, row, column, shortcut);
#if BURN_MASKS
        if (patch.masked) {
            const uint32_t at = patch.begin[0];
            count_masked(layer->weight + at, words, patch.words + at, patch.mask + at,
                         patch.length[0], outputs, counts);
        } else
#endif
            for (uint32_t i = 0; i < patch.num_spans; ++i) {
                const uint32_t at = patch.begin[i];
                count_different(layer->weight + at, words, patch.words + at, patch.length[i],
                                outputs, i > 0, counts);
            }
        finish_pixel(layer, (int32_t)(patch.pixels * layer->in_channels), counts, shortcut, output);
    }
}

/* Computes one row of the first convolution's output. */
static void run_image_row(const struct layer *layer, const uint8_t *image, uint8_t *arena,
                          uint32_t row, value_t *output) {
    enum { KERNEL = BURN_STEM_KERNEL, TAPS = KERNEL * KERNEL, OUTSIDE = -1 };
    int32_t *const taps = (int32_t *)(void *)(arena + BURN_PATCH_AT); /* places in the image */
    const int32_t size = layer->in_size;
    for (uint32_t column = 0; column < layer->out_size; ++column) {
        for (uint32_t i = 0; i < TAPS; ++i) {
            const int32_t y = (int32_t)(row * layer->stride + i / KERNEL) - KERNEL / 2;
            const int32_t x = (int32_t)(column * layer->stride + i % KERNEL) - KERNEL / 2;
            const int inside = y >= 0 && y < size && x >= 0 && x < size;
            taps[i] = inside ? 3 * (y * size + x) : OUTSIDE;
        }
        const sum_t *weight = stem_weight, *outside = stem_outside;
        for (uint32_t o = 0; o < layer->out_channels; ++o) {
            sum_t sum = stem_bias[o];
            for (uint32_t i = 0; i < TAPS; ++i, weight += 3, ++outside) {
                if (taps[i] != OUTSIDE) {
                    const uint8_t *pixel = image + taps[i];
                    sum += weight[0] * (sum_t)pixel[0] + weight[1] * (sum_t)pixel[1] +
                           weight[2] * (sum_t)pixel[2];
                } else {
                    sum += *outside;
                }
            }
#if BURN_INTEGER
            *output++ = (value_t)rounded(sum, layer->positive_shift);
#else
            *output++ = sum;
#endif
        }
    }
}

/* Finds the signs of a row of a layer's input. */
static void find_signs(const struct layer *layer, uint8_t *arena, uint32_t row) {
    const struct layer *before = layer - 1;
    const uint32_t channels = layer->in_channels, bytes = (channels + 7) / 8;
    const value_t *value = (const value_t *)(const void *)(arena + before->values_at) +
                           row % before->values_rows * layer->in_size * channels;
    uint8_t *sign = arena + layer->signs_at + row % layer->signs_rows * layer->in_size * bytes;
    for (uint32_t pixel = 0; pixel < layer->in_size; ++pixel) {
        const value_t *threshold = layer->threshold;
        for (uint32_t left = channels; left;) {
            const uint32_t count = smaller(left, 8);
            uint32_t byte = 0;
            for (uint32_t i = 0; i < count; ++i) byte |= (uint32_t)(*value++ >= *threshold++) << i;
            *sign++ = (uint8_t)byte;
            left -= count;
        }
    }
}

/* Adds a row of the last map to the sums of its channels. */
static void add_row(const struct layer *layer, const value_t *row, uint32_t is_first, sum_t *sums) {
    const uint32_t channels = layer->out_channels;
    for (uint32_t pixel = 0; pixel < layer->out_size; ++pixel) {
        for (uint32_t c = 0; c < channels; ++c) {
            sums[c] = is_first ? *row++ : sums[c] + *row++;
        }
        is_first = 0;
    }
}

/* Returns whether a layer can compute its next row from the first `rows` rows of its input. */
static int is_ready(const struct layer *layer, uint32_t rows, uint32_t rows_left) {
    const uint32_t begin = (uint32_t)(layer->out_size - rows_left) * layer->stride;
    uint32_t reach = layer->kernel / 2;
    if (layer->shortcut && layer->stride == 2 && reach == 0) reach = 1;
    return rows_left && rows >= smaller(begin + reach + 1, layer->in_size);
}

/* Computes the last layer's output of a phase. The deepest layer that can compute a row does so
 * next, so that no row is overwritten before it has been used. */
static void run_phase(const struct phase *phase, const uint8_t *image, uint8_t *arena,
                      sum_t *sums) {
    const uint32_t first = phase->first, last = phase->last;
    uint16_t *left = (uint16_t *)(void *)(arena + BURN_ROWS_AT); /* rows of each layer to compute */
    uint32_t whole = 0; /* rows of the first layer's input whose signs have been found */
    for (uint32_t i = first; i <= last; ++i) left[i] = layers[i].out_size;
    while (left[last]) {
        uint32_t i = last;
        while (i > first && !is_ready(&layers[i], layers[i - 1].out_size - left[i - 1], left[i])) {
            --i;
        }
        const struct layer *layer = &layers[i];
        if (i == first && i > 0 && !is_ready(layer, whole, left[i])) {
            find_signs(layer, arena, whole++);
            continue;
        }
        const uint32_t row = layer->out_size - (uint32_t)left[i]--;
        value_t *output = (value_t *)(void *)(arena + layer->values_at) +
                          row % layer->values_rows * layer->out_size * layer->out_channels;
        if (i == 0) {
            run_image_row(layer, image, arena, row, output);
        } else {
            run_binary_row(layer, arena, row, output);
        }
        BURN_TRACE(i, row, output, (uint32_t)layer->out_size * layer->out_channels);
        if (i < last) {
            find_signs(layer + 1, arena, row);
        } else if (i == BURN_NUM_LAYERS - 1) {
            add_row(layer, output, row == 0, sums);
        }
    }
}

/* Turns the sums of the last map's channels into their means, scaled, plus the bias. */
static void find_means(sum_t *sums) {
    for (uint32_t c = 0; c < BURN_NUM_MEANS; ++c) {
#if BURN_INTEGER
#if BURN_MEAN_SCALED
        const int64_t product = (int64_t)sums[c] * mean_scale[c];
#else
        const int64_t product = (int64_t)sums[c] * BURN_MEAN_FACTOR;
#endif
        sums[c] = (int32_t)rounded_long(product, BURN_MEAN_SHIFT) + mean_bias[c];
#elif BURN_MEAN_SCALED
        sums[c] = mean_bias[c] + mean_scale[c] * (sums[c] / (float)BURN_MEAN_PIXELS);
#else
        sums[c] = mean_bias[c] + sums[c] / (float)BURN_MEAN_PIXELS;
#endif
    }
}

#if BURN_NUM_LINEAR

static void run_linear(const struct linear *layer, const sum_t *input, sum_t *output) {
    const weight_t *weight = layer->weight;
    for (uint32_t o = 0; o < layer->outputs; ++o) {
#if BURN_INTEGER
        int64_t sum = 0;
        for (uint32_t i = 0; i < layer->inputs; ++i) sum += (int64_t)*weight++ * input[i];
        const int32_t y = (int32_t)rounded_long(sum, layer->shift) + layer->bias[o];
#else
        float y = layer->bias[o];
        for (uint32_t i = 0; i < layer->inputs; ++i) y += *weight++ * input[i];
#endif
        output[o] = layer->relu && y < 0 ? 0 : y;
    }
}

#endif

int network_run(const uint8_t *image, void *arena, network_score *scores) {
    uint8_t *const memory = arena;
    if (!image || !arena || !scores || (uintptr_t)arena % 4) return -1;
#if BURN_NUM_LINEAR
    sum_t *const sums = (sum_t *)(void *)(memory + BURN_SUMS_AT);
#else
    sum_t *const sums = scores;
#endif
    for (uint32_t i = 0; i < BURN_NUM_PHASES; ++i) run_phase(&phases[i], image, memory, sums);
    find_means(sums);
#if BURN_NUM_LINEAR
    for (uint32_t i = 0; i < BURN_NUM_LINEAR; ++i) {
        const struct linear *layer = &linears[i];
        sum_t *output = (sum_t *)(void *)(memory + layer->output_at);
        if (i == BURN_NUM_LINEAR - 1) output = scores;
        run_linear(layer, (const sum_t *)(const void *)(memory + layer->input_at), output);
    }
#endif
    int best = 0;
    for (int i = 1; i < NETWORK_NUM_SCORES; ++i) {
        if (scores[i] > scores[best]) best = i;
    }
    return best;
}
