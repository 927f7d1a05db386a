/* oracle_common.c - shared by the tests against recorded numbers. */
#include "tests/integration/oracle_common.h"

#include "common/wire_cur.h"
#include "worker/kernels/kern_threads.h"
#include "worker/kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define HEADER_BYTES 32
#define STEPS_PER_NAT 2048.0

/* Process state of a test program: the arguments, and the copies made so far. */
static struct {
    const char *golden, *mkmodel, *model, *gemma;
    char dir[64];
    bool made[3];
} env;

static const char *const copy_types[] = {[ORACLE_F32] = "f32", [ORACLE_F16] = "f16"};

void oracle_init(int argc, char **argv) {
    env.golden = argc > 1 ? argv[1] : "tests/golden/numbers";
    env.mkmodel = argc > 2 ? argv[2] : NULL;
    env.model = getenv("INCIPIT_TEST_MODEL");
    env.gemma = getenv("INCIPIT_TEST_GEMMA");
    if (!env.model || !*env.model)
        fprintf(stderr, "INCIPIT_TEST_MODEL is not set: tests on the real model are skipped\n");
}

static const char *copy_path(enum oracle_copy c) {
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s.gguf", env.dir, copy_types[c]);
    return path;
}

void oracle_exit(void) {
    for (enum oracle_copy c = ORACLE_F32; c <= ORACLE_F16; c++)
        if (env.made[c])
            unlink(copy_path(c));
    if (env.dir[0])
        rmdir(env.dir);
}

const char *oracle_path(const char *name) {
    static char path[512];
    snprintf(path, sizeof(path), "%s/%s", env.golden, name);
    return path;
}

static uint8_t *read_all(const char *path, size_t *ret_len) {
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("cannot open %s", path);
    fseek(f, 0, SEEK_END);
    long len = ftell(f);
    rewind(f);
    uint8_t *p = malloc((size_t)len + 1);
    assert_non_null(p);
    assert_int_equal(fread(p, 1, (size_t)len, f), len);
    fclose(f);
    *ret_len = (size_t)len;
    return p;
}

static size_t record_bytes(const struct oracle_ref *r) {
    return 8 + (r->id_bytes + 2) * (size_t)r->n_top;
}

void oracle_ref_load(struct oracle_ref *ret, const char *name) {
    size_t len;
    struct oracle_ref r = {.bytes = read_all(oracle_path(name), &len)};
    struct wire_cur c = wire_cur_read(r.bytes, len);
    assert_memory_equal(wire_cur_bytes(&c, 4), "INCR", 4);
    const uint32_t version = wire_cur_u32(&c);
    assert_true(version == 1 || version == 2);
    r.id_bytes = 2 * version;
    r.n_tok = wire_cur_u32(&c);
    r.n_top = wire_cur_u32(&c);
    r.n_vocab = wire_cur_u32(&c);
    r.stride = wire_cur_u32(&c);
    r.stride = MAX(r.stride, 1u); /* a macro: reads twice what it is given */
    wire_cur_skip(&c, 8);
    r.tok = calloc(r.n_tok, sizeof(*r.tok));
    assert_non_null(r.tok);
    for (uint32_t i = 0; i < r.n_tok; i++)
        r.tok[i] = (int32_t)wire_cur_u32(&c);
    wire_cur_skip(&c, (r.n_tok - 2 + r.stride) / r.stride * record_bytes(&r));
    assert_int_equal(c.err, 0);
    assert_int_equal(c.off, len);
    *ret = r;
}

void oracle_ref_free(struct oracle_ref *r) {
    free(TAKE_PTR(r->bytes));
    free(TAKE_PTR(r->tok));
}

/* The record of pos, off bytes in. */
static const uint8_t *at(const struct oracle_ref *r, uint32_t pos, size_t off) {
    assert_int_equal(pos % r->stride, 0);
    return r->bytes + HEADER_BYTES + 4 * (size_t)r->n_tok + pos / r->stride * record_bytes(r) + off;
}

static float f32_at(const uint8_t *p) {
    struct wire_cur c = wire_cur_read(p, 4);
    uint32_t bits = wire_cur_u32(&c);
    float v;
    memcpy(&v, &bits, sizeof(v));
    return v;
}

float oracle_next_lp(const struct oracle_ref *r, uint32_t pos) {
    return f32_at(at(r, pos, 0));
}

float oracle_rest_lp(const struct oracle_ref *r, uint32_t pos) {
    return f32_at(at(r, pos, 4));
}

uint32_t oracle_id(const struct oracle_ref *r, uint32_t pos, uint32_t i) {
    struct wire_cur c = wire_cur_read(at(r, pos, 8 + r->id_bytes * (size_t)i), r->id_bytes);
    return r->id_bytes == 2 ? wire_cur_u16(&c) : wire_cur_u32(&c);
}

double oracle_lp(const struct oracle_ref *r, uint32_t pos, uint32_t i) {
    const uint8_t *p = at(r, pos, 8 + r->id_bytes * (size_t)r->n_top + 2 * (size_t)i);
    return -(p[0] | p[1] << 8) / STEPS_PER_NAT;
}

/* Makes the copy once for all tests of this program. */
static const char *model_copy(enum oracle_copy copy) {
    if (copy == ORACLE_AS_IS)
        return env.model;
    if (copy == ORACLE_GEMMA)
        return env.gemma;
    if (!env.dir[0]) {
        const char *tmp = getenv("TMPDIR");
        snprintf(env.dir, sizeof(env.dir), "%.40s/oracle-XXXXXX", tmp ? tmp : "/tmp");
        assert_non_null(mkdtemp(env.dir));
    }
    if (!env.made[copy]) {
        assert_non_null(env.mkmodel);
        env.made[copy] = true;
        pid_t pid = fork();
        if (pid == 0) {
            execl(env.mkmodel, env.mkmodel, "--from", env.model, "--type", copy_types[copy],
                  copy_path(copy), (char *)NULL);
            _exit(127);
        }
        int status = -1;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
    }
    return copy_path(copy);
}

static void make_pages(struct oracle_run *r, uint32_t n_pages, enum kv_dtype kv) {
    size_t bytes = model_page_bytes(r->model, ORACLE_BLOCK_TOK, (struct kv_dtypes){kv, kv});
    r->memory = aligned_alloc(64, (bytes * n_pages + 63) / 64 * 64);
    r->pages = calloc(n_pages, sizeof(*r->pages));
    assert_non_null(r->memory);
    assert_non_null(r->pages);
    for (uint32_t i = 0; i < n_pages; i++)
        r->pages[i] = r->memory + i * bytes;
}

bool oracle_run_open(struct oracle_run *r, enum oracle_copy copy, enum kv_dtype kv,
                     uint32_t max_rows, uint32_t max_ctx) {
    *r = (struct oracle_run){0};
    const char *needed = copy == ORACLE_GEMMA ? env.gemma : env.model;
    if (!needed || !*needed)
        return false;
    struct errbuf eb = {""};
    const struct kern_ops *ops = kernels_pick(NULL, &eb);
    assert_non_null(ops);
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    assert_int_equal(kern_team_new(&r->team, (unsigned)MAX(1, MIN(cpus, 8)), &eb), 0);
    struct model_load_cfg mc = {.path = model_copy(copy), .digest_cache_dir = ""};
    if (model_load(&r->model, &mc, &eb) < 0)
        fail_msg("%s: %s", mc.path, eb.text);
    struct fwd_cfg fc = {
        .max_rows = max_rows,
        .max_seqs = 1,
        .max_ctx = max_ctx,
        .block_tok = ORACLE_BLOCK_TOK,
        .kv = {kv, kv},
        .ops = ops,
        .team = r->team,
    };
    if (fwd_new(&r->fwd, r->model, &fc, &eb) < 0)
        fail_msg("forward pass: %s", eb.text);
    make_pages(r, (max_ctx + ORACLE_BLOCK_TOK - 1) / ORACLE_BLOCK_TOK, kv);
    return true;
}

void oracle_run_close(struct oracle_run *r) {
    fwd_free(TAKE_PTR(r->fwd));
    model_free(TAKE_PTR(r->model));
    kern_team_free(TAKE_PTR(r->team));
    free(TAKE_PTR(r->pages));
    free(TAKE_PTR(r->memory));
}

void oracle_step(struct oracle_run *r, const int32_t *tok, uint32_t n, uint32_t pos0,
                 uint32_t n_logits, float *logits) {
    struct fwd_seq s = {
        .tok = tok,
        .n_tok = n,
        .pos0 = pos0,
        .pages = r->pages,
        .n_logits = n_logits,
        .logits = logits,
    };
    assert_int_equal(fwd_step(r->fwd, &s, 1), 0);
}
