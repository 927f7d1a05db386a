/* One op at a time, on files that do and files that don't. */
#include "tests/unit/cachesvc/store_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static uint8_t *page(void) {
    uint8_t *p = aligned_alloc(4096, 8192);
    assert_non_null(p);
    memset(p, 7, 8192);
    return p;
}

static int run(struct disk_op op) {
    disk_op_run(&op);
    return op.rv;
}

/* MUTANT sync_file: a sync that is not done must not be reported. A pipe takes writes and no syncs. */
static void test_a_sync_that_fails_is_an_error_of_each_op_that_syncs(void **state) {
    (void)state;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    uint8_t *p = page();
    assert_int_equal(run((struct disk_op){.kind = DISK_SYNC, .fd = fds[1]}), -EINVAL);
    char path[] = "/tmp/disk-io-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)unlink(path);
    assert_int_equal(
        run((struct disk_op){.kind = DISK_WRITE_SYNC, .fd = fd, .buf = p, .len = 4096}), 0);
    assert_int_equal(run((struct disk_op){.kind = DISK_PROBE, .fd = fd, .buf = p, .len = 4096}), 0);
    assert_int_equal(run((struct disk_op){.kind = DISK_SYNC, .fd = fd}), 0);
    close(fd);
    for (enum disk_op_kind k = DISK_READ; k <= DISK_PROBE; k++)
        assert_int_equal(run((struct disk_op){.kind = k, .fd = fd, .buf = p, .len = 4096}), -EBADF);
    close(fds[0]);
    close(fds[1]);
    free(p);
}

/* A probe that is written and synced, and can't be read back, proves nothing. */
static void test_a_probe_is_read_back(void **state) {
    (void)state;
    char path[] = "/tmp/disk-io-XXXXXX";
    close(mkstemp(path));
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    (void)unlink(path);
    uint8_t *p = page();
    struct disk_op op = {.kind = DISK_WRITE_SYNC, .fd = fd, .buf = p, .len = 4096};
    assert_int_equal(run(op), 0);
    op.kind = DISK_PROBE;
    assert_int_equal(run(op), -EBADF);
    close(fd);
    free(p);
}

static void test_the_end_of_the_file_is_an_error(void **state) {
    (void)state;
    char path[] = "/tmp/disk-io-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)unlink(path);
    uint8_t *p = page();
    assert_int_equal(pwrite(fd, p, 5000, 0), 5000);
    assert_int_equal(run((struct disk_op){.kind = DISK_READ, .fd = fd, .buf = p, .len = 4096}), 0);
    assert_int_equal(
        run((struct disk_op){.kind = DISK_READ, .fd = fd, .buf = p, .off = 4096, .len = 4096}),
        -EIO);
    close(fd);
    free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_sync_that_fails_is_an_error_of_each_op_that_syncs),
        cmocka_unit_test(test_a_probe_is_read_back),
        cmocka_unit_test(test_the_end_of_the_file_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
