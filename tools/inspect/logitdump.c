/* logitdump - logits of every position of a token list, for comparison with other implementations.
 *
 *   logitdump [options] MODEL IDS OUT     OUT: f32 little-endian [n_ids, n_vocab], "-": standard output
 *   logitdump [options] --greedy N MODEL IDS      N more token ids, one a line
 *
 * IDS: a text file of decimal token ids between white space. Options: --isa NAME, --threads N,
 * --k-dtype and --v-dtype f16|f32|q8_0|q4_0, --chunk N (rows a step), --block N (tokens a page), --time (tokens/s to stderr).
 * This file looks inside the worker (rule zero of the include table): it is what it inspects. */
#include <getopt.h>
#include <time.h>

#include "common/process.h"
#include "worker/kernels/kern_threads.h"
#include "worker/kernels/kernels.h"
#include "worker/model/forward.h"

struct options {
    const char *isa, *model, *ids, *out;
    uint32_t threads, chunk, block, greedy;
    struct kv_dtypes kv;
    bool time;
};

/* One sequence and all that it stands on. */
struct session {
    struct options o;
    struct kern_team *team;
    struct model *model;
    struct fwd *fwd;
    int32_t *ids;
    uint32_t n_ids;
    uint8_t **pages;
    uint32_t n_pages;
    float *logits; /* [chunk, n_vocab] */
    struct errbuf eb;
};

static double now_s(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int read_ids(struct session *s) {
    FILE *f = fopen(s->o.ids, "re");
    if (!f)
        return err_set(&s->eb, ERR_NOTFOUND, "cannot open '%s'", s->o.ids);
    size_t cap = 0;
    for (int id; fscanf(f, "%d", &id) == 1;) {
        if (s->n_ids == cap) {
            cap = cap ? 2 * cap : 1024;
            int32_t *grown = realloc(s->ids, cap * sizeof(*grown));
            if (!grown)
                break;
            s->ids = grown;
        }
        s->ids[s->n_ids++] = id;
    }
    bool whole = feof(f) && s->n_ids > 0;
    (void)fclose(f);
    return whole ? 0 : err_set(&s->eb, ERR_INVALID, "'%s' is no list of token ids", s->o.ids);
}

static int make_pages(struct session *s, uint32_t n_pos) {
    const size_t bytes = (model_page_bytes(s->model, s->o.block, s->o.kv) + 63) & ~(size_t)63;
    s->n_pages = (n_pos + s->o.block - 1) / s->o.block;
    s->pages = alloc_array(s->n_pages, sizeof(*s->pages));
    for (uint32_t i = 0; s->pages && i < s->n_pages; i++)
        if (!(s->pages[i] = aligned_alloc(64, bytes)))
            return ERR_NOMEM;
    return s->pages ? 0 : ERR_NOMEM;
}

static int open_session(struct session *s) {
    const struct kern_ops *ops = kernels_pick(s->o.isa, &s->eb);
    if (!ops)
        return ERR_UNSUPPORTED;
    int rv = read_ids(s);
    if (rv >= 0)
        rv = kern_team_new(&s->team, s->o.threads, &s->eb);
    const struct model_load_cfg load = {.path = s->o.model};
    if (rv >= 0)
        rv = model_load(&s->model, &load, &s->eb);
    if (rv < 0)
        return rv;
    const uint32_t n_pos = s->n_ids + s->o.greedy;
    const struct fwd_cfg cfg = {
        .max_rows = s->o.chunk,
        .max_seqs = 1,
        .max_ctx = n_pos,
        .block_tok = s->o.block,
        .kv = s->o.kv,
        .ops = ops,
        .team = s->team,
    };
    rv = fwd_new(&s->fwd, s->model, &cfg, &s->eb);
    if (rv >= 0)
        rv = make_pages(s, n_pos);
    s->logits =
        rv < 0 ? NULL : alloc_array((size_t)s->o.chunk * s->model->hp.n_vocab, sizeof(float));
    return rv < 0 ? rv : s->logits ? 0 : ERR_NOMEM;
}

static void close_session(struct session *s) {
    for (uint32_t i = 0; s->pages && i < s->n_pages; i++)
        free(s->pages[i]);
    free(s->pages);
    free(s->logits);
    free(s->ids);
    fwd_free(s->fwd);
    model_free(s->model);
    kern_team_free(s->team);
}

static int step(struct session *s, const int32_t *tok, uint32_t n, uint32_t pos0,
                uint32_t n_logits) {
    const struct fwd_seq seq = {
        .tok = tok,
        .n_tok = n,
        .pos0 = pos0,
        .pages = s->pages,
        .n_logits = n_logits,
        .logits = s->logits,
    };
    int rv = fwd_step(s->fwd, &seq, 1);
    return rv < 0 ? err_set(&s->eb, rv, "position %u: a token outside the vocabulary?", pos0) : 0;
}

static int dump_all(struct session *s) {
    FILE *f = strcmp(s->o.out, "-") == 0 ? stdout : fopen(s->o.out, "wbe");
    if (!f)
        return err_set(&s->eb, ERR_NOTFOUND, "cannot write '%s'", s->o.out);
    int rv = 0;
    for (uint32_t at = 0; rv == 0 && at < s->n_ids; at += s->o.chunk) {
        const uint32_t n = MIN(s->o.chunk, s->n_ids - at);
        const size_t floats = (size_t)n * s->model->hp.n_vocab;
        rv = step(s, s->ids + at, n, at, n);
        if (rv == 0 && fwrite(s->logits, sizeof(float), floats, f) != floats)
            rv = err_set(&s->eb, ERR_NOSPACE, "write '%s'", s->o.out);
    }
    if (f != stdout && fclose(f) != 0 && rv == 0)
        rv = err_set(&s->eb, ERR_NOSPACE, "write '%s'", s->o.out);
    return rv;
}

static int32_t best(const float *logits, uint32_t n) {
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[at])
            at = i;
    return (int32_t)at;
}

static int greedy(struct session *s) {
    int rv = 0;
    double t0 = now_s();
    for (uint32_t at = 0; rv == 0 && at < s->n_ids; at += s->o.chunk) {
        const uint32_t n = MIN(s->o.chunk, s->n_ids - at);
        rv = step(s, s->ids + at, n, at, at + n == s->n_ids);
    }
    double t1 = now_s();
    for (uint32_t i = 0; rv == 0 && i < s->o.greedy; i++) {
        int32_t tok = best(s->logits, s->model->hp.n_vocab);
        printf("%d\n", tok);
        if (i + 1 < s->o.greedy)
            rv = step(s, &tok, 1, s->n_ids + i, 1);
    }
    double t2 = now_s();
    if (s->o.time)
        fprintf(stderr, "prefill %u: %.1f tokens/s; decode: %.1f tokens/s\n", s->n_ids,
                s->n_ids / (t1 - t0), (s->o.greedy - 1) / (t2 - t1));
    return rv;
}

static int usage(FILE *f, int rc) {
    fputs("usage: logitdump [--isa NAME] [--threads N] [--k-dtype T] [--v-dtype T]\n"
          "                 [--chunk N] [--block N] [--time] (MODEL IDS OUT | --greedy N MODEL "
          "IDS)\n",
          f);
    return rc;
}

static bool parse_options(int argc, char **argv, struct options *o) {
    static const struct option opts[] = {
        {"isa", required_argument, NULL, 'i'},
        {"threads", required_argument, NULL, 't'},
        {"k-dtype", required_argument, NULL, 'k'},
        {"v-dtype", required_argument, NULL, 'v'},
        {"chunk", required_argument, NULL, 'c'},
        {"block", required_argument, NULL, 'b'},
        {"greedy", required_argument, NULL, 'g'},
        {"time", no_argument, NULL, 'T'},
        {NULL, 0, NULL, 0},
    };
    for (int c; (c = getopt_long(argc, argv, "", opts, NULL)) != -1;) {
        uint32_t n = optarg ? (uint32_t)strtoul(optarg, NULL, 10) : 0;
        if (c == 'i')
            o->isa = optarg;
        else if (c == 't')
            o->threads = n;
        else if ((c == 'k' || c == 'v') &&
                 kv_dtype_parse(optarg, c == 'k' ? &o->kv.k : &o->kv.v) == 0)
            continue;
        else if (c == 'c')
            o->chunk = n;
        else if (c == 'b')
            o->block = n;
        else if (c == 'g')
            o->greedy = n;
        else if (c == 'T')
            o->time = true;
        else
            return false;
    }
    if (argc - optind != (o->greedy ? 2 : 3) || !o->chunk || !o->block)
        return false;
    o->model = argv[optind];
    o->ids = argv[optind + 1];
    o->out = o->greedy ? NULL : argv[optind + 2];
    return true;
}

int main(int argc, char **argv) {
    process_stdio();
    struct session s = {.o = {.threads = 1, .chunk = 512, .block = 32}, .eb = {.text = ""}};
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return usage(stdout, 0);
    if (!parse_options(argc, argv, &s.o))
        return usage(stderr, 2);
    int rv = open_session(&s);
    if (rv >= 0)
        rv = s.o.greedy ? greedy(&s) : dump_all(&s);
    if (rv < 0)
        fprintf(stderr, "logitdump: %s\n", s.eb.text[0] ? s.eb.text : err_text(rv));
    close_session(&s);
    return rv < 0 ? 1 : 0;
}
