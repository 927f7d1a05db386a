/* oracle_common.h - what the tests against recorded numbers share: the recorded reference, a copy of
 * the model in another weight type, and one sequence over our forward pass.
 *
 * Thread:  the test's.
 * Failure: a missing model skips; everything else fails the running cmocka test. */
#pragma once

#include "worker/model/forward.h"

/* argv: folder of the recorded files, program mkmodel. INCIPIT_TEST_MODEL names the model. */
void oracle_init(int argc, char **argv);
void oracle_exit(void); /* removes the copies */

/* Path of a recorded file; static storage, valid until the next call. */
const char *oracle_path(const char *name);

/* A reference as tests/golden/numbers/recorded.py describes it. */
struct oracle_ref {
    uint8_t *bytes; /* the whole file, checked */
    uint32_t n_tok, n_top, n_vocab;
    uint32_t stride; /* positions that are no multiple of it have no record */
    uint32_t id_bytes;
    int32_t *tok; /* [n_tok] */
};
void oracle_ref_load(struct oracle_ref *ret, const char *name);
void oracle_ref_free(struct oracle_ref *r);
/* Position pos < n_tok - 1 predicts token pos + 1; i < n_top, most likely first. */
float oracle_next_lp(const struct oracle_ref *r, uint32_t pos);
float oracle_rest_lp(const struct oracle_ref *r, uint32_t pos);
uint32_t oracle_id(const struct oracle_ref *r, uint32_t pos, uint32_t i);
double oracle_lp(const struct oracle_ref *r, uint32_t pos, uint32_t i);

/* ORACLE_GEMMA: another model, the one that INCIPIT_TEST_GEMMA names. */
enum oracle_copy { ORACLE_AS_IS, ORACLE_F32, ORACLE_F16, ORACLE_GEMMA };

#define ORACLE_BLOCK_TOK 32

struct oracle_run {
    struct model *model;
    struct kern_team *team;
    struct fwd *fwd;
    uint8_t *memory; /* of all pages */
    uint8_t **pages; /* page table of the one sequence */
};
/* False with a message when there is no model. */
bool oracle_run_open(struct oracle_run *r, enum oracle_copy copy, enum kv_dtype kv,
                     uint32_t max_rows, uint32_t max_ctx);
void oracle_run_close(struct oracle_run *r);
/* Rows [pos0, pos0 + n); logits of the last n_logits of them. */
void oracle_step(struct oracle_run *r, const int32_t *tok, uint32_t n, uint32_t pos0,
                 uint32_t n_logits, float *logits);
