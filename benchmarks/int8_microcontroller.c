/* Runs a network in 8 bits by CMSIS-NN, and prints whether a layer failed, the largest scratch
 * memory and the number of instructions. int8_microcontroller.py writes network.h, in which
 * LARGEST_MAP is a number of bytes and STEPS are the layers, and constants.bin: of each convolution
 * the weights, filled up to 4 bytes, then biases, multipliers and shifts of its outputs. */
#include "arm_nnfunctions.h"
#include "board.h"
#include "network.h"

__asm__(".section .rodata\n .balign 4\n .global constants\nconstants:\n .incbin "
        "\"constants.bin\"\n .text");
extern const uint8_t constants[];
static int8_t maps[3][LARGEST_MAP];
static uint8_t scratch[1 << 18];
static int32_t most_scratch;

struct step {
    uint32_t kind, from, to, size, channels, out_size, out_channels, kernel, stride, weights;
};
static const struct step steps[] = {STEPS};

static void fit(cmsis_nn_context *context, int32_t size) {
    context->buf = scratch;
    context->size = size;
    if (size > most_scratch) most_scratch = size;
}

static int convolve(const struct step *s) {
    const cmsis_nn_dims in = {1, (int32_t)s->size, (int32_t)s->size, (int32_t)s->channels};
    const cmsis_nn_dims out = {1, (int32_t)s->out_size, (int32_t)s->out_size,
                               (int32_t)s->out_channels};
    const int32_t k = (int32_t)s->kernel, stride = (int32_t)s->stride;
    const int32_t filter_bytes = k * k * out.c * (s->kind == 1 ? 1 : in.c);
    const int8_t *weights = (const int8_t *)constants + s->weights;
    const int32_t *numbers = (const int32_t *)(weights + (filter_bytes + 3) / 4 * 4);
    const cmsis_nn_per_channel_quant_params quantized = {(int32_t *)numbers + out.c,
                                                         (int32_t *)numbers + 2 * out.c};
    const cmsis_nn_dims bias = {1, 1, 1, out.c};
    cmsis_nn_context context = {scratch, 0};
    if (s->kind == 1) {
        const cmsis_nn_dims filter = {1, k, k, out.c};
        const cmsis_nn_dw_conv_params p = {128,    -128,       1, {stride, stride}, {k / 2, k / 2},
                                           {1, 1}, {-128, 127}};
        fit(&context, arm_depthwise_conv_wrapper_s8_get_buffer_size(&p, &in, &filter, &out));
        return arm_depthwise_conv_wrapper_s8(&context, &p, &quantized, &in, maps[s->from], &filter,
                                             weights, &bias, numbers, &out, maps[s->to]);
    }
    const cmsis_nn_dims filter = {out.c, k, k, in.c};
    const cmsis_nn_conv_params p = {128,    -128,       {stride, stride}, {k / 2, k / 2},
                                    {1, 1}, {-128, 127}};
    fit(&context, arm_convolve_wrapper_s8_get_buffer_size(&p, &in, &filter, &out));
    return arm_convolve_wrapper_s8(&context, &p, &quantized, &in, maps[s->from], &filter, weights,
                                   &bias, numbers, &out, maps[s->to]);
}

static int run_step(const struct step *s) {
    const int32_t count = (int32_t)(s->size * s->size * s->channels);
    if (s->kind < 2) return convolve(s);
    if (s->kind == 2) {
        return arm_elementwise_add_s8(maps[s->from], maps[s->to], 128, 1 << 30, 0, 128, 1 << 30, 0,
                                      20, maps[s->to], -128, 1 << 30, -19, -128, 127, count);
    }
    const cmsis_nn_dims in = {1, (int32_t)s->size, (int32_t)s->size, (int32_t)s->channels};
    const cmsis_nn_dims window = {1, in.h, in.w, 1}, out = {1, 1, 1, in.c};
    const cmsis_nn_pool_params p = {{1, 1}, {0, 0}, {-128, 127}};
    cmsis_nn_context context = {scratch, 0};
    fit(&context, arm_avgpool_s8_get_buffer_size(1, in.c));
    return arm_avgpool_s8(&context, &p, &in, maps[s->from], &window, &out, maps[s->to]);
}

static void run(void) {
    int failed = 0;
    start_timer();
    for (uint32_t i = 0; i < sizeof steps / sizeof *steps; ++i) failed |= run_step(&steps[i]);
    const uint32_t instructions = instructions_since_start();
    print_number(failed ? 1 : 0, ' ');
    print_number((uint32_t)most_scratch, ' ');
    print_number(instructions, '\n');
}
