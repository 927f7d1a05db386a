/* A toy daemon in a child process: what it prints, how it ends. */
#include "common/svc_main.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/err.h"

#define TOY_CONFIG(X)                                                                              \
    SVC_OPTIONS(X)                                                                                 \
    X(mode, ENUM, "good", "good|cannot_start|fails|never_drains|leaks", 0, false, "how to behave")
struct toy_config {
    CFG_FIELDS(TOY_CONFIG)
};
CFG_TABLE(toy_config, TOY_CONFIG)
enum { GOOD, CANNOT_START, FAILS, NEVER_DRAINS };

struct toy {
    uv_timer_t work;
    uint32_t mode;
};

static void on_work(uv_timer_t *t) {
    struct svc *s = t->data;
    if (((struct toy *)s->data)->mode == FAILS)
        svc_fail(s, ERR_CORRUPT, "toy");
}

static int toy_start(struct svc *s, void *cfg, struct errbuf *eb) {
    struct toy_config *c = cfg;
    if (c->mode == CANNOT_START)
        return err_set(eb, ERR_INVALID, "will not");
    struct toy *t = calloc(1, sizeof(*t));
    if (!t)
        return ERR_NOMEM;
    t->mode = c->mode;
    s->data = t;
    uv_timer_init(s->loop, &t->work);
    t->work.data = s;
    uv_timer_start(&t->work, on_work, 10, 10);
    svc_ready(s, "answer=%d", 42);
    svc_ready(s, "twice");
    return 0;
}
static void toy_drain(struct svc *s) {
    if (((struct toy *)s->data)->mode != NEVER_DRAINS)
        svc_drained(s);
}
static void toy_stop(struct svc *s) {
    uv_close((uv_handle_t *)&((struct toy *)s->data)->work, NULL);
}
static void toy_free(struct svc *s) {
    free(s->data);
}

struct child {
    pid_t pid;
    int out;
    char text[4096];
};

static void spawn(struct child *c, const char *const *args) {
    int fds[2];
    static const struct svc_ops ops = {.prog = {"toy", "a toy daemon"},
                                       .start = toy_start,
                                       .drain = toy_drain,
                                       .stop = toy_stop,
                                       .free = toy_free};
    memset(c, 0, sizeof(*c));
    assert_int_equal(pipe(fds), 0);
    c->pid = fork();
    if (c->pid == 0) {
        struct svc_ops with_table = ops;
        char *argv[8] = {(char *)(uintptr_t) "toy"};
        int n = 1;
        for (; *args; args++)
            argv[n++] = (char *)(uintptr_t)*args;
        with_table.table = toy_config_table();
        dup2(fds[1], STDOUT_FILENO);
        (void)!freopen("/dev/null", "w", stderr);
        close(fds[0]);
        int code = svc_main(&with_table, n, argv);
        fflush(stdout);
        _exit(code);
    }
    close(fds[1]);
    c->out = fds[0];
}

static void read_line(struct child *c) {
    size_t n = 0;
    while (n + 1 < sizeof(c->text) && read(c->out, c->text + n, 1) == 1)
        if (c->text[n++] == '\n')
            break;
    c->text[n] = '\0';
}

static int exit_code(struct child *c) {
    int st = 0;
    waitpid(c->pid, &st, 0);
    close(c->out);
    return WIFEXITED(st) ? WEXITSTATUS(st) : -1;
}
#define SPAWN(c, ...) spawn((c), (const char *[]){__VA_ARGS__, NULL})

static void test_ready_line_and_sigterm(void **state) {
    (void)state;
    static const int signals[] = {SIGTERM, SIGINT};
    for (size_t i = 0; i < ARRAY_LEN(signals); i++) {
        struct child c;
        SPAWN(&c, "--mode=good");
        read_line(&c);
        char want[64];
        snprintf(want, sizeof(want), "ready prog=toy pid=%d answer=42\n", (int)c.pid);
        assert_string_equal(c.text, want);
        kill(c.pid, signals[i]);
        read_line(&c);
        assert_string_equal(c.text, ""); /* one ready line only */
        assert_int_equal(exit_code(&c), SVC_EXIT_OK);
    }
}

static void test_exit_codes(void **state) {
    (void)state;
    struct child c;
    SPAWN(&c, "--mode=cannot_start");
    assert_int_equal(exit_code(&c), SVC_EXIT_START);
    SPAWN(&c, "--mode=fails");
    assert_int_equal(exit_code(&c), SVC_EXIT_FAILED);
    SPAWN(&c, "--nonsense");
    assert_int_equal(exit_code(&c), SVC_EXIT_USAGE);
    SPAWN(&c, "--help");
    assert_int_equal(exit_code(&c), SVC_EXIT_OK);
}

static void test_drain_timeout_and_second_signal(void **state) {
    (void)state;
    struct child c;
    SPAWN(&c, "--mode=never_drains", "--drain-timeout-ms=20");
    read_line(&c);
    kill(c.pid, SIGTERM);
    assert_int_equal(exit_code(&c), SVC_EXIT_OK);
    SPAWN(&c, "--mode=never_drains", "--drain-timeout-ms=3600000");
    read_line(&c);
    kill(c.pid, SIGTERM);
    kill(c.pid, SIGINT); /* another one, so that the two do not merge */
    assert_int_equal(exit_code(&c), SVC_EXIT_OK);
}

int main(void) {
    alarm(30);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ready_line_and_sigterm),
        cmocka_unit_test(test_exit_codes),
        cmocka_unit_test(test_drain_timeout_and_second_signal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
