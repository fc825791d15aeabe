/* What firmware of this folder shares: the start of a board that QEMU emulates, and files and
 * output, which are those of the computer that runs QEMU (semihosting). On a real board a camera, a
 * display and the vendor's startup code take their place.
 *
 * A firmware includes it once and defines run(). The startup code leaves out what an emulator does
 * itself: it neither copies data to RAM nor sets up a clock.
 */
#include <stdint.h>

/* What the firmware does; the emulator ends afterwards. */
static void run(void);

/* What the linker places last in RAM; the stack grows down from there. */
extern uint32_t stack_top[];

/* The emulator's services, by their numbers in ARM's specification of semihosting. */
enum { SYS_OPEN = 0x01, SYS_WRITE0 = 0x04, SYS_READ = 0x06, SYS_EXIT = 0x18 };

static uintptr_t call_host(uintptr_t service, const void *argument) {
#if defined(__riscv)
    register uintptr_t a0 __asm__("a0") = service;
    register const void *a1 __asm__("a1") = argument;
    /* The emulator knows a call by these three instructions, in one page and not compressed. */
    __asm__ volatile(".option push\n .option norvc\n .balign 16\n"
                     "slli zero, zero, 0x1f\n ebreak\n srai zero, zero, 7\n .option pop"
                     : "+r"(a0)
                     : "r"(a1)
                     : "memory");
    return a0;
#else
    register uintptr_t r0 __asm__("r0") = service;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
#endif
}

/* Opens a file to read, and says so if there is none. */
static uintptr_t open_file(const char *name, uintptr_t length) {
    const uintptr_t open[3] = {(uintptr_t)name, 1 /* rb */, length};
    const uintptr_t file = call_host(SYS_OPEN, open);
    if (file == (uintptr_t)-1) {
        call_host(SYS_WRITE0, "there is no ");
        call_host(SYS_WRITE0, name);
        call_host(SYS_WRITE0, "\n");
    }
    return file;
}

/* Returns whether a file had as many bytes left as were to be read. */
static int read_file(uintptr_t file, void *to, uintptr_t size) {
    const uintptr_t read[3] = {file, (uintptr_t)to, size};
    return file != (uintptr_t)-1 && call_host(SYS_READ, read) == 0;
}

static void print_number(uint32_t number, char after) {
    char text[12];
    char *at = text + sizeof text;
    *--at = '\0';
    *--at = after;
    do *--at = (char)('0' + number % 10);
    while (number /= 10);
    call_host(SYS_WRITE0, at);
}

#if defined(__riscv)

static uint32_t instructions_before;

static uint32_t count_instructions(void) {
    uint32_t count;
    __asm__ volatile("csrr %0, minstret" : "=r"(count));
    return count;
}

static void start_timer(void) { instructions_before = count_instructions(); }

static uint32_t instructions_since_start(void) {
    return count_instructions() - instructions_before;
}

static void start(void) {
    run();
    call_host(SYS_EXIT, (const void *)0x20026 /* the application ended */);
    for (;;) continue;
}

__attribute__((section(".vectors"), naked, used)) void reset(void) {
    __asm__ volatile("la sp, stack_top\n j %0" ::"i"(start));
}

#else

/* The board's timer counts down at 25 MHz. QEMU's -icount shift=6 makes an instruction last 2^6
 * nanoseconds, which is 1.6 ticks. */
static volatile uint32_t *const timer = (volatile uint32_t *)0x40000000;

static void start_timer(void) {
    timer[0] = 0;
    timer[2] = timer[1] = 0xFFFFFFFF;
    timer[0] = 1;
}

static uint32_t instructions_since_start(void) {
    return (uint32_t)((0xFFFFFFFF - timer[1]) * (uint64_t)5 / 8);
}

void reset(void) {
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* switches the floating-point unit on */
    __asm__ volatile("dsb\n isb" ::: "memory");
    run();
    call_host(SYS_EXIT, (const void *)0x20026 /* the application ended */);
    for (;;) continue;
}

__attribute__((section(".vectors"), used)) static const void *const vectors[2] = {
    stack_top, (const void *)reset};

#endif
