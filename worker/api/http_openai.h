/* http_openai.h - HTTP/OpenAI API: routes, admission, event streams, client disconnects.
 *
 *   request --> parsed --> one engine request a choice --> on_tokens (streamed) --> on_done --> answer
 *   client gone --> engine_cancel --> on_done within one chunk of work --> freed
 *
 * An answer's status is decided before its first byte: 400 (what is wrong and in which field), 404 (another
 * model), 429 with Retry-After (queue full), 503 (draining); and on the head alone, before a body is read: 401,
 * 415 (anything but application/json: a web page may send other types anywhere without asking). A stream begins with the first token or the first keep-alive comment.
 *
 * Thread:  loop thread. Tokenising for generation happens in the engine's pool, for /tokenize in `work`.
 * Memory:  heap, bounded by the engine's queue and the HTTP server's limits. */
#pragma once

#include "common/http_server.h"
#include "common/log.h"
#include "common/loop_work.h"
#include "worker/sched/engine.h"
#include "worker/text/chat_template.h"

struct http_openai; /* opaque */

struct http_openai_cfg {
    uv_loop_t *loop;
    const struct clock *clk;
    struct log *log;
    struct engine *engine;
    struct loop_work *work, *work_long; /* as the engine's */
    const struct tokenizer *tok;
    const struct chat_template *chat; /* NULL: chat is refused with chat_error */
    const char *chat_error;
    const char *model_name, *worker_name; /* borrowed */
    const char *const *aliases; /* [n_aliases] further names that requests may ask for; borrowed */
    size_t n_aliases;
    bool any_model; /* whatever name a request asks for */
    uint32_t max_ctx, block_tok;
    const uint8_t *namespace_digest; /* [32] */
    const char
        *api_key_file; /* borrowed; "" or NULL: no keys. Lines: KEY [SALT as 64 hex digits] */
    bool debug_logits;
    uint32_t keepalive_ms; /* comments on a stream that waits; 0: 15,000 */
};

int http_openai_open(struct http_openai **ret, const struct http_openai_cfg *cfg,
                     struct errbuf *eb);
/* After the HTTP server has been closed and the engine too: no request is left. cb once the timer is gone. */
/* SIGHUP: the key file again; requests under way go on. On error the keys that were there stay. */
int http_openai_reload(struct http_openai *h, struct errbuf *eb);
void http_openai_close(struct http_openai *h, void (*cb)(void *arg), void *arg);

#define HTTP_OPENAI_ROUTES 7
void http_openai_routes(struct http_openai *h, struct http_route *routes);
