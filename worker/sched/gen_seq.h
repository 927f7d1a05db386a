/* gen_seq.h - one running request: its state, pages, fetch and mail.
 *
 *            admitted                 resident and worth it
 *   WAIT --------------> LOOKUP ------------------------------> FETCH
 *     |   nothing to ask    |  miss, late, declined              |  all there, gap, late
 *     |                     v                                    |
 *     +-----------------> READY <--------------------------------+
 *                           |  a batch slot
 *                           v
 *                        PREFILL ---> DECODE ---> DONE     (DONE from any state: cancel, error)
 *
 * READY after a late fetch still receives blocks: whichever finishes a block first, computing or
 * fetching, wins. A DONE sequence stays until the service has let go of its pages.
 *
 * Thread: three owners, marked below; what crosses lies under the engine's lock. */
#pragma once

#include "common/loop_work.h"
#include "common/sm.h"
#include "worker/kv/prefix_fetch.h"
#include "worker/kv/seq_pages.h"
#include "worker/sched/gen_request_priv.h"

enum seq_state {
    SEQ_WAIT,
    SEQ_LOOKUP,
    SEQ_FETCH,
    SEQ_READY,
    SEQ_PREFILL,
    SEQ_DECODE,
    SEQ_DONE,
    SEQ_NR
};
extern const struct sm_state gen_seq_states[SEQ_NR];

enum block_status { BLOCK_PENDING = 0, BLOCK_OK, BLOCK_BAD, BLOCK_USED };

/* What the loop tells the engine about a sequence. */
struct seq_mail_in {
    struct list link;
    bool queued, start, cancel, lookup_done, fetch_end;
    int lookup_rv, fetch_rv;
    uint32_t n_prefix, first_absent;
    uint32_t n_arrived;         /* arrived[0..n) are written */
    uint64_t first_ns, last_ns; /* first and last good block */
};
struct seq_arrival {
    uint32_t i; /* block, counted from the fetch's first */
    int rv;
};

/* What the engine tells the loop. */
struct seq_mail_out {
    struct list link;
    bool queued, lookup, fetch, cancel, cancel_late, give_lease, touch, done, released;
    uint32_t have;        /* lookup: blocks owned */
    uint32_t deadline_ms; /* lookup */
    uint32_t first, n;    /* fetch */
    uint32_t n_touch;
    uint32_t n_out; /* tokens published */
    enum finish_reason why;
};

struct gen_seq {
    struct engine *e;
    struct gen_request_priv *p; /* NULL once done was posted: the API may have freed it */
    struct kv_chain *chain;
    char traceparent[56];
    uint32_t n_lookup; /* blocks a lookup names: floor((n_prompt-1)/B) */

    /* --- engine thread --- */
    struct sm sm;
    struct list link; /* waiting or active, in order of arrival */
    struct seq_pages pages;
    struct stop stop;
    uint32_t n_prompt, max_new;
    uint32_t pos;     /* rows there: computed, adopted or fetched */
    uint32_t n_out;   /* tokens generated */
    uint32_t n_named; /* blocks that are full and offered to the index */
    uint32_t n_put;   /* blocks below are put, fetched, owned or given up */
    uint32_t n_local, n_remote;
    uint32_t n_rows;   /* in the current step */
    uint32_t n_passed; /* requests that passed it while it waited for pages */
    int step_err;      /* of its rows in that step: 0 or ERR_NUMERIC */
    bool was_waiting_gauge, touched;
    uint64_t started_ns, last_tok_ns;

    bool op_active; /* the loop has a lookup or fetch under way */
    bool op_canceled;
    bool is_late;                  /* it was not waited for any longer */
    uint32_t f_first, f_n, f_next; /* fetched range; blocks below f_next are settled */
    bool f_gap;                    /* a block of the range came broken or not at all */
    uint32_t n_seen;               /* arrivals read */
    uint64_t f_begin_ns, f_last_ns;
    uint32_t *f_page;            /* [n_lookup] lent pages */
    uint8_t **f_dst;             /* [n_lookup] their bytes */
    uint8_t *f_status;           /* [n_lookup] enum block_status */
    struct seq_arrival *arrived; /* [n_lookup]; entries below mail_in.n_arrived are final */

    /* --- under the engine's lock --- */
    struct seq_mail_in in;
    struct seq_mail_out out;

    /* --- loop thread --- */
    struct loop_job prepare;
    struct list loop_link; /* all sequences there are */
    struct prefix_fetch op;
    bool with_engine; /* start was posted */
    bool is_canceled;
    uint32_t n_delivered, n_ok;
    uint64_t fetch_begin_ns;
    struct gen_request *r; /* until on_done */
};

/* Loop thread, after gen_request_prepare(): sizes everything. 0 or ERR_NOMEM. */
int gen_seq_init(struct gen_seq *s, struct gen_request_priv *p, struct page_pool *pool,
                 size_t page_bytes, uint32_t block_tok, size_t max_piece);
/* Loop thread, after the engine let go (or never saw it). */
void gen_seq_free(struct gen_seq *s);

/* Pages that the request needs in all: its rows but the last token's. */
uint32_t gen_seq_need_pages(const struct gen_seq *s, uint32_t block_tok);

/* --- engine thread --- */

/* Takes own pages and reserves the rest. False: not enough pages now; nothing changed. */
bool gen_seq_admit(struct gen_seq *s, const struct page_index *x, uint32_t block_tok);
/* Blocks that became resident since, when no fetch is under way. Returns rows gained. */
uint32_t gen_seq_adopt_more(struct gen_seq *s, const struct page_index *x, uint32_t block_tok);
/* Lends pages for blocks [first, first+n). */
void gen_seq_fetch_begin(struct gen_seq *s, uint32_t first, uint32_t n);
void gen_seq_fetch_mark(struct gen_seq *s, uint32_t i, int rv);
/* Installs what has come and continues the prefix. Returns true when nothing more of the fetch can be
 * of use (all there, a gap, or computed meanwhile). */
bool gen_seq_absorb(struct gen_seq *s, struct page_index *x, uint32_t block_tok);
/* The service has let go: pages that were not used go back into the reservation. */
void gen_seq_fetch_end(struct gen_seq *s);
/* Rows from pos on that may be written now, at most want: their pages exist and are the sequence's own. */
uint32_t gen_seq_writable(struct gen_seq *s, uint32_t want, uint32_t block_tok);

/* One generated token out of logits. Returns FINISH_NONE to go on. */
enum finish_reason gen_seq_accept(struct gen_seq *s, const struct tokenizer *tok,
                                  struct sampler *smp, const float *logits, uint32_t n_vocab);
/* Prompt log-probabilities out of the logits of rows [pos0, pos0+n). */
void gen_seq_score(struct gen_seq *s, struct sampler *smp, const float *logits, uint32_t n_vocab,
                   uint32_t pos0, uint32_t n);
