/* matmul_blas.c - the only file that knows OpenBLAS. It is loaded when asked for and not before: the
 * library starts a thread a core as soon as it is in a process, and most workers never need it. Bits of a row depend on OpenBLAS's version and
 * core, on the fixed tile and cut below, and on position mod 32; on nothing else (measured for every
 * core type we could force). A change of TILE_ROWS or CUT_OUT is a change of the contract. */
#include "worker/kernels/matmul_blas.h"

#include <dlfcn.h>

#include "common/check.h"
#include "worker/kernels/kern_impl.h"

#ifdef KERN_HAVE_OPENBLAS

#include <cblas.h>

/* Debian and Fedora; Alpine; a development package. */
static const char *const library_names[] = {"libopenblas.so.0", "libopenblas.so.3",
                                            "libopenblas.so"};

#define TILE_ROWS 32
#define CUT_OUT 64 /* outputs of one sgemm; fixed so that the team's size changes nothing */
#define CHECK_IN 96

struct matmul_blas {
    void *library;
    __typeof__(cblas_sgemm) *sgemm;
    char *(*get_config)(void);
    char *(*get_corename)(void);
    void (*set_num_threads)(int n);
    uint32_t max_n_in;
    unsigned n_threads;
    char version[32], core[32];
    float *mem; /* a thread: weights [CUT_OUT][max_n_in], x [32][max_n_in], y [32][CUT_OUT] */
    size_t thread_floats;
};

static void sgemm_tile(const struct matmul_blas *b, const float *x, const float *w, float *y,
                       uint32_t n_out, uint32_t n_in) {
    b->sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, TILE_ROWS, (int)n_out, (int)n_in, 1.0f, x,
             (int)n_in, w, (int)n_in, 0.0f, y, CUT_OUT);
}

/* Small integers: every order of summation gives the same exact result, so == is right. */
static bool computes_right(struct matmul_blas *b) {
    float *w = b->mem, *x = w + CUT_OUT * CHECK_IN, *y = x + TILE_ROWS * CHECK_IN;
    for (int i = 0; i < CUT_OUT * CHECK_IN; i++)
        w[i] = (float)(i * 7 % 23 - 11);
    for (int i = 0; i < TILE_ROWS * CHECK_IN; i++)
        x[i] = (float)(i * 5 % 19 - 9);
    sgemm_tile(b, x, w, y, CUT_OUT, CHECK_IN);
    for (int r = 0; r < TILE_ROWS; r++)
        for (int o = 0; o < CUT_OUT; o++) {
            float want = 0.0f;
            for (int k = 0; k < CHECK_IN; k++)
                want += x[r * CHECK_IN + k] * w[o * CHECK_IN + k];
            if (y[r * CUT_OUT + o] != want)
                return false;
        }
    return true;
}

/* "OpenBLAS 0.3.21 NO_LAPACKE ..." */
static void read_version(struct matmul_blas *b) {
    const char *p = b->get_config();
    const char *space = strchr(p, ' ');
    p = space ? space + 1 : p;
    snprintf(b->version, sizeof b->version, "%.*s",
             (int)MIN(strcspn(p, " "), sizeof b->version - 1), p);
    snprintf(b->core, sizeof b->core, "%s", b->get_corename());
}

/* dlsym() gives object pointers; POSIX promises that they hold functions. */
static bool find_function(void *library, const char *name, void *fn) {
    void *p = dlsym(library, name);
    memcpy(fn, &p, sizeof p);
    return p != NULL;
}

static int load_library(struct matmul_blas *b, struct errbuf *eb) {
    /* Its threads would only wait: ours are the ones that compute. It reads this while it loads. */
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    for (size_t i = 0; i < ARRAY_LEN(library_names) && !b->library; i++)
        b->library = dlopen(library_names[i], RTLD_NOW | RTLD_LOCAL);
    if (!b->library)
        return err_set(eb, ERR_UNSUPPORTED, "--numerics blas: %s", dlerror());
    if (!find_function(b->library, "cblas_sgemm", &b->sgemm) ||
        !find_function(b->library, "openblas_get_config", &b->get_config) ||
        !find_function(b->library, "openblas_get_corename", &b->get_corename) ||
        !find_function(b->library, "openblas_set_num_threads", &b->set_num_threads))
        return err_set(eb, ERR_UNSUPPORTED, "--numerics blas: the library is no whole OpenBLAS");
    b->set_num_threads(1);
    return 0;
}

int matmul_blas_new(struct matmul_blas **ret, uint32_t max_n_in, unsigned n_threads,
                    struct errbuf *eb) {
    struct matmul_blas *b = calloc(1, sizeof *b);
    if (!b)
        return err_set(eb, ERR_NOMEM, "OpenBLAS buffers");
    b->max_n_in = MAX(max_n_in, CHECK_IN);
    b->n_threads = n_threads;
    size_t floats = (size_t)(CUT_OUT + TILE_ROWS) * b->max_n_in + TILE_ROWS * CUT_OUT;
    b->thread_floats = (floats + 15) / 16 * 16;
    b->mem = aligned_alloc(64, b->thread_floats * n_threads * sizeof(float));
    if (!b->mem) {
        matmul_blas_free(b);
        return err_set(eb, ERR_NOMEM, "OpenBLAS buffers");
    }
    int rv = load_library(b, eb);
    if (rv < 0) {
        matmul_blas_free(b);
        return rv;
    }
    read_version(b);
    if (!computes_right(b)) {
        rv = err_set(eb, ERR_CORRUPT,
                     "OpenBLAS %s (core %s) computes wrong products; see "
                     "OPENBLAS_CORETYPE",
                     b->version, b->core);
        matmul_blas_free(b);
        return rv;
    }
    *ret = b;
    return 0;
}

void matmul_blas_free(struct matmul_blas *b) {
    if (!b)
        return;
    free(b->mem);
    /* The library stays loaded: unloading it under its own thread-exit hooks is not safe. */
    free(b);
}

const char *matmul_blas_core(const struct matmul_blas *b) {
    return b->core;
}

const char *matmul_blas_version(const struct matmul_blas *b) {
    return b->version;
}

/* --- products ---------------------------------------------------------------------------------- */

struct blas_job {
    struct matmul_blas *blas;
    const struct matmul_in *in;
    const struct matmul_out *out;
};

/* Rows from `row` on that fit one tile: slots must rise, as two rows cannot share one. */
static uint32_t tile_end(const struct matmul_in *in, uint32_t row) {
    uint32_t end = row + 1;
    while (end < in->n_rows && in->row_pos[end] % TILE_ROWS > in->row_pos[end - 1] % TILE_ROWS)
        end++;
    return end;
}

static void run_tile(const struct blas_job *j, const float *w, float *x, float *y, uint32_t row,
                     uint32_t end, uint32_t out0, uint32_t n_out) {
    const struct matmul_in *in = j->in;
    size_t k = j->out->w->n_in;
    memset(x, 0, TILE_ROWS * k * sizeof *x);
    for (uint32_t r = row; r < end; r++)
        memcpy(x + in->row_pos[r] % TILE_ROWS * k, in->x + r * in->x_stride, k * sizeof *x);
    sgemm_tile(j->blas, x, w, y, n_out, (uint32_t)k);
    for (uint32_t r = row; r < end; r++)
        memcpy(j->out->y + r * j->out->y_stride + out0, y + in->row_pos[r] % TILE_ROWS * CUT_OUT,
               n_out * sizeof *y);
}

/* Items are cuts of CUT_OUT outputs. Each is dequantised once and used for all tiles. */
static void run_cuts(void *arg, size_t begin, size_t end, unsigned thread) {
    const struct blas_job *j = arg;
    const struct packed_mat *m = j->out->w;
    float *w = j->blas->mem + thread * j->blas->thread_floats;
    float *x = w + (size_t)CUT_OUT * m->n_in, *y = x + (size_t)TILE_ROWS * m->n_in;
    for (size_t cut = begin; cut < end; cut++) {
        uint32_t out0 = (uint32_t)cut * CUT_OUT, n_out = MIN(CUT_OUT, m->n_out - out0);
        for (uint32_t o = 0; o < n_out; o++)
            quant_dequant_row(m->type, w + (size_t)o * m->n_in, m->raw, out0 + o, m->n_in);
        for (uint32_t row = 0, next; row < j->in->n_rows; row = next) {
            next = tile_end(j->in, row);
            run_tile(j, w, x, y, row, next, out0, n_out);
        }
    }
}

void matmul_blas_run(struct matmul_blas *b, struct kern_team *team, const struct matmul_in *in,
                     const struct matmul_out *out) {
    CHECK(out->w->raw && out->w->n_in <= b->max_n_in && kern_team_size(team) <= b->n_threads);
    struct blas_job j = {b, in, out};
    kern_team_for(team, (out->w->n_out + CUT_OUT - 1) / CUT_OUT, 1, run_cuts, &j);
}

#else /* a build without OpenBLAS */

int matmul_blas_new(struct matmul_blas **ret, uint32_t max_n_in, unsigned n_threads,
                    struct errbuf *eb) {
    (void)ret, (void)max_n_in, (void)n_threads;
    return err_set(eb, ERR_UNSUPPORTED, "--numerics blas: this build has no OpenBLAS");
}

void matmul_blas_free(struct matmul_blas *b) {
    (void)b;
}

const char *matmul_blas_core(const struct matmul_blas *b) {
    (void)b;
    return "none";
}

const char *matmul_blas_version(const struct matmul_blas *b) {
    (void)b;
    return "none";
}

void matmul_blas_run(struct matmul_blas *b, struct kern_team *team, const struct matmul_in *in,
                     const struct matmul_out *out) {
    (void)b, (void)team, (void)in, (void)out;
    UNREACHABLE("matmul_blas_new() never succeeds here");
}

#endif
