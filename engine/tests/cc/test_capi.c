/* Tests the C interface from a C program.
 *
 *     test_capi WITH_CLASSES.bnn WITHOUT.bnn       odd.bnn and wide.bnn of tests/cc/models.py
 */
#define _POSIX_C_SOURCE 200112L

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/burn_engine.h"

enum { HEIGHT = 19, WIDTH = 14, COUNT = 3, PIXELS = HEIGHT * WIDTH * 3, CLASSES = 3, RUNS = 50 };

static int failures = 0;

static void check(int holds, const char *what, int line) {
    if (holds) return;
    ++failures;
    printf("FAILED, line %d: %s; last error: %s\n", line, what, burn_last_error());
}

#define CHECK(condition) check(condition, #condition, __LINE__)

/* Checks that a call failed and that its error contains `message`. */
static void check_fails(int status, const char *message, const char *what, int line) {
    check(status != 0 && strstr(burn_last_error(), message) != NULL, what, line);
}

#define FAILS(call, message) check_fails(call, message, #call, __LINE__)

static void fill(unsigned char *images, size_t size) {
    unsigned state = 1;
    for (size_t i = 0; i < size; ++i) {
        state = state * 1664525u + 1013904223u;
        images[i] = (unsigned char)(state >> 24);
    }
}

static void test_versions(void) {
    CHECK(strcmp(burn_last_error(), "") == 0);
    CHECK(strcmp(burn_version(), BURN_ENGINE_VERSION) == 0);
    const char *isas = burn_supported_isas();
    CHECK(strlen(isas) >= strlen("portable"));
    CHECK(strcmp(isas + strlen(isas) - strlen("portable"), "portable") == 0);
}

static void test_load_errors(const char *path) {
    burn_model *model = NULL;
    FAILS(burn_load("no/such.bnn", NULL, &model), "no/such.bnn: No such file or directory");
    FAILS(burn_load(".", NULL, &model), "directory");
    FAILS(burn_load(NULL, NULL, &model), "path is null");
    FAILS(burn_load(path, NULL, NULL), "model is null");
    FAILS(burn_load(path, "sse9", &model), "sse9");
    FAILS(burn_load_memory(NULL, 100, NULL, &model), "bytes is null");
    FAILS(burn_load_memory("12345678", 0, NULL, &model), "0 bytes long");
    FAILS(burn_load_memory("12345678", 8, NULL, &model), "too short");
    FAILS(burn_load_memory("\2\0\0\0\0\0\0\0[]", 10, NULL, &model), "needs to be an object");
    FAILS(burn_load_memory("12345678", 8, NULL, NULL), "null");
    CHECK(model == NULL);
    setenv("BURN_ENGINE_ISA", "sse8", 1);
    FAILS(burn_load(path, NULL, &model), "sse8");
    CHECK(burn_load(path, "portable", &model) == 0);
    CHECK(strcmp(burn_isa(model), "portable") == 0);
    burn_free(model);
    setenv("BURN_ENGINE_ISA", "portable", 1);
    CHECK(burn_load(path, NULL, &model) == 0);
    CHECK(strcmp(burn_isa(model), "portable") == 0);
    CHECK(strcmp(burn_last_error(), "") == 0);
    burn_free(model);
    unsetenv("BURN_ENGINE_ISA");
}

#if !defined(__wasm__)
static void test_resize(void) {
    unsigned char image[5 * 6 * 3], part[2 * 3 * 3];
    memset(image, 77, sizeof image);
    CHECK(burn_resize(NULL, image, 5, 6, 9, 4, 7, 1, 2, 3, part) == 0);
    for (size_t i = 0; i < sizeof part; ++i) CHECK(part[i] == 77);
    FAILS(burn_resize("sse9", image, 5, 6, 9, 4, 7, 1, 2, 3, part), "sse9");
    FAILS(burn_resize(NULL, image, 5, 0, 9, 4, 7, 1, 2, 3, part), "a side is not 1 to 2^20");
    FAILS(burn_resize(NULL, image, 5, 6, 9, 4, 8, 1, 2, 3, part), "does not lie");
    FAILS(burn_resize(NULL, image, 5, 6, 9, 4, 7, 1, 2, 3, NULL), "null");
    FAILS(burn_resize(NULL, NULL, 5, 6, 9, 4, 7, 1, 2, 3, part), "null");
}
#endif

static void test_nothing(void) {
    burn_plan *plan = NULL;
    burn_free(NULL);
    burn_plan_free(NULL);
    CHECK(strcmp(burn_isa(NULL), "") == 0);
    CHECK(burn_num_layers(NULL) == 0);
    CHECK(strcmp(burn_layer_name(NULL, 0), "") == 0);
    CHECK(strcmp(burn_layer_kind(NULL, 0), "") == 0);
    CHECK(burn_find_layer(NULL, "stem") == -1);
    CHECK(burn_features_layer(NULL) == -1);
    CHECK(burn_image_resize(NULL) == 0 && burn_image_size(NULL) == 0);
    CHECK(burn_num_classes(NULL) == 0);
    CHECK(strcmp(burn_class_name(NULL, 0), "") == 0);
    CHECK(burn_plan_bytes(NULL) == 0);
    FAILS(burn_output_shape(NULL, 1, 1, 0, NULL, NULL, NULL), "model is null");
    FAILS(burn_output_shape(NULL, 1, 1, -1, NULL, NULL, NULL), "model is null");
    FAILS(burn_plan_create(NULL, 1, 1, 1, 0, &plan), "model is null");
    FAILS(burn_plan_create(NULL, 1, 1, 1, -1, &plan), "model is null");
    FAILS(burn_run(NULL, "", BURN_UINT8, 0, NULL), "plan is null");
    CHECK(plan == NULL);
}

static void test_description(const burn_model *model, const burn_model *without) {
    CHECK(burn_num_layers(model) == 8);
    CHECK(strcmp(burn_layer_name(model, 0), "stem") == 0);
    CHECK(strcmp(burn_layer_kind(model, 0), "convolution") == 0);
    CHECK(strcmp(burn_layer_name(model, 7), "classifier") == 0);
    CHECK(strcmp(burn_layer_kind(model, 7), "linear") == 0);
    CHECK(strcmp(burn_layer_name(model, 8), "") == 0);
    CHECK(strcmp(burn_layer_kind(model, -1), "") == 0);
    CHECK(burn_find_layer(model, "pool") == 5);
    CHECK(burn_find_layer(model, "none") == -1);
    CHECK(burn_find_layer(model, NULL) == -1);
    CHECK(burn_features_layer(model) == 6);
    CHECK(burn_image_resize(model) >= burn_image_size(model) && burn_image_size(model) > 0);
    CHECK(burn_num_classes(model) == CLASSES);
    CHECK(strcmp(burn_class_name(model, 2), "class 2") == 0);
    CHECK(strcmp(burn_class_name(model, 3), "") == 0);
    CHECK(strcmp(burn_class_name(model, -1), "") == 0);
    CHECK(burn_num_classes(without) == 0);
    CHECK(burn_features_layer(without) == burn_num_layers(without) - 1);

    int height = 0, width = 0, channels = 0;
    CHECK(burn_output_shape(model, HEIGHT, WIDTH, 4, &height, &width, &channels) == 0);
    CHECK(height == 5 && width == 4 && channels == 7);
    CHECK(burn_output_shape(model, HEIGHT, WIDTH, -1, &height, &width, &channels) == 0);
    CHECK(height == 1 && width == 1 && channels == CLASSES);
    CHECK(burn_output_shape(model, HEIGHT, WIDTH, -1, NULL, NULL, NULL) == 0);
    FAILS(burn_output_shape(model, HEIGHT, WIDTH, 8, NULL, NULL, NULL), "layer 8");
    FAILS(burn_output_shape(model, HEIGHT, WIDTH, -2, NULL, NULL, NULL), "layer -2");
    FAILS(burn_output_shape(model, 0, WIDTH, -1, NULL, NULL, NULL), "0");
    FAILS(burn_output_shape(model, HEIGHT, -1, -1, NULL, NULL, NULL), "-1");
    FAILS(burn_output_shape(model, 16385, 1, -1, NULL, NULL, NULL), "16385");
    FAILS(burn_output_shape(model, 8193, 8192, -1, NULL, NULL, NULL), "8193");
}

static void test_plans(const burn_model *model, const unsigned char *images) {
    burn_plan *plan = NULL;
    FAILS(burn_plan_create(model, HEIGHT, WIDTH, 1, -1, NULL), "plan is null");
    FAILS(burn_plan_create(model, HEIGHT, WIDTH, 0, -1, &plan), "threads: 0");
    FAILS(burn_plan_create(model, HEIGHT, WIDTH, 257, -1, &plan), "threads: 257");
    FAILS(burn_plan_create(model, HEIGHT, WIDTH, 1, 8, &plan), "layer 8");
    FAILS(burn_plan_create(model, 0, WIDTH, 1, -1, &plan), "0");
    CHECK(plan == NULL);

    float last[COUNT * CLASSES], named[COUNT * CLASSES], untouched = 7;
    CHECK(burn_plan_create(model, HEIGHT, WIDTH, 1, -1, &plan) == 0);
    CHECK(burn_plan_bytes(plan) > 0);
    FAILS(burn_run(plan, images, (burn_pixels)7, COUNT, last), "type");
    FAILS(burn_run(plan, NULL, BURN_UINT8, 1, last), "null");
    FAILS(burn_run(plan, images, BURN_UINT8, 1, NULL), "null");
    CHECK(burn_run(plan, NULL, BURN_UINT8, 0, NULL) == 0);
    CHECK(burn_run(plan, images, BURN_FLOAT32, 0, &untouched) == 0);
    CHECK(untouched == 7);
    CHECK(burn_run(plan, images, BURN_UINT8, COUNT, last) == 0);
    burn_plan_free(plan);

    /* The last layer by its index, with two threads and one image at a time: the same bits. */
    CHECK(burn_plan_create(model, HEIGHT, WIDTH, 2, 7, &plan) == 0);
    for (size_t i = 0; i < COUNT; ++i) {
        CHECK(burn_run(plan, images + i * PIXELS, BURN_UINT8, 1, named + i * CLASSES) == 0);
    }
    CHECK(memcmp(last, named, sizeof last) == 0);
    burn_plan_free(plan);
}

static void test_floats(const burn_model *model) {
    static float zeros[PIXELS];
    static unsigned char bytes[PIXELS];
    float from_floats[CLASSES], from_bytes[CLASSES];
    burn_plan *plan = NULL;
    CHECK(burn_plan_create(model, HEIGHT, WIDTH, 1, -1, &plan) == 0);
    CHECK(burn_run(plan, zeros, BURN_FLOAT32, 1, from_floats) == 0);
    CHECK(burn_run(plan, bytes, BURN_UINT8, 1, from_bytes) == 0);
    CHECK(memcmp(from_floats, from_bytes, sizeof from_bytes) == 0);
    burn_plan_free(plan);
}

/* Loads a file from memory that is freed before the model is used. */
static burn_model *load_from_memory(const char *path) {
    burn_model *model = NULL;
    FILE *file = fopen(path, "rb");
    char *bytes = malloc(1 << 20);
    if (!file || !bytes) exit(2);
    const size_t size = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    CHECK(burn_load_memory(bytes, size, NULL, &model) == 0);
    memset(bytes, 0, size);
    free(bytes);
    return model;
}

typedef struct {
    const burn_model *model;
    const unsigned char *images;
    float scores[COUNT * CLASSES];
    int good;
} work;

static void *run_work(void *argument) {
    work *own = argument;
    burn_plan *plan = NULL;
    burn_model *none = NULL;
    own->good = strcmp(burn_last_error(), "") == 0; /* the main thread's error is not this one's */
    own->good &= burn_plan_create(own->model, HEIGHT, WIDTH, 1, -1, &plan) == 0;
    for (int i = 0; own->good && i < RUNS; ++i) {
        own->good &= burn_run(plan, own->images, BURN_UINT8, COUNT, own->scores) == 0;
    }
    own->good &= burn_load(NULL, NULL, &none) != 0 && strlen(burn_last_error()) > 0;
    burn_plan_free(plan);
    return NULL;
}

/* Two threads use one model, each with its own plan and its own last error. */
static void test_threads(const burn_model *model, const unsigned char *images) {
    work works[2];
    pthread_t threads[2];
    burn_model *none = NULL;
    FAILS(burn_load("of-main", NULL, &none), "of-main");
    for (int i = 0; i < 2; ++i) {
        works[i].model = model;
        works[i].images = images;
        if (pthread_create(&threads[i], NULL, run_work, &works[i]) != 0) exit(2);
    }
    for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
    CHECK(strstr(burn_last_error(), "of-main") != NULL);
    CHECK(works[0].good && works[1].good);
    CHECK(memcmp(works[0].scores, works[1].scores, sizeof works[0].scores) == 0);

    work alone = {model, images, {0}, 0};
    burn_plan *plan = NULL;
    CHECK(burn_plan_create(model, HEIGHT, WIDTH, 1, -1, &plan) == 0);
    CHECK(burn_run(plan, images, BURN_UINT8, COUNT, alone.scores) == 0);
    CHECK(memcmp(works[0].scores, alone.scores, sizeof alone.scores) == 0);
    burn_plan_free(plan);
}

/* Models and plans can be created and freed again and again. */
static void test_again(const char *path) {
    for (int i = 0; i < 20; ++i) {
        burn_model *model = NULL;
        burn_plan *plans[2] = {NULL, NULL};
        CHECK(burn_load(path, NULL, &model) == 0);
        CHECK(burn_plan_create(model, 5, 6, 3, -1, &plans[0]) == 0);
        CHECK(burn_plan_create(model, 6, 5, 1, 0, &plans[1]) == 0);
        burn_plan_free(plans[0]);
        burn_plan_free(plans[1]);
        burn_free(model);
    }
}

int main(int argc, char **argv) {
    static unsigned char images[COUNT * PIXELS];
    burn_model *without = NULL;
    if (argc != 3) return 2;
    fill(images, sizeof images);
    test_versions();
    test_load_errors(argv[1]);
#if !defined(__wasm__)
    test_resize();
#endif
    test_nothing();
    burn_model *model = load_from_memory(argv[1]);
    CHECK(burn_load(argv[2], NULL, &without) == 0);
    if (!model || !without) return 1;
    test_description(model, without);
    test_plans(model, images);
    test_floats(model);
    test_threads(model, images);
    burn_free(without);
    burn_free(model);
    test_again(argv[1]);
    if (failures == 0) printf("test_capi: passed\n");
    return failures == 0 ? 0 : 1;
}
