/* Returns the square root of x, rounded down. */
static uint32_t root(uint64_t x) {
    uint32_t found = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        const uint64_t larger = found | bit;
        if (larger * larger <= x) found = (uint32_t)larger;
    }
    return found;
}

/* Returns the features as integers of at most 20 bits, the largest with all of them, so that sums
 * of products fit into 64 bits whatever the features' size. */
static void scale_features(network_score *features) {
    enum { MOST = 1 << 20 };
#if BURN_INTEGER
    uint32_t largest = 0;
    for (uint32_t i = 0; i < NETWORK_NUM_SCORES; ++i) {
        const uint32_t size = features[i] < 0 ? 0u - (uint32_t)features[i] : (uint32_t)features[i];
        if (size > largest) largest = size;
    }
    int32_t down = 1, up = 1;
    for (; largest > MOST; largest >>= 1) down *= 2;
    for (; largest && largest <= MOST / 2; largest <<= 1) up *= 2;
    for (uint32_t i = 0; i < NETWORK_NUM_SCORES; ++i) features[i] = features[i] / down * up;
#else
    float largest = 0;
    for (uint32_t i = 0; i < NETWORK_NUM_SCORES; ++i) {
        const float size = features[i] < 0 ? -features[i] : features[i];
        if (size > largest) largest = size;
    }
    const float factor = largest >= 1e-30f && largest <= 1e30f ? (float)MOST / largest : 0;
    for (uint32_t i = 0; i < NETWORK_NUM_SCORES; ++i) {
        const float scaled = features[i] * factor;
        const int is_number = scaled > -2.0f * MOST && scaled < 2.0f * MOST; /* not NaN */
        features[i] = is_number ? (float)(int32_t)scaled : 0;
    }
#endif
}

/* Scales features to the length BURN_UNIT, as integers; zeros stay zeros. */
enum { BURN_UNIT = 1 << 14 };
static void normalize(network_score *features) {
    uint64_t squares = 0;
    scale_features(features);
    for (uint32_t i = 0; i < NETWORK_NUM_SCORES; ++i) {
        const int32_t one = (int32_t)features[i];
        squares += (uint64_t)((int64_t)one * one);
    }
    const int64_t length = root(squares), half = length / 2;
    for (uint32_t i = 0; i < NETWORK_NUM_SCORES && length; ++i) {
        const int64_t one = (int64_t)(int32_t)features[i] * BURN_UNIT;
        features[i] = (network_score)((one < 0 ? one - half : one + half) / length);
    }
}

int network_learn(network_classes *classes, int number, const uint8_t *image, void *arena,
                  network_score *scores) {
    if (!classes || number < 0 || number >= NETWORK_MAX_CLASSES) return -1;
    if (classes->counts[number] == UINT16_MAX || network_run(image, arena, scores) < 0) return -1;
    normalize(scores);
    for (uint32_t i = 0; i < NETWORK_NUM_SCORES; ++i) {
        classes->sums[number][i] += (int32_t)scores[i]; /* at most 65535 times BURN_UNIT */
    }
    return ++classes->counts[number];
}

int network_forget(network_classes *classes, int number) {
    if (!classes || number < 0 || number >= NETWORK_MAX_CLASSES) return -1;
    volatile int32_t *const sums = classes->sums[number]; /* or compilers call memset */
    for (uint32_t i = 0; i < NETWORK_NUM_SCORES; ++i) sums[i] = 0;
    classes->counts[number] = 0;
    return 0;
}

int network_classify(const network_classes *classes, const uint8_t *image, void *arena,
                     network_score *scores, int32_t *similarity) {
    enum { FINER = NETWORK_SIMILARITY_ONE / BURN_UNIT };
    int best = -1;
    if (!classes || !similarity || network_run(image, arena, scores) < 0) return -1;
    normalize(scores);
    for (int c = 0; c < NETWORK_MAX_CLASSES; ++c) {
        const int32_t *const sums = classes->sums[c];
        int64_t product = 0;
        uint64_t squares = 0;
        if (!classes->counts[c]) continue;
        for (uint32_t i = 0; i < NETWORK_NUM_SCORES; ++i) {
            product += (int64_t)(int32_t)scores[i] * sums[i];
            squares += (uint64_t)((int64_t)sums[i] * sums[i]);
        }
        const int64_t length = root(squares);
        int64_t cosine = length ? product * FINER / length : 0;
        if (cosine > NETWORK_SIMILARITY_ONE) cosine = NETWORK_SIMILARITY_ONE; /* by rounding */
        if (cosine < -NETWORK_SIMILARITY_ONE) cosine = -NETWORK_SIMILARITY_ONE;
        if (best < 0 || cosine > *similarity) {
            best = c;
            *similarity = (int32_t)cosine;
        }
    }
    return best;
}
