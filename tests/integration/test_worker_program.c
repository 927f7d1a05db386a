/* test_worker_program.c - the binary: bad options end it with a message, an absent cache node does not;
 * it serves, and SIGTERM lets a running request finish.
 *
 * argv[1]: incipit-worker. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/compiler.h"
#include "tests/support/tiny_model.h"

static const char *program;
static struct tiny_model tiny;

struct proc {
    pid_t pid;
    int out; /* its stdout and stderr */
    char text[8192];
    size_t len;
};

static void proc_start(struct proc *p, const char *const *args) {
    int fds[2];
    char *argv[32] = {(char *)(uintptr_t)program};
    size_t n = 1;
    memset(p, 0, sizeof(*p));
    for (; args[n - 1]; n++)
        argv[n] = (char *)(uintptr_t)args[n - 1];
    assert_int_equal(pipe(fds), 0);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (p->pid == 0) {
        dup2(fds[1], 1);
        dup2(fds[1], 2);
        close(fds[0]);
        close(fds[1]);
        alarm(60); /* a hang is a failure of the test, not of the machine */
        execv(program, argv);
        _exit(127);
    }
    close(fds[1]);
    p->out = fds[0];
}

/* Reads until what was seen contains text; false at the end of the output. */
static bool proc_read_until(struct proc *p, const char *text) {
    while (!text || !strstr(p->text, text)) {
        ssize_t n = read(p->out, p->text + p->len, sizeof(p->text) - 1 - p->len);
        if (n <= 0)
            return false;
        p->len += (size_t)n;
        p->text[p->len] = '\0';
    }
    return true;
}

static int proc_wait(struct proc *p) {
    int status;
    (void)proc_read_until(p, NULL);
    close(p->out);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void expect_refused(const char *const *args, int code, const char *words) {
    struct proc p;
    proc_start(&p, args);
    int rc = proc_wait(&p);
    if (rc != code || !strstr(p.text, words))
        fail_msg("exit %d, output: %s", rc, p.text);
}

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define MODEL "--model", tiny.path, "--digest-cache", "none", "--threads", "1", "--kv-bytes", "16m"

static void test_bad_starts_end_with_a_message(void **state) {
    (void)state;
    expect_refused(ARGS("--listen", "127.0.0.1:0"), 3, "--model");
    expect_refused(ARGS("--model", "/nonexistent"), 3, "/nonexistent");
    expect_refused(ARGS("--no-such-option"), 2, "no-such-option");
    expect_refused(ARGS(MODEL, "--isa", "abacus"), 3, "abacus");
    expect_refused(ARGS(MODEL, "--kv-dtype", "q8_0"), 3, "q8_0");
    expect_refused(ARGS(MODEL, "--listen", "0.0.0.0:0"), 3, "not loopback");
    expect_refused(ARGS(MODEL, "--listen", "127.0.0.1:0", "--cache", "nowhere"), 3, "nowhere");
    expect_refused(ARGS(MODEL, "--kv-bytes", "64k", "--block-tokens", "1024"), 3, "--kv-bytes");
    expect_refused(ARGS(MODEL, "--chunk-tokens", "4"), 3, "--chunk-tokens");
}

/* An address that nobody else can take while the test holds the socket. */
static int held_port(uint16_t *ret, bool listening) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, len), 0);
    if (listening)
        assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *ret = ntohs(a.sin_port);
    return fd;
}

static void test_port_in_use_is_said(void **state) {
    (void)state;
    uint16_t port;
    char addr[64];
    int fd = held_port(&port, true);
    snprintf(addr, sizeof(addr), "127.0.0.1:%u", port);
    expect_refused(ARGS(MODEL, "--listen", addr), 3, addr);
    close(fd);
}

static int http_connect(uint16_t port) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    return fd;
}

static void http_send(int fd, const char *method, const char *path, const char *body) {
    char head[1024];
    int n = snprintf(head, sizeof(head),
                     "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n\r\n%s",
                     method, path, strlen(body), body);
    assert_int_equal(write(fd, head, (size_t)n), n);
}

static void http_read(int fd, char *ret, size_t cap) {
    size_t len = 0;
    ssize_t n;
    while (len < cap - 1 && (n = read(fd, ret + len, cap - 1 - len)) > 0)
        len += (size_t)n;
    ret[len] = '\0';
    close(fd);
}

static uint16_t proc_port(const struct proc *p) {
    const char *at = strstr(p->text, " port=");
    assert_non_null(at);
    return (uint16_t)strtoul(at + 6, NULL, 10);
}

static void test_serves_without_its_cache_node_and_drains(void **state) {
    (void)state;
    struct proc p;
    static char text[1 << 16];
    char addr[64];
    uint16_t closed;
    int held = held_port(&closed, false); /* bound, not listening: connections are refused */
    snprintf(addr, sizeof(addr), "127.0.0.1:%u", closed);
    proc_start(&p, ARGS(MODEL, "--listen", "127.0.0.1:0", "--cache", addr, "--name", "w7"));
    if (!proc_read_until(&p, "ready prog="))
        fail_msg("%s", p.text);
    while (!strchr(strstr(p.text, "ready prog="), '\n'))
        (void)proc_read_until(&p, "\n");
    uint16_t port = proc_port(&p);

    int fd = http_connect(port);
    http_send(fd, "GET", "/readyz", "");
    http_read(fd, text, sizeof(text));
    assert_non_null(strstr(text, " 200 "));

    fd = http_connect(port);
    http_send(fd, "POST", "/v1/completions",
              "{\"model\":\"x\",\"prompt\":\"hello there\",\"max_tokens\":5,\"temperature\":0}");
    http_read(fd, text, sizeof(text));
    assert_non_null(strstr(text, " 200 "));
    assert_non_null(strstr(text, "\"cached_tokens\":0"));

    fd = http_connect(port);
    http_send(fd, "GET", "/metrics", "");
    http_read(fd, text, sizeof(text));
    assert_non_null(strstr(text, "incipit_worker_cache_connected 0"));
    assert_non_null(strstr(text, "incipit_worker_pending_puts 0"));
    assert_non_null(strstr(text, "vllm:prompt_tokens_total{"));

    struct timespec touched[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
    assert_int_equal(utimensat(AT_FDCWD, tiny.path, touched, 0), 0);
    fd = http_connect(port);
    http_send(fd, "GET", "/readyz", "");
    http_read(fd, text, sizeof(text));
    assert_non_null(strstr(text, " 503 ")); /* these weights are no longer that file's */
    assert_non_null(strstr(text, "\"model_changed\":true"));

    fd = http_connect(port); /* under way when the signal comes */
    http_send(fd, "POST", "/v1/completions",
              "{\"model\":\"x\",\"prompt\":\"tell me\",\"max_tokens\":500,\"temperature\":0,"
              "\"stream\":true}");
    assert_true(read(fd, text, 1) == 1);
    kill(p.pid, SIGTERM);
    http_read(fd, text, sizeof(text));
    assert_non_null(strstr(text, "data: [DONE]")); /* to its end, not cut */
    assert_int_equal(proc_wait(&p), 0);
    close(held);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: test_worker_program INCIPIT-WORKER\n");
        return 2;
    }
    program = argv[1];
    signal(SIGPIPE, SIG_IGN);
    struct tiny_spec spec = tiny_spec_of(8);
    tiny_model_file(&tiny, &spec);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_starts_end_with_a_message),
        cmocka_unit_test(test_port_in_use_is_said),
        cmocka_unit_test(test_serves_without_its_cache_node_and_drains),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    remove(tiny.path);
    return rc;
}
