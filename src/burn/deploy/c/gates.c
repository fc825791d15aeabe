/* Layers with gates (docs/project/pack-format.md, gated_convolution): what their convolutions
 * compute is joined to the shortcut, after each channel has been scaled by a number that the whole
 * map chooses. So their inputs and outputs are whole. */
struct gate {
    const struct layer *parts;   /* the convolutions: each computes some of the outputs */
    const int16_t *down;         /* [hidden][out_channels] */
    const int16_t *up;           /* [out_channels][hidden] */
    const float *down_constants; /* [hidden][2]: scale, bias */
    const float *up_constants;   /* [out_channels][2]: scale, bias */
    const float *constants;      /* [out_channels][4]: mix, scale, shift, slope */
    const float *shortcut_slope; /* [in_channels] */
    uint16_t layer, hidden;
    uint8_t num_parts, product;
};

/* @gates */

BURN_INLINE float leaky(float x, float slope) { return x >= 0 ? x : slope * x; }

/* Returns 1 / (1 + e^-x). */
static float sigmoid(float x) {
    const float size = x < 0 ? -x : x;
    union {
        uint32_t bits;
        float number;
    } power; /* 2^-n */
    /* What is no number stays none. */
    if (!(size < 87)) return x < 0 ? 0 : x > 0 ? 1 : x;
    /* e^-size = 2^-n e^r with the n for which r is smallest; log 2 in two parts, of which the first
     * has few bits. */
    const uint32_t n = (uint32_t)(size * 1.44269504f + 0.5f);
    const float r = ((float)n * 0.693359375f - size) - (float)n * 2.12194440e-4f;
    float series = 1 + r / 7;
    for (int i = 6; i > 0; --i) series = 1 + r / (float)i * series;
    power.bits = (127 - n) << 23;
    const float small = series * power.number;
    return x < 0 ? small / (1 + small) : 1 / (1 + small);
}

/* The input's pixels under an output pixel: one, or the two by two that exist, where those at the
 * edge count two or four times. */
struct square {
    const float *a, *b, *c, *d;
    int is_one;
};

static struct square find_square(const struct layer *layer, const float *map, uint32_t row,
                                 uint32_t column) {
    const uint32_t size = layer->in_size, channels = layer->in_channels, stride = layer->stride;
    const uint32_t upper = row * stride * size, left = column * stride;
    const uint32_t lower = smaller(row * stride + stride - 1, size - 1) * size;
    const uint32_t right = smaller(left + stride - 1, size - 1);
    struct square square;
    square.a = map + (upper + left) * channels;
    square.b = map + (upper + right) * channels;
    square.c = map + (lower + left) * channels;
    square.d = map + (lower + right) * channels;
    square.is_one = stride == 1;
    return square;
}

/* Returns the mean of a channel of the pixels, after `leaky`. */
BURN_INLINE float mean_of(const struct square *square, uint32_t channel, float slope) {
    const float a = leaky(square->a[channel], slope);
    if (square->is_one) return a;
    return ((a + leaky(square->b[channel], slope)) +
            (leaky(square->c[channel], slope) + leaky(square->d[channel], slope))) *
           0.25f;
}

/* Returns the sum of products of weights and values. */
BURN_APART float product_of(const int16_t *weight, const float *value, uint32_t count) {
    float sum = 0;
    for (uint32_t i = 0; i < count; ++i) sum += (float)weight[i] * value[i];
    return sum;
}

/* Adds a pixel's mixes of input and output to the sums of the channels. */
BURN_APART void add_pixel(const struct layer *layer, const struct square *square,
                          const float *constant, const float *output, float *sums) {
    const uint32_t channels = layer->in_channels;
    for (uint32_t left = layer->out_channels; left; left -= channels) {
        for (uint32_t c = 0; c < channels; ++c, constant += 4) {
            const float y = *output++;
            *sums++ += y + constant[0] * (mean_of(square, c, 1) - y);
        }
    }
}

/* Finds by what each channel of a layer's output is multiplied. */
BURN_APART void find_factors(const struct gate *gate, const struct layer *layer, const float *input,
                             const float *output, float *factors, float *inner) {
    const uint32_t outputs = layer->out_channels, size = layer->out_size;
    for (uint32_t o = 0; o < outputs; ++o) factors[o] = 0;
    for (uint32_t pixel = 0; pixel < size * size; ++pixel, output += outputs) {
        const struct square square = find_square(layer, input, pixel / size, pixel % size);
        add_pixel(layer, &square, gate->constants, output, factors);
    }
    for (uint32_t o = 0; o < outputs; ++o) factors[o] /= (float)(size * size);
    for (uint32_t h = 0; h < gate->hidden; ++h) {
        const float *constant = gate->down_constants + 2 * h;
        const float sum = product_of(gate->down + h * outputs, factors, outputs);
        const float y = constant[0] * sum + constant[1];
        inner[h] = y < 0 ? 0 : y;
    }
    for (uint32_t o = 0; o < outputs; ++o) {
        const float *constant = gate->up_constants + 2 * o;
        const float sum = product_of(gate->up + o * gate->hidden, inner, gate->hidden);
        factors[o] = gate->constants[4 * o + 1] * sigmoid(constant[0] * sum + constant[1]);
    }
}

/* Joins a pixel's outputs to the shortcut. */
BURN_APART void join_pixel(const struct gate *gate, const struct layer *layer,
                           const struct square *square, const float *factors, float *output) {
    const uint32_t channels = layer->in_channels;
    const float *constant = gate->constants, *slope = gate->shortcut_slope;
    const int product = gate->product;
    for (uint32_t left = layer->out_channels; left; left -= channels) {
        for (uint32_t c = 0; c < channels; ++c, constant += 4, ++output) {
            const float shortcut = mean_of(square, c, slope[c]);
            float y = *factors++ * *output;
            if (product) y *= shortcut;
            *output = leaky(y + constant[2] + shortcut, constant[3]);
        }
    }
}

/* Computes the output of a layer with a gate. */
static void run_gated(const struct gate *gate, uint8_t *arena, sum_t *sums) {
    const struct layer *layer = &layers[gate->layer], *before = layer - 1;
    const float *input = (const float *)(const void *)(arena + before->values_at);
    float *const output = (float *)(void *)(arena + layer->values_at);
    float *const factors = (float *)(void *)(arena + BURN_GATES_AT);
    const uint32_t size = layer->out_size, outputs = layer->out_channels;
    uint32_t whole = 0; /* rows of the input whose signs have been found */
    for (uint32_t row = 0; row < size; ++row) {
        const uint32_t reach = row * layer->stride + layer->kernel / 2 + 1;
        for (; whole < smaller(reach, layer->in_size); ++whole) {
            for (uint32_t i = 0; i < gate->num_parts; ++i) {
                find_signs(&gate->parts[i], before, arena, whole);
            }
        }
        float *pixel = output + row * size * outputs;
        for (uint32_t i = 0; i < gate->num_parts; ++i) {
            run_binary_row(&gate->parts[i], arena, row, outputs, pixel);
            pixel += gate->parts[i].out_channels;
        }
    }
    find_factors(gate, layer, input, output, factors, factors + outputs);
    for (uint32_t row = 0; row < size; ++row) {
        float *const pixels = output + row * size * outputs;
        for (uint32_t column = 0; column < size; ++column) {
            const struct square square = find_square(layer, input, row, column);
            join_pixel(gate, layer, &square, factors, pixels + column * outputs);
        }
        BURN_TRACE(gate->layer, row, pixels, size * outputs);
        if (gate->layer == BURN_NUM_LAYERS - 1) add_row(layer, pixels, row == 0, sums);
    }
}
