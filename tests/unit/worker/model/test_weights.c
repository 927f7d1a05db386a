/* test_weights.c - a model is taken whole or refused by the name of what is wrong or not implemented. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/support/tiny_model.h"
#include "tools/dev/gguf_write.h"
#include "worker/kernels/quant.h"
#include "worker/model/gguf_file.h"

/* Every read of a file goes through here (meson.build): before number meddle_at something happens to the
 * file. Either name, as the C library is built. */
ssize_t __real_pread64(int fd, void *dst, size_t n, off_t off);
ssize_t __wrap_pread64(int fd, void *dst, size_t n, off_t off);
ssize_t __wrap_pread(int fd, void *dst, size_t n, off_t off);

static int meddle_at = -1, n_reads;
static void (*meddle)(const char *path);
static const char *meddle_path;

ssize_t __wrap_pread64(int fd, void *dst, size_t n, off_t off) {
    if (n_reads++ == meddle_at)
        meddle(meddle_path);
    return __real_pread64(fd, dst, n, off);
}

ssize_t __wrap_pread(int fd, void *dst, size_t n, off_t off) {
    return __wrap_pread64(fd, dst, n, off);
}

/* How a tiny model's file is changed before it is loaded. */
struct edit {
    const char *drop_key, *drop_tensor;
    void (*add_keys)(struct gguf_write *w);
    const char *put_tensor; /* replaces the one of this name, or is added */
    uint32_t put_type;
    uint64_t put_ne[2];
    float put_value; /* of F32 elements; other types get zero bytes */
};

struct fixture {
    struct tiny_model tiny;
    char path[300];
    struct model *model;
    struct errbuf eb;
};

static int setup(void **state) {
    static struct fixture f;
    struct tiny_spec spec = tiny_spec_of(QUANT_Q8_0);
    memset(&f, 0, sizeof(f));
    tiny_model_file(&f.tiny, &spec);
    (void)snprintf(f.path, sizeof(f.path), "%s.edited", f.tiny.path);
    *state = &f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    model_free(f->model);
    (void)unlink(f->path);
    tiny_model_close(&f->tiny);
    return 0;
}

static bool is(const struct gguf_str s, const char *name) {
    return name && gguf_str_is(s, name);
}

static void put_data(struct gguf_write *w, const struct edit *e) {
    static uint8_t zeros[1 << 16];
    const struct gguf_tensor_type *t = gguf_tensor_type(e->put_type);
    size_t n = (size_t)(e->put_ne[0] * MAX(e->put_ne[1], 1));
    if (e->put_type == QUANT_F32)
        for (size_t i = 0; i < n; i++)
            gguf_write_data(w, &e->put_value, 4);
    else
        gguf_write_data(w, zeros, n / t->block_items * t->block_bytes);
    gguf_write_pad(w);
}

static void announce_put(struct gguf_write *w, const struct edit *e) {
    gguf_write_tensor(w, e->put_tensor, e->put_type, e->put_ne[1] ? 2 : 1, e->put_ne);
}

static void rewrite(struct fixture *f, const struct edit *e) {
    struct gguf_file *file;
    struct gguf_write w;
    gguf_write_init(&w);
    assert_int_equal(gguf_file_open(&file, f->tiny.path, &f->eb), 0);
    struct gguf *g = gguf_file_peek(file);
    for (size_t i = 0; i < gguf_n_kv(g); i++)
        if (!is(gguf_kv_at(g, i)->key, e->drop_key))
            gguf_write_kv(&w, gguf_kv_at(g, i));
    if (e->add_keys)
        e->add_keys(&w);
    for (int data = 0; data < 2; data++) {
        bool put = false;
        for (size_t i = 0; i < gguf_n_tensors(g); i++) {
            const struct gguf_tensor *t = gguf_tensor_at(g, i);
            char name[64];
            (void)snprintf(name, sizeof(name), "%.*s", (int)t->name.len, t->name.p);
            if (is(t->name, e->drop_tensor))
                continue;
            bool replaced = is(t->name, e->put_tensor);
            put |= replaced;
            if (data && replaced) {
                put_data(&w, e);
            } else if (data) {
                uint8_t *bytes = malloc(t->bytes);
                assert_non_null(bytes);
                assert_int_equal(gguf_file_read(file, t, bytes, &f->eb), 0);
                gguf_write_data(&w, bytes, t->bytes);
                gguf_write_pad(&w);
                free(bytes);
            } else if (replaced) {
                announce_put(&w, e);
            } else {
                gguf_write_tensor(&w, name, t->type, t->n_dims, t->ne);
            }
        }
        if (e->put_tensor && !put && data)
            put_data(&w, e);
        else if (e->put_tensor && !put)
            announce_put(&w, e);
        if (!data)
            assert_int_equal(gguf_write_open(&w, f->path), 0);
    }
    assert_int_equal(gguf_write_close(&w), 0);
    gguf_write_fini(&w);
    gguf_file_close(file);
}

static int load(struct fixture *f, const struct edit *e) {
    rewrite(f, e);
    const struct model_load_cfg cfg = {.path = f->path, .digest_cache_dir = ""};
    return model_load(&f->model, &cfg, &f->eb);
}

static void refused(struct fixture *f, const struct edit *e, int want, const char *words) {
    int rv = load(f, e);
    if (rv != want || !strstr(f->eb.text, words))
        print_message("%s: '%s' should hold '%s'\n", err_name(rv), f->eb.text, words);
    assert_int_equal(rv, want);
    assert_non_null(strstr(f->eb.text, words));
    assert_null(f->model);
}

static void test_load_gives_hparams_and_digest(void **state) {
    struct fixture *f = *state;
    assert_int_equal(load(f, &(struct edit){.drop_key = NULL}), 0);
    const struct model_hparams *hp = &f->model->hp;
    assert_string_equal(hp->arch, "llama");
    assert_string_equal(hp->name, "tiny");
    assert_int_equal(hp->n_layer, 2);
    assert_int_equal(hp->n_embd, 64);
    assert_int_equal(hp->d_head, 16);
    assert_int_equal(hp->n_head_kv, 2);
    assert_int_equal(hp->n_vocab, tiny_gguf_n_vocab());
    assert_true(hp->attn_scale == 0.25f);
    assert_true(hp->tied);
    static uint8_t bytes[1 << 20];
    uint8_t want[DIGEST_BYTES];
    FILE *file = fopen(f->path, "rb");
    assert_non_null(file);
    size_t len = fread(bytes, 1, sizeof(bytes), file);
    (void)fclose(file);
    assert_true(len && len < sizeof(bytes));
    digest_sha256(bytes, len, want);
    assert_memory_equal(f->model->digest, want, DIGEST_BYTES);
    /* 2 layers of K and V, 2 heads of 16, 32 tokens, 2 bytes */
    assert_int_equal(model_page_bytes(f->model, 32, (struct kv_dtypes){KV_F16, KV_F16}),
                     2 * 2 * 2 * 16 * 32 * 2);
    assert_int_equal(model_page_bytes(f->model, 32, (struct kv_dtypes){KV_F16, KV_F32}),
                     2 * 3 * 2 * 16 * 32 * 2);
}

#define KEYS(name, call)                                                                           \
    static void name(struct gguf_write *w) {                                                       \
        call;                                                                                      \
    }
KEYS(keys_experts, gguf_write_u32(w, "llama.expert_count", 8))
KEYS(keys_shared, gguf_write_u32(w, "llama.expert_shared_count", 1))
KEYS(keys_many_used, gguf_write_u32(w, "llama.expert_count", 8);
     gguf_write_u32(w, "llama.expert_used_count", 9))
KEYS(keys_two_experts, gguf_write_u32(w, "llama.expert_count", 2);
     gguf_write_u32(w, "llama.expert_used_count", 1))
KEYS(keys_no_experts, gguf_write_u32(w, "llama.expert_count", 0))
KEYS(keys_pattern,
     gguf_write_i32_array(w, "llama.attention.sliding_window_pattern", (int[]){1, 0, 1}, 3))
KEYS(keys_window, gguf_write_u32(w, "llama.attention.sliding_window", 512);
     gguf_write_i32_array(w, "llama.attention.sliding_window_pattern", (int[]){1, 0}, 2))
KEYS(keys_wide_window, gguf_write_u32(w, "llama.attention.sliding_window", 2048))
KEYS(keys_softcap, gguf_write_f32(w, "llama.final_logit_softcapping", 30))
KEYS(keys_dynamic, gguf_write_str(w, "llama.rope.scaling.type", "dynamic"))
KEYS(keys_longrope, gguf_write_str(w, "llama.rope.scaling.type", "longrope"))
KEYS(keys_linear, gguf_write_f32(w, "llama.rope.scaling.factor", 4))
KEYS(keys_unknown, gguf_write_u32(w, "llama.attention.novelty", 1))
KEYS(keys_half_rot, gguf_write_u32(w, "llama.rope.dimension_count", 8))
KEYS(keys_arch, gguf_write_str(w, "general.architecture", "qwen99"))
KEYS(keys_kv_same, gguf_write_i32_array(w, "llama.attention.head_count_kv", (int[]){2, 2}, 2))
KEYS(keys_kv_mixed, gguf_write_i32_array(w, "llama.attention.head_count_kv", (int[]){2, 1}, 2))
KEYS(keys_kv_three, gguf_write_u32(w, "llama.attention.head_count_kv", 3))
KEYS(keys_nan_eps, gguf_write_f32(w, "llama.attention.layer_norm_rms_epsilon", NAN))
KEYS(keys_no_layers, gguf_write_u32(w, "llama.block_count", 0))

static void test_keys_without_implementation_refused_by_name(void **state) {
    struct fixture *f = *state;
    const struct {
        void (*add)(struct gguf_write *w);
        const char *drop, *words;
        int want;
    } cases[] = {
        {keys_experts, NULL, "llama.expert_used_count", ERR_INVALID},
        {keys_shared, NULL, "llama.expert_shared_count", ERR_UNSUPPORTED},
        {keys_many_used, NULL, "llama.expert_used_count", ERR_INVALID},
        {keys_pattern, NULL, "llama.attention.sliding_window_pattern", ERR_INVALID},
        {keys_softcap, NULL, "llama.final_logit_softcapping", ERR_UNSUPPORTED},
        {keys_dynamic, NULL, "'dynamic'", ERR_UNSUPPORTED},
        {keys_longrope, NULL, "'longrope'", ERR_UNSUPPORTED},
        {keys_unknown, NULL, "llama.attention.novelty", ERR_UNSUPPORTED},
        {keys_half_rot, "llama.rope.dimension_count", "rope.dimension_count", ERR_UNSUPPORTED},
        {keys_arch, "general.architecture", "'qwen99'", ERR_UNSUPPORTED},
        {keys_kv_mixed, "llama.attention.head_count_kv", "head_count_kv", ERR_UNSUPPORTED},
        {keys_kv_three, "llama.attention.head_count_kv", "KV heads", ERR_INVALID},
        {keys_nan_eps, "llama.attention.layer_norm_rms_epsilon", "epsilon", ERR_INVALID},
        {keys_no_layers, "llama.block_count", "block_count", ERR_INVALID},
        {NULL, "llama.embedding_length", "llama.embedding_length", ERR_INVALID},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refused(f, &(struct edit){.add_keys = cases[i].add, .drop_key = cases[i].drop},
                cases[i].want, cases[i].words);
}

static void test_keys_that_are_off_or_linear_accepted(void **state) {
    struct fixture *f = *state;
    assert_int_equal(load(f, &(struct edit){.add_keys = keys_no_experts}), 0);
    model_free(TAKE_PTR(f->model));
    assert_int_equal(load(f, &(struct edit){.add_keys = keys_kv_same,
                                            .drop_key = "llama.attention.head_count_kv"}),
                     0);
    assert_int_equal(f->model->hp.n_head_kv, 2);
    model_free(TAKE_PTR(f->model));
    assert_int_equal(load(f, &(struct edit){.add_keys = keys_linear}), 0);
    assert_true(f->model->hp.rope[0].scale == 0.25f);
}

/* A window layer's range stands behind those that see everything; a window that no context outgrows is none. */
static void test_windows_order_the_ranges(void **state) {
    struct fixture *f = *state;
    struct kv_layout l;
    assert_int_equal(load(f, &(struct edit){.add_keys = keys_window}), 0);
    assert_int_equal(f->model->hp.layer[0].window, 512);
    assert_int_equal(f->model->hp.layer[1].window, 0);
    assert_int_equal(model_kv_layout(&l, f->model, 32, (struct kv_dtypes){KV_F16, KV_F16}, &f->eb),
                     0);
    assert_int_equal(l.n_full, 1);
    assert_int_equal(l.layer[0].range, 1);
    assert_int_equal(l.layer[1].range, 0);
    kv_layout_fini(&l);
    model_free(TAKE_PTR(f->model));
    assert_int_equal(load(f, &(struct edit){.add_keys = keys_wide_window}), 0);
    assert_int_equal(f->model->hp.layer[0].window, 0);
}

static void test_tensors_that_do_not_fit_refused_by_name(void **state) {
    struct fixture *f = *state;
    const struct {
        struct edit e;
        const char *words;
        int want;
    } cases[] = {
        {{.drop_tensor = "blk.1.ffn_up.weight"}, "'blk.1.ffn_up.weight' is missing", ERR_INVALID},
        {{.drop_tensor = "token_embd.weight"}, "'token_embd.weight' is missing", ERR_INVALID},
        {{.put_tensor = "blk.0.attn_q_norm.weight", .put_type = QUANT_F32, .put_ne = {16}},
         "'blk.0.attn_q_norm.weight' is not used",
         ERR_UNSUPPORTED},
        {{.put_tensor = "blk.0.attn_k.weight", .put_type = QUANT_Q8_0, .put_ne = {32, 64}},
         "shape [32, 64",
         ERR_INVALID},
        {{.put_tensor = "blk.1.attn_norm.weight", .put_type = QUANT_F16, .put_ne = {64}},
         "'blk.1.attn_norm.weight': weights of type F16",
         ERR_UNSUPPORTED},
        {{.put_tensor = "blk.1.ffn_down.weight", .put_type = 9, .put_ne = {160, 64}},
         "'blk.1.ffn_down.weight': weights of type Q8_1 are not supported; known: f32 f16 bf16 "
         "q4_0",
         ERR_UNSUPPORTED},
        {{.put_tensor = "output_norm.weight",
          .put_type = QUANT_F32,
          .put_ne = {64},
          .put_value = NAN},
         "'output_norm.weight': element 0",
         ERR_CORRUPT},
        {{.put_tensor = "rope_freqs.weight", .put_type = QUANT_F32, .put_ne = {8}, .put_value = 0},
         "factor 0 is zero",
         ERR_CORRUPT},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refused(f, &cases[i].e, cases[i].want, cases[i].words);
}

/* A file with experts' keys wants experts' tensors, of three dimensions, and a float router. */
static void test_expert_tensors_that_do_not_fit_refused_by_name(void **state) {
    struct fixture *f = *state;
    struct edit e = {.add_keys = keys_two_experts};
    refused(f, &e, ERR_INVALID, "'blk.0.ffn_gate_inp.weight' is missing");
    e.put_tensor = "blk.0.ffn_gate_inp.weight";
    e.put_type = QUANT_Q8_0;
    e.put_ne[0] = 64;
    e.put_ne[1] = 2;
    refused(f, &e, ERR_UNSUPPORTED, "'blk.0.ffn_gate_inp.weight': a router's weights");
    e.put_type = QUANT_F32;
    refused(f, &e, ERR_INVALID, "'blk.0.ffn_gate_exps.weight' is missing");
    e.add_keys = NULL;
    refused(f, &e, ERR_UNSUPPORTED, "'blk.0.ffn_gate_inp.weight' is not used");
}

static void test_file_changed_notices_touch_and_removal(void **state) {
    struct fixture *f = *state;
    assert_int_equal(load(f, &(struct edit){.drop_key = NULL}), 0);
    assert_false(model_file_changed(f->model));
    const struct timespec times[2] = {{1, 0}, {1, 0}};
    assert_int_equal(utimensat(AT_FDCWD, f->path, times, 0), 0);
    assert_true(model_file_changed(f->model));
    assert_int_equal(unlink(f->path), 0);
    assert_true(model_file_changed(f->model));
}

/* MUTANTS weights.c: cp --preserve gives other bytes the old size and mtime; the inode's ctime tells. */
static void test_file_changed_notices_ctime_alone(void **state) {
    struct fixture *f = *state;
    assert_int_equal(load(f, &(struct edit){.drop_key = NULL}), 0);
    struct gguf_file_id now, was = f->model->file;
    struct stat st;
    assert_int_equal(stat(f->path, &st), 0);
    int fd = open(f->path, O_WRONLY);
    assert_true(fd >= 0);
    do { /* until the file system's clock has moved on */
        assert_int_equal(pwrite(fd, "x", 1, 0), 1);
        const struct timespec times[2] = {st.st_atim, st.st_mtim};
        assert_int_equal(futimens(fd, times), 0);
        assert_int_equal(gguf_file_id_of(f->path, &now), 0);
    } while (now.ctime_ns == was.ctime_ns);
    (void)close(fd);
    assert_int_equal(now.mtime_ns, was.mtime_ns);
    assert_int_equal(now.size, was.size);
    assert_true(model_file_changed(f->model));
}

static void cut_file(const char *path) {
    assert_int_equal(truncate(path, 6000), 0);
}

static void touch_file(const char *path) {
    const struct timespec times[2] = {{1, 0}, {1, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static int load_while(struct fixture *f, void (*what)(const char *), int at_read) {
    rewrite(f, &(struct edit){.drop_key = NULL});
    const struct model_load_cfg cfg = {.path = f->path, .digest_cache_dir = ""};
    meddle = what;
    meddle_path = f->path;
    meddle_at = at_read;
    n_reads = 0;
    int rv = model_load(&f->model, &cfg, &f->eb);
    meddle_at = -1;
    return rv;
}

/* F6: cp, wget -O and rsync --inplace cut a file before they write it; a worker that was loading it died of
 * SIGBUS. Right: an error, at whichever read it happens; a change that cuts nothing is one too. */
static void test_file_that_changes_while_it_is_read_refused(void **state) {
    struct fixture *f = *state;
    int n = 0;
    for (int rv = 1; rv != 0; n++) {
        rv = load_while(f, cut_file, n);
        if (rv == 0)
            break; /* as many reads as a load takes */
        assert_int_equal(rv, ERR_CORRUPT);
        assert_non_null(strstr(f->eb.text, "cut short"));
        assert_non_null(strstr(f->eb.text, f->path));
    }
    assert_true(n > 10);
    model_free(TAKE_PTR(f->model));
    for (int at = 0; at < n; at++) {
        assert_int_equal(load_while(f, touch_file, at), ERR_CONFLICT);
        assert_non_null(strstr(f->eb.text, "changed while it was being loaded"));
    }
}

/* No region of this process is a mapping of the file. */
static void test_nothing_of_the_file_stays_mapped_or_open(void **state) {
    struct fixture *f = *state;
    char line[4096];
    const struct model_load_cfg cfg = {
        .path = f->tiny.path, .keep_raw = true, .digest_cache_dir = ""};
    assert_int_equal(model_load(&f->model, &cfg, &f->eb), 0);
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof(line), maps))
        assert_null(strstr(line, f->tiny.path));
    (void)fclose(maps);
    int next = open("/dev/null", O_RDONLY); /* the lowest free number: a leak would have taken it */
    model_free(TAKE_PTR(f->model));
    assert_int_equal(model_load(&f->model, &cfg, &f->eb), 0);
    int again = open("/dev/null", O_RDONLY);
    assert_int_equal(again, next + 1);
    (void)close(next);
    (void)close(again);
}

/* Loading with other bytes at one place of the file, which is mended afterwards. */
static int load_broken(const char *path, uint64_t off, const void *p, size_t n, struct errbuf *eb) {
    const struct model_load_cfg cfg = {.path = path, .digest_cache_dir = ""};
    struct model *m = NULL;
    uint8_t was[4];
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && n <= sizeof(was));
    assert_int_equal(pread(fd, was, n, (off_t)off), (ssize_t)n);
    assert_int_equal(pwrite(fd, p, n, (off_t)off), (ssize_t)n);
    int rv = model_load(&m, &cfg, eb);
    assert_int_equal(pwrite(fd, was, n, (off_t)off), (ssize_t)n);
    (void)close(fd);
    return rv;
}

/* Breaks each tensor of a tiny model in turn: its last float, or the scale (or min) of its last block. */
static void break_each_tensor(const struct tiny_spec *spec, const void *bad, size_t n_bad,
                              size_t at) {
    struct tiny_model tiny;
    struct errbuf eb;
    struct gguf *g;
    tiny_model_file(&tiny, spec);
    assert_int_equal(gguf_open(&g, tiny.path, &eb), 0);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const struct quant_type *q = quant_type_find(t->type);
        char name[80];
        if (t->type != spec->type)
            continue;
        const uint64_t off = t->off + t->bytes - q->block_bytes + at;
        assert_int_equal(load_broken(tiny.path, off, bad, n_bad, &eb), ERR_CORRUPT);
        (void)snprintf(name, sizeof(name), "'%.*s'", (int)t->name.len, t->name.p);
        if (!strstr(eb.text, name) || !strstr(eb.text, quant_bad_text(q)))
            fail_msg("'%s' should name %s", eb.text, name);
    }
    gguf_free(g);
    tiny_model_close(&tiny);
}

/* F7: a file with a NaN or an infinity in a weight gave 200 with an empty text. Right: refused at load by
 * the tensor's name: every float, every scale, every min, the embedding with or without a head of its own. */
static void test_weights_that_are_not_finite_refused_by_name(void **state) {
    (void)state;
    const uint32_t f32_nan = 0xffc00001, f32_inf = 0xff800000;
    const uint16_t half[] = {0x7e00, 0x7c00, 0xfc00, 0xfd55}, bf16[] = {0x7fc0, 0xff80};
    for (int untied = 0; untied < 2; untied++) {
        struct tiny_spec spec = tiny_spec_of(QUANT_F32);
        spec.untied = untied;
        break_each_tensor(&spec, &f32_nan, 4, 0);
        break_each_tensor(&spec, &f32_inf, 4, 0);
        for (size_t i = 0; i < ARRAY_LEN(bf16); i++) {
            spec.type = spec.embd_type = QUANT_BF16;
            break_each_tensor(&spec, &bf16[i], 2, 0);
        }
        size_t n_types;
        const struct quant_type *types = quant_type_table(&n_types);
        for (size_t k = 0; k < n_types; k++) {
            const struct quant_type *t = &types[k];
            if (t->dtype == QUANT_F32 || t->dtype == QUANT_BF16 || t->dtype == QUANT_MXFP4)
                continue;
            spec = tiny_spec_of(t->dtype);
            spec.untied = untied;
            /* Blocks of 256 make files of megabytes: one half each, in turn. */
            for (size_t i = t->block_items == 256 ? k % 4 : 0; i < ARRAY_LEN(half);
                 i += t->block_items == 256 ? 4 : 1) {
                break_each_tensor(&spec, &half[i], 2, t->d_at);
                if (t->has_min)
                    break_each_tensor(&spec, &half[i], 2, t->d_at + 2u);
            }
        }
        /* Its scale is a power of two, above 2^104 of which the contract's products are not finite. */
        const uint8_t e = QUANT_MXFP4_MAX_E + 1;
        spec = tiny_spec_of(QUANT_MXFP4);
        spec.untied = untied;
        break_each_tensor(&spec, &e, 1, 0);
    }
}

static void test_kv_dtype_names(void **state) {
    (void)state;
    enum kv_dtype t = KV_F16;
    assert_int_equal(kv_dtype_parse("f32", &t), 0);
    assert_int_equal(t, KV_F32);
    assert_int_equal(kv_dtype_parse("q4_0", &t), 0);
    assert_int_equal(t, KV_Q4_0);
    assert_int_equal(kv_dtype_parse("q5_0", &t), ERR_UNSUPPORTED);
    assert_int_equal(t, KV_Q4_0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_load_gives_hparams_and_digest, setup, teardown),
        cmocka_unit_test_setup_teardown(test_keys_without_implementation_refused_by_name, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_keys_that_are_off_or_linear_accepted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_windows_order_the_ranges, setup, teardown),
        cmocka_unit_test_setup_teardown(test_expert_tensors_that_do_not_fit_refused_by_name, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_tensors_that_do_not_fit_refused_by_name, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_file_changed_notices_touch_and_removal, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_file_changed_notices_ctime_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_file_that_changes_while_it_is_read_refused, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_nothing_of_the_file_stays_mapped_or_open, setup,
                                        teardown),
        cmocka_unit_test(test_weights_that_are_not_finite_refused_by_name),
        cmocka_unit_test(test_kv_dtype_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
