/* Runs the network in the constants below; network.h describes the interface.
 *
 * A map exists only in part where that is enough: a layer computes a row of its output as soon as
 * the rows of its input that this needs are there, and its input keeps only those rows, in a ring:
 * row y is at y mod the number of rows that are kept. The layers between two maps that are kept
 * whole are a phase. `burn export` has chosen the phases with the smallest arena and the place of
 * everything in it.
 */
#include "network.h"

#include <stddef.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "signs are packed into words for a little-endian processor"
#endif

/* Tests define this to see each row that a layer computes. */
#ifndef BURN_TRACE
#define BURN_TRACE(layer, row, values, count) ((void)0)
#endif

/* @types */

/* A layer from map to map. The first one is the convolution of the image, of which only sizes,
 * places and positive_shift are used. Places are offsets into the arena in bytes.
 *
 * A sign is stored as a bit that is 1 where the value is below the threshold, or, of the channels
 * in `flipped`, where it is not: whichever was the rarer one in the sample images of `burn export`.
 * Weights are stored alike, so that bits differ where the numbers +1 and -1 do. */
struct layer {
    const uint32_t *weight;   /* [out_channels / 32][inputs + 1]: 32 outputs' bits; a row of 0 */
    const int16_t *offset;    /* [out_channels]: see find_offsets */
    const tap_t *taps;        /* [taps at the edge of a kernel][out_channels]: see find_offsets */
    const value_t *threshold; /* [in_channels] */
    const uint32_t *flipped;  /* [words of a pixel's signs] */
    const sum_t *constants;   /* [out_channels][3]: multiplier, bias, slope */
    uint32_t signs_at;        /* of the input: [signs_rows][in_size][words of a pixel's signs] */
    uint32_t values_at;       /* of the output: [values_rows][out_size][out_channels] */
    uint16_t signs_rows, values_rows;
    uint16_t in_size, out_size; /* height and width of the maps in pixels */
    uint16_t in_channels, out_channels;
    uint16_t inputs; /* of an output: kernel * kernel * in_channels */
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

#if (-1 >> 1) == -1
#define BURN_SHIFTED(x, shift) ((x) >> (shift))
#else /* C leaves open what >> does below 0 */
#define BURN_SHIFTED(x, shift) ((x) < 0 ? ~(~(x) >> (shift)) : (x) >> (shift))
#endif

/* Returns the integer nearest to x / 2^shift, rounding halves up; shift is 0 to 30. */
static int32_t rounded(int32_t x, uint32_t shift) {
    x += (int32_t)(1u << shift >> 1);
    return BURN_SHIFTED(x, shift);
}

static int64_t rounded_long(int64_t x, uint32_t shift) {
    x += (int64_t)((uint64_t)1 << shift >> 1);
    return BURN_SHIFTED(x, shift);
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

/* Adds three bits at each of 32 places. Returns the lower bits of the sums. */
BURN_INLINE uint32_t add(uint32_t a, uint32_t b, uint32_t c, uint32_t *upper) {
    const uint32_t different = a ^ b;
    *upper = (a & b) | (different & c);
    return different ^ c;
}

/* Adds eight words for each of `groups`, at each of 32 places: the rows in a list, or, if not
 * `listed`, words that follow each other.
 *
 * planes: receives the lower three bits of the sums.
 * eights: receives a word for each group, whose bits count eight. It may be `words`. */
BURN_INLINE void add_words(const int listed, const uint8_t *rows, const uint16_t *list,
                           const uint32_t *words, uint32_t groups, uint32_t *planes,
                           uint32_t *eights) {
#define BURN_WORD(i) (listed ? *(const uint32_t *)(const void *)(rows + list[i]) : words[i])
    uint32_t ones = 0, twos = 0, fours = 0;
    do {
        uint32_t a, b, c, d;
        ones = add(BURN_WORD(0), BURN_WORD(1), ones, &a);
        ones = add(BURN_WORD(2), BURN_WORD(3), ones, &b);
        twos = add(a, b, twos, &c);
        ones = add(BURN_WORD(4), BURN_WORD(5), ones, &a);
        ones = add(BURN_WORD(6), BURN_WORD(7), ones, &b);
        twos = add(a, b, twos, &d);
        fours = add(c, d, fours, eights++);
        if (listed) {
            list += 8;
        } else {
            words += 8;
        }
    } while (--groups);
    planes[0] = ones;
    planes[1] = twos;
    planes[2] = fours;
#undef BURN_WORD
}

/* Counts, for 32 outputs at once, the weights whose bits are 1 among those of the inputs in a list.
 *
 * rows: for each input a word with a bit of each output.
 * list: offsets of rows in bytes, eight for each of `groups`.
 * memory: for a word of each group, and seven more.
 * num_planes: as many as unpack_counts needs, 8 or 16.
 * counted: receives the counts' lowest bits, the bits of twos and so on.
 * planes: counts like these. If they are others, `counted` is added to them. */
BURN_APART void count_rows(const uint32_t *rows, const uint16_t *list, uint32_t groups,
                           uint32_t *memory, uint32_t num_planes, uint32_t *counted,
                           uint32_t *planes) {
    uint32_t count = 3;
    add_words(1, (const uint8_t *)rows, list, NULL, groups, counted, memory);
    while (groups > 1) {
        while (groups % 8) memory[groups++] = 0;
        groups /= 8;
        add_words(0, NULL, NULL, memory, groups, counted + count, memory);
        count += 3;
    }
    uint32_t last = memory[0];
    for (; count < num_planes; ++count) {
        counted[count] = last;
        last = 0;
    }
    if (counted != planes) {
        uint32_t carry = 0;
        for (uint32_t i = 0; i < num_planes; ++i) {
            planes[i] = add(planes[i], counted[i], carry, &carry);
        }
    }
}

/* Swaps the bits of one word under mask << shift with the bits of another one under mask. */
BURN_INLINE void swap_bits(uint32_t *one, uint32_t *other, uint32_t shift, uint32_t mask) {
    const uint32_t different = ((*one >> shift) ^ *other) & mask;
    *other ^= different;
    *one ^= different << shift;
}

/* Turns eight words with a bit of each of 32 numbers into these numbers, two in each of 16 words.
 * Those of place i and i + 16, i + 8 and i + 24 follow each other; the export has put the weights
 * at these places. `numbers` may be `bits`. */
BURN_APART void transpose(const uint32_t *bits, uint32_t *numbers) {
    uint32_t a = bits[0], b = bits[1], c = bits[2], d = bits[3];
    uint32_t e = bits[4], f = bits[5], g = bits[6], h = bits[7];
    swap_bits(&a, &e, 4, 0x0F0F0F0Fu);
    swap_bits(&b, &f, 4, 0x0F0F0F0Fu);
    swap_bits(&c, &g, 4, 0x0F0F0F0Fu);
    swap_bits(&d, &h, 4, 0x0F0F0F0Fu);
    swap_bits(&a, &c, 2, 0x33333333u);
    swap_bits(&b, &d, 2, 0x33333333u);
    swap_bits(&e, &g, 2, 0x33333333u);
    swap_bits(&f, &h, 2, 0x33333333u);
    swap_bits(&a, &b, 1, 0x55555555u);
    swap_bits(&c, &d, 1, 0x55555555u);
    swap_bits(&e, &f, 1, 0x55555555u);
    swap_bits(&g, &h, 1, 0x55555555u);
    /* Byte i of each word is now a number. */
#define BURN_SPREAD(i, word)                 \
    numbers[2 * (i)] = (word) & 0x00FF00FFu; \
    numbers[2 * (i) + 1] = (word) >> 8 & 0x00FF00FFu
    BURN_SPREAD(0, a);
    BURN_SPREAD(1, b);
    BURN_SPREAD(2, c);
    BURN_SPREAD(3, d);
    BURN_SPREAD(4, e);
    BURN_SPREAD(5, f);
    BURN_SPREAD(6, g);
    BURN_SPREAD(7, h);
#undef BURN_SPREAD
}

/* Turns the planes of 32 counts into numbers, and overwrites the planes. */
static void unpack_counts(uint32_t *planes, uint32_t inputs, uint32_t *counts) {
    transpose(planes, counts);
    if (inputs > 255) {
        transpose(planes + 8, planes);
        for (uint32_t i = 0; i < 16; ++i) counts[i] |= planes[i] << 8;
    }
}

/* Lists the places of the ones in a word, times 4. Returns the end of the list. */
BURN_INLINE uint16_t *list_ones(uint32_t word, uint32_t place, uint16_t *list) {
/* Where the processor has an instruction for it; elsewhere it would be a call. */
#if defined(__GNUC__) && (defined(__riscv_zbb) || defined(__ARM_FEATURE_CLZ) || defined(__x86_64__))
    if (word) {
        do *list++ = (uint16_t)(place + 4 * (uint32_t)__builtin_ctz(word));
        while ((word &= word - 1) != 0);
    }
#else
    for (; word; word >>= 1, place += 4) {
        if (word & 1) *list++ = (uint16_t)place;
    }
#endif
    return list;
}

/* Counts the rows in the list for all outputs. */
BURN_APART void count_listed(const struct layer *layer, uint8_t *arena, uint32_t listed, int adds) {
    uint16_t *const list = (uint16_t *)(void *)(arena + BURN_LIST_AT);
    uint32_t *const memory = (uint32_t *)(void *)(arena + BURN_EIGHTS_AT);
    uint32_t *const more = (uint32_t *)(void *)(arena + BURN_MORE_AT);
    uint32_t *planes = (uint32_t *)(void *)(arena + BURN_PLANES_AT);
    const uint32_t *rows = layer->weight;
    do list[listed++] = (uint16_t)(4u * layer->inputs); /* the row of zeros */
    while (listed % 8);
    for (uint32_t output = 0; output < layer->out_channels; output += 32) {
        count_rows(rows, list, listed / 8, memory, layer->inputs > 255 ? 16 : 8,
                   adds ? more : planes, planes);
        rows += layer->inputs + 1u;
        planes += BURN_PLANES;
    }
}

/* The pixels of a map under the kernel: from begin to before end, in the kernel. */
struct window {
    uint32_t begin, end;
    uint32_t at; /* place of the kernel's first pixel in the map, plus the border */
};

/* Finds the window of the output row or column `at`. */
static struct window find_window(const struct layer *layer, uint32_t at) {
    const uint32_t kernel = layer->kernel, border = kernel / 2, from = at * layer->stride;
    struct window window;
    window.begin = from < border ? border - from : 0;
    window.end = smaller(kernel, layer->in_size + border - from);
    window.at = from;
    return window;
}

/* Counts, for each output, the weights that are 1 among the inputs whose signs are. Returns the
 * number of these inputs. */
BURN_APART uint32_t count_pixel(const struct layer *layer, uint8_t *arena,
                                const struct window *rows, const struct window *columns) {
    const uint32_t kernel = layer->kernel, channels = layer->in_channels;
    const uint32_t words = (channels + 31) / 32;
    uint16_t *const list = (uint16_t *)(void *)(arena + BURN_LIST_AT);
    uint16_t *const full = list + (BURN_LIST_LENGTH - 40); /* for a word, and the zeros after it */
    uint16_t *end = list;
    uint32_t pixels = columns->end - columns->begin, counted = 0;
    uint32_t together = words; /* that follow each other in the map and in the kernel */
    if (channels % 32 == 0) {
        together *= pixels;
        pixels = 1;
    }
    for (uint32_t y = rows->begin; y < rows->end; ++y) {
        const uint32_t row = (rows->at + y - kernel / 2) % layer->signs_rows;
        const uint32_t pixel = row * layer->in_size + columns->at + columns->begin - kernel / 2;
        const uint32_t *sign = (const uint32_t *)(const void *)(arena + layer->signs_at);
        uint32_t begin = 4 * (y * kernel + columns->begin) * channels;
        sign += pixel * words;
        for (uint32_t x = 0; x < pixels; ++x, begin += 4 * channels) {
            uint32_t place = begin;
            for (uint32_t left = together; left; --left, place += 128) {
                if (end > full) {
                    count_listed(layer, arena, (uint32_t)(end - list), counted > 0);
                    counted += (uint32_t)(end - list);
                    end = list;
                }
                end = list_ones(*sign++, place, end);
            }
        }
    }
    count_listed(layer, arena, (uint32_t)(end - list), counted > 0);
    return counted + (uint32_t)(end - list);
}

/* How an output pixel's shortcut is found. */
enum { NO_SHORTCUT, SAME_PIXEL, MEAN_OF_4 };

/* What an output pixel is computed from.
 *
 * sum: part of the sums of products that is the same for all outputs.
 * offset: what is added for an output, see find_offsets.
 * counts: for each output the number of products of ones, which count 4.
 * a, b, c, d: pixels of the shortcut. */
struct terms {
    int32_t sum;
    const int16_t *offset;
    const uint16_t *counts;
    const sum_t *constants;
    const value_t *a, *b, *c, *d;
    uint32_t scale, up, down; /* shifts */
};

/* Computes one output, at place i of those that the terms' pointers are at. */
BURN_INLINE void finish_output(const struct terms *terms, const int kind, uint32_t i,
                               value_t *output) {
    const sum_t *constant = terms->constants + 3 * i;
    const int32_t products = terms->sum + terms->offset[i] + 4 * (int32_t)terms->counts[i];
    sum_t y = constant[0] * (sum_t)products + constant[1];
    const value_t *a = terms->a, *b = terms->b, *c = terms->c, *d = terms->d;
#if BURN_INTEGER
    if (kind == SAME_PIXEL) y += a[i] * (int32_t)(1u << terms->scale);
    if (kind == MEAN_OF_4) {
        y += ((int32_t)a[i] + b[i] + c[i] + d[i]) * (int32_t)(1u << terms->scale);
    }
    if (y >= 0) {
        y = rounded(y, terms->up);
    } else { /* the upper half of the product */
        const uint64_t product = (uint64_t)((int64_t)y * constant[2]);
        y = rounded((int32_t)(uint32_t)(product >> 32), terms->down);
    }
    output[i] = (value_t)y;
#else
    if (kind == SAME_PIXEL) y += a[i];
    if (kind == MEAN_OF_4) y += ((a[i] + b[i]) + (c[i] + d[i])) * 0.25f;
    output[i] = y >= 0 ? y : constant[2] * y;
#endif
}

/* Computes as many outputs as the shortcut has channels, and goes on to the next ones. */
BURN_INLINE void finish_outputs(struct terms *given, const int kind, uint32_t channels,
                                value_t *output) {
    struct terms terms = *given;
    for (uint32_t left = channels / 2; left; --left) {
        finish_output(&terms, kind, 0, output);
        finish_output(&terms, kind, 1, output);
        output += 2;
        terms.offset += 2;
        terms.counts += 2;
        terms.constants += 6;
        if (kind != NO_SHORTCUT) terms.a += 2;
        if (kind == MEAN_OF_4) terms.b += 2, terms.c += 2, terms.d += 2;
    }
    if (channels % 2) finish_output(&terms, kind, 0, output);
    given->offset += channels;
    given->counts += channels;
    given->constants += 3 * channels;
}

/* Finds each output's offset: of the number of ones among the weights inside the map, minus half of
 * their number, -2 times. `layer->offset` has it for a whole kernel, and `layer->taps` this number
 * for each pixel at the edge of the kernel, to leave out. It takes the place of the list. */
static const int16_t *find_offsets(const struct layer *layer, uint8_t *arena,
                                   const struct window *rows, const struct window *columns) {
    static const uint8_t taps[3][3] = {{0, 1, 2}, {3, 0, 5}, {4, 6, 7}}; /* not in the middle */
    int16_t *const found = (int16_t *)(void *)(arena + BURN_LIST_AT);
    const uint32_t outputs = layer->out_channels;
    if (rows->end - rows->begin + columns->end - columns->begin == 2u * layer->kernel) {
        return layer->offset;
    }
    for (uint32_t i = 0; i < outputs; ++i) found[i] = layer->offset[i];
    for (uint32_t y = 0; y < 3; ++y) {
        for (uint32_t x = 0; x < 3; ++x) {
            if (y >= rows->begin && y < rows->end && x >= columns->begin && x < columns->end) {
                continue;
            }
            const tap_t *tap = layer->taps + taps[y][x] * outputs;
            for (uint32_t i = 0; i < outputs; ++i) found[i] = (int16_t)(found[i] + 2 * tap[i]);
        }
    }
    return found;
}

/* Computes an output pixel, whose shortcut is the input at its place, or the mean of the two by two
 * pixels there that exist: at the edge, pixels count two or four times. */
BURN_APART void finish_pixel(const struct layer *layer, const uint8_t *arena,
                             const struct window *row, const struct window *column, int32_t sum,
                             const int16_t *offset, value_t *output) {
    struct terms terms = {0};
    terms.sum = sum;
    terms.offset = offset;
    terms.counts = (const uint16_t *)(const void *)(arena + BURN_COUNTS_AT);
    terms.constants = layer->constants;
    terms.scale = layer->shortcut_shift;
    terms.up = layer->positive_shift;
    terms.down = layer->negative_shift;
    if (!layer->shortcut) {
        finish_outputs(&terms, NO_SHORTCUT, layer->out_channels, output);
        return;
    }
    const struct layer *before = layer - 1;
    const value_t *map = (const value_t *)(const void *)(arena + before->values_at);
    const uint32_t channels = layer->in_channels, size = layer->in_size;
    const uint32_t upper = row->at % before->values_rows * size;
    terms.a = map + (upper + column->at) * channels;
    if (layer->stride == 2) {
        const uint32_t right = smaller(column->at + 1, size - 1);
        const uint32_t lower = smaller(row->at + 1, size - 1) % before->values_rows * size;
        terms.b = map + (upper + right) * channels;
        terms.c = map + (lower + column->at) * channels;
        terms.d = map + (lower + right) * channels;
    }
    for (uint32_t left = layer->out_channels; left; left -= channels, output += channels) {
        if (layer->stride == 1) {
            finish_outputs(&terms, SAME_PIXEL, channels, output);
        } else {
            finish_outputs(&terms, MEAN_OF_4, channels, output);
        }
    }
}

/* Computes one row of a binary layer's output, where a pixel has `channels` channels: the layer's
 * or, of a layer with a gate, also those of its other convolutions. */
BURN_APART void run_binary_row(const struct layer *layer, uint8_t *arena, uint32_t row,
                               uint32_t channels, value_t *output) {
    const struct window rows = find_window(layer, row);
    for (uint32_t column = 0; column < layer->out_size; ++column) {
        const struct window columns = find_window(layer, column);
        const uint32_t ones = count_pixel(layer, arena, &rows, &columns);
        const uint32_t pixels = (rows.end - rows.begin) * (columns.end - columns.begin);
        uint32_t *planes = (uint32_t *)(void *)(arena + BURN_PLANES_AT);
        uint32_t *counts = (uint32_t *)(void *)(arena + BURN_COUNTS_AT);
        for (uint32_t i = 0; i < layer->out_channels; i += 32) {
            unpack_counts(planes, layer->inputs, counts);
            planes += BURN_PLANES;
            counts += 16;
        }
        /* The offsets are of weights minus half of them, rounded down: one in an odd number of
         * channels is left over. */
        finish_pixel(layer, arena, &rows, &columns,
                     (int32_t)(pixels * (layer->in_channels % 2u)) - 2 * (int32_t)ones,
                     find_offsets(layer, arena, &rows, &columns), output);
        output += channels;
    }
}

/* The image as it is read, from the top: row y is at y mod the height of the first kernel. */
struct image {
    network_row next;
    void *camera;
    const uint8_t *rows[BURN_STEM_KERNEL];
    uint32_t num_read;
};

/* Finds the pixels under the first kernel, [kernel][kernel][3], and which of them are inside the
 * image. Returns whether all are. */
static int find_pixels(const struct layer *layer, const struct image *image, uint32_t row,
                       uint32_t column, sum_t *pixels, uint8_t *inside) {
    enum { KERNEL = BURN_STEM_KERNEL };
    const int32_t size = layer->in_size;
    const int32_t top = (int32_t)(row * layer->stride) - KERNEL / 2;
    const int32_t left = (int32_t)(column * layer->stride) - KERNEL / 2;
    int all = 1;
    for (int32_t y = top; y < top + KERNEL; ++y) {
        const uint8_t *pixel = NULL; /* of a row that is outside or missing */
        if (y >= 0 && y < size) pixel = image->rows[y % KERNEL];
        for (int32_t x = left; x < left + KERNEL; ++x, pixels += 3) {
            *inside = pixel && x >= 0 && x < size;
            if (*inside++) {
                pixels[0] = pixel[3 * x];
                pixels[1] = pixel[3 * x + 1];
                pixels[2] = pixel[3 * x + 2];
            } else {
                all = 0;
            }
        }
    }
    return all;
}

/* Returns the sum of three products. */
BURN_INLINE sum_t weighted(const sum_t *weight, const sum_t *pixel) {
    return weight[0] * pixel[0] + weight[1] * pixel[1] + weight[2] * pixel[2];
}

/* Computes two outputs of the first convolution where all pixels are inside the image, so that each
 * is loaded once. */
BURN_INLINE void sum_two(const sum_t *one, const sum_t *other, const sum_t *pixel, sum_t *first,
                         sum_t *second) {
    const sum_t *const end = pixel + 3 * BURN_STEM_KERNEL * BURN_STEM_KERNEL;
    sum_t a = *first, b = *second;
    for (; pixel != end; one += 3, other += 3, pixel += 3) {
        a += weighted(one, pixel);
        b += weighted(other, pixel);
    }
    *first = a;
    *second = b;
}

/* Computes one row of the first convolution's output, two channels at once. Where there is no
 * second one, the last channel is computed twice. */
BURN_APART void run_image_row(const struct layer *layer, struct image *image, uint8_t *arena,
                              uint32_t row, value_t *output) {
    enum { KERNEL = BURN_STEM_KERNEL, TAPS = KERNEL * KERNEL };
    const uint32_t end = smaller(row * layer->stride + KERNEL - KERNEL / 2, layer->in_size);
    const uint32_t channels = layer->out_channels;
    sum_t *const pixels = (sum_t *)(void *)(arena + BURN_LIST_AT);
    uint8_t *const inside = arena + BURN_LIST_AT + 12 * TAPS;
    for (; image->num_read < end; ++image->num_read) {
        image->rows[image->num_read % KERNEL] = image->next(image->camera, image->num_read);
    }
    for (uint32_t column = 0; column < layer->out_size; ++column, output += channels) {
        const int all = find_pixels(layer, image, row, column, pixels, inside);
        for (uint32_t o = 0; o < channels; o += 2) {
            const uint32_t other = smaller(o + 1, channels - 1);
            const sum_t *one = stem_weight + 3 * TAPS * o, *two = stem_weight + 3 * TAPS * other;
            sum_t first = stem_bias[o], second = stem_bias[other];
            if (all) {
                sum_two(one, two, pixels, &first, &second);
            } else {
                for (uint32_t i = 0; i < TAPS; ++i) {
                    const uint32_t at = 3 * i;
                    first +=
                        inside[i] ? weighted(one + at, pixels + at) : stem_outside[o * TAPS + i];
                    second += inside[i] ? weighted(two + at, pixels + at)
                                        : stem_outside[other * TAPS + i];
                }
            }
#if BURN_INTEGER
            output[o] = (value_t)rounded(first, layer->positive_shift);
            output[other] = (value_t)rounded(second, layer->positive_shift);
#else
            output[o] = first;
            output[other] = second;
#endif
        }
    }
}

/* Finds the signs of a row of a layer's input. */
BURN_APART void find_signs(const struct layer *layer, const struct layer *before, uint8_t *arena,
                           uint32_t row) {
    const uint32_t channels = layer->in_channels, words = (channels + 31) / 32;
    const value_t *value = (const value_t *)(const void *)(arena + before->values_at) +
                           row % before->values_rows * layer->in_size * channels;
    uint32_t *sign = (uint32_t *)(void *)(arena + layer->signs_at) +
                     row % layer->signs_rows * layer->in_size * words;
    for (uint32_t pixel = 0; pixel < layer->in_size; ++pixel) {
        const value_t *threshold = layer->threshold;
        uint32_t left = channels;
        for (uint32_t i = 0; i < words; ++i) {
            const uint32_t count = smaller(left, 32);
            uint32_t word = 0, shift = 0;
            for (; shift + 8 <= count; shift += 8, value += 8, threshold += 8) {
                uint32_t byte = 0;
#define BURN_BELOW(i) \
    if (!(value[i] >= threshold[i])) byte |= 1u << (i)
                BURN_BELOW(0);
                BURN_BELOW(1);
                BURN_BELOW(2);
                BURN_BELOW(3);
                BURN_BELOW(4);
                BURN_BELOW(5);
                BURN_BELOW(6);
                BURN_BELOW(7);
#undef BURN_BELOW
                word |= byte << shift;
            }
            for (; shift < count; ++shift) {
                word |= (uint32_t)!(*value++ >= *threshold++) << shift;
            }
            *sign++ = word ^ layer->flipped[i];
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
static void run_phase(const struct phase *phase, struct image *image, uint8_t *arena, sum_t *sums) {
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
            find_signs(layer, layer - 1, arena, whole++);
            continue;
        }
        const uint32_t row = layer->out_size - (uint32_t)left[i]--;
        value_t *output = (value_t *)(void *)(arena + layer->values_at) +
                          row % layer->values_rows * layer->out_size * layer->out_channels;
        if (i == 0) {
            run_image_row(layer, image, arena, row, output);
        } else {
            run_binary_row(layer, arena, row, layer->out_channels, output);
        }
        BURN_TRACE(i, row, output, (uint32_t)layer->out_size * layer->out_channels);
        if (i < last) {
            find_signs(layer + 1, layer, arena, row);
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

/* @gated */

int network_run_rows(network_row next, void *camera, void *arena, network_score *scores) {
    uint8_t *const memory = arena;
    struct image image; /* its rows are read before they are used */
    if (!next || !arena || !scores || (uintptr_t)arena % 4) return -1;
    image.next = next;
    image.camera = camera;
    image.num_read = 0;
#if BURN_NUM_LINEAR
    sum_t *const sums = (sum_t *)(void *)(memory + BURN_SUMS_AT);
#else
    sum_t *const sums = scores;
#endif
#if BURN_NUM_GATES
    const struct gate *gate = gates;
    for (uint32_t i = 0; i < BURN_NUM_PHASES; ++i) {
        if (gate < gates + BURN_NUM_GATES && gate->layer == phases[i].first) {
            run_gated(gate++, memory, sums);
        } else {
            run_phase(&phases[i], &image, memory, sums);
        }
    }
#else
    for (uint32_t i = 0; i < BURN_NUM_PHASES; ++i) run_phase(&phases[i], &image, memory, sums);
#endif
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

static const uint8_t *row_of_image(void *image, uint32_t row) {
    return *(const uint8_t *const *)image + (size_t)row * 3 * NETWORK_IMAGE_SIZE;
}

int network_run(const uint8_t *image, void *arena, network_score *scores) {
    return image ? network_run_rows(row_of_image, (void *)&image, arena, scores) : -1;
}
