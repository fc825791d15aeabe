/* Firmware that classifies the images in a file: an exported network, named student, on a board
 * that QEMU emulates. docs/guide/microcontroller.md shows how to build and run it.
 *
 * It reads images.rgb, in which images of STUDENT_IMAGE_BYTES follow each other, and prints for
 * each the index of the class and the number of instructions that it took.
 */
#include "board.h"
#include "student.h"

static uint32_t arena[STUDENT_ARENA_BYTES / 4];
static uint8_t image[STUDENT_IMAGE_BYTES];
static student_score scores[STUDENT_NUM_SCORES];

static void run(void) {
    static const char name[] = "images.rgb";
    const uintptr_t file = open_file(name, sizeof name - 1);
    while (read_file(file, image, sizeof image)) {
        start_timer();
        const int best = student_run(image, arena, scores);
        const uint32_t instructions = instructions_since_start();
        print_number((uint32_t)best, ' ');
        print_number(instructions, '\n');
    }
}
