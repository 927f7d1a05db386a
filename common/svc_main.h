/* svc_main.h - the skeleton of a daemon: options, log, loop, signals, ready line, drain, exit code.
 *
 *   load options --> open log --> ops->start() --> [svc_ready() prints "ready ..." on stdout] --> run
 *   SIGTERM, SIGINT --> lame duck (svc_is_draining() is true, all is served; the lame_duck_ms option
 *                   where a daemon has one) --> ops->drain(): refuse new work, finish the old, then
 *                   call svc_drained()
 *   svc_drained(), the drain_timeout_ms option, or a second signal --> ops->stop(): close every handle
 *   loop empty --> exit; handles still open 15 s later --> exit without them
 *   SIGHUP --> options are loaded again, those marked live change; ops->reload(); never an end
 *
 * start() may return before the daemon serves: until svc_ready() SIGTERM goes to ops->stop() at once.
 * A daemon that has no svc_ready() yet is "starting", then "ready", "draining", "closing".
 *
 * Exit codes: 0 stopped as asked; 1 failed while running; 2 bad options; 3 could not start. SIGPIPE
 * and SIGXFSZ are ignored; descriptors 0 to 2 that were closed are /dev/null. A service manager that gave
 * NOTIFY_SOCKET is told READY, RELOADING and STOPPING.
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

/* Row for a daemon behind a balancer, which must see the 503 of /readyz before the listener closes. */
#define SVC_LAME_DUCK_OPTION(X)                                                                    \
    X(lame_duck_ms, U32, 3000, 0, 600000, true,                                                    \
      "after SIGTERM /readyz says 503 and all is served for this long, then the listener closes, " \
      "ms")

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
    /* Instead of a start, when the options ask for it: CFG_DONE, something was printed to out and the program ends;
     * 0: go on. On error eb is printed. May be NULL. */
    int (*instead)(void *cfg, FILE *out, struct errbuf *eb);
    /* cfg lives until svc_main() returns. On error nothing may be left open; eb is logged. */
    int (*start)(struct svc *s, void *cfg, struct errbuf *eb);
    void (*drain)(struct svc *s); /* may be NULL: stop at once */
    /* SIGHUP, after the options: read files of secrets again. On error what was there stays and eb is
     * logged. May be NULL. */
    int (*reload)(struct svc *s, struct errbuf *eb);
    /* A live option has a new value in cfg that is not read where it is used. May be NULL. */
    void (*changed)(struct svc *s, const struct cfg_opt *o);
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
/* Ends the daemon as SIGTERM would but with exit code 1, before svc_ready() 3, after a fatal error. */
void svc_fail(struct svc *s, int rv, const char *what);
/* From the first signal on: the time for a 503 of /readyz. */
bool svc_is_draining(const struct svc *s);
/* "starting", "ready", "draining" (lame duck included), "closing". */
const char *svc_phase(const struct svc *s);
/* The operator's set of a live option, as cfg_set(), put to work and logged. */
int svc_set_option(struct svc *s, const char *name, const char *value, struct errbuf *eb);
