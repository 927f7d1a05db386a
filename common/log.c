#include "common/log.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "common/log_format.h"

#define LINE_MAX_BYTES 2048u
#define END_PATIENCE_S 2 /* for what is left when a log ends; then it is lost */
#define SITES 64u        /* events whose rate is watched at once; a collision restarts the window */

struct site {
    const char *event; /* by address: events are constants */
    uint64_t window_start_ns;
    uint32_t written, suppressed;
};

struct log {
    struct log_cfg cfg;
    atomic_int level;
    _Atomic uint64_t dropped, suppressed;
    pthread_mutex_t lock; /* covers all below */
    pthread_cond_t work, idle;
    pthread_t thread;
    bool stop, writing, ended;
    bool
        is_left; /* log_free() gave up on the thread: it frees all this when its write comes back */
    char *ring;  /* [cfg.ring_bytes] */
    size_t head, used;
    struct site sites[SITES];
};

static void write_all(int fd, const char *p, size_t n) {
    while (n) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return; /* the reader is gone: nobody to tell */
        p += k;
        n -= (size_t)k;
    }
}

static void free_all(struct log *l) {
    pthread_cond_destroy(&l->work);
    pthread_cond_destroy(&l->idle);
    pthread_mutex_destroy(&l->lock);
    free(l->ring);
    free(l);
}

static void *writer_main(void *arg) {
    struct log *l = arg;
    pthread_mutex_lock(&l->lock);
    while (l->used || !l->stop) {
        if (!l->used) {
            pthread_cond_broadcast(&l->idle);
            pthread_cond_wait(&l->work, &l->lock);
            continue;
        }
        size_t n = MIN(l->used, l->cfg.ring_bytes - l->head);
        const char *p = l->ring + l->head;
        l->writing = true; /* the bytes stay in the ring until written */
        pthread_mutex_unlock(&l->lock);
        write_all(l->cfg.fd, p, n);
        pthread_mutex_lock(&l->lock);
        l->writing = false;
        l->head = (l->head + n) % l->cfg.ring_bytes;
        l->used -= n;
    }
    l->ended = true;
    bool is_left = l->is_left;
    pthread_cond_broadcast(&l->idle);
    pthread_mutex_unlock(&l->lock);
    if (is_left)
        free_all(l);
    return NULL;
}

/* Under the lock: waits until the ring is written, or for as long as a process that ends may be held up
 * by a reader of its log that has stopped reading. */
static void wait_written(struct log *l, bool for_end) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += END_PATIENCE_S;
    while (for_end ? !l->ended : l->used || l->writing)
        if (pthread_cond_timedwait(&l->idle, &l->lock, &until) == ETIMEDOUT)
            return;
}

int log_new(struct log **ret, const struct log_cfg *cfg) {
    struct log *l = calloc(1, sizeof(*l));
    if (!l)
        return -ENOMEM;
    l->cfg = *cfg;
    l->cfg.clk = cfg->clk ? cfg->clk : clock_real();
    l->cfg.ring_bytes = cfg->ring_bytes ? cfg->ring_bytes : 256u << 10;
    l->cfg.burst = cfg->burst ? cfg->burst : 20;
    l->cfg.window_ns = cfg->window_ns ? cfg->window_ns : NS_PER_S;
    atomic_init(&l->level, (int)cfg->level);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&l->idle, &attr);
    pthread_condattr_destroy(&attr);
    int rv = 0;
    if (!cfg->sync) {
        l->ring = malloc(l->cfg.ring_bytes);
        rv = l->ring ? -pthread_create(&l->thread, NULL, writer_main, l) : -ENOMEM;
    }
    if (rv < 0) {
        free(l->ring);
        free(l);
        return rv;
    }
    *ret = l;
    return 0;
}

void log_free(struct log *l) {
    if (!l)
        return;
    if (!l->cfg.sync) {
        pthread_mutex_lock(&l->lock);
        l->stop = true;
        pthread_cond_signal(&l->work);
        wait_written(l, true);
        bool ended = l->ended;
        l->is_left = !ended;
        if (!ended) /* before the unlock: after it the thread may end and free l */
            pthread_detach(l->thread);
        pthread_mutex_unlock(&l->lock);
        if (!ended)
            return; /* the thread hangs in its write and still uses all this */
        pthread_join(l->thread, NULL);
    }
    free_all(l);
}

void log_flush(struct log *l) {
    if (!l || l->cfg.sync)
        return;
    pthread_mutex_lock(&l->lock);
    wait_written(l, false);
    pthread_mutex_unlock(&l->lock);
}

void log_set_level(struct log *l, enum log_level level) {
    if (l)
        atomic_store_explicit(&l->level, (int)level, memory_order_relaxed);
}

bool log_on(const struct log *l, enum log_level level) {
    return l && (int)level >= atomic_load_explicit(&l->level, memory_order_relaxed);
}

uint64_t log_dropped_total(const struct log *l) {
    return l ? atomic_load_explicit(&l->dropped, memory_order_relaxed) : 0;
}

uint64_t log_suppressed_total(const struct log *l) {
    return l ? atomic_load_explicit(&l->suppressed, memory_order_relaxed) : 0;
}

/* Under the lock. False: this line is one too many. *ret_missed: lines held back in the last
 * window. */
static bool rate_allows(struct log *l, const char *event, uint64_t now_ns, uint32_t *ret_missed) {
    struct site *s = &l->sites[((uintptr_t)event >> 3) * 0x9e3779b1u % SITES];
    if (s->event != event)
        *s = (struct site){.event = event, .window_start_ns = now_ns};
    if (now_ns - s->window_start_ns >= l->cfg.window_ns) {
        *ret_missed = s->suppressed;
        *s = (struct site){.event = event, .window_start_ns = now_ns};
    }
    if (s->written >= l->cfg.burst) {
        s->suppressed++;
        return false;
    }
    s->written++;
    return true;
}

static const char *time_text(char *dst, size_t cap, uint64_t wall_ns) {
    time_t sec = (time_t)(wall_ns / NS_PER_S);
    struct tm tm;
    gmtime_r(&sec, &tm);
    size_t n = strftime(dst, cap, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(dst + n, cap - n, ".%03uZ", (unsigned)(wall_ns % NS_PER_S / NS_PER_MS));
    return dst;
}

static void emit(struct log *l, const char *line, size_t n) {
    if (l->cfg.sync) {
        write_all(l->cfg.fd, line, n);
        return;
    }
    if (l->cfg.ring_bytes - l->used < n) {
        atomic_fetch_add_explicit(&l->dropped, 1, memory_order_relaxed);
        return;
    }
    size_t tail = (l->head + l->used) % l->cfg.ring_bytes;
    size_t first = MIN(n, l->cfg.ring_bytes - tail);
    memcpy(l->ring + tail, line, first);
    memcpy(l->ring, line + first, n - first);
    l->used += n;
    pthread_cond_signal(&l->work);
}

/* What every line begins with. Under the lock, for its clock. */
static void begin_line(struct log *l, struct log_line *line, char text[LINE_MAX_BYTES],
                       enum log_level level, const char *event) {
    static const char *const level_names[] = {"debug", "info", "warn", "error"};
    char ts[40];
    log_line_begin(line, text, LINE_MAX_BYTES, l->cfg.json);
    log_line_text(line, "ts", time_text(ts, sizeof(ts), clock_wall_ns(l->cfg.clk)));
    log_line_text(line, "level", level_names[level]);
    log_line_text(line, "prog", l->cfg.prog ? l->cfg.prog : "-");
    log_line_text(line, "event", event);
}

void log_write_(struct log *l, enum log_level level, const char *event, const char *fmt, ...) {
    char text[LINE_MAX_BYTES];
    struct log_line line;

    pthread_mutex_lock(&l->lock);
    uint32_t missed = 0;
    if (rate_allows(l, event, clock_mono_ns(l->cfg.clk), &missed)) {
        begin_line(l, &line, text, level, event);
        if (missed)
            log_line_u64(&line, "suppressed", missed);
        va_list ap;
        va_start(ap, fmt);
        log_line_vpairs(&line, fmt, ap);
        va_end(ap);
        log_line_end(&line);
        emit(l, line.p, line.n);
    } else {
        atomic_fetch_add_explicit(&l->suppressed, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&l->lock);
}

void log_record(struct log *l, const char *event, void (*fill)(struct log_line *line, void *arg),
                void *arg) {
    char text[LINE_MAX_BYTES];
    struct log_line line;
    if (!log_on(l, LOG_LEVEL_INFO))
        return;
    pthread_mutex_lock(&l->lock);
    begin_line(l, &line, text, LOG_LEVEL_INFO, event);
    fill(&line, arg);
    log_line_end(&line);
    emit(l, line.p, line.n);
    pthread_mutex_unlock(&l->lock);
}
