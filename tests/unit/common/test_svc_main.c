/* A toy daemon in a child process: what it prints, how it ends. */
#include "common/svc_main.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/err.h"
#include "tests/support/tmpdir.h"

#define TOY_CONFIG(X)                                                                              \
    SVC_OPTIONS(X)                                                                                 \
    SVC_LAME_DUCK_OPTION(X)                                                                        \
    X(knob, U32, 1, 0, 100, true, "a live option")                                                 \
    X(mode, ENUM, "good", "good|cannot_start|fails|never_drains|loads|never_stops", 0, false,      \
      "how to behave")
struct toy_config {
    CFG_FIELDS(TOY_CONFIG)
};
CFG_TABLE(toy_config, TOY_CONFIG)
enum { GOOD, CANNOT_START, FAILS, NEVER_DRAINS, LOADS, NEVER_STOPS };

struct toy {
    uv_timer_t work;
    uint32_t mode;
    const struct toy_config *cfg;
    bool said_draining;
};

/* For the test, which reads it line by line. */
static void say(const char *what, uint32_t n) {
    printf("%s %u\n", what, n);
    fflush(stdout);
}

static void on_work(uv_timer_t *t) {
    struct svc *s = t->data;
    struct toy *toy = s->data;
    if (toy->mode == FAILS)
        svc_fail(s, ERR_CORRUPT, "toy");
    /* Without a lame duck a tick may or may not come between the drain and the end. */
    if (toy->cfg->lame_duck_ms && svc_is_draining(s) && !toy->said_draining) {
        toy->said_draining = true;
        say(svc_phase(s), 0);
    }
}

static int toy_start(struct svc *s, void *cfg, struct errbuf *eb) {
    struct toy_config *c = cfg;
    if (c->mode == CANNOT_START)
        return err_set(eb, ERR_INVALID, "will not");
    struct toy *t = calloc(1, sizeof(*t));
    if (!t)
        return ERR_NOMEM;
    t->mode = c->mode;
    t->cfg = c;
    s->data = t;
    uv_timer_init(s->loop, &t->work);
    t->work.data = s;
    uv_timer_start(&t->work, on_work, 10, 10);
    if (t->mode == LOADS) {
        say(svc_phase(s), uv_backend_fd(s->loop) > STDERR_FILENO);
        return 0;
    }
    svc_ready(s, "answer=%d", 42);
    svc_ready(s, "twice");
    return 0;
}
static void toy_drain(struct svc *s) {
    say("drain", 0);
    if (((struct toy *)s->data)->mode != NEVER_DRAINS)
        svc_drained(s);
}
static void toy_stop(struct svc *s) {
    say(svc_phase(s), 0);
    if (((struct toy *)s->data)->mode != NEVER_STOPS)
        uv_close((uv_handle_t *)&((struct toy *)s->data)->work, NULL);
}
static void toy_changed(struct svc *s, const struct cfg_opt *o) {
    say(o->name, ((struct toy *)s->data)->cfg->knob);
}
static int toy_reload(struct svc *s, struct errbuf *eb) {
    uint32_t knob = ((struct toy *)s->data)->cfg->knob;
    say("reload", knob);
    return knob == 13 ? err_set(eb, ERR_INVALID, "unlucky") : 0;
}
static void toy_free(struct svc *s) {
    free(s->data);
}

static const struct svc_ops toy_ops = {
    .prog = {"toy", "a toy daemon"},
    .start = toy_start,
    .drain = toy_drain,
    .stop = toy_stop,
    .changed = toy_changed,
    .reload = toy_reload,
    .free = toy_free,
};

struct child {
    pid_t pid;
    int out, err;
    char text[4096];
};

static int
    early_signal; /* sent before the child's svc_main() is through its first lines; 0: none */

static void be_early(void) {
    sigset_t set; /* as if it came right behind the first statement, every time */
    sigemptyset(&set);
    sigaddset(&set, early_signal);
    sigprocmask(SIG_BLOCK, &set, NULL);
    raise(early_signal);
}

static void spawn(struct child *c, const char *const *args) {
    int fds[2], err[2];
    memset(c, 0, sizeof(*c));
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(pipe(err), 0);
    c->pid = fork();
    if (c->pid == 0) {
        struct svc_ops with_table = toy_ops;
        char *argv[8] = {(char *)(uintptr_t) "toy"};
        int n = 1;
        for (; *args; args++)
            argv[n++] = (char *)(uintptr_t)*args;
        with_table.table = toy_config_table();
        dup2(fds[1], STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
        close(fds[0]);
        if (early_signal)
            be_early();
        int code = svc_main(&with_table, n, argv);
        fflush(stdout);
        _exit(code);
    }
    close(fds[1]);
    close(err[1]);
    c->out = fds[0];
    c->err = err[0];
}

static void read_line_of(struct child *c, int fd) {
    size_t n = 0;
    while (n + 1 < sizeof(c->text) && read(fd, c->text + n, 1) == 1)
        if (c->text[n++] == '\n')
            break;
    c->text[n] = '\0';
}
static void read_line(struct child *c) {
    read_line_of(c, c->out);
}

/* Until its log says so. */
static void wait_for_log(struct child *c, const char *event) {
    do
        read_line_of(c, c->err);
    while (c->text[0] && !strstr(c->text, event));
    assert_true(c->text[0]);
}

/* Until the signals sent so far have been taken, seen in /proc: no test sleeps for a time it guesses. */
static void wait_for_no_signal(pid_t pid) {
    char path[64], line[256];
    unsigned long long pending = 1;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    while (pending) {
        FILE *f = fopen(path, "re");
        assert_non_null(f);
        pending = 0;
        while (fgets(line, sizeof(line), f)) {
            unsigned long long one;
            if (sscanf(line, "SigPnd: %llx", &one) == 1 || sscanf(line, "ShdPnd: %llx", &one) == 1)
                pending |= one;
        }
        fclose(f);
        sched_yield();
    }
}

static void expect(struct child *c, const char *want) {
    read_line(c);
    assert_string_equal(c->text, want);
}

static int exit_code(struct child *c) {
    int st = 0;
    waitpid(c->pid, &st, 0);
    close(c->out);
    close(c->err);
    return WIFEXITED(st) ? WEXITSTATUS(st) : -1;
}
#define SPAWN(c, ...) spawn((c), (const char *[]){__VA_ARGS__, NULL})

static void test_ready_line_and_sigterm(void **state) {
    (void)state;
    static const int signals[] = {SIGTERM, SIGINT};
    for (size_t i = 0; i < ARRAY_LEN(signals); i++) {
        struct child c;
        SPAWN(&c, "--mode=good", "--lame-duck-ms=0");
        read_line(&c);
        char want[64];
        snprintf(want, sizeof(want), "ready prog=toy pid=%d answer=42\n", (int)c.pid);
        assert_string_equal(c.text, want);
        kill(c.pid, signals[i]);
        expect(&c, "drain 0\n"); /* one ready line only */
        expect(&c, "closing 0\n");
        expect(&c, "");
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
    SPAWN(&c, "--mode=never_drains", "--lame-duck-ms=0", "--drain-timeout-ms=20");
    read_line(&c);
    kill(c.pid, SIGTERM);
    assert_int_equal(exit_code(&c), SVC_EXIT_OK);
    SPAWN(&c, "--mode=never_drains", "--lame-duck-ms=0", "--drain-timeout-ms=3600000");
    read_line(&c);
    kill(c.pid, SIGTERM);
    kill(c.pid, SIGINT); /* another one, so that the two do not merge */
    assert_int_equal(exit_code(&c), SVC_EXIT_OK);
}

/* E5: the listener closed at once, so that a balancer saw refused connections before any 503. */
static void test_lame_duck_comes_before_the_drain(void **state) {
    (void)state;
    struct child c;
    SPAWN(&c, "--lame-duck-ms=300");
    read_line(&c);
    kill(c.pid, SIGTERM);
    expect(&c, "draining 0\n"); /* from the work that goes on */
    expect(&c, "drain 0\n");
    expect(&c, "closing 0\n");
    assert_int_equal(exit_code(&c), SVC_EXIT_OK);
    SPAWN(&c, "--lame-duck-ms=600000");
    read_line(&c);
    kill(c.pid, SIGTERM);
    expect(&c, "draining 0\n");
    kill(c.pid, SIGTERM); /* who is in a hurry says so twice */
    expect(&c, "closing 0\n");
    assert_int_equal(exit_code(&c), SVC_EXIT_OK);
}

/* E4: what still loads has nothing to drain. */
static void test_sigterm_while_starting_stops_at_once(void **state) {
    (void)state;
    struct child c;
    SPAWN(&c, "--mode=loads");
    expect(&c, "starting 1\n");
    kill(c.pid, SIGTERM);
    expect(&c, "closing 0\n");
    assert_int_equal(exit_code(&c), SVC_EXIT_OK);
}

/* E6, E7: SIGHUP ended both daemons without a drain; options marked live could not change. */
static void test_sighup_reloads_live_options_and_files(void **state) {
    (void)state;
    struct tmpdir d;
    struct child c;
    char path[512], arg[600];
    tmpdir_setup(&d);
    snprintf(arg, sizeof(arg), "--config=%s", tmpdir_join(&d, "toy.ini", path, sizeof(path)));
    tmpdir_write(&d, "toy.ini", "knob = 3\n", 9);
    SPAWN(&c, arg, "--lame-duck-ms=0");
    read_line(&c);
    kill(c.pid, SIGHUP);
    expect(&c, "reload 3\n");
    tmpdir_write(&d, "toy.ini", "knob = 4\nmode = cannot_start\n", 29);
    kill(c.pid, SIGHUP);
    expect(&c, "knob 4\n"); /* and mode, which is not live, is let alone */
    expect(&c, "reload 4\n");
    tmpdir_write(&d, "toy.ini", "knob = 5\nknob = 1000\n", 21);
    kill(c.pid, SIGHUP); /* an error changes nothing and ends nothing */
    tmpdir_write(&d, "toy.ini.new", "knob = 13\n", 10);
    wait_for_log(&c, "reload failed");
    char from[512];
    assert_int_equal(rename(tmpdir_join(&d, "toy.ini.new", from, sizeof(from)), path), 0);
    kill(c.pid, SIGHUP);
    expect(&c, "knob 13\n");
    expect(&c, "reload 13\n"); /* which fails: logged, no more */
    kill(c.pid, SIGTERM);
    expect(&c, "drain 0\n");
    expect(&c, "closing 0\n");
    assert_int_equal(exit_code(&c), SVC_EXIT_OK);
    SPAWN(&c, "--mode=never_stops", "--lame-duck-ms=0");
    read_line(&c);
    kill(c.pid, SIGTERM);
    expect(&c, "drain 0\n");
    expect(&c, "closing 0\n");
    kill(c.pid, SIGHUP); /* nor when it closes */
    kill(c.pid, SIGHUP);
    wait_for_no_signal(c.pid);
    assert_int_equal(kill(c.pid, 0), 0);
    assert_int_equal(waitpid(c.pid, NULL, WNOHANG), 0);
    kill(c.pid, SIGKILL);
    assert_int_equal(exit_code(&c), -1);
    tmpdir_teardown(&d);
}

/* A signal that comes while a daemon reads its options had its deadly default, or was lost. */
static void test_signals_before_the_loop_wait_for_it(void **state) {
    (void)state;
    struct child c;
    early_signal = SIGHUP;
    SPAWN(&c, "--lame-duck-ms=0");
    read_line(&c);
    kill(c.pid, SIGTERM);
    expect(&c, "reload 1\n");
    expect(&c, "drain 0\n");
    expect(&c, "closing 0\n");
    assert_int_equal(exit_code(&c), SVC_EXIT_OK);
    static const int ends[] = {SIGTERM, SIGINT};
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        early_signal = ends[i];
        SPAWN(&c, "--lame-duck-ms=0");
        read_line(&c);
        expect(&c, "drain 0\n");
        expect(&c, "closing 0\n");
        assert_int_equal(exit_code(&c), SVC_EXIT_OK);
    }
    early_signal = 0;
}

/* A socket for what a service manager is told. */
static int notify_socket(const struct tmpdir *d) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    tmpdir_join(d, "notify", sa.sun_path, sizeof(sa.sun_path));
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    setenv("NOTIFY_SOCKET", sa.sun_path, 1);
    return fd;
}

static void expect_notice(int fd, const char *want) {
    char got[128];
    ssize_t n = recv(fd, got, sizeof(got) - 1, 0);
    got[MAX(n, 0)] = '\0';
    if (strncmp(got, want, strlen(want)) != 0)
        fail_msg("'%s' is not '%s'", got, want);
}

/* E14: what systemd's Type=notify-reload waits for. */
static void test_service_manager_is_told(void **state) {
    (void)state;
    struct tmpdir d;
    struct child c;
    tmpdir_setup(&d);
    int fd = notify_socket(&d);
    SPAWN(&c, "--lame-duck-ms=0");
    unsetenv("NOTIFY_SOCKET");
    expect_notice(fd, "READY=1");
    kill(c.pid, SIGHUP);
    expect_notice(fd, "RELOADING=1\nMONOTONIC_USEC=");
    expect_notice(fd, "READY=1");
    kill(c.pid, SIGTERM);
    expect_notice(fd, "STOPPING=1");
    assert_int_equal(exit_code(&c), SVC_EXIT_OK);
    close(fd);
    tmpdir_teardown(&d);
}

/* G6: with 0 to 2 closed the loop's own descriptors got these numbers, log lines went into its pipe and
 * SIGTERM ended in an abort. */
static void test_closed_standard_streams_are_dev_null(void **state) {
    (void)state;
    struct tmpdir d;
    int st = 0;
    tmpdir_setup(&d);
    int fd = notify_socket(&d);
    pid_t pid = fork();
    if (pid == 0) {
        char *argv[] = {(char *)(uintptr_t) "toy", (char *)(uintptr_t) "--lame-duck-ms=0", NULL};
        struct svc_ops with_table = toy_ops;
        with_table.table = toy_config_table();
        for (int i = 0; i < 100; i++)
            close(i);
        _exit(svc_main(&with_table, 2, argv));
    }
    unsetenv("NOTIFY_SOCKET");
    expect_notice(fd, "READY=1");
    for (int i = 0; i < 3; i++) {
        char path[64], dev[64] = "";
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, i);
        assert_true(readlink(path, dev, sizeof(dev) - 1) > 0);
        assert_string_equal(dev, "/dev/null");
    }
    kill(pid, SIGTERM);
    waitpid(pid, &st, 0);
    assert_true(WIFEXITED(st) && WEXITSTATUS(st) == SVC_EXIT_OK);
    close(fd);
    tmpdir_teardown(&d);
}

int main(void) {
    alarm(60);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ready_line_and_sigterm),
        cmocka_unit_test(test_exit_codes),
        cmocka_unit_test(test_drain_timeout_and_second_signal),
        cmocka_unit_test(test_lame_duck_comes_before_the_drain),
        cmocka_unit_test(test_sigterm_while_starting_stops_at_once),
        cmocka_unit_test(test_signals_before_the_loop_wait_for_it),
        cmocka_unit_test(test_sighup_reloads_live_options_and_files),
        cmocka_unit_test(test_closed_standard_streams_are_dev_null),
        cmocka_unit_test(test_service_manager_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
