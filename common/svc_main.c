#include "common/svc_main.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <unistd.h>

#include "common/check.h"
#include "common/err.h"
#include "common/log_format.h"
#include "common/process.h"
#include "common/sm.h"

extern char **environ;

/*  START --> RUN --SIGTERM--> LAME --time--> DRAIN --drained, timeout, 2nd signal--> STOP
 *    \--------+-----------------+--------------------------------------------------^   */
enum svc_state { SVC_START, SVC_RUN, SVC_LAME, SVC_DRAIN, SVC_STOP, SVC_STATE_NR };
static const struct sm_state svc_states[SVC_STATE_NR] = {
    [SVC_START] = {"start", SM_INITIAL, BIT(SVC_RUN)},
    [SVC_RUN] = {"run", 0, BIT(SVC_LAME) | BIT(SVC_DRAIN) | BIT(SVC_STOP)},
    [SVC_LAME] = {"lame duck", 0, BIT(SVC_DRAIN) | BIT(SVC_STOP)},
    [SVC_DRAIN] = {"drain", 0, BIT(SVC_STOP)},
    [SVC_STOP] = {"stop", SM_FINAL, 0},
};

#define STOP_PATIENCE_MS 15000u /* for handles to close before the process ends without them */

struct svc_private_ {
    struct svc pub;
    const struct svc_ops *ops;
    void *cfg;
    uv_loop_t loop;
    int argc; /* for a reload */
    char *const *argv;
    uv_signal_t term, intr, hup;
    uv_timer_t timer; /* lame duck, then drain timeout, then stop patience */
    uv_async_t drained_wakeup;
    struct sm sm;
    bool ready;
    int exit_code;
};

/* 0 for a row that the daemon's table does not have. */
static uint32_t opt_u32(const struct svc_private_ *p, const char *name) {
    const struct cfg_opt *o = cfg_find(p->ops->table, name);
    return o ? *(const uint32_t *)cfg_field(o, p->cfg) : 0;
}

static void print_handle(uv_handle_t *h, void *arg) {
    struct svc_private_ *p = arg;
    if (uv_is_active(h) && uv_has_ref(h))
        log_error(p->pub.log, "handle still open at exit", "type=%s closing=%d",
                  uv_handle_type_name(h->type), uv_is_closing(h));
}

static void on_patience_over(uv_timer_t *t) {
    struct svc_private_ *p = t->data;
    uv_walk(&p->loop, print_handle, p);
    log_flush(p->pub.log);
    _exit(SVC_EXIT_FAILED);
}

static void close_wakers(struct svc_private_ *p) {
    uv_close((uv_handle_t *)&p->term, NULL);
    uv_close((uv_handle_t *)&p->intr, NULL);
    uv_close((uv_handle_t *)&p->drained_wakeup, NULL);
}

static void enter_stop(struct svc_private_ *p) {
    sm_move(&p->sm, SVC_STOP);
    uv_timer_start(&p->timer, on_patience_over, STOP_PATIENCE_MS, 0);
    uv_unref((uv_handle_t *)&p->timer);
    /* Stays open: libuv would give the signal its deadly default back. */
    uv_unref((uv_handle_t *)&p->hup);
    close_wakers(p);
    p->ops->stop(&p->pub);
}

static void on_drain_timeout(uv_timer_t *t) {
    struct svc_private_ *p = t->data;
    log_warn(p->pub.log, "drain timeout, stopping with work in flight");
    enter_stop(p);
}

static void enter_drain(struct svc_private_ *p) {
    sm_move(&p->sm, SVC_DRAIN);
    uv_timer_start(&p->timer, on_drain_timeout, opt_u32(p, "drain_timeout_ms"), 0);
    p->ops->drain(&p->pub);
}

static void on_lame_duck_over(uv_timer_t *t) {
    enter_drain(t->data);
}

static void begin_end(struct svc_private_ *p, const char *why, uint32_t lame_duck_ms) {
    enum svc_state at = (enum svc_state)sm_at(&p->sm);
    if (at == SVC_LAME || at == SVC_DRAIN) {
        log_warn(p->pub.log, "second signal, stopping now", "why=%s", why);
        enter_stop(p);
        return;
    }
    if (at != SVC_RUN)
        return;
    log_info(p->pub.log, "draining", "why=%s", why);
    process_notify("STOPPING=1");
    if (!p->ready || !p->ops->drain) {
        enter_stop(p);
    } else if (lame_duck_ms) {
        sm_move(&p->sm, SVC_LAME);
        uv_timer_start(&p->timer, on_lame_duck_over, lame_duck_ms, 0);
    } else {
        enter_drain(p);
    }
}

static void on_signal(uv_signal_t *h, int signum) {
    struct svc_private_ *p = h->data;
    begin_end(p, signum == SIGTERM ? "SIGTERM" : "SIGINT", opt_u32(p, "lame_duck_ms"));
}

/* --- options that change while the daemon runs --- */

static void apply_option(struct svc_private_ *p, const struct cfg_opt *o) {
    char value[128] = "(long)";
    (void)cfg_get(p->ops->table, p->cfg, o->name, value, sizeof(value));
    log_info(p->pub.log, "option changed", "name=%s value=%s", o->name, value);
    if (strcmp(o->name, "log_level") == 0)
        log_set_level(p->pub.log, (enum log_level)opt_u32(p, "log_level"));
    if (p->ops->changed)
        p->ops->changed(&p->pub, o);
}

int svc_set_option(struct svc *s, const char *name, const char *value, struct errbuf *eb) {
    int rv = cfg_set(s->priv->ops->table, s->priv->cfg, name, value, eb);
    if (rv == 0)
        apply_option(s->priv, cfg_find(s->priv->ops->table, name));
    return rv;
}

static void on_option_differs(void *arg, const struct cfg_opt *o) {
    struct svc_private_ *p = arg;
    if (o->live)
        apply_option(p, o);
    else
        log_warn(p->pub.log, "an option changes with the next start only", "name=%s", o->name);
}

static void on_hup(uv_signal_t *h, int signum) {
    struct svc_private_ *p = h->data;
    struct errbuf eb = {{0}};
    char state[64];
    (void)signum;
    if (sm_at(&p->sm) == SVC_STOP)
        return;
    snprintf(state, sizeof(state), "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
             clock_mono_ns(p->pub.clk) / 1000);
    process_notify(state);
    int rv = cfg_reload(p->ops->table, &p->ops->prog, p->cfg, p->argc, p->argv, environ,
                        on_option_differs, p, &eb);
    if (rv == 0 && p->ops->reload)
        rv = p->ops->reload(&p->pub, &eb);
    if (rv < 0)
        log_error(p->pub.log, "reload failed, what was there stays", "err=%s", eb.text);
    else
        log_info(p->pub.log, "reloaded", "why=SIGHUP");
    process_notify("READY=1");
}

/* Drained is taken up from the loop, so that the caller may be anywhere inside its own structures.
 */
static void on_drained_wakeup(uv_async_t *h) {
    struct svc_private_ *p = h->data;
    if (sm_at(&p->sm) == SVC_DRAIN)
        enter_stop(p);
}

void svc_drained(struct svc *s) {
    if (sm_at(&s->priv->sm) == SVC_DRAIN)
        uv_async_send(&s->priv->drained_wakeup);
}

bool svc_is_draining(const struct svc *s) {
    return sm_at(&s->priv->sm) >= SVC_LAME;
}

const char *svc_phase(const struct svc *s) {
    switch ((enum svc_state)sm_at(&s->priv->sm)) {
    case SVC_LAME:
    case SVC_DRAIN:
        return "draining";
    case SVC_STOP:
        return "closing";
    default:
        return s->priv->ready ? "ready" : "starting";
    }
}

void svc_fail(struct svc *s, int rv, const char *what) {
    bool ready = s->priv->ready;
    log_error(s->log, ready ? "fatal" : "start failed", "what=%s err=%s", what, err_text(rv));
    s->priv->exit_code = ready ? SVC_EXIT_FAILED : SVC_EXIT_START;
    begin_end(s->priv, "fatal error", 0);
}

void svc_ready(struct svc *s, const char *fmt, ...) {
    if (s->priv->ready)
        return;
    s->priv->ready = true;
    char text[1024];
    struct log_line line;
    log_line_begin(&line, text, sizeof(text), false);
    log_line_text(&line, "prog", s->priv->ops->prog.name);
    log_line_u64(&line, "pid", (uint64_t)getpid());
    va_list ap;
    va_start(ap, fmt);
    log_line_vpairs(&line, fmt, ap);
    va_end(ap);
    log_line_end(&line);
    printf("ready %.*s", (int)line.n, line.p);
    fflush(stdout);
    process_notify("READY=1");
}

static int open_handles(struct svc_private_ *p) {
    int rv = uv_loop_init(&p->loop);
    if (rv < 0)
        return rv;
    p->pub.loop = &p->loop;
    if ((rv = uv_signal_init(&p->loop, &p->term)) < 0 ||
        (rv = uv_signal_init(&p->loop, &p->intr)) < 0 ||
        (rv = uv_signal_init(&p->loop, &p->hup)) < 0 ||
        (rv = uv_timer_init(&p->loop, &p->timer)) < 0 ||
        (rv = uv_async_init(&p->loop, &p->drained_wakeup, on_drained_wakeup)) < 0)
        return rv; /* the process ends with it */
    p->term.data = p->intr.data = p->hup.data = p->timer.data = p->drained_wakeup.data = p;
    if ((rv = uv_signal_start(&p->term, on_signal, SIGTERM)) < 0 ||
        (rv = uv_signal_start(&p->intr, on_signal, SIGINT)) < 0 ||
        (rv = uv_signal_start(&p->hup, on_hup, SIGHUP)) < 0)
        return rv;
    return 0;
}

/* What stays until the loop has nothing else. */
static void close_rest(struct svc_private_ *p) {
    uv_close((uv_handle_t *)&p->hup, NULL);
    uv_close((uv_handle_t *)&p->timer, NULL);
    uv_run(&p->loop, UV_RUN_DEFAULT);
    signal(SIGHUP, SIG_IGN);
}

static void close_own_handles(struct svc_private_ *p) {
    close_wakers(p);
    close_rest(p);
}

/* While start() runs our own handles do not keep the loop alive, so that a start which fails can
 * close what it opened by running the loop until it is empty. */
static void hold_loop(struct svc_private_ *p, bool on) {
    void (*set)(uv_handle_t * h) = on ? uv_ref : uv_unref;
    set((uv_handle_t *)&p->term);
    set((uv_handle_t *)&p->intr);
    set((uv_handle_t *)&p->hup);
    set((uv_handle_t *)&p->drained_wakeup);
}

/* From the first statement of the program until the loop has its handlers the signals that mean something wait, so
 * that none of them kills a daemon that has begun to do anything, or is lost. */
static void hold_signals(bool on) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(on ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

static int run(struct svc_private_ *p) {
    struct errbuf eb = {{0}};
    int rv = open_handles(p);
    if (rv < 0) {
        log_error(p->pub.log, "start failed", "err=%s", err_text(rv));
        return SVC_EXIT_START;
    }
    hold_signals(false);
    hold_loop(p, false);
    rv = p->ops->start(&p->pub, p->cfg, &eb);
    hold_loop(p, true);
    if (rv < 0) {
        log_error(p->pub.log, "start failed", "err=%s code=%s", eb.text, err_name(rv));
        close_own_handles(p);
        uv_loop_close(&p->loop);
        return SVC_EXIT_START;
    }
    sm_move(&p->sm, SVC_RUN);
    uv_run(&p->loop, UV_RUN_DEFAULT);
    close_rest(p);
    if (p->ops->free)
        p->ops->free(&p->pub);
    log_info(p->pub.log, "stopped", "exit=%d", p->exit_code);
    return uv_loop_close(&p->loop) < 0 ? SVC_EXIT_FAILED : p->exit_code;
}

int svc_main(const struct svc_ops *ops, int argc, char **argv) {
    hold_signals(true);
    struct errbuf eb = {{0}};
    struct svc_private_ p = {.ops = ops, .argc = argc, .argv = argv};
    process_stdio();
    process_memory();
    process_raise_files();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a limit of file sizes is a write that fails */
    p.pub.priv = &p;
    p.pub.clk = clock_real();
    p.cfg = alloc_array(1, ops->table->struct_bytes);
    if (!p.cfg)
        return SVC_EXIT_START;
    int rv = cfg_load(ops->table, &ops->prog, p.cfg, argc, argv, environ, stdout, &eb);
    if (rv == 0 && ops->instead) {
        rv = ops->instead(p.cfg, stdout, &eb);
        if (rv != 0)
            cfg_free(ops->table, p.cfg);
    }
    if (rv != 0) {
        if (rv < 0)
            fprintf(stderr, "%s: %s\n", ops->prog.name, eb.text);
        free(p.cfg);
        return rv < 0 ? SVC_EXIT_USAGE : SVC_EXIT_OK;
    }
    sm_init(&p.sm, svc_states, SVC_STATE_NR, SVC_START);
    struct log_cfg lc = {.prog = ops->prog.name,
                         .fd = STDERR_FILENO,
                         .json = opt_u32(&p, "log_format") != 0,
                         .level = (enum log_level)opt_u32(&p, "log_level")};
    int code = SVC_EXIT_START;
    rv = log_new(&p.pub.log, &lc);
    if (rv < 0) {
        fprintf(stderr, "%s: log: %s\n", ops->prog.name, err_text(rv));
    } else {
        code = run(&p);
        log_free(p.pub.log);
    }
    cfg_free(ops->table, p.cfg);
    free(p.cfg);
    return code;
}
