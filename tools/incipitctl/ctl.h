/* ctl.h - what the commands of incipitctl share: options, the client, waiting, output.
 *
 * Everything is synchronous for a command: it starts a call, runs ctl_wait(), and its callback has
 * written the result. Thread: one. */
#pragma once

#include <uv.h>

#include "common/json.h"
#include "common/str.h"
#include "proto/kv_client.h"

enum ctl_exit { CTL_OK = 0, CTL_FAILED = 1, CTL_USAGE = 2, CTL_UNREACHABLE = 3 };

#define CTL_MAX_NODES 16
#define CTL_MAX_ARGS 1024

struct ctl_opts {
    const char *nodes[CTL_MAX_NODES];
    uint32_t n_nodes;
    const char *token_file, *worker;
    uint64_t timeout_ms;
    bool json, help, version;
    /* of commands */
    const char *ns, *text, *chat, *tokens, *salt_file, *writer, *from, *to;
    uint64_t limit;
    bool ids, chain, dry_run, yes;
    const char *args[CTL_MAX_ARGS];
    uint32_t n_args;
};

struct ctl {
    struct ctl_opts opt;
    uv_loop_t loop;
    struct kv_client *client;
    bool is_done;    /* the call that ctl_wait() waits for */
    int rv;          /* and its result */
    char text[256];  /* the node's words for an error */
    uint32_t n_node_events;
    bool is_closed;
    FILE *out, *err;
    struct strbuf json; /* written at the end of a --json command */
    struct json_w w;
};

/* One row a command. */
#define CTL_O_LIMIT 0x001u
#define CTL_O_NS 0x002u
#define CTL_O_SELECT 0x004u /* --chain --writer --from --to --dry-run */
#define CTL_O_YES 0x008u
#define CTL_O_LOOKUP 0x010u /* --worker --text --chat --tokens --ids --salt-file */
struct ctl_cmd {
    const char *name, *usage, *summary, *details;
    uint32_t options; /* CTL_O_*: which of the command options it takes */
    uint32_t min_args, max_args;
    int (*run)(struct ctl *c); /* an enum ctl_exit; the client is open */
};

int cmd_status_run(struct ctl *c);
int cmd_list_run(struct ctl *c);
int cmd_inspect_run(struct ctl *c);
int cmd_lookup_run(struct ctl *c);
int cmd_evict_run(struct ctl *c);
int cmd_flush_run(struct ctl *c);

/* The whole program, for main() and tests; an enum ctl_exit. */
int ctl_main(int argc, char *const *argv, FILE *out, FILE *err);

/* ---- for commands ---- */

/* Runs the loop until the callback has called ctl_done(); its rv. started: what the start
 * returned. */
int ctl_wait(struct ctl *c, int started);
void ctl_done(struct ctl *c, int rv, const char *text);
bool ctl_node_is_up(const struct ctl *c, uint32_t node);
const char *ctl_node_addr(const struct ctl *c, uint32_t node);
/* "incipitctl: what: why"; gives the exit code that fits rv. */
int ctl_fail(struct ctl *c, int rv, const char *what);
int ctl_usage(struct ctl *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
uint32_t ctl_deadline_ms(const struct ctl *c);
/* For what waits for disks: a minute, unless --timeout-ms says otherwise. */
uint32_t ctl_slow_deadline_ms(const struct ctl *c);

/* 64 digits; < 0 with a message printed. */
int ctl_parse_id(struct ctl *c, const char *hex, uint8_t ret[32]);
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
