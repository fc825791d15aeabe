/* Learns and classifies with an exported network, named net, what a file says.
 *
 *     learn IMAGES STEPS RESULTS
 *
 * A step is three bytes: what to do (l, learn; c, classify; f, forget; m, make the class full; r,
 * give wrong arguments), the number of a class and of an image. Of each step it writes what was
 * returned, and the similarity; and after all steps the features of every image. Every block of
 * memory has exactly the size that the header names.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net.h"

static net_classes *classes;
static net_score *scores;
static void *arena;

static int refuses(const uint8_t *image) {
    int32_t similarity = 0;
    return net_learn(NULL, 0, image, arena, scores) == -1 &&
           net_learn(classes, -1, image, arena, scores) == -1 &&
           net_learn(classes, NET_MAX_CLASSES, image, arena, scores) == -1 &&
           net_learn(classes, 0, NULL, arena, scores) == -1 &&
           net_learn(classes, 0, image, NULL, scores) == -1 &&
           net_learn(classes, 0, image, arena, NULL) == -1 &&
           net_learn(classes, 0, image, (char *)arena + 1, scores) == -1 &&
           net_forget(NULL, 0) == -1 && net_forget(classes, -1) == -1 &&
           net_forget(classes, NET_MAX_CLASSES) == -1 &&
           net_classify(NULL, image, arena, scores, &similarity) == -1 &&
           net_classify(classes, NULL, arena, scores, &similarity) == -1 &&
           net_classify(classes, image, arena, scores, NULL) == -1;
}

int main(int argc, char **argv) {
    FILE *images = argc > 3 ? fopen(argv[1], "rb") : NULL;
    FILE *steps = argc > 3 ? fopen(argv[2], "rb") : NULL;
    FILE *results = argc > 3 ? fopen(argv[3], "wb") : NULL;
    uint8_t *image = malloc(NET_IMAGE_BYTES);
    uint8_t step[3];
    classes = calloc(1, sizeof *classes);
    scores = malloc(NET_NUM_SCORES * sizeof *scores);
    arena = malloc(NET_ARENA_BYTES);
    if (!images || !steps || !results) return 2;
    while (fread(step, sizeof step, 1, steps) == 1) {
        int32_t result[2] = {0, 0};
        fseek(images, (long)step[2] * NET_IMAGE_BYTES, SEEK_SET);
        if (fread(image, NET_IMAGE_BYTES, 1, images) != 1) return 3;
        memset(arena, 0xAA, NET_ARENA_BYTES);
        switch (step[0]) {
            case 'l': result[0] = net_learn(classes, step[1], image, arena, scores); break;
            case 'c': result[0] = net_classify(classes, image, arena, scores, &result[1]); break;
            case 'f': result[0] = net_forget(classes, step[1]); break;
            case 'r': result[0] = refuses(image); break;
            case 'm': classes->counts[step[1]] = UINT16_MAX; break; /* make it full */
            default: return 4;
        }
        fwrite(result, sizeof result, 1, results);
    }
    fseek(images, 0, SEEK_SET);
    while (fread(image, NET_IMAGE_BYTES, 1, images) == 1) {
        if (net_run(image, arena, scores) < 0) return 5;
        fwrite(scores, sizeof *scores, NET_NUM_SCORES, results);
    }
    free(image);
    free(classes);
    free(scores);
    free(arena);
    fclose(images);
    fclose(steps);
    return fclose(results) ? 6 : 0;
}
