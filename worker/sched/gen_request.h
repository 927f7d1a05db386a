/* gen_request.h - one generation: what the API asks for, what the engine answers.
 *
 *   QUEUED -> TOKENIZE -> WAIT_PAGES -> LOOKUP -> FETCH -> PREFILL -> DECODE -> DONE
 *
 * (gen_seq.h has the table and the diagram; a request may leave from any state.)
 *
 * Thread:  the caller fills the public fields on the loop thread and does not touch them between
 *          engine_submit() and on_done. The engine thread appends to the outputs and publishes them
 *          through the mailbox; the callbacks, on the loop thread, see what is published.
 * Memory:  gen_request_new()/gen_request_free(), never freed between submit and on_done. Outputs live as
 *          long as the request. Prompt bytes, stop strings and salt are borrowed until on_done.
 * Units:   tokens unless a name says otherwise; times are monotonic nanoseconds. */
#pragma once

#include "common/block_id.h"
#include "common/compiler.h"
#include "common/err.h"
#include "worker/sample/sampler.h"
#include "worker/sample/stop.h"
#include "worker/text/tokenizer.h"

struct gen_seq;

#define GEN_LONG_TEXT_BYTES                                                                        \
    ((size_t)64 << 10) /* tokenized in a thread of their own: beyond some 30 ms */

enum finish_reason {
    FINISH_NONE = 0,
    FINISH_STOP,     /* end-of-generation token or stop string */
    FINISH_LENGTH,   /* max_tokens or the context limit */
    FINISH_CANCELED, /* engine_cancel() or shutdown */
    FINISH_ERROR,    /* gen_request.err and .eb say why */
};
const char *finish_reason_name(enum finish_reason r); /* "stop", "length", "canceled", "error" */

struct gen_logprob {
    float logprob;                    /* of the token itself; raw logits, natural logarithm */
    uint32_t n_top;                   /* as asked for */
    const struct sample_logprob *top; /* [n_top], likeliest first */
};

/* One generated token. Text is what became sendable with it: often its own bytes, empty while a
 * character or a possible stop string is incomplete, more when held bytes are released. */
struct gen_token {
    int32_t id;
    uint32_t text_len;     /* bytes */
    const char *text;      /* whole UTF-8, not NUL-terminated */
    struct gen_logprob lp; /* set when logprobs were asked for */
};

struct gen_usage {
    uint32_t n_prompt, n_completion;
    uint32_t n_local;  /* prompt rows taken from this worker's own pages */
    uint32_t n_remote; /* prompt rows fetched from the cache service */
    uint64_t submitted_ns, started_ns, first_token_ns, done_ns; /* 0: did not happen */
    bool has_logits_digest;
    uint8_t logits_digest[32]; /* SHA-256 of the first token's f32 logits, with debug_logits */
};
/* prompt_tokens_details.cached_tokens: prompt rows that were not computed for this request. */
static inline uint32_t gen_usage_cached(const struct gen_usage *u) {
    return u->n_local + u->n_remote;
}

struct gen_request {
    /* --- in: the caller's, before engine_submit() --- */
    const struct tok_part *parts; /* [n_parts] text to be tokenized, or ... */
    size_t n_parts;
    const int32_t *ids; /* [n_ids] ... token ids, when n_parts is 0 */
    size_t n_ids;
    bool add_bos; /* with parts: BOS in front if the vocabulary asks for it */

    struct sample_params sample;
    uint32_t max_tokens; /* to generate; with max_tokens_set 0 means: score the prompt only */
    bool max_tokens_set; /* false: up to the context limit */
    bool ignore_eog;     /* keep generating past end-of-generation tokens (benchmarks) */
    struct stop_str stop[STOP_MAX_STRINGS];
    uint32_t n_stop;
    bool logprobs;        /* fill gen_token.lp */
    uint32_t n_top;       /* top_logprobs, 0..SAMPLE_MAX_TOP */
    bool prompt_logprobs; /* echo with logprobs: every prompt row is computed, nothing is reused */
    bool debug_logits;    /* fill usage.logits_digest */
    const uint8_t *salt;  /* [32] the tenant's, or NULL: public */
    uint32_t n_public_blocks; /* blocks below this index take the public salt in any case */
    char trace_id[56];        /* W3C traceparent, "" when there is none */

    /* Loop thread. tok[0..n) are new; they stay valid until the request is freed. */
    void (*on_tokens)(struct gen_request *r, const struct gen_token *tok, size_t n);
    /* Exactly once for each accepted request; after it the engine never touches r again, and r may be
     * freed inside. All on_tokens calls come before. */
    void (*on_done)(struct gen_request *r, enum finish_reason why);
    void *data;

    /* --- out: complete in on_done --- */
    int err; /* with FINISH_ERROR: ERR_TOOBIG (context), ERR_INVALID, ... */
    struct errbuf eb;
    struct gen_usage usage;
    const int32_t *prompt; /* [usage.n_prompt] token ids; set once tokenized */
    const struct gen_logprob
        *prompt_lp;              /* [n_prompt] with prompt_logprobs; entry 0 is meaningless */
    const struct gen_token *out; /* [usage.n_completion] */

    struct gen_seq *seq; /* the engine's */
};

struct gen_request *gen_request_new(void); /* NULL: out of memory. Zeroed; temperature 1, top_p 1 */
void gen_request_free(struct gen_request *r);
