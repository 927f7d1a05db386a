/* What the store makes of the block file it finds: whole, broken in part, broken for good, of another
 * format, of another size, locked, too large for the disk. */
#include "tests/unit/cachesvc/store_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cachesvc/store/disk_format.h"

static void path_of(const struct store_fx *f, char ret[128]) {
    snprintf(ret, 128, "%s/incipit.blocks", f->dir);
}

static void scribble(const struct store_fx *f, const void *bytes, size_t n, off_t off) {
    char path[128];
    path_of(f, path);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, n, off), (ssize_t)n);
    close(fd);
}

static void read_file(const struct store_fx *f, void *bytes, size_t n, off_t off) {
    char path[128];
    path_of(f, path);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, bytes, n, off), (ssize_t)n);
    close(fd);
}

static off_t file_size(const struct store_fx *f) {
    char path[128];
    struct stat st;
    path_of(f, path);
    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

static void flip(const struct store_fx *f, off_t off) {
    uint8_t byte;
    read_file(f, &byte, 1, off);
    byte ^= 4;
    scribble(f, &byte, 1, off);
}

static void open_with_blocks(struct store_fx *f) {
    store_fx_open(f, 16, 64);
    assert_int_equal(store_fx_put(f, 1, 0, 6), 6);
    store_fx_stop(f, false);
    f->note[0] = '\0';
}

static void start(struct store_fx *f) {
    struct errbuf eb = {{0}};
    if (store_fx_start(f, &eb) < 0)
        fail_msg("%s", eb.text);
}

/* C7: one bit of the super block, in any of its fields, costs nothing: the other copy repairs it. */
static void test_one_broken_copy_of_the_super_block_is_repaired(void **state) {
    (void)state;
    struct store_fx f;
    open_with_blocks(&f);
    for (int copy = 0; copy < 2; copy++)
        for (off_t at = 0; at < 84; at += 4) {
            flip(&f, copy * (off_t)DISK_PAGE + at);
            start(&f);
            assert_int_equal(store_fx_stats(&f).recovered, 6);
            assert_non_null(strstr(f.note, "is repaired"));
            store_fx_stop(&f, false);
            uint8_t a[DISK_PAGE], b[DISK_PAGE];
            read_file(&f, a, sizeof(a), 0);
            read_file(&f, b, sizeof(b), DISK_PAGE);
            assert_memory_equal(a, b, sizeof(a));
        }
    store_fx_close(&f);
}

/* C7: with both gone RAM serves alone, says so, and the file stays as it is; zeros are no young file. */
static void test_a_broken_super_block_leaves_ram_serving(void **state) {
    (void)state;
    static const uint8_t zeros[DISK_PAGE];
    static uint8_t before[8 * DISK_PAGE], after[8 * DISK_PAGE];
    for (int how = 0; how < 3; how++) {
        struct store_fx f;
        open_with_blocks(&f);
        for (int copy = 0; copy < 2; copy++)
            if (how == 0)
                scribble(&f, zeros, sizeof(zeros), copy * (off_t)DISK_PAGE);
            else if (how == 1)
                flip(&f, copy * (off_t)DISK_PAGE + 20);
            else
                scribble(&f, "something else", 14, copy * (off_t)DISK_PAGE);
        read_file(&f, before, sizeof(before), 0);
        off_t size = file_size(&f);
        start(&f);
        assert_non_null(strstr(f.note, "both copies of its super block are broken"));
        assert_int_equal(f.note[0], '0' + STORE_NOTE_ERROR);
        assert_int_equal(store_fx_stats(&f).now.disk_degraded, 1);
        assert_int_equal(store_fx_put(&f, 2, 0, 4), 4);
        assert_int_equal(store_fx_fetch(&f, 2, 3), 0);
        struct store_filter all = {0};
        assert_int_equal(store_fx_evict(&f, &all), 4); /* memory's log alone */
        store_fx_stop(&f, false);
        read_file(&f, after, sizeof(after), 0);
        assert_memory_equal(before, after, sizeof(before));
        assert_int_equal(file_size(&f), size);

        f.cfg.disk_reformat = true;
        start(&f);
        assert_int_equal(store_fx_stats(&f).now.disk_degraded, 0);
        assert_int_equal(store_fx_put(&f, 2, 0, 4), 4);
        store_fx_restart(&f, false);
        assert_int_equal(store_fx_stats(&f).recovered,
                         4); /* only what would be refused is replaced */
        store_fx_close(&f);
    }
}

/* C7: format 1 is refused by name and kept; --disk-reformat begins anew. */
static void test_a_file_of_format_1_is_refused_by_name(void **state) {
    (void)state;
    static uint8_t golden[DISK_PAGE];
    struct store_fx f;
    open_with_blocks(&f);
    FILE *g = fopen(GOLDEN_DIR "/disk_format_1.bin", "rb");
    assert_non_null(g);
    assert_int_equal(fread(golden, 1, sizeof(golden), g), sizeof(golden));
    fclose(g);
    scribble(&f, golden, sizeof(golden), 0);
    off_t size = file_size(&f);
    for (int second = 0; second < 2; second++) {
        static const uint8_t zeros[DISK_PAGE];
        struct errbuf eb = {{0}};
        if (second) /* the page where format 1 has its first extent may say anything */
            scribble(&f, zeros, sizeof(zeros), DISK_PAGE);
        assert_int_equal(store_fx_start(&f, &eb), ERR_UNSUPPORTED);
        assert_non_null(strstr(eb.text, "another format"));
        assert_non_null(strstr(eb.text, "--disk-reformat"));
        assert_int_equal(file_size(&f), size);
    }
    f.cfg.disk_reformat = true;
    start(&f);
    assert_int_equal(store_fx_stats(&f).recovered, 0);
    assert_int_equal(store_fx_put(&f, 3, 0, 4), 4);
    store_fx_restart(&f, false);
    assert_int_equal(store_fx_lookup(&f, 3, 4, false), 4);
    store_fx_close(&f);
}

/* C7: an extent whose header is broken is left out, counted and said; the others serve. */
static void test_a_broken_extent_is_left_out_and_said(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 32, 64);
    assert_int_equal(store_fx_put(&f, 1, 0, 20), 20); /* 16 slots in an extent */
    store_fx_stop(&f, false);
    flip(&f, (off_t)FX_HEAD + 17);
    start(&f);
    assert_int_equal(store_fx_stats(&f).recover_skipped, 1);
    assert_int_equal(store_fx_stats(&f).recovered, 4);
    assert_non_null(strstr(f.note, "left out 1 extents"));
    assert_int_equal(store_fx_stats(&f).now.disk_degraded, 0);
    assert_int_equal(store_fx_put(&f, 1, 0, 16), 16);
    store_fx_restart(&f, false);
    assert_int_equal(store_fx_lookup(&f, 1, 20, false), 20);
    store_fx_close(&f);
}

/* What was removed can't be known without the log, so the disk tier starts empty, and stays so. */
static void test_without_its_log_the_tier_starts_empty(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 64);
    assert_int_equal(store_fx_put(&f, 1, 0, 6), 6);
    store_fx_drain(&f);
    struct block_id id = fx_id(1, 5);
    struct store_filter one = {.ids = &id, .n_ids = 1, .by_ns = true, .digest = FX_DIGEST};
    assert_int_equal(store_fx_evict(&f, &one), 1);
    store_fx_stop(&f, false);
    flip(&f, DISK_LOG_OFF + 40);
    start(&f);
    assert_int_equal(store_fx_stats(&f).recovered, 0);
    assert_non_null(strstr(f.note, "starts empty"));
    assert_int_equal(store_fx_put(&f, 2, 0, 2), 2);
    store_fx_restart(&f, false);
    assert_int_equal(store_fx_stats(&f).recovered, 2);
    assert_int_equal(store_fx_lookup(&f, 1, 6, false), 0);
    store_fx_close(&f);
}

/* C8: said when it is so and nobody asked for it. /dev/shm knows no O_DIRECT on older kernels only,
 * so the file system is one that surely does not: ramfs, in a mount namespace of our own. */
static void test_buffered_io_is_said(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 32);
    store_fx_stop(&f, false);
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("none", f.dir, "ramfs", 0, NULL) < 0) {
        store_fx_close(&f);
        skip();
    }
    f.cfg.buffered_io = false;
    f.note[0] = '\0';
    start(&f);
    bool is_direct = f.note[0] == '\0';
    store_fx_stop(&f, false);
    assert_int_equal(umount(f.dir), 0);
    store_fx_close(&f);
    if (is_direct)
        skip(); /* a kernel that takes O_DIRECT anywhere */
    assert_non_null(strstr(f.note, "refuses O_DIRECT"));
}

static void test_second_process_is_refused(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 16);
    struct block_store *other;
    struct errbuf eb = {{0}};
    struct block_store_cfg cfg = f.cfg;
    assert_int_equal(block_store_open(&other, &cfg, &eb), ERR_EXISTS);
    assert_non_null(strstr(eb.text, "in use by another process"));
    store_fx_close(&f);
}

static void test_other_geometry_is_refused_and_nothing_changed(void **state) {
    (void)state;
    struct store_fx f;
    open_with_blocks(&f);
    off_t size = file_size(&f);
    struct block_store_cfg was = f.cfg;
    struct errbuf eb = {{0}};
    f.cfg.disk_extent_bytes *= 2;
    assert_int_equal(store_fx_start(&f, &eb), ERR_INVALID);
    assert_non_null(strstr(eb.text, "extents"));
    f.cfg = was;
    f.cfg.disk_bytes = 100;
    for (int reformat = 0; reformat < 2;
         reformat++) { /* not even then: nothing new could be made */
        f.cfg.disk_reformat = reformat;
        assert_int_equal(store_fx_start(&f, &eb), ERR_INVALID);
        assert_non_null(strstr(eb.text, ": 100 bytes are too few: "));
        assert_int_equal(file_size(&f), size);
    }
    f.cfg = was;
    start(&f);
    assert_int_equal(store_fx_stats(&f).recovered, 6);
    store_fx_close(&f);
}

/* "too few for one extent of 0": the sizes that are named are the ones that count, and the least one named is
 * enough, for a new file and for one that is there. */
static void test_the_least_size_is_named(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 32);
    store_fx_stop(&f, false);
    char path[128];
    path_of(&f, path);
    for (int is_new = 0; is_new < 2; is_new++) {
        struct errbuf eb = {{0}};
        unsigned long long need = 0, head = 0, extent = 0;
        f.cfg.disk_extent_bytes = is_new ? 0 : f.cfg.disk_extent_bytes;
        f.cfg.disk_bytes = 1024;
        if (is_new)
            assert_int_equal(unlink(path), 0);
        assert_int_equal(store_fx_start(&f, &eb), ERR_INVALID);
        const char *at = strstr(eb.text, ": 1024 bytes are too few: ");
        assert_non_null(at);
        assert_int_equal(sscanf(at,
                                ": 1024 bytes are too few: %llu are needed, %llu for the super "
                                "block and the removal log and %llu for one extent",
                                &need, &head, &extent),
                         3);
        assert_int_equal(head, FX_HEAD);
        assert_int_equal(need, head + extent);
        f.cfg.disk_bytes = need - 1;
        assert_int_equal(store_fx_start(&f, &eb), ERR_INVALID);
        f.cfg.disk_bytes = need;
        start(&f);
        assert_int_equal(file_size(&f), need);
        store_fx_put(&f, 2 + (uint32_t)is_new, 0, 1);
        store_fx_stop(&f, false);
    }
    assert_int_equal(truncate(path, 5000), 0);
    start(&f); /* RAM alone serves */
    assert_non_null(strstr(f.note, "it has 5000 bytes, a super block alone 8192"));
    store_fx_close(&f);
}

/* C9: what is asked for is used, or refused with what can be used. */
static void test_more_extents_than_there_are_numbers_for_is_refused(void **state) {
    (void)state;
    struct store_fx f;
    open_with_blocks(&f);
    struct errbuf eb = {{0}};
    f.cfg.disk_extent_bytes = 0; /* the file's */
    f.cfg.disk_bytes = 65536ull * (4096 + 2 * 4096 + 16 * FX_SLOT) + FX_HEAD;
    assert_int_equal(store_fx_start(&f, &eb), ERR_INVALID);
    assert_non_null(strstr(eb.text, "it can use"));
    assert_non_null(strstr(eb.text, "--disk-reformat"));
    store_fx_close(&f);
}

static uint64_t free_bytes(const char *dir) {
    struct statvfs fs;
    assert_int_equal(statvfs(dir, &fs), 0);
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}

/* G2: room is asked for first, and neither a new file nor one that grows leaves the disk full. */
static void test_a_disk_too_small_is_said_and_stays_free(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 32);
    store_fx_stop(&f, false);
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("none", f.dir, "tmpfs", 0, "size=1m") < 0) {
        store_fx_close(&f);
        skip();
    }
    start(&f);
    store_fx_put(&f, 1, 0, 6);
    store_fx_stop(&f, false);
    uint64_t was = free_bytes(f.dir), small = f.cfg.disk_bytes;
    struct errbuf eb = {{0}};
    f.cfg.max_blocks = 100;
    for (int is_new = 0; is_new < 2; is_new++) {
        f.cfg.disk_bytes = small + (64 << 20);
        char path[128];
        path_of(&f, path);
        if (is_new)
            assert_int_equal(unlink(path), 0);
        if (is_new)
            was = free_bytes(f.dir);
        assert_int_equal(store_fx_start(&f, &eb), -ENOSPC);
        assert_non_null(strstr(eb.text, "more bytes of disk"));
        assert_int_equal(free_bytes(f.dir), was);
        assert_int_equal(access(path, F_OK) == 0, !is_new);
        f.cfg.disk_bytes = small;
        start(&f);
        assert_int_equal(store_fx_stats(&f).recovered, is_new ? 0 : 6);
        store_fx_stop(&f, false);
    }
    assert_int_equal(umount(f.dir), 0);
    store_fx_close(&f);
}

/* A start that was killed while it made the file leaves a young one, which is made again. */
static void test_a_half_made_file_is_no_file(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 32);
    store_fx_stop(&f, false);
    char path[128], young[160];
    path_of(&f, path);
    snprintf(young, sizeof(young), "%s.new", path);
    assert_int_equal(rename(path, young), 0);
    start(&f);
    assert_int_equal(store_fx_stats(&f).recovered, 0);
    assert_int_not_equal(access(young, F_OK), 0);
    store_fx_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_broken_copy_of_the_super_block_is_repaired),
        cmocka_unit_test(test_a_broken_super_block_leaves_ram_serving),
        cmocka_unit_test(test_a_file_of_format_1_is_refused_by_name),
        cmocka_unit_test(test_a_broken_extent_is_left_out_and_said),
        cmocka_unit_test(test_without_its_log_the_tier_starts_empty),
        cmocka_unit_test(test_second_process_is_refused),
        cmocka_unit_test(test_other_geometry_is_refused_and_nothing_changed),
        cmocka_unit_test(test_the_least_size_is_named),
        cmocka_unit_test(test_more_extents_than_there_are_numbers_for_is_refused),
        cmocka_unit_test(test_a_half_made_file_is_no_file),
        cmocka_unit_test(test_buffered_io_is_said),
        cmocka_unit_test(test_a_disk_too_small_is_said_and_stays_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
