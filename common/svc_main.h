/* svc_main.h - the skeleton of a daemon: options, log, loop, signals, ready line, drain, exit code.
 *
 *   load options --> open log --> ops->start() --> [svc_ready() prints "ready ..." on stdout] --> run
 *   SIGTERM, SIGINT --> ops->drain(): refuse new work, finish the old, then call svc_drained()
 *   svc_drained(), the drain_timeout_ms option, or a second signal --> ops->stop(): close every handle
 *   loop empty --> exit
 *
 * Exit codes: 0 stopped as asked; 1 failed while running; 2 bad options; 3 could not start. SIGPIPE
 * is ignored.
 * Thread: loop thread. */
#pragma once

#include <uv.h>

#include "common/clock.h"
#include "common/compiler.h"
#include "common/config.h"
#include "common/log.h"

enum { SVC_EXIT_OK = 0, SVC_EXIT_FAILED = 1, SVC_EXIT_USAGE = 2, SVC_EXIT_START = 3 };

/* Rows that every daemon's table begins with: #define FOO_CONFIG(X) SVC_OPTIONS(X) X(...) ... */
#define SVC_OPTIONS(X)                                                                             \
    X(log_level, ENUM, "info", LOG_LEVEL_NAMES, 0, true, "least level that is logged")             \
    X(log_format, ENUM, "logfmt", "logfmt|json", 0, false, "form of a log line, on stderr")        \
    X(drain_timeout_ms, U32, 30000, 0, 3600000, true,                                              \
      "after SIGTERM work in flight gets this long, ms")

struct svc {
    uv_loop_t *loop;
    const struct clock *clk;
    struct log *log;
    void *data; /* the daemon's own, for ops */
    struct svc_private_ *priv;
};

struct svc_ops {
    struct cfg_prog prog;
    const struct cfg_table *table;
    /* cfg lives until svc_main() returns. On error nothing may be left open; eb is logged. */
    int (*start)(struct svc *s, void *cfg, struct errbuf *eb);
    void (*drain)(struct svc *s); /* may be NULL: stop at once */
    /* Begins closing all handles; svc_main() returns when the loop has none left. Called once,
     * after a successful start. */
    void (*stop)(struct svc *s);
    /* After the loop is empty: free what stop() could not. May be NULL. */
    void (*free)(struct svc *s);
};

int svc_main(const struct svc_ops *ops, int argc, char **argv);

/* Prints "ready prog=... pid=... <kv>" on stdout, once, when the daemon serves. */
void svc_ready(struct svc *s, const char *fmt, ...) PRINTF_LIKE(2, 3);
void svc_drained(struct svc *s); /* nothing left in flight */
/* Ends the daemon as SIGTERM would but with exit code 1 (rv != 0), e.g. after a fatal error. */
void svc_fail(struct svc *s, int rv, const char *what);
bool svc_is_draining(const struct svc *s);
