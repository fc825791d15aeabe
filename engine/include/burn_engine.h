/* Runs packed binary networks (docs/pack-format.md).
 *
 * Every function that can fail returns 0 when it did not and another number otherwise; then
 * burn_last_error() says why, for the calling thread. No exception leaves the library.
 *
 * A model is read-only after burn_load: threads may share it. A plan holds the memory of one run:
 * each thread that runs at the same time needs its own.
 */
#ifndef BURN_ENGINE_H
#define BURN_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(BURN_ENGINE_SHARED)
#define BURN_API __attribute__((visibility("default")))
#else
#define BURN_API
#endif

typedef struct burn_model burn_model;
typedef struct burn_plan burn_plan;

typedef enum { BURN_UINT8 = 0, BURN_FLOAT32 = 1 } burn_pixels;

/* Why the last call of this thread failed; "" if none has. Valid until its next call. */
BURN_API const char *burn_last_error(void);

/* Version of this library, "0.1.0". */
BURN_API const char *burn_version(void);

/* The instruction sets that this processor can run, best first, separated by spaces. */
BURN_API const char *burn_supported_isas(void);

/* Read a packed file. isa: one of burn_supported_isas(), or NULL for the environment variable
 * BURN_ENGINE_ISA, or, where that is not set, the best. */
BURN_API int burn_load(const char *path, const char *isa, burn_model **model);

/* The same from memory, which may be freed afterwards. */
BURN_API int burn_load_memory(const void *bytes, size_t size, const char *isa, burn_model **model);

BURN_API void burn_free(burn_model *model);

/* The instruction set chosen at load. */
BURN_API const char *burn_isa(const burn_model *model);

/* Number of layers; name and kind of one ("" past the end); index of the one called `name`, or -1. */
BURN_API int burn_num_layers(const burn_model *model);
BURN_API const char *burn_layer_name(const burn_model *model, int layer);
BURN_API const char *burn_layer_kind(const burn_model *model, int layer);
BURN_API int burn_find_layer(const burn_model *model, const char *name);

/* Index of the layer whose output is the features. */
BURN_API int burn_features_layer(const burn_model *model);

/* How a photograph becomes an input: its short side is resized to so many pixels (bicubic) and the
 * centre square of so many cut out. 0 where the file does not say. */
BURN_API int burn_image_resize(const burn_model *model);
BURN_API int burn_image_size(const burn_model *model);

/* Number of classes (0: the model has no classifier) and the name of one ("" past the end). Names are
 * valid UTF-8 and may hold control codes of a terminal: see print_name in examples/classify.c. */
BURN_API int burn_num_classes(const burn_model *model);
BURN_API const char *burn_class_name(const burn_model *model, int index);

/* What a run of `height` × `width` pixels up to and with `layer` gives: channels, and for layers
 * that give maps their height and width (else 1). layer: an index, or -1 for the last. */
BURN_API int burn_output_shape(const burn_model *model, int height, int width, int layer,
                               int *out_height, int *out_width, int *out_channels);

/* Memory and threads for images of one size. threads: 1 to 256, of which no more are made than there
 * are processors. layer: the last one to run, as above. The model must outlive the plan. */
BURN_API int burn_plan_create(const burn_model *model, int height, int width, int threads,
                              int layer, burn_plan **plan);
BURN_API void burn_plan_free(burn_plan *plan);

/* Bytes that the plan holds. */
BURN_API size_t burn_plan_bytes(const burn_plan *plan);

/* Run `count` images: red, green, blue for each pixel, row by row, image by image, as bytes or as
 * float on the scale 0 to 1. outputs: count × height × width × channels floats of the output, which
 * are not finite where a model's constants overflow. */
BURN_API int burn_run(burn_plan *plan, const void *images, burn_pixels type, size_t count,
                      float *outputs);

#ifdef __cplusplus
}
#endif
#endif
