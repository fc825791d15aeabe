/* Runs an exported network, named net, on a file of images.
 *
 *     host IMAGES SCORES [ROWS]
 *
 * Writes the scores of each image after its class, and every layer's rows to ROWS: the number of
 * the layer, of the row and of the bytes, and the bytes. Every block of memory has exactly the size
 * that the header names, and is not zero, so that sanitizers and comparisons find an access outside
 * and a value that was never written.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net.h"
#include "trace.h"

static FILE *rows;

void trace(uint32_t layer, uint32_t row, const void *values, size_t size) {
    const uint32_t head[3] = {layer, row, (uint32_t)size};
    if (!rows) return;
    fwrite(head, sizeof head, 1, rows);
    fwrite(values, size, 1, rows);
}

static int32_t run(const uint8_t *image, net_score *scores, int filling) {
    void *arena = malloc(NET_ARENA_BYTES);
    memset(arena, filling, NET_ARENA_BYTES);
    memset(scores, filling, NET_NUM_SCORES * sizeof *scores);
    const int32_t best = net_run(image, arena, scores);
    free(arena);
    return best;
}

/* An image that is never whole: only NET_IMAGE_ROWS rows of it are there at once. */
struct camera {
    const uint8_t *image;
    uint8_t *rows;
    uint32_t sent, missing; /* first row that is missing */
};

static const uint8_t *next_row(void *given, uint32_t row) {
    struct camera *camera = given;
    uint8_t *to = camera->rows + row % NET_IMAGE_ROWS * 3 * NET_IMAGE_SIZE;
    if (row != camera->sent++) abort();
    if (row >= camera->missing) return NULL;
    return memcpy(to, camera->image + row * 3 * NET_IMAGE_SIZE, 3 * NET_IMAGE_SIZE);
}

static int32_t run_rows(const uint8_t *image, net_score *scores, uint32_t missing) {
    struct camera camera = {image, malloc(NET_IMAGE_ROWS * 3 * NET_IMAGE_SIZE), 0, missing};
    void *arena = malloc(NET_ARENA_BYTES);
    const int32_t best = net_run_rows(next_row, &camera, arena, scores);
    free(arena);
    free(camera.rows);
    return best;
}

static int32_t refused(const uint8_t *image, net_score *scores) {
    uint32_t *arena = malloc(NET_ARENA_BYTES + 4);
    const int32_t all = net_run(NULL, arena, scores) == -1 && net_run(image, NULL, scores) == -1 &&
                        net_run(image, arena, NULL) == -1 &&
                        net_run(image, (char *)arena + 1, scores) == -1 &&
                        net_run_rows(NULL, NULL, arena, scores) == -1;
    free(arena);
    return all;
}

int main(int argc, char **argv) {
    FILE *images = argc > 2 ? fopen(argv[1], "rb") : NULL;
    FILE *results = argc > 2 ? fopen(argv[2], "wb") : NULL;
    uint8_t *image = malloc(NET_IMAGE_BYTES);
    net_score *scores = malloc(NET_NUM_SCORES * sizeof *scores);
    net_score *again = malloc(NET_NUM_SCORES * sizeof *scores);
    if (!images || !results) return 2;
    while (fread(image, NET_IMAGE_BYTES, 1, images) == 1) {
        const int32_t same = run(image, again, 0x7F);
        rows = argc > 3 ? fopen(argv[3], "ab") : NULL;
        const int32_t best = run(image, scores, 0xAA);
        if (rows) fclose(rows);
        rows = NULL;
        if (best != same || memcmp(scores, again, NET_NUM_SCORES * sizeof *scores)) return 3;
        if (!refused(image, scores)) return 4;
        if (run_rows(image, again, 0) < 0) return 6; /* whatever the class, of no row at all */
        if (run_rows(image, again, NET_IMAGE_SIZE) != best) return 7;
        if (memcmp(scores, again, NET_NUM_SCORES * sizeof *scores)) return 8;
        fwrite(&best, sizeof best, 1, results);
        fwrite(scores, sizeof *scores, NET_NUM_SCORES, results);
    }
    free(image);
    free(scores);
    free(again);
    fclose(images);
    return fclose(results) ? 5 : 0;
}
