/* Prints the top classes of a raw image: height × width × 3 bytes, red, green and blue of each
 * pixel.
 *
 *     classify MODEL.bnn IMAGE.rgb [HEIGHT WIDTH]
 *
 * Without HEIGHT and WIDTH the image is the square that the model expects.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "burn_engine.h"

enum { TOP = 5 };

static int fail(const char *what) {
    fprintf(stderr, "classify: %s\n", what);
    return 2;
}

static int size_of(const char *text) {
    char *end = NULL;
    const long value = strtol(text, &end, 10);
    return *text && !*end && value >= 1 && value <= 16384 ? (int)value : 0;
}

/* Returns the `size` bytes of a file, or NULL after a message if it has more or fewer. The caller
 * frees them. */
static unsigned char *read_image(const char *path, size_t size) {
    FILE *file = fopen(path, "rb");
    unsigned char *bytes = file ? malloc(size + 1) : NULL;
    size_t read = bytes ? fread(bytes, 1, size + 1, file) : 0;
    if (!file) {
        fprintf(stderr, "classify: %s: %s\n", path, strerror(errno));
    } else if (!bytes) {
        fail("out of memory");
    } else if (read != size) {
        fprintf(stderr, "classify: %s: %s %zu bytes, needs height × width × 3 = %zu\n", path,
                read > size ? "more than" : "only", read > size ? size : read, size);
        free(bytes);
        bytes = NULL;
    }
    if (file) fclose(file);
    return bytes;
}

/* Returns whether a code point may be printed. A terminal obeys control characters (C0, C1), and
 * marks of direction disguise text. */
static int is_shown(unsigned long c) {
    static const unsigned long hidden[][2] = {
        {0x00, 0x1F},     {0x7F, 0x9F},     {0xAD, 0xAD},     {0x61C, 0x61C},   {0x200B, 0x200F},
        {0x2028, 0x202E}, {0x2060, 0x206F}, {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB}, {0xE0000, 0xE007F},
    };
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; ++i) {
        if (c >= hidden[i][0] && c <= hidden[i][1]) return 0;
    }
    return 1;
}

/* Prints a name from a model, with '?' for code points that are not shown. Names are valid UTF-8,
 * because burn_load refuses others. */
static void print_name(const char *name) {
    const unsigned char *at = (const unsigned char *)name;
    while (*at) {
        const int length = *at < 0x80 ? 1 : *at < 0xE0 ? 2 : *at < 0xF0 ? 3 : 4;
        unsigned long c = length == 1 ? *at : *at & (0x7Fu >> length);
        for (int i = 1; i < length; ++i) c = c << 6 | (at[i] & 0x3Fu);
        if (is_shown(c)) {
            fwrite(at, 1, (size_t)length, stdout);
        } else {
            putchar('?');
        }
        at += length;
    }
}

/* Returns whether all scores are finite: a head may overflow on one image and not on another. */
static int all_finite(const float *scores, int count) {
    for (int i = 0; i < count; ++i) {
        if (!isfinite(scores[i])) return 0;
    }
    return 1;
}

static void print_top(const burn_model *model, float *scores, int count) {
    for (int rank = 0; rank < TOP && rank < count; ++rank) {
        int best = 0;
        for (int i = 1; i < count; ++i) {
            if (scores[i] > scores[best]) best = i;
        }
        printf("%9.4f  ", (double)scores[best]);
        print_name(burn_class_name(model, best));
        putchar('\n');
        scores[best] = -3.4e38f;
    }
}

int main(int argc, char **argv) {
    if (argc != 3 && argc != 5) return fail("give MODEL.bnn IMAGE.rgb [HEIGHT WIDTH]");
    int height = argc == 5 ? size_of(argv[3]) : 0, width = argc == 5 ? size_of(argv[4]) : 0;
    if (argc == 5 && (!height || !width)) {
        return fail("HEIGHT and WIDTH are numbers of pixels, 1 to 16384");
    }

    burn_model *model = NULL;
    burn_plan *plan = NULL;
    unsigned char *image = NULL;
    float *scores = NULL;
    int channels = 0, status = 2;

    if (burn_load(argv[1], NULL, &model) != 0) {
        fail(burn_last_error());
    } else if (argc == 3 && !(height = width = burn_image_size(model))) {
        fail("the model does not say how large its images are: give HEIGHT and WIDTH");
    } else if (burn_output_shape(model, height, width, -1, NULL, NULL, &channels) != 0 ||
               burn_plan_create(model, height, width, 1, -1, &plan) != 0) {
        fail(burn_last_error());
    } else if (burn_num_classes(model) == 0) {
        fail("the model has no classes: pack it with --head");
    } else if (!(image = read_image(argv[2], (size_t)height * (size_t)width * 3))) {
        status = 2; /* read_image has printed why */
    } else if (!(scores = malloc((size_t)channels * sizeof *scores))) {
        fail("out of memory");
    } else if (burn_run(plan, image, BURN_UINT8, 1, scores) != 0) {
        fail(burn_last_error());
    } else if (!all_finite(scores, channels)) {
        fprintf(stderr, "classify: %s: the model's output is not finite\n", argv[2]);
    } else {
        print_top(model, scores, channels);
        status = 0;
    }
    free(scores);
    free(image);
    burn_plan_free(plan);
    burn_free(model);
    return status;
}
