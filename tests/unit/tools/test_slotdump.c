/* slotdump on files of the real store: whole, with a payload byte flipped, with a header byte flipped.
 * argv[1]: the program. */
#include "tests/unit/cachesvc/store_fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cachesvc/store/disk_format.h"

static const char *program; /* test data, set once by main() */

/* Output into ret, exit code as result. */
static int run(const struct store_fx *f, const char *options, char *ret, size_t cap) {
    char cmd[1024];
    snprintf(cmd, sizeof(cmd), "%s %s %s 2>&1", program, options, f->dir);
    FILE *p = popen(cmd, "r");
    assert_non_null(p);
    size_t n = fread(ret, 1, cap - 1, p);
    ret[n] = '\0';
    int status = pclose(p);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static uint32_t count(const char *text, const char *what) {
    uint32_t n = 0;
    for (const char *p = text; (p = strstr(p, what)); p++)
        n++;
    return n;
}

static void flip(const struct store_fx *f, off_t off) {
    char path[128];
    uint8_t byte;
    snprintf(path, sizeof(path), "%s/incipit.blocks", f->dir);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, off), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, off), 1);
    close(fd);
}

static void has_block(const char *out, uint32_t chain, uint32_t depth) {
    char want[128], hex[2 * BLOCK_ID_BYTES + 1];
    struct block_id id = fx_id(chain, depth);
    digest_hex(id.b, BLOCK_ID_BYTES, hex);
    snprintf(want, sizeof(want), "id %s\n    depth %u%s", hex, depth, depth ? "  parent " : "\n");
    if (!strstr(out, want))
        fail_msg("lacks %s in:\n%s", want, out);
}

static void test_slotdump_shows_blocks_and_finds_broken_ones(void **state) {
    (void)state;
    static char out[64 << 10];
    struct store_fx f;
    store_fx_open(&f, 16, 32);
    assert_int_equal(store_fx_put(&f, 1, 0, 4), 4);
    assert_int_equal(store_fx_put(&f, 2, 0, 2), 2);
    store_fx_drain(&f);
    struct block_id gone = fx_id(3, 0);
    struct store_filter one = {.ids = &gone, .n_ids = 1, .by_ns = true, .digest = FX_DIGEST};
    assert_int_equal(store_fx_evict(&f, &one), 0);
    store_fx_stop(&f, false);

    assert_int_equal(run(&f, "--verify", out, sizeof(out)), 0);
    assert_int_equal(count(out, ": id "), 6);
    for (uint32_t i = 0; i < 4; i++)
        has_block(out, 1, i);
    assert_non_null(strstr(out, "payload 4032 bytes, 4 ranges"));
    assert_non_null(strstr(out, "1 extents in use, 6 blocks read, "));
    assert_non_null(strstr(out, " 0 broken\n"));
    assert_int_equal(count(out, ": empty"), 0);
    assert_int_equal(run(&f, "--all", out, sizeof(out)), 0);
    assert_true(count(out, ": empty") > 0);
    assert_int_equal(count(out, "removal 1: id "), 1);
    assert_non_null(strstr(out, "1 records in the removal log, room for 64\n"));

    /* A payload byte of the first block: only --verify reads it. */
    unsigned long long slot_off, broken_off;
    assert_int_equal(sscanf(strstr(out, "  slot at "), "  slot at %llu", &slot_off), 1);
    flip(&f, (off_t)slot_off + 100);
    assert_int_equal(run(&f, "", out, sizeof(out)), 0);
    assert_int_equal(run(&f, "--verify", out, sizeof(out)), 1);
    assert_int_equal(count(out, "BROKEN"), 1);
    assert_int_equal(sscanf(strstr(out, "  at "), "  at %llu: BROKEN: the payload's", &broken_off),
                     1);
    assert_int_equal(broken_off, slot_off);

    /* A byte of the first slot header: behind the file's head and the extent's header. */
    flip(&f, FX_HEAD + DISK_PAGE + 70);
    assert_int_equal(run(&f, "", out, sizeof(out)), 1);
    assert_int_equal(count(out, ": id "), 5);
    assert_int_equal(count(out, "BROKEN: slot header"), 1);

    flip(&f, 0);
    assert_int_equal(run(&f, "", out, sizeof(out)), 1);
    assert_int_equal(count(out, "BROKEN: one copy of the super block"), 1);
    assert_int_equal(count(out, ": id "), 5); /* the other copy serves */
    flip(&f, DISK_PAGE);
    assert_int_equal(run(&f, "", out, sizeof(out)), 1);
    assert_non_null(strstr(out, "no disk tier's file"));
    flip(&f, 0);
    struct errbuf eb = {{0}};
    assert_int_equal(store_fx_start(&f, &eb), 0);
    store_fx_close(&f);
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    program = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slotdump_shows_blocks_and_finds_broken_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
