/* openai_render.h - answers and event-stream chunks in OpenAI's shape; pure.
 *
 * Thread: any; one owner a strbuf. */
#pragma once

#include "common/str.h"
#include "worker/api/openai_parse.h"
#include "worker/sched/gen_request.h"

/* What all chunks of one answer share. */
struct render_ctx {
    const struct tokenizer *tok;
    enum api_kind kind;
    char id[40];       /* chatcmpl-... or cmpl-... */
    uint64_t created;  /* Unix seconds */
    const char *model; /* name served */
    const char *worker;
    bool logprobs, echo, debug_logits;
    bool continuous_usage; /* each chunk of tokens tells how many there are so far */
};

/* One of the answer's choices; text offsets of completions go on across chunks. */
struct render_choice {
    uint32_t index;
    const struct gen_request *req;
    struct str prompt; /* the prompt's text as it was sent, for echo; p NULL: it came as ids */
    uint64_t chars;    /* code points rendered so far: text_offset of the next token */
    uint32_t n_tokens; /* rendered so far, streamed */
};

/* The whole answer, not streamed. */
void render_answer(const struct render_ctx *c, struct render_choice *choices, size_t n,
                   const enum finish_reason *why, struct strbuf *out);

/* Chunks as "data: {...}\n\n". */
void render_chunk_role(const struct render_ctx *c, uint32_t index,
                       struct strbuf *out); /* chat's first */
void render_chunk_prompt(const struct render_ctx *c, struct render_choice *ch,
                         struct strbuf *out); /* echo */
void render_chunk_tokens(const struct render_ctx *c, struct render_choice *ch,
                         const struct gen_token *tok, size_t n, struct strbuf *out);
void render_chunk_finish(const struct render_ctx *c, const struct render_choice *ch,
                         enum finish_reason why, struct strbuf *out);
/* usage over all choices, choices []. */
void render_chunk_usage(const struct render_ctx *c, const struct render_choice *choices, size_t n,
                        struct strbuf *out);
void render_chunk_error(const char *type, const char *text, struct strbuf *out);
void render_done(struct strbuf *out); /* data: [DONE] */
