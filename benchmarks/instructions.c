/* A plugin of QEMU that counts the instructions of a program and prints their number when it ends:
 *
 *     cc -O2 -shared -fPIC -o libinstructions.so benchmarks/instructions.c
 *     qemu-aarch64 -plugin ./libinstructions.so -d plugin PROGRAM
 *
 * Debian packages no header of QEMU's plugins, so what is used of it is declared here.
 */
#include <inttypes.h>
#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_info;

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id,
                                           void (*call)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *block,
                                          void (*call)(unsigned, void *), int flags, void *data);
void qemu_plugin_register_atexit_cb(plugin_id id, void (*call)(plugin_id, void *), void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
void qemu_plugin_outs(const char *text);

EXPORT int qemu_plugin_version = 1;

static uint64_t counted; /* threads share it: count programs of one thread */

static void executed(unsigned processor, void *instructions) {
    (void)processor;
    counted += (uintptr_t)instructions;
}

static void translated(plugin_id id, struct qemu_plugin_tb *block) {
    (void)id;
    void *instructions = (void *)(uintptr_t)qemu_plugin_tb_n_insns(block);
    qemu_plugin_register_vcpu_tb_exec_cb(block, executed, 0, instructions);
}

static void ended(plugin_id id, void *data) {
    (void)id;
    (void)data;
    char text[64];
    snprintf(text, sizeof text, "instructions: %" PRIu64 "\n", counted);
    qemu_plugin_outs(text);
}

EXPORT int qemu_plugin_install(plugin_id id, const struct qemu_info *info, int argc, char **argv) {
    (void)info;
    (void)argc;
    (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
