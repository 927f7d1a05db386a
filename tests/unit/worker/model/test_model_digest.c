/* test_model_digest.c - the digest is remembered for exactly the same file and for no other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

#include "worker/model/model_digest.h"

#define SECOND 1000000000ull

struct fixture {
    char dir[64];
    char file[128];
    struct model_digest_cfg cfg;
    const char *content; /* of the file */
};

static const struct gguf_file_id id = {
    .dev = 0x10, .ino = 0x20, .size = 5, .mtime_ns = 100 * SECOND, .ctime_ns = 101 * SECOND};

static int setup(void **state) {
    static struct fixture f;
    (void)snprintf(f.dir, sizeof(f.dir), "/tmp/digest-XXXXXX");
    if (!mkdtemp(f.dir))
        return -1;
    (void)snprintf(f.file, sizeof(f.file), "%s/digest-10-20", f.dir);
    f.cfg = (struct model_digest_cfg){.id = id, .cache_dir = f.dir, .now_ns = 200 * SECOND};
    f.content = "hello";
    *state = &f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    (void)unlink(f->file);
    return rmdir(f->dir);
}

static const char hello[] = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

/* What a load does. */
static bool run(struct fixture *f, char hex[2 * DIGEST_BYTES + 1]) {
    uint8_t d[DIGEST_BYTES];
    bool remembered = model_digest_recall(&f->cfg, d);
    if (!remembered) {
        digest_sha256(f->content, 5, d);
        model_digest_remember(&f->cfg, d);
    }
    digest_hex(d, DIGEST_BYTES, hex);
    return remembered;
}

static void test_second_time_remembered(void **state) {
    struct fixture *f = *state;
    char hex[2 * DIGEST_BYTES + 1];
    assert_false(run(f, hex));
    assert_string_equal(hex, hello);
    f->content = "other"; /* would give another digest if it were read */
    assert_true(run(f, hex));
    assert_string_equal(hex, hello);
}

static void test_any_changed_stamp_hashes_again(void **state) {
    struct fixture *f = *state;
    char hex[2 * DIGEST_BYTES + 1];
    assert_false(run(f, hex));
    const struct gguf_file_id others[] = {
        {0x10, 0x20, 6, id.mtime_ns, id.ctime_ns, 0},
        {0x10, 0x20, 5, id.mtime_ns + 1, id.ctime_ns, 0},
        {0x10, 0x20, 5, id.mtime_ns, id.ctime_ns + 1, 0},
        {0x10, 0x20, 5, id.mtime_ns, id.ctime_ns, 7}, /* another part of a split model */
    };
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        f->cfg.id = others[i];
        assert_false(run(f, hex));
        f->cfg.id = id;
        assert_false(run(f, hex)); /* the newer line took the place; then it is this file's again */
    }
}

static void test_fresh_file_not_remembered(void **state) {
    struct fixture *f = *state;
    char hex[2 * DIGEST_BYTES + 1];
    f->cfg.now_ns = id.ctime_ns + SECOND;
    assert_false(run(f, hex));
    assert_int_equal(access(f->file, F_OK), -1);
}

static void test_damaged_cache_file_ignored(void **state) {
    struct fixture *f = *state;
    char hex[2 * DIGEST_BYTES + 1];
    assert_false(run(f, hex));
    for (int cut = 0; cut < 3; cut++) {
        FILE *file = fopen(f->file, "r+b");
        assert_non_null(file);
        if (cut == 0)
            assert_int_equal(ftruncate(fileno(file), 40), 0);
        else
            (void)fseek(file, cut == 1 ? -5 : 0, cut == 1 ? SEEK_END : SEEK_SET);
        if (cut)
            assert_int_equal(fputs("zz", file) >= 0, 1);
        (void)fclose(file);
        assert_false(run(f, hex));
        assert_string_equal(hex, hello);
        assert_true(run(f, hex)); /* and written anew */
    }
}

static void test_no_cache_dir_still_hashes(void **state) {
    struct fixture *f = *state;
    char hex[2 * DIGEST_BYTES + 1];
    f->cfg.cache_dir = "";
    assert_false(run(f, hex));
    assert_string_equal(hex, hello);
    f->cfg.cache_dir = "/proc/nowhere"; /* cannot be made */
    assert_false(run(f, hex));
    assert_string_equal(hex, hello);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_second_time_remembered, setup, teardown),
        cmocka_unit_test_setup_teardown(test_any_changed_stamp_hashes_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fresh_file_not_remembered, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_cache_file_ignored, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_cache_dir_still_hashes, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
