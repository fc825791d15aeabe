/* Classes that are learned from images on the device. Zeros are no classes, so a static one can be
 * used at once. It has no pointers: write its bytes to flash to keep what was learned.
 *
 * A class is the mean of its images' features, each scaled to length 1 before, and an image belongs
 * to the class whose mean has the direction that is nearest to its own. */
typedef struct {
    int32_t sums[NETWORK_MAX_CLASSES][NETWORK_NUM_SCORES];
    uint16_t counts[NETWORK_MAX_CLASSES]; /* of images, at most 65535 */
} network_classes;

/* Learns that an image belongs to a class.
 *
 * classes: what has been learned so far.
 * number: of the class, from 0 to NETWORK_MAX_CLASSES - 1.
 * image, arena: as for network_run.
 * scores: receives the image's features, scaled to the length 16384.
 *
 * Returns the number of images that the class has now, or -1, and has learned nothing, if a pointer
 * is NULL, the arena's address is not a multiple of 4, there is no such class, or it is full. */
int network_learn(network_classes *classes, int number, const uint8_t *image, void *arena,
                  network_score *scores);

/* Forgets a class's images. Returns 0, or -1 if `classes` is NULL or there is no such class. */
int network_forget(network_classes *classes, int number);

/* Finds the class of an image.
 *
 * classes, image, arena, scores: as for network_learn. Classes without images are no answer.
 * similarity: receives the cosine of the image's features with the class's mean, times
 *   NETWORK_SIMILARITY_ONE. A low one means none of these; how low depends on the network and the
 *   images, so look at what your own have.
 *
 * Returns the number of the class, the first one if several are equally near, or -1 if a pointer is
 * NULL, the arena's address is not a multiple of 4, or nothing has been learned. */
int network_classify(const network_classes *classes, const uint8_t *image, void *arena,
                     network_score *scores, int32_t *similarity);
