/* chat_template.h - messages to prompt, one row per template family.
 *
 * A GGUF file carries its template as Jinja text. We run no Jinja: the text is brought to a canonical
 * form (white space, quotes and attribute spelling that do not change the output) and compared whole
 * with the families we know, so a template that differs in anything that matters is refused, never
 * approximated.
 *
 * Every part of the rendered prompt keeps its origin. Only TEMPLATE parts may hold control tokens
 * (tokenizer.h), which is what keeps a user's text from closing its own turn.
 *
 * Thread:  any; a chat_template is immutable.
 * Memory:  a chat_prompt owns its bytes; parts point into them or into the messages it was made from,
 *          which must outlive it. */
#pragma once

#include "common/compiler.h"
#include "common/err.h"
#include "worker/text/tokenizer.h"

enum chat_family {
    CHAT_FAMILY_CHATML, /* <|im_start|>role ... <|im_end|>, with or without a default system message */
    CHAT_FAMILY_SMOLLM2, /* ChatML with SmolLM2's own default system message */
    CHAT_FAMILY_LLAMA3,  /* <|start_header_id|>role<|end_header_id|> ... <|eot_id|> */
    CHAT_FAMILY_GEMMA2,  /* <start_of_turn>role ... <end_of_turn>, no system message */
    CHAT_FAMILY_GEMMA3,  /* the same, a system message in the first turn */
    CHAT_FAMILY_MISTRAL, /* [INST] ... [/INST] answer, EOS */
    CHAT_FAMILY_MIXTRAL, /* the same, a space behind EOS */
    CHAT_FAMILY_QWEN3,   /* ChatML, earlier answers without their thoughts */
};

struct chat_template; /* opaque, immutable */

struct chat_msg {
    struct tok_str role;    /* "system", "user", "assistant" */
    struct tok_str content; /* the user's bytes */
};

struct chat_prompt {
    struct tok_part *parts; /* [n] */
    size_t n;
};

/* text: tokenizer.chat_template of the file; NULL or empty gives ERR_NOTFOUND. bos, eos: these tokens'
 * spelling, for templates that write them; may be empty. ERR_UNSUPPORTED: no family has exactly this
 * template; the message says where it stops being like the nearest one. */
int chat_template_new(struct chat_template **ret, const char *text, size_t len, struct tok_str bos,
                      struct tok_str eos, struct errbuf *eb);
/* The family whatever the file says. ERR_UNSUPPORTED when tok lacks one of its control tokens, which would
 * then be spelled out as text. */
int chat_template_of_family(struct chat_template **ret, enum chat_family family,
                            const struct tokenizer *tok, struct errbuf *eb);
void chat_template_free(struct chat_template *ct); /* NULL is a no-op */

enum chat_family chat_template_family(const struct chat_template *ct);
const char *
chat_template_family_name(const struct chat_template *ct); /* "chatml", "smollm2", "llama-3" ... */

/* ERR_INVALID names the message at fault: a role that is unknown or that the template does not take there, no
 * messages at all. */
int chat_template_render(const struct chat_template *ct, const struct chat_msg *msgs, size_t n_msgs,
                         bool add_generation_prompt, struct chat_prompt *ret, struct errbuf *eb);
void chat_prompt_fini(struct chat_prompt *p);
