/* log.h - one line an event: ts=... level=... prog=... event="..." key=value ..., or the same as JSON
 *
 *     log_warn(s->log, "disk read failed, serving a miss", "slot=%u err=%s", slot, err_text(rv));
 *     log_info(s->log, "drained");
 *
 * The event is a constant text, the rest varies. Lines go into a ring that a thread of the log's
 * own writes out, so a slow reader of stderr never stops the loop; a full ring drops the line and
 * counts it. An event that repeats is written `burst` times a window; the next window's first line
 * of that event says suppressed=N. Values are quoted where they must be (common/log_format.h): the
 * format names pairs and writes no quotes. Library code does not log above debug: the caller who
 * decides what happens next does, once.
 * Thread: any. A NULL log swallows everything. */
#pragma once

#include <stdatomic.h>

#include "common/clock.h"
#include "common/compiler.h"

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR };
#define LOG_LEVEL_NAMES "debug|info|warn|error" /* in the enum's order: for option tables */

struct log; /* opaque */

struct log_cfg {
    const char *prog;        /* for prog=; borrowed for the log's life */
    const struct clock *clk; /* NULL: the real one */
    int fd;                  /* written to; not closed */
    enum log_level level;    /* lines below are dropped, uncounted */
    size_t ring_bytes;       /* 0: 256 KiB */
    uint32_t burst;          /* lines of one event a window; 0: 20 */
    uint64_t window_ns;      /* 0: one second */
    bool json;               /* a line is a JSON object */
    bool sync;               /* no thread: write in the caller (tests, short tools) */
};

int log_new(struct log **ret, const struct log_cfg *cfg);
/* Both wait until all lines so far are written, at most 2 s for a reader that does not read. */
void log_free(struct log *l);
void log_flush(struct log *l);
void log_set_level(struct log *l, enum log_level level);
uint64_t log_dropped_total(const struct log *l);    /* ring was full */
uint64_t log_suppressed_total(const struct log *l); /* rate limit */

bool log_on(const struct log *l, enum log_level level);
void log_write_(struct log *l, enum log_level level, const char *event, const char *fmt, ...)
    PRINTF_LIKE(4, 5);

/* One line at level info whose pairs fill() adds, without the rate limit: for records of which each one
 * counts, such as an access log. fill runs under the log's lock. */
struct log_line;
void log_record(struct log *l, const char *event, void (*fill)(struct log_line *line, void *arg),
                void *arg);

/* kv: a printf format of key=value pairs and its arguments; may be left out. The blank before it
 * keeps the format non-empty when it is. */
#define LOG_(l, level, event, ...)                                                                 \
    do {                                                                                           \
        if (log_on((l), (level)))                                                                  \
            log_write_((l), (level), (event), " " __VA_ARGS__);                                    \
    } while (0)
#define log_debug(l, ...) LOG_(l, LOG_LEVEL_DEBUG, __VA_ARGS__)
#define log_info(l, ...) LOG_(l, LOG_LEVEL_INFO, __VA_ARGS__)
#define log_warn(l, ...) LOG_(l, LOG_LEVEL_WARN, __VA_ARGS__)
#define log_error(l, ...) LOG_(l, LOG_LEVEL_ERROR, __VA_ARGS__)
