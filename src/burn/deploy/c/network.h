/* A packed binary network as C, written by `burn export --format c`.
 *
 * It needs a C99 compiler and a little-endian processor, and no C library: no heap, no files. All
 * that it writes is in the caller's arena and scores, so several networks can share one arena, and
 * several threads can run with an arena each.
 */
#ifndef NETWORK_H
#define NETWORK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* @sizes */

/* Computes the scores of an image.
 *
 * image: NETWORK_IMAGE_BYTES bytes: NETWORK_IMAGE_SIZE rows of NETWORK_IMAGE_SIZE pixels from the
 *   top left, each its red, green and blue from 0 to 255. It is only read, and may be in flash.
 * arena: NETWORK_ARENA_BYTES bytes whose address is a multiple of 4. Before and after the call they
 *   may be used for anything, and their content does not matter.
 * scores: receives NETWORK_NUM_SCORES numbers: the scores of the classes (logits) in the order of
 *   network_class_names, or the features if NETWORK_NUM_CLASSES is 0. Where NETWORK_SCORE_BITS is
 *   defined, a score is scores[i] / 2^NETWORK_SCORE_BITS; otherwise it is a float.
 *
 * Returns the index of the largest score, the first one if several are equal, or -1 if a pointer is
 * NULL or the arena's address is not a multiple of 4. */
int network_run(const uint8_t *image, void *arena, network_score *scores);

/* Returns a row of an image: NETWORK_IMAGE_SIZE pixels from the left, or NULL for a row that is
 * missing, which then counts as outside of the image. */
typedef const uint8_t *(*network_row)(void *camera, uint32_t row);

/* The same for an image that is nowhere whole, such as one that a camera sends row by row.
 *
 * next: is called for every row that is needed, from the top and once for each. A row must stay
 *   where it is until NETWORK_IMAGE_ROWS - 1 others have followed it.
 * camera: what `next` is given. */
int network_run_rows(network_row next, void *camera, void *arena, network_score *scores);

#ifdef __cplusplus
}
#endif

#endif
