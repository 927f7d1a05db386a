/* ctl.h - what the commands of incipitctl share: options, the client, waiting, output.
 *
 * Everything is synchronous for a command: it starts a call, runs ctl_wait(), and its callback has
 * written the result. With --json standard output is one object, whatever happens: the command adds members, ctl.c
 * opens and closes it and adds "errors". Text from outside goes out through ctl_clean(), never raw. Thread: one. */
#pragma once

#include <uv.h>

#include "common/config.h"
#include "common/json.h"
#include "common/str.h"
#include "proto/kv_client.h"

enum ctl_exit { CTL_OK = 0, CTL_FAILED = 1, CTL_USAGE = 2, CTL_UNREACHABLE = 3 };

#define CTL_MAX_NODES 16
#define CTL_MAX_ARGS 1024
#define CTL_MAX_TEXT (1u << 20)

#define CTL_OPTIONS(X)                                                                             \
    X(node, LIST, "127.0.0.1:7070", 1, CTL_MAX_NODES, false,                                       \
      "host:port or unix:/path; repeat it for every node of the pool (also INCIPIT_NODE, comma "   \
      "separated)")                                                                                \
    X(token_file, STR, "", 0, 4096, false, "file with the admin token (also INCIPIT_TOKEN_FILE)")  \
    X(timeout_ms, U32, 5000, 1, 3600000, false,                                                    \
      "for connecting and for each call; evict and flush take a minute unless it is given")        \
    X(json, BOOL, false, 0, 0, false,                                                              \
      "one JSON object on standard output, also when something fails (member errors)")             \
    X(limit, U64, 50, 0, UINT32_MAX, false, "at most so many entries a node, 0 for all")           \
    X(ns, STR, "", 0, 64, false,                                                                   \
      "only this namespace: 64 hex digits, or the first ones of just one")                         \
    X(text, STR, "", 0, CTL_MAX_TEXT, false,                                                       \
      "a completion prompt, made into tokens by the worker at --worker")                           \
    X(chat, STR, "", 0, CTL_MAX_TEXT, false, "one user message, with the worker's chat template")  \
    X(request, STR, "", 0, 4096, false,                                                            \
      "file with the JSON body of a chat or text completion as a client sends it; - for standard " \
      "input")                                                                                     \
    X(worker, STR, "", 0, 4096, false, "http://host:port of any worker of the pool")               \
    X(tokens, STR, "", 0, CTL_MAX_TEXT, false, "token ids, comma separated, or @FILE")             \
    X(ids, BOOL, false, 0, 0, false, "the arguments are block ids, first block first")             \
    X(salt_file, STR, "", 0, 4096, false,                                                          \
      "the tenant's salt, 64 hex digits; without it public blocks")                                \
    X(chain, BOOL, false, 0, 0, false, "with ids: and everything that continues them")             \
    X(from, STR, "", 0, 32, false, "put at this time or later")                                    \
    X(to, STR, "", 0, 32, false, "put before this time")                                           \
    X(writer, STR, "", 0, 32, false, "put by this writer: 32 hex digits, see inspect")             \
    X(dry_run, BOOL, false, 0, 0, false, "count only")                                             \
    X(yes, BOOL, false, 0, 0, false, "required: there is no way back")
struct ctl_opts {
    CFG_FIELDS(CTL_OPTIONS)
};
#define CTL_ONE_(...) +1
#define CTL_N_OPTIONS (0 CTL_OPTIONS(CTL_ONE_))

struct ctl {
    struct ctl_opts opt;
    const char *const *args; /* [n_args] words behind the command */
    uint32_t n_args;
    bool has_slow_default; /* no --timeout-ms was given */
    uv_loop_t loop;
    struct kv_client *client; /* NULL: no node was asked yet */
    bool is_done;             /* the call that ctl_wait() waits for */
    int rv;                   /* and its result */
    char text[256];           /* the node's words for an error */
    uint32_t n_node_events;
    bool is_closed;
    FILE *out, *err;
    struct strbuf json;   /* the object of --json */
    struct json_w w;      /* open inside it */
    struct strbuf errors; /* members of its "errors", joined by commas */
};

/* One row a command. */
struct ctl_cmd {
    const char *name, *usage, *summary, *details;
    const char *options; /* names of rows of CTL_OPTIONS that it takes beside the common ones */
    uint32_t min_args, max_args;
    int (*run)(struct ctl *c); /* an enum ctl_exit; the client is open */
};

int cmd_status_run(struct ctl *c);
int cmd_list_run(struct ctl *c);
int cmd_inspect_run(struct ctl *c);
int cmd_lookup_run(struct ctl *c);
int cmd_evict_run(struct ctl *c);
int cmd_flush_run(struct ctl *c);
int cmd_config_run(struct ctl *c);

/* The whole program, for main() and tests; an enum ctl_exit. */
int ctl_main(int argc, char *const *argv, FILE *out, FILE *err);

/* ---- for commands ---- */

/* Runs the loop until the callback has called ctl_done(); its rv. started: what the start
 * returned. */
int ctl_wait(struct ctl *c, int started);
void ctl_done(struct ctl *c, int rv, const char *text);
uint32_t ctl_n_nodes(const struct ctl *c);
bool ctl_node_is_up(const struct ctl *c, uint32_t node);
const char *ctl_node_addr(const struct ctl *c, uint32_t node);
/* Address of the node with this number, for numbers in answers; "node 7 (not asked)" in ret otherwise. */
const char *ctl_node_of_id(const struct ctl *c, uint32_t node_id, char ret[48]);
/* "incipitctl: ..." on standard error and in "errors". */
void ctl_say(struct ctl *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* ctl_say "what: why"; gives the exit code that fits rv. */
int ctl_fail(struct ctl *c, int rv, const char *what);
int ctl_usage(struct ctl *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
uint32_t ctl_deadline_ms(const struct ctl *c);
/* For what waits for disks: a minute, unless --timeout-ms says otherwise. */
uint32_t ctl_slow_deadline_ms(const struct ctl *c);

/* ---- output (ctl_out.c) ---- */

/* s with control characters and bytes that are no UTF-8 as \xNN, cut to cap - 1 bytes. */
const char *ctl_clean(struct str s, char *ret, size_t cap);
/* Members of the open JSON object. */
void ctl_json_hex(struct ctl *c, const char *key, struct msg_bytes b);
void ctl_json_u64(struct ctl *c, const char *key, uint64_t v);
void ctl_json_text(struct ctl *c, const char *key, const char *v);
/* "1.5 GiB"; "3m 20s"; two rotating buffers would be a global, so the caller brings one. */
const char *ctl_bytes(uint64_t n, char ret[32]);
const char *ctl_age(uint64_t ms, char ret[32]);
const char *ctl_age_of(uint64_t unix_ms, char ret[32]); /* since then; "-" for 0, unknown */
const char *ctl_hex(struct msg_bytes b, char ret[65]);
/* Value of key in a namespace descriptor ("key=value\n" lines), or an empty view. */
struct str ctl_descriptor_value(struct msg_bytes descriptor, const char *key);
