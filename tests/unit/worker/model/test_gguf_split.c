/* test_gguf_split.c - a model in parts is the model; a part that is missing, foreign or changed is named. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/support/tiny_model.h"
#include "tests/support/tmpdir.h"
#include "tools/dev/gguf_write.h"
#include "worker/kernels/kern_threads.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/quant.h"
#include "worker/model/forward.h"
#include "worker/model/gguf_file.h"

#define N_PARTS 4
#define BLOCK 16

/* Every read of a file goes through here (meson.build). */
ssize_t __real_pread64(int fd, void *dst, size_t n, off_t off);
ssize_t __wrap_pread64(int fd, void *dst, size_t n, off_t off);
ssize_t __wrap_pread(int fd, void *dst, size_t n, off_t off);

static const char *touch_at_read; /* before the next read, then no more */

static void touch(const char *path) {
    const struct timespec times[2] = {{1, 0}, {1, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

ssize_t __wrap_pread64(int fd, void *dst, size_t n, off_t off) {
    const char *path = touch_at_read;
    touch_at_read = NULL;
    if (path)
        touch(path);
    return __real_pread64(fd, dst, n, off);
}

ssize_t __wrap_pread(int fd, void *dst, size_t n, off_t off) {
    return __wrap_pread64(fd, dst, n, off);
}

struct fixture {
    struct tiny_model whole;
    struct tmpdir dir;
    char part[N_PARTS][320];
    struct errbuf eb;
};

static int setup(void **state) {
    static struct fixture f;
    const struct tiny_spec spec = tiny_spec_of(QUANT_Q4_1);
    char stem[300], name[64];
    tiny_model_open(&f.whole, &spec);
    tmpdir_setup(&f.dir);
    assert_int_equal(gguf_write_split(f.whole.path, tmpdir_join(&f.dir, "m", stem, sizeof(stem)),
                                      N_PARTS, &f.eb),
                     0);
    for (unsigned k = 0; k < N_PARTS; k++) {
        (void)snprintf(name, sizeof(name), "m-%05u-of-%05u.gguf", k + 1, (unsigned)N_PARTS);
        tmpdir_join(&f.dir, name, f.part[k], sizeof(f.part[k]));
    }
    *state = &f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    tmpdir_teardown(&f->dir);
    tiny_model_close(&f->whole);
    return 0;
}

static int load(struct fixture *f, const char *path, struct model **ret) {
    const struct model_load_cfg cfg = {.path = path, .digest_cache_dir = ""};
    *ret = NULL;
    return model_load(ret, &cfg, &f->eb);
}

static void refused(struct fixture *f, const char *path, int want, const char *words,
                    const char *also) {
    struct model *m;
    int rv = load(f, path, &m);
    if (rv != want || !strstr(f->eb.text, words) || !strstr(f->eb.text, also))
        fail_msg("%s: '%s' should hold '%s' and '%s'", err_name(rv), f->eb.text, words, also);
}

static size_t read_file(const char *path, uint8_t *bytes, size_t cap) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(bytes, 1, cap, file);
    assert_true(n < cap);
    (void)fclose(file);
    return n;
}

static void write_file(const char *path, const uint8_t *bytes, size_t n) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    (void)fclose(file);
}

#define MAX_BYTES (1 << 20)

/* Puts what is in from, with another split.no, at to. */
static void put_part(const char *from, const char *to, uint8_t no) {
    uint8_t *bytes = malloc(MAX_BYTES);
    assert_non_null(bytes);
    size_t n = read_file(from, bytes, MAX_BYTES);
    uint8_t *key = memmem(bytes, n, "split.no", 8);
    assert_non_null(key);
    key[8 + 4] = no; /* behind the key's type */
    write_file(to, bytes, n);
    free(bytes);
}

/* Logits of the last of a few tokens. */
static void run(const struct model *m, float *logits) {
    static const int32_t prompt[] = {70, 12, 300, 5, 9};
    struct kern_team *team;
    struct fwd *fwd;
    struct errbuf eb;
    assert_int_equal(kern_team_new(&team, 1, &eb), 0);
    const struct fwd_cfg cfg = {
        .max_rows = 16,
        .max_seqs = 1,
        .max_logit_rows = 1,
        .max_ctx = BLOCK,
        .block_tok = BLOCK,
        .ops = kernels_pick(NULL, &eb),
        .team = team,
    };
    assert_int_equal(fwd_new(&fwd, m, &cfg, &eb), 0);
    size_t page_bytes =
        (model_page_bytes(m, BLOCK, (struct kv_dtypes){KV_F16, KV_F16}) + 63) & ~(size_t)63;
    uint8_t *page = aligned_alloc(64, page_bytes);
    assert_non_null(page);
    memset(page, 0, page_bytes);
    const struct fwd_seq seq = {
        .tok = prompt,
        .n_tok = ARRAY_LEN(prompt),
        .pages = &page,
        .logits = logits,
        .n_logits = 1,
    };
    assert_int_equal(fwd_step(fwd, &seq, 1), 0);
    free(page);
    fwd_free(fwd);
    kern_team_free(team);
}

static void test_split_model_gives_the_whole_ones_logits(void **state) {
    struct fixture *f = *state;
    struct model *m;
    if (load(f, f->part[0], &m) < 0)
        fail_msg("%s", f->eb.text);
    const size_t n = m->hp.n_vocab;
    assert_int_equal(n, f->whole.model->hp.n_vocab);
    float *a = calloc(n, sizeof(*a)), *b = calloc(n, sizeof(*b));
    assert_true(a && b);
    run(f->whole.model, a);
    run(m, b);
    assert_memory_equal(a, b, n * sizeof(*a));
    free(a);
    free(b);
    model_free(m);
}

/* Its namespace is its own: the digest is over the parts' digests, so that each part can be hashed alone. */
static void test_digest_is_over_the_parts(void **state) {
    struct fixture *f = *state;
    uint8_t *bytes = malloc(MAX_BYTES), sums[N_PARTS][DIGEST_BYTES], want[DIGEST_BYTES];
    struct model *m;
    uint64_t size = 0;
    assert_non_null(bytes);
    for (int k = 0; k < N_PARTS; k++) {
        size_t n = read_file(f->part[k], bytes, MAX_BYTES);
        digest_sha256(bytes, n, sums[k]);
        size += n;
    }
    digest_sha256(sums, sizeof(sums), want);
    assert_int_equal(load(f, f->part[0], &m), 0);
    assert_memory_equal(m->digest, want, DIGEST_BYTES);
    assert_int_equal(m->file.size, size);
    model_free(m);
    free(bytes);
}

static void test_missing_part_is_named(void **state) {
    struct fixture *f = *state;
    assert_int_equal(unlink(f->part[2]), 0);
    refused(f, f->part[0], -ENOENT, "part 3 of 4", f->part[2]);
}

static void test_foreign_parts_are_named(void **state) {
    struct fixture *f = *state;
    /* Another part under this one's name. */
    put_part(f->part[2], f->part[1], 2);
    refused(f, f->part[0], ERR_CORRUPT, "its head says part 3 of 4", f->part[1]);
    /* The right number, tensors of another part. */
    put_part(f->part[2], f->part[1], 1);
    refused(f, f->part[0], ERR_CORRUPT, "stands twice in the model", "tensor 'blk.");
    /* A part of a larger model. */
    struct tiny_spec spec = tiny_spec_of(QUANT_Q4_1);
    struct tiny_model larger;
    char stem[300], other[340];
    spec.n_layer = 5;
    tiny_model_file(&larger, &spec);
    tmpdir_join(&f->dir, "l", stem, sizeof(stem));
    assert_int_equal(gguf_write_split(larger.path, stem, N_PARTS, &f->eb), 0);
    (void)snprintf(other, sizeof(other), "%s-00002-of-00004.gguf", stem);
    put_part(other, f->part[1], 1);
    refused(f, f->part[0], ERR_CORRUPT, "split.tensors.count is", "not of one model");
    tiny_model_close(&larger);
}

static void test_whatever_is_no_first_part_is_refused(void **state) {
    struct fixture *f = *state;
    char path[340];
    refused(f, f->part[1], ERR_INVALID, "part 2 of 4 of a split model", "name the first part");
    (void)snprintf(path, sizeof(path), "%s/renamed.gguf", f->dir.path);
    put_part(f->part[0], path, 0);
    refused(f, path, ERR_INVALID, "does not end in -00001-of-00004.gguf", path);
    (void)snprintf(path, sizeof(path), "%s/m-00001-of-00003.gguf", f->dir.path);
    put_part(f->part[0], path, 0);
    refused(f, path, ERR_CORRUPT, "its name says part 1 of 3, its head part 1 of 4", path);
}

static void test_truncated_part_is_named(void **state) {
    struct fixture *f = *state;
    struct stat st;
    assert_int_equal(stat(f->part[3], &st), 0);
    assert_int_equal(truncate(f->part[3], st.st_size - 64), 0);
    refused(f, f->part[0], ERR_CORRUPT, "part 4 of 4", "truncated?");
}

static void test_change_of_any_part_is_noticed(void **state) {
    struct fixture *f = *state;
    struct model *m;
    for (int k = 0; k < N_PARTS; k++) {
        assert_int_equal(load(f, f->part[0], &m), 0);
        assert_false(model_file_changed(m));
        touch(f->part[k]);
        assert_true(model_file_changed(m));
        model_free(m);
    }
    assert_int_equal(load(f, f->part[0], &m), 0);
    assert_int_equal(unlink(f->part[3]), 0);
    assert_true(model_file_changed(m));
    model_free(m);
}

/* Model caches are symbolic links: one may lead to another file of the same size, none of the stamps newer. */
static void test_another_file_under_a_link_is_noticed(void **state) {
    struct fixture *f = *state;
    struct model *m;
    char a[300], b[300];
    put_part(f->part[1], tmpdir_join(&f->dir, "a", a, sizeof(a)), 1);
    put_part(f->part[1], tmpdir_join(&f->dir, "b", b, sizeof(b)), 1);
    assert_int_equal(unlink(f->part[1]), 0);
    assert_int_equal(symlink(a, f->part[1]), 0);
    touch(a);
    touch(b);
    touch(f->part[3]);
    assert_int_equal(load(f, f->part[0], &m), 0);
    assert_false(model_file_changed(m));
    assert_int_equal(unlink(f->part[1]), 0);
    assert_int_equal(symlink(b, f->part[1]), 0);
    assert_true(model_file_changed(m));
    model_free(m);
}

static void test_part_that_changes_while_it_is_read_refused(void **state) {
    struct fixture *f = *state;
    struct gguf_file *file;
    assert_int_equal(gguf_file_open(&file, f->part[0], &f->eb), 0);
    assert_true(gguf_file_is_same(file));
    touch_at_read = f->part[3];
    float x[64];
    (void)gguf_file_read(file, gguf_find_tensor(gguf_file_peek(file), "output_norm.weight"), x,
                         &f->eb);
    assert_false(gguf_file_is_same(file));
    gguf_file_close(file);
}

static void test_names_without_part_and_ending(void **state) {
    (void)state;
    static const struct {
        const char *path;
        size_t stem;
    } cases[] = {
        {"a/b.gguf", 3},
        {"a/b-00001-of-00003.gguf", 3},
        {"b-00002-of-00003.gguf", 1},
        {"b-0001-of-00003.gguf", 15},
        {"b-00001-of-0000x.gguf", 16},
        {"b", 1},
        {".gguf", 5},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_int_equal(gguf_file_stem(cases[i].path), cases[i].stem);
}

int main(void) {
#define TEST(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_split_model_gives_the_whole_ones_logits),
        TEST(test_digest_is_over_the_parts),
        TEST(test_missing_part_is_named),
        TEST(test_foreign_parts_are_named),
        TEST(test_whatever_is_no_first_part_is_refused),
        TEST(test_truncated_part_is_named),
        TEST(test_change_of_any_part_is_noticed),
        TEST(test_another_file_under_a_link_is_noticed),
        TEST(test_part_that_changes_while_it_is_read_refused),
        cmocka_unit_test(test_names_without_part_and_ending),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
