/* Runs packed binary networks (docs/project/pack-format.md).
 *
 * Errors: every function that can fail returns an int, 0 on success and 1 on failure. After a
 * failure burn_last_error() gives the reason, and nothing was written through the pointers that
 * were passed. No exception leaves the library.
 *
 * Ownership: the caller frees what burn_load, burn_load_memory and burn_plan_create made, with
 * burn_free and burn_plan_free. Every other pointer that a function returns belongs to the library.
 *
 * Threads: a model is read-only after loading, so threads may share it. A plan holds the memory of
 * one run, so each thread that runs at the same time needs a plan of its own.
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

/* A packed network, ready to run on one instruction set. */
typedef struct burn_model burn_model;

/* The memory and the threads that run a model on images of one size. */
typedef struct burn_plan burn_plan;

/* Type of an image's numbers: uint8_t from 0 to 255, or float from 0 to 1. */
typedef enum { BURN_UINT8 = 0, BURN_FLOAT32 = 1 } burn_pixels;

/* Returns why the calling thread's last call of a function that can fail did so; "" if that call
 * succeeded, and before the first one. Valid until the thread calls such a function again. */
BURN_API const char *burn_last_error(void);

/* Returns the version of the library, such as "0.2.0". */
BURN_API const char *burn_version(void);

/* Returns the instruction sets that this processor can run, best first, separated by spaces. The
 * last one is always "portable". Valid as long as the library is loaded. */
BURN_API const char *burn_supported_isas(void);

/* Loads a packed file.
 *
 * path: path of the file, which is read completely and may change afterwards.
 * isa: one of burn_supported_isas(); NULL or "" for the environment variable BURN_ENGINE_ISA or, if
 *   that is unset or empty, the best instruction set.
 * model: receives the model, which the caller frees with burn_free.
 *
 * Returns 0, or 1 if the file cannot be read or breaks a rule of its format, if the instruction set
 * is not available, if memory is short, or if path or model is NULL. */
BURN_API int burn_load(const char *path, const char *isa, burn_model **model);

/* Loads the `size` bytes of a packed file from memory, which may be freed afterwards. The other
 * arguments and the returned value are those of burn_load. */
BURN_API int burn_load_memory(const void *bytes, size_t size, const char *isa, burn_model **model);

/* Frees a model, whose plans must have been freed before. NULL is allowed. */
BURN_API void burn_free(burn_model *model);

/* Returns the instruction set that was chosen when the model was loaded; "" if model is NULL. */
BURN_API const char *burn_isa(const burn_model *model);

/* Returns the number of layers, 3 to 1000; 0 if model is NULL. */
BURN_API int burn_num_layers(const burn_model *model);

/* Returns the name of a layer by its index from 0; "" if there is no such layer. Valid until the
 * model is freed. */
BURN_API const char *burn_layer_name(const burn_model *model, int layer);

/* Returns the kind of a layer by its index from 0: "convolution", "binary_convolution",
 * "global_mean" or "linear"; "" if there is no such layer. */
BURN_API const char *burn_layer_kind(const burn_model *model, int layer);

/* Returns the index of the layer that has this name; -1 if there is none. */
BURN_API int burn_find_layer(const burn_model *model, const char *name);

/* Returns the index of the layer whose output is the features; -1 if model is NULL. */
BURN_API int burn_features_layer(const burn_model *model);

/* Returns the number of pixels, 1 to 4096, to which the short side of a photograph is resized
 * (bicubic) before its centre square is cut out; 0 if the file does not say. */
BURN_API int burn_image_resize(const burn_model *model);

/* Returns the side of that centre square in pixels, 1 to burn_image_resize(); 0 if the file does
 * not say. */
BURN_API int burn_image_size(const burn_model *model);

/* Returns the number of classes; 0 if the model has no classifier. */
BURN_API int burn_num_classes(const burn_model *model);

/* Returns the name of a class by its index from 0; "" if there is no such class. Names are valid
 * UTF-8 but may hold control codes that a terminal obeys: see print_name in examples/classify.c.
 * Valid until the model is freed. */
BURN_API const char *burn_class_name(const burn_model *model, int index);

/* Computes the shape of a layer's output for images of one size.
 *
 * height, width: size of the images in pixels, 1 to 16384 each, with a product of at most 2^26.
 * layer: index of the layer, or -1 for the last one.
 * out_height, out_width: receive the height and width of the output in pixels, which are 1 for
 *   global_mean and linear layers. Either may be NULL.
 * out_channels: receives the number of channels. May be NULL.
 *
 * Returns 0, or 1 if height, width or layer is out of range or model is NULL. */
BURN_API int burn_output_shape(const burn_model *model, int height, int width, int layer,
                               int *out_height, int *out_width, int *out_channels);

/* Creates a plan, with its memory and threads.
 *
 * model: must not be freed before the plan.
 * height, width: size of the images in pixels, as burn_output_shape takes it.
 * threads: number of threads of one run, 1 to 256, the calling one included. No more are used than
 *   there are processors.
 * layer: index of the last layer to run, or -1 for the last one of the model.
 * plan: receives the plan, which the caller frees with burn_plan_free.
 *
 * Returns 0, or 1 if a number is out of range, if memory or threads are short, or if model or plan
 * is NULL. */
BURN_API int burn_plan_create(const burn_model *model, int height, int width, int threads,
                              int layer, burn_plan **plan);

/* Frees a plan and ends its threads. NULL is allowed. */
BURN_API void burn_plan_free(burn_plan *plan);

/* Returns the size in bytes of the plan's memory; 0 if plan is NULL. */
BURN_API size_t burn_plan_bytes(const burn_plan *plan);

/* Runs the model on images.
 *
 * plan: used by one run at a time. A process that was forked from the one that created the plan
 *   cannot run it if it has several threads.
 * images: count × height × width × 3 numbers: red, green and blue of each pixel, row by row, image
 *   by image. They are not checked. May be NULL if count is 0.
 * type: type of these numbers.
 * count: number of images, 0 or more.
 * outputs: memory of the caller for count × height × width × channels floats, with the shape that
 *   burn_output_shape gives for the plan's layer. They are not finite where the model's constants
 *   overflow. May be NULL if count is 0.
 *
 * Returns 0, or 1 if type is not a burn_pixels value, if a pointer is NULL that may not be, or if
 * the process was forked. */
BURN_API int burn_run(burn_plan *plan, const void *images, burn_pixels type, size_t count,
                      float *outputs);

/* Resizes an image by bicubic interpolation that averages where it reduces the size, first across,
 * then down, each rounded to bytes, and cuts out a part: how a photograph becomes an input, to the
 * byte as Pillow's BICUBIC does it.
 *
 * isa: as in burn_load.
 * pixels: height × width × 3 bytes, row by row. Only read.
 * height, width: size of the image, 1 to 2^20 pixels each.
 * new_height, new_width: size after resizing, 1 to 2^20 pixels each.
 * top, left: the first row and column of the resized image that are wanted.
 * rows, columns: size of the part that is wanted; it lies in the resized image.
 * out: memory of the caller for rows × columns × 3 bytes.
 *
 * Returns 0, or 1 if the instruction set is not available, if a number is out of range, if memory
 * is short, or if a pointer is NULL. The library for browsers does not have it. */
BURN_API int burn_resize(const char *isa, const uint8_t *pixels, int height, int width,
                         int new_height, int new_width, int top, int left, int rows, int columns,
                         uint8_t *out);

/* Finds, for each query, the k codes that differ from it in the fewest bits.
 *
 * isa: as in burn_load.
 * codes: count × bytes bytes, one code after the other. Only read.
 * count: number of codes, at least k.
 * bytes: length of a code, 1 to 2^20.
 * queries: num_queries × bytes bytes.
 * num_queries: number of queries, 0 or more.
 * k: number of codes to find for each query, at least 1.
 * positions: memory of the caller for num_queries × k indices of codes, by distance; of codes
 *   with the same distance the first ones, in order.
 * distances: memory of the caller for the num_queries × k numbers of bits.
 *
 * Returns 0, or 1 if the instruction set is not available, if a number is out of range, if memory
 * is short, or if a pointer is NULL that may not be. */
BURN_API int burn_nearest(const char *isa, const uint8_t *codes, size_t count, size_t bytes,
                          const uint8_t *queries, size_t num_queries, size_t k, int64_t *positions,
                          uint32_t *distances);

#ifdef __cplusplus
}
#endif
#endif
