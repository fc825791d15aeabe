/* Firmware that learns classes from the images in a file, and then classifies others: a network
 * that was exported with --classes-on-device, named student, on a board that QEMU emulates.
 * docs/guide/microcontroller.md shows how to build and run it.
 *
 * It reads images.rgb, in which images of STUDENT_IMAGE_BYTES follow each other, and labels, which
 * has a byte for each: the number of the class that it belongs to, or 255 to find its class. It
 * prints for each the number of the class, the number of images that the class has now or the
 * similarity in thousandths, and the number of instructions that it took.
 */
#include "board.h"
#include "student.h"

static uint32_t arena[STUDENT_ARENA_BYTES / 4];
static uint8_t image[STUDENT_IMAGE_BYTES];
static student_score scores[STUDENT_NUM_SCORES];
static student_classes classes; /* zeros: none */

static void run(void) {
    static const char images_name[] = "images.rgb", labels_name[] = "labels";
    const uintptr_t images = open_file(images_name, sizeof images_name - 1);
    const uintptr_t labels = open_file(labels_name, sizeof labels_name - 1);
    uint8_t label = 0;
    while (read_file(images, image, sizeof image) && read_file(labels, &label, 1)) {
        int32_t similarity = 0;
        int number = label, known = 0;
        start_timer();
        if (label == 255) {
            number = student_classify(&classes, image, arena, scores, &similarity);
        } else {
            known = student_learn(&classes, label, image, arena, scores);
        }
        const uint32_t instructions = instructions_since_start();
        if (number < 0 || known < 0) {
            call_host(SYS_WRITE0, "no such class, or nothing learned\n");
            continue;
        }
        if (label == 255 && similarity > 0) known = similarity * 1000 / STUDENT_SIMILARITY_ONE;
        print_number((uint32_t)number, ' ');
        print_number((uint32_t)known, ' ');
        print_number(instructions, '\n');
    }
}
