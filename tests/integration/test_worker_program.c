/* test_worker_program.c - the binary: bad options end it with a message, an absent cache node does not;
 * it serves, and SIGTERM lets a running request finish.
 *
 * argv[1]: incipit-worker, argv[2]: slow_pread.so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/compiler.h"
#include "common/str.h"
#include "tests/support/tiny_model.h"

static const char *program, *slow_pread;
static struct tiny_model tiny;

static const struct rlimit
    *proc_limit; /* of descriptors, for the next one started; NULL: as here */

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
        if (proc_limit)
            setrlimit(RLIMIT_NOFILE, proc_limit);
        alarm(240); /* a hang is a failure of the test, not of the machine */
        execv(program, argv);
        _exit(127);
    }
    close(fds[1]);
    p->out = fds[0];
}

/* Reads until what was seen contains text; false at the end of the output. */
static bool proc_read_until(struct proc *p, const char *text) {
    while (!text || !strstr(p->text, text)) {
        if (p->len > sizeof(p->text) / 2 && !strstr(p->text, "ready prog=")) { /* lines enough */
            memmove(p->text, p->text + p->len / 2, p->len - p->len / 2 + 1);
            p->len -= p->len / 2;
        }
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
/* A port of the kernel's choice: the default one may be another test's. A later --listen counts. */
#define QUICK                                                                                      \
    "--listen", "127.0.0.1:0", "--digest-cache", "none", "--threads", "1", "--kv-bytes", "16m"
#define MODEL "--model", tiny.path, "--lame-duck-ms", "0", QUICK

/* The value of the first series whose line begins so. */
static double series(const char *text, const char *begin) {
    const char *at = strstr(text, begin), *end = at ? strchr(at + 1, '\n') : NULL;
    assert_true(at && end);
    while (end[-1] != ' ')
        end--;
    return strtod(end, NULL);
}

static void test_bad_starts_end_with_a_message(void **state) {
    (void)state;
    expect_refused(ARGS("--listen", "127.0.0.1:0"), 3, "--model");
    expect_refused(ARGS("--model", "/nonexistent", QUICK, "--listen", "127.0.0.1:0"), 3,
                   "/nonexistent");
    expect_refused(ARGS("--no-such-option"), 2, "no-such-option");
    expect_refused(ARGS(MODEL, "--listen", "127.0.0.1:0", "--isa", "abacus"), 3, "abacus");
    expect_refused(ARGS(MODEL, "--listen", "127.0.0.1:0", "--k-dtype", "q8_0"), 3, "q8_0");
    expect_refused(ARGS(MODEL, "--listen", "0.0.0.0:0"), 3, "not loopback");
    expect_refused(ARGS(MODEL, "--listen", "127.0.0.1:0", "--cache", "nowhere"), 3, "nowhere");
    expect_refused(
        ARGS(MODEL, "--listen", "127.0.0.1:0", "--kv-bytes", "64k", "--block-tokens", "1024"), 3,
        "--kv-bytes");
    expect_refused(ARGS(MODEL, "--listen", "127.0.0.1:0", "--chunk-tokens", "4"), 3,
                   "--chunk-tokens");
    /* F13: it was "ready", and killed for memory later without a word */
    expect_refused(ARGS(MODEL, "--listen", "127.0.0.1:0", "--kv-bytes", "16t"), 3,
                   "more than the memory there is");
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
                     "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: "
                     "application/json\r\n"
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

static void wait_ready(struct proc *p) {
    if (!proc_read_until(p, "ready prog="))
        fail_msg("%s", p->text);
    while (!strchr(strstr(p->text, "ready prog="), '\n'))
        (void)proc_read_until(p, "\n");
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
    wait_ready(&p);
    uint16_t port = proc_port(&p);

    int fd = http_connect(port);
    http_send(fd, "GET", "/readyz", "");
    http_read(fd, text, sizeof(text));
    assert_non_null(strstr(text, " 200 "));

    fd = http_connect(port);
    http_send(fd, "POST", "/v1/completions",
              "{\"prompt\":\"hello there\",\"max_tokens\":5,\"temperature\":0}");
    http_read(fd, text, sizeof(text));
    assert_non_null(strstr(text, " 200 "));
    assert_non_null(strstr(text, "\"cached_tokens\":0"));

    fd = http_connect(port);
    http_send(fd, "GET", "/metrics", "");
    http_read(fd, text, sizeof(text));
    assert_non_null(strstr(text, "incipit_worker_cache_connected 0"));
    assert_non_null(strstr(text, "incipit_worker_pending_puts 0"));
    assert_non_null(strstr(text, "vllm:prompt_tokens_total{"));
    /* one figure under three names: ours, vLLM's, and vLLM's old one */
    double share = series(text, "\nincipit_worker_kv_usage_ratio");
    assert_true(share >= 0 && share < 1);
    assert_true(series(text, "\nvllm:kv_cache_usage_perc{") == share);
    assert_true(series(text, "\nvllm:gpu_cache_usage_perc{") == share);

    struct timespec touched[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
    assert_int_equal(utimensat(AT_FDCWD, tiny.path, touched, 0), 0);
    fd = http_connect(port);
    http_send(fd, "GET", "/readyz", "");
    http_read(fd, text, sizeof(text));
    assert_non_null(strstr(text, " 200 ")); /* E3: nothing is read from the file any more */
    assert_non_null(strstr(text, "\"model_changed\":true"));

    fd = http_connect(port);
    http_send(fd, "GET", "/metrics", "");
    http_read(fd, text, sizeof(text));
    assert_non_null(strstr(text, "incipit_worker_model_changed 1"));

    fd = http_connect(port); /* under way when the signal comes */
    http_send(fd, "POST", "/v1/completions",
              "{\"prompt\":\"tell me\",\"max_tokens\":500,\"temperature\":0,"
              "\"stream\":true}");
    assert_true(read(fd, text, 1) == 1);
    kill(p.pid, SIGTERM);
    http_read(fd, text, sizeof(text));
    assert_non_null(strstr(text, "data: [DONE]")); /* to its end, not cut */
    assert_int_equal(proc_wait(&p), 0);
    close(held);
}

static int read_status(uint16_t port, const char *method, const char *path, const char *body,
                       char *text, size_t cap) {
    int fd = http_connect(port);
    http_send(fd, method, path, body);
    http_read(fd, text, cap);
    return strncmp(text, "HTTP/1.1 ", 9) == 0 ? (int)strtol(text + 9, NULL, 10)
                                              : 0; /* 0: no answer */
}

/* E5: SIGTERM closed the listener at once, so no balancer ever saw the 503 that the manual promises. Now
 * /readyz says it while all is served; a second signal ends that. F14: it cut streams without a word and left
 * requests without a status: the error comes first. */
static void test_signals_are_seen_before_they_close(void **state) {
    (void)state;
    struct proc p;
    static char text[1 << 16];
    char addr[] = "127.0.0.1:0", c;
    proc_start(&p, ARGS("--model", tiny.path, "--lame-duck-ms", "600000", QUICK, "--listen", addr));
    wait_ready(&p);
    uint16_t port = proc_port(&p);
    kill(p.pid, SIGTERM);
    assert_true(proc_read_until(&p, "draining"));
    assert_int_equal(read_status(port, "GET", "/readyz", "", text, sizeof(text)), 503);
    assert_non_null(strstr(text, "\"draining\":true"));
    assert_int_equal(read_status(port, "GET", "/healthz", "", text, sizeof(text)), 200);
    assert_int_equal(read_status(port, "POST", "/v1/completions",
                                 "{\"prompt\":\"a\",\"max_tokens\":2}", text, sizeof(text)),
                     200);
    /* Far more than can be done before the signal: 32 texts up to the context. */
    struct strbuf body = {0};
    strbuf_addz(&body, "{\"ignore_eos\":true,\"max_tokens\":-1,\"prompt\":[\"text 0\"");
    for (int i = 1; i < 32; i++)
        strbuf_addf(&body, ",\"text %d\"", i);
    strbuf_addz(&body, "]}");
    char *whole_body = strdup(body.p);
    body.len--;
    strbuf_addz(&body, ",\"stream\":true}");
    int stream = http_connect(port), whole = http_connect(port);
    http_send(stream, "POST", "/v1/completions", body.p);
    strbuf_fini(&body);
    assert_int_equal(recv(stream, &c, 1, MSG_PEEK), 1); /* it has begun */
    http_send(whole, "POST", "/v1/completions", whole_body);
    free(whole_body);
    for (long waiting = 0; waiting < 32;) { /* and this one is behind it */
        assert_int_equal(read_status(port, "GET", "/metrics", "", text, sizeof(text)), 200);
        waiting = strtol(strstr(text, "\nincipit_worker_requests_waiting ") + 33, NULL, 10);
    }
    kill(p.pid, SIGTERM);
    http_read(stream, text, sizeof(text));
    const char *event = strstr(text, "data: {\"error\"");
    if (!event || !strstr(event, "shutting down"))
        fail_msg("%s", text + (strlen(text) > 600 ? strlen(text) - 600 : 0));
    assert_non_null(strstr(event, "\r\n0\r\n\r\n")); /* the stream ends as one */
    http_read(whole, text, sizeof(text));
    if (!strstr(text, " 503 ") || !strstr(text, "shutting_down"))
        fail_msg("%.600s", text);
    assert_int_equal(proc_wait(&p), 0);
}

/* A cache node that is not there is tried again while the worker closes: the attempt that failed then asked a
 * closed HTTP server for its port. The client that lingers keeps the close going for a second. */
static void test_absent_node_does_not_spoil_the_end(void **state) {
    (void)state;
    struct proc p;
    static char text[1 << 16];
    char addr[64];
    uint16_t closed;
    int held = held_port(&closed, false);
    snprintf(addr, sizeof(addr), "127.0.0.1:%u", closed);
    proc_start(&p, ARGS(MODEL, "--listen", "127.0.0.1:0", "--cache", addr));
    wait_ready(&p);
    int fd = http_connect(proc_port(&p));
    http_send(fd, "GET", "/v1/models", "");
    assert_true(read(fd, text, sizeof(text)) > 0); /* "Connection: close", and it stays */
    kill(p.pid, SIGTERM);
    assert_int_equal(proc_wait(&p), 0);
    close(fd);
    close(held);
}

static uint16_t free_port(void) {
    uint16_t port;
    close(held_port(&port, false));
    return port;
}

static void wait_listening(uint16_t port) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0, rv = -1; rv < 0; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        rv = connect(fd, (struct sockaddr *)&a, sizeof(a));
        close(fd);
        assert_true(i < 20000);
        usleep(1000);
    }
}

/* E4: connection refused while the model loads. The port opens first: alive, not ready, with progress; and a
 * signal ends the load. The load is held up by a preloaded pread(). */
static void test_port_opens_before_the_model_is_there(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* its runtime must be the first library */
#endif
    struct proc p;
    static char text[1 << 16];
    char addr[64], gate[] = "/tmp/incipit-gate-XXXXXX";
    close(mkstemp(gate));
    setenv("LD_PRELOAD", slow_pread, 1);
    setenv("INCIPIT_TEST_GATE", gate, 1);
    for (int round = 0; round < 2; round++) {
        uint16_t port = free_port();
        snprintf(addr, sizeof(addr), "127.0.0.1:%u", port);
        proc_start(&p, ARGS(MODEL, "--listen", addr));
        wait_listening(port);
        assert_int_equal(read_status(port, "GET", "/healthz", "", text, sizeof(text)), 200);
        assert_int_equal(read_status(port, "GET", "/readyz", "", text, sizeof(text)), 503);
        assert_non_null(strstr(text, "\"phase\":\"starting\""));
        assert_non_null(strstr(text, "\"loading\":{\"bytes\":"));
        assert_int_equal(read_status(port, "GET", "/metrics", "", text, sizeof(text)), 200);
        assert_int_equal(read_status(port, "GET", "/v1/models", "", text, sizeof(text)), 503);
        assert_int_equal(
            read_status(port, "POST", "/v1/completions", "{\"prompt\":\"a\"}", text, sizeof(text)),
            503);
        assert_non_null(strstr(text, "Retry-After: "));
        if (round == 1)
            kill(p.pid, SIGTERM);
        unlink(gate);
        if (round == 0) {
            wait_ready(&p); /* F8: and then it serves at once: the first forward pass is through */
            assert_int_equal(read_status(port, "GET", "/readyz", "", text, sizeof(text)), 200);
            assert_int_equal(read_status(port, "POST", "/v1/completions",
                                         "{\"prompt\":\"a\",\"max_tokens\":1}", text, sizeof(text)),
                             200);
            kill(p.pid, SIGTERM);
            close(creat(gate, 0600));
        }
        assert_int_equal(proc_wait(&p), 0);
        assert_true((strstr(p.text, "ready prog=") != NULL) == (round == 0));
    }
    unsetenv("LD_PRELOAD");
    unsetenv("INCIPIT_TEST_GATE");
}

/* F22: of four prompts that were all resident a fresh worker computed one or two, because they came before
 * its session stood; no counter told. Right: not ready before the first attempt at each node has come to
 * something; what is not sent is counted (lookup_unsent_total). */
static void test_not_ready_before_the_cache_node_was_tried(void **state) {
    (void)state;
    struct proc p;
    static char text[1 << 16];
    char addr[64], cache[64];
    uint16_t node, port = free_port();
    int fd = held_port(&node, true), conn;
    snprintf(addr, sizeof(addr), "127.0.0.1:%u", port);
    snprintf(cache, sizeof(cache), "127.0.0.1:%u", node);
    proc_start(&p, ARGS(MODEL, "--listen", addr, "--cache", cache));
    conn = accept(fd, NULL, NULL); /* and says nothing */
    assert_true(conn >= 0);
    assert_int_equal(read_status(port, "GET", "/readyz", "", text, sizeof(text)), 503);
    close(conn);
    close(fd);
    wait_ready(&p); /* a node that is down keeps nobody */
    assert_int_equal(read_status(port, "GET", "/readyz", "", text, sizeof(text)), 200);
    kill(p.pid, SIGTERM);
    assert_int_equal(proc_wait(&p), 0);
    assert_non_null(strstr(p.text, "cache node down"));
}

/* A10: idle connections that use up all descriptors: libuv would drop whoever comes next, probes first of all. */
static void test_idle_connections_leave_descriptors_for_probes(void **state) {
    (void)state;
    enum { N = 400 };
    static char text[1 << 16];
    struct rlimit was, few = {300, 300};
    struct proc p;
    int idle[N];
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    if (was.rlim_max < 2 * N)
        skip();
    proc_limit = &few;
    proc_start(&p, ARGS(MODEL, "--listen", "127.0.0.1:0"));
    proc_limit = NULL;
    wait_ready(&p);
    struct rlimit more = {2 * N, was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &more), 0);
    for (int i = 0; i < N; i++) {
        idle[i] = http_connect(proc_port(&p));
        if (i % 50 == 49)
            assert_int_equal(read_status(proc_port(&p), "GET", "/healthz", "", text, sizeof(text)),
                             200);
    }
    for (int i = 0; i < N; i++)
        close(idle[i]);
    setrlimit(RLIMIT_NOFILE, &was);
    kill(p.pid, SIGTERM);
    assert_int_equal(proc_wait(&p), 0);
}

/* F19: blocks of 4 tokens, or heads that are no multiple of 16, ran by the scalar reference and nobody was
 * told. Right: it is said at start, where the CPU could do better. */
static void test_attention_without_vector_instructions_is_said(void **state) {
    (void)state;
    static const char words[] = "attention runs without vector instructions";
    for (int odd = 0; odd < 2; odd++) {
        struct proc p;
        proc_start(&p, ARGS(MODEL, "--listen", "127.0.0.1:0", "--block-tokens", odd ? "4" : "16"));
        wait_ready(&p);
        kill(p.pid, SIGTERM);
        assert_int_equal(proc_wait(&p), 0);
        bool said = strstr(p.text, words) != NULL, scalar = strstr(p.text, "isa=scalar") != NULL;
        assert_int_equal(said, odd && !scalar);
    }
}

/* --- what becomes of the file --- */

static void overwrite(const char *path) {
    static uint8_t bytes[1 << 16];
    struct stat st;
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    memset(bytes, 0x5a, sizeof(bytes));
    for (off_t at = 0; at < st.st_size; at += (off_t)sizeof(bytes)) {
        size_t n = (size_t)MIN(st.st_size - at, (off_t)sizeof(bytes));
        assert_int_equal(pwrite(fd, bytes, n, at), (ssize_t)n);
    }
    (void)close(fd);
}

static void cut(const char *path) {
    assert_int_equal(truncate(path, 5000), 0);
}

static void touch(const char *path) {
    assert_int_equal(utimensat(AT_FDCWD, path, NULL, 0), 0);
}

static void replace(const char *path) {
    struct tiny_model other;
    struct tiny_spec spec = tiny_spec_of(8);
    spec.seed += 1;
    tiny_model_file(&other, &spec);
    assert_int_equal(rename(other.path, path), 0);
}

static void lose(const char *path) {
    assert_int_equal(unlink(path), 0);
}

/* The choices of an answer, which hold text and the digest of the first logits. */
static void answer_of(int fd, char *ret, size_t cap) {
    static char text[1 << 16];
    http_read(fd, text, sizeof(text));
    if (!strstr(text, " 200 "))
        fail_msg("%s", text);
    char *from = strstr(text, "\"choices\""), *to = from ? strstr(from, "\"usage\"") : NULL;
    assert_non_null(to);
    snprintf(ret, cap, "%.*s", (int)(to - from), from);
}

static int ask(uint16_t port, unsigned prompt) {
    char body[256];
    snprintf(
        body, sizeof(body),
        "{\"model\":\"m\",\"prompt\":\"%u: quick brown foxes jump over %c%c\",\"max_tokens\":40,"
        "\"temperature\":0}",
        prompt * 7919, 'a' + prompt % 26, 'A' + prompt * 5 % 26);
    int fd = http_connect(port);
    http_send(fd, "POST", "/v1/completions", body);
    return fd;
}

#define FILE_ARGS(path)                                                                            \
    ARGS("--model", path, "--model-name", "m", "--lame-duck-ms", "0", QUICK, "--debug-logits",     \
         "--listen", "127.0.0.1:0")

/* F5, F6, E3: a file that is overwritten in place, cut short, touched, replaced or removed under load gave
 * wrong tokens (embedding rows were read from it), SIGBUS, or a worker that was never ready again. Right:
 * the answers of a worker whose file nobody touched, from what was loaded. */
static void test_file_changed_under_load_changes_no_answer(void **state) {
    (void)state;
    enum { AT_ONCE = 4, ROUNDS = 5 };
    void (*const attacks[])(const char *) = {touch, overwrite, cut, replace, lose};
    struct proc victim, witness;
    struct tiny_model file;
    struct tiny_spec spec = tiny_spec_of(8);
    char got[4096], want[4096];
    static char text[1 << 16];
    proc_start(&witness, FILE_ARGS(tiny.path));
    wait_ready(&witness);
    uint16_t right = proc_port(&witness);
    unsigned prompt = 1;
    for (size_t a = 0; a < ARRAY_LEN(attacks); a++) {
        tiny_model_file(&file, &spec);
        proc_start(&victim, FILE_ARGS(file.path));
        wait_ready(&victim);
        uint16_t port = proc_port(&victim);
        for (int round = 0; round < ROUNDS; round++) {
            int fds[AT_ONCE];
            for (unsigned i = 0; i < AT_ONCE; i++)
                fds[i] = ask(port, prompt + i);
            if (round == 1) /* while they compute */
                attacks[a](file.path);
            for (unsigned i = 0; i < AT_ONCE; i++, prompt++) {
                answer_of(fds[i], got, sizeof(got));
                answer_of(ask(right, prompt), want, sizeof(want));
                assert_string_equal(got, want);
            }
        }
        int fd = http_connect(port);
        http_send(fd, "GET", "/readyz", "");
        http_read(fd, text, sizeof(text));
        assert_non_null(strstr(text, " 200 "));
        assert_non_null(strstr(text, "\"model_changed\":true"));
        kill(victim.pid, SIGTERM);
        assert_int_equal(proc_wait(&victim), 0);
        assert_non_null(strstr(victim.text, "the model file changed"));
        tiny_model_close(&file);
    }
    kill(witness.pid, SIGTERM);
    assert_int_equal(proc_wait(&witness), 0);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: test_worker_program INCIPIT-WORKER SLOW_PREAD.SO\n");
        return 2;
    }
    program = argv[1];
    slow_pread = argv[2];
    signal(SIGPIPE, SIG_IGN);
    struct tiny_spec spec = tiny_spec_of(8);
    tiny_model_file(&tiny, &spec);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_starts_end_with_a_message),
        cmocka_unit_test(test_port_in_use_is_said),
        cmocka_unit_test(test_serves_without_its_cache_node_and_drains),
        cmocka_unit_test(test_signals_are_seen_before_they_close),
        cmocka_unit_test(test_port_opens_before_the_model_is_there),
        cmocka_unit_test(test_absent_node_does_not_spoil_the_end),
        cmocka_unit_test(test_idle_connections_leave_descriptors_for_probes),
        cmocka_unit_test(test_not_ready_before_the_cache_node_was_tried),
        cmocka_unit_test(test_attention_without_vector_instructions_is_said),
        cmocka_unit_test(test_file_changed_under_load_changes_no_answer),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    remove(tiny.path);
    return rc;
}
