/* Whole commands against a node in a child process, and a stand-in for a worker's /tokenize. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <arpa/inet.h>
#include <ctype.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <uv.h>

#include "common/clock.h"
#include "tests/support/fake_node.h"
#include "tools/incipitctl/ctl.h"

#define N_BLOCKS 8u
#define TOKEN "sesame"

struct fixture {
    pid_t node, worker;
    char addr[64], url[64], token_file[64];
    char *out, *err;
    size_t n_out, n_err;
    char ids[N_BLOCKS][65];
};

/* Tokens 0, 1, 2 ... in blocks of 4, namespace digest 5 5 5 ... */
static void make_ids(struct block_id ids[N_BLOCKS]) {
    uint8_t ns[32];
    int32_t tok[N_BLOCKS * 4];
    memset(ns, 5, sizeof(ns));
    for (int i = 0; i < (int)ARRAY_LEN(tok); i++)
        tok[i] = i;
    struct block_chain_cfg cfg = {.namespace_digest = ns, .block_tok = 4};
    struct digest *d = digest_new();
    block_chain(d, &cfg, tok, ARRAY_LEN(tok), ids);
    digest_free(d);
}

static void run_node(int ready_fd, uint32_t n_ns) {
    uv_loop_t loop;
    struct fake_node n;
    struct block_id ids[N_BLOCKS];
    uint8_t payload[128] = {0};
    uv_loop_init(&loop);
    if (fake_node_open(&n, &loop, "127.0.0.1:0", 1) < 0)
        _exit(1);
    n.token = TOKEN;
    for (uint32_t i = 0; i < n_ns; i++) {
        uint8_t digest[32];
        memset(digest, 5 + (int)MIN(i, 2u), sizeof(digest));
        digest[31] = (uint8_t)(i < 2 ? digest[31] : i);
        fake_node_add_ns(&n, digest, sizeof(payload), 2);
    }
    make_ids(ids);
    for (uint32_t i = 0; i < 5; i++) /* the first five of the chain are resident */
        fake_node_add(&n, 1, &ids[i], payload);
    if (n_ns == 2)
        fake_node_add(&n, 2, &ids[0], payload); /* an id of two namespaces */
    n.session_name = "a\x1b[2Jb\nadmin \xc2\x9b"
                     "1m";
    if (write(ready_fd, &n.port, sizeof(n.port)) != sizeof(n.port))
        _exit(1);
    uv_run(&loop, UV_RUN_DEFAULT);
    _exit(0);
}

/* Answers each POST with the tokens 0 .. 27, or 400 when the body has the word "bad" or what /tokenize does not take.
 * To anything else, a frame for instance, as HTTP servers do. */
static void run_worker(int ready_fd) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    char req[4096], res[512], body[256] = "{\"count\":28,\"tokens\":[0";
    for (int i = 1; i < 28; i++)
        snprintf(body + strlen(body), sizeof(body) - strlen(body), ",%d", i);
    snprintf(body + strlen(body), sizeof(body) - strlen(body), "]}");
    if (bind(fd, (struct sockaddr *)&a, len) < 0 || listen(fd, 5) < 0 ||
        getsockname(fd, (struct sockaddr *)&a, &len) < 0)
        _exit(1);
    uint16_t port = ntohs(a.sin_port);
    if (write(ready_fd, &port, sizeof(port)) != sizeof(port))
        _exit(1);
    for (;;) {
        int c = accept(fd, NULL, NULL);
        size_t n = 0;
        while (c >= 0 && n < sizeof(req) - 1) { /* to the end of the JSON object */
            ssize_t k = read(c, req + n, sizeof(req) - 1 - n);
            n += k > 0 ? (size_t)k : 0;
            if (k <= 0 || (n && (req[n - 1] == '}' || req[0] != 'P')))
                break;
        }
        req[n] = '\0';
        bool is_bad =
            strstr(req, "bad") || strstr(req, "temperature") || !strstr(req, "POST /tokenize");
        snprintf(res, sizeof(res), "HTTP/1.1 %s\r\nContent-Type: application/json\r\n\r\n%s",
                 is_bad ? "400 Bad Request" : "200 OK", is_bad ? "{\"error\":1}" : body);
        (void)!write(c, res, strlen(res));
        close(c);
    }
}

static pid_t spawn(struct fixture *f, uint32_t n_ns, uint16_t *ret_port) {
    int fd[2];
    assert_int_equal(pipe(fd), 0);
    (void)f;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (n_ns)
            run_node(fd[1], n_ns);
        run_worker(fd[1]);
    }
    assert_int_equal(read(fd[0], ret_port, sizeof(*ret_port)), sizeof(*ret_port));
    close(fd[0]);
    close(fd[1]);
    return pid;
}

static int setup_ns(void **state, uint32_t n_ns) {
    struct fixture *f = calloc(1, sizeof(*f));
    uint16_t port;
    f->node = spawn(f, n_ns, &port);
    snprintf(f->addr, sizeof(f->addr), "127.0.0.1:%u", port);
    f->worker = spawn(f, 0, &port);
    snprintf(f->url, sizeof(f->url), "http://127.0.0.1:%u", port);
    struct block_id ids[N_BLOCKS];
    make_ids(ids);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        digest_hex(ids[i].b, 32, f->ids[i]);
    snprintf(f->token_file, sizeof(f->token_file), "/tmp/ctl-token-%d", (int)getpid());
    FILE *t = fopen(f->token_file, "w");
    fputs(TOKEN "\n", t);
    fclose(t);
    *state = f;
    return 0;
}

static int setup(void **state) {
    return setup_ns(state, 1);
}

static int setup_two_namespaces(void **state) {
    return setup_ns(state, 2);
}

/* Namespaces 0505..., 0606..., 0707...00 and 0707...01. */
static int setup_twins(void **state) {
    return setup_ns(state, 4);
}

static int teardown(void **state) {
    struct fixture *f = *state;
    pid_t pids[] = {f->node, f->worker};
    for (size_t i = 0; i < ARRAY_LEN(pids); i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
    unlink(f->token_file);
    free(f->out);
    free(f->err);
    free(f);
    return 0;
}

/* Runs "incipitctl --node ADDR --token-file FILE" with the rest of the line given word by word. */
static int ctl(struct fixture *f, ...) {
    char *argv[64] = {(char *)(uintptr_t) "incipitctl", (char *)(uintptr_t) "--node", f->addr,
                      (char *)(uintptr_t) "--token-file", f->token_file};
    int argc = 5;
    va_list ap;
    va_start(ap, f);
    for (const char *a; (a = va_arg(ap, const char *)) != NULL;)
        argv[argc++] = (char *)(uintptr_t)a;
    va_end(ap);
    free(f->out);
    free(f->err);
    FILE *out = open_memstream(&f->out, &f->n_out), *err = open_memstream(&f->err, &f->n_err);
    int rv = ctl_main(argc, argv, out, err);
    fclose(out);
    fclose(err);
    return rv;
}

/* The output must be one JSON document; its member's value as integer or number of items. */
static int64_t json_field(struct fixture *f, const char *key) {
    struct json_t *doc;
    struct errbuf eb;
    if (json_parse((struct str){f->out, f->n_out}, &doc, &eb) < 0)
        fail_msg("no JSON: %s: %s", eb.text, f->out);
    const struct json_t *v = json_member(doc, key);
    int64_t n = json_kind(v) == JSON_KIND_INT ? json_int(v) : (int64_t)json_count(v);
    json_free(doc);
    return n;
}

static void test_status_shows_a_node(void **state) {
    struct fixture *f = *state;
    assert_int_equal(ctl(f, "status", NULL), CTL_OK);
    assert_non_null(strstr(f->out, f->addr));
    assert_non_null(strstr(f->out, "RAM"));
    assert_int_equal(ctl(f, "--json", "status", NULL), CTL_OK);
    assert_int_equal(json_field(f, "nodes"), 1);
    assert_non_null(strstr(f->out, "\"fake_total\":2.5"));
}

/* The node knows when a block was put, not when it was last asked for. */
static void test_age_is_that_of_the_put(void **state) {
    (void)state;
    uint64_t now_ms = clock_wall_ns(clock_real()) / NS_PER_MS;
    char t[32];
    assert_string_equal(ctl_age_of(0, t), "-");
    assert_string_equal(ctl_age_of(now_ms + 60000, t), "0.0s");
    assert_memory_equal(ctl_age_of(now_ms - 2 * 3600000, t), "2h 0m", 5);
}

static void test_list_follows_the_cursor(void **state) {
    struct fixture *f = *state;
    assert_int_equal(ctl(f, "--json", "list", NULL), CTL_OK);
    assert_int_equal(json_field(f, "blocks"), 5);
    assert_int_equal(ctl(f, "--json", "list", "--limit", "4", NULL), CTL_OK);
    assert_int_equal(json_field(f, "blocks"), 4);
    assert_non_null(strstr(f->err, "has more"));
    assert_int_equal(ctl(f, "list", NULL), CTL_OK);
    assert_non_null(strstr(f->out, f->ids[4]));
    assert_int_equal(ctl(f, "list", "namespaces", NULL), CTL_OK);
    assert_non_null(strstr(f->out, "block_tokens=4"));
    assert_int_equal(ctl(f, "--json", "list", "sessions", NULL), CTL_OK);
    assert_int_equal(json_field(f, "sessions"), 1);
}

static void test_inspect_known_and_unknown(void **state) {
    struct fixture *f = *state;
    assert_int_equal(ctl(f, "inspect", f->ids[0], NULL), CTL_OK);
    assert_non_null(strstr(f->out, f->ids[0]));
    assert_non_null(strstr(f->out, "resident"));
    assert_int_equal(ctl(f, "inspect", f->ids[7], NULL), CTL_FAILED);
    assert_non_null(strstr(f->err, "no node has"));
    assert_int_equal(ctl(f, "inspect", "abc", NULL), CTL_USAGE);
}

static void test_lookup_by_tokens_text_and_ids(void **state) {
    struct fixture *f = *state;
    /* 28 tokens in blocks of 4: the last token is always computed, so 6 blocks are asked for. */
    const char *tokens = "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,"
                         "26,27";
    assert_int_equal(ctl(f, "--json", "lookup", "--tokens", tokens, NULL), CTL_OK);
    assert_int_equal(json_field(f, "resident_prefix_blocks"), 5);
    assert_int_equal(json_field(f, "blocks"), 6);
    assert_int_equal(ctl(f, "--json", "lookup", "--text", "hi", "--worker", f->url, NULL), CTL_OK);
    assert_int_equal(json_field(f, "resident_prefix_blocks"), 5);
    assert_int_equal(ctl(f, "lookup", "--chat", "hi", "--worker", f->url, NULL), CTL_OK);
    assert_non_null(strstr(f->out, "5 of 6 full blocks in front are resident (20 of 28 tokens)"));
    assert_int_equal(ctl(f, "lookup", "--ids", f->ids[0], f->ids[7], NULL), CTL_OK);
    assert_non_null(strstr(f->out, "1 of 2 full blocks"));
    assert_int_equal(ctl(f, "lookup", "--tokens", "1,2", NULL), CTL_OK);
    assert_non_null(strstr(f->out, "0 of 0"));
}

static void test_lookup_errors_are_told(void **state) {
    struct fixture *f = *state;
    assert_int_equal(ctl(f, "lookup", "--text", "bad", "--worker", f->url, NULL), CTL_FAILED);
    assert_non_null(strstr(f->err, "400"));
    assert_int_equal(ctl(f, "lookup", "--text", "x", "--worker", "http://127.0.0.1:1", NULL),
                     CTL_UNREACHABLE);
    assert_int_equal(ctl(f, "lookup", "--text", "x", NULL), CTL_USAGE);
    assert_int_equal(ctl(f, "lookup", "--tokens", "1,x", NULL), CTL_USAGE);
    assert_int_equal(ctl(f, "lookup", NULL), CTL_USAGE);
}

static void test_lookup_wants_a_choice_of_namespace(void **state) {
    struct fixture *f = *state;
    char ns[65];
    uint8_t digest[32];
    assert_int_equal(ctl(f, "lookup", "--ids", f->ids[0], NULL), CTL_USAGE);
    assert_non_null(strstr(f->err, "--ns"));
    memset(digest, 5, sizeof(digest));
    digest_hex(digest, 32, ns);
    assert_int_equal(ctl(f, "lookup", "--ids", f->ids[0], "--ns", ns, NULL), CTL_OK);
    memset(ns, 'a', 64);
    assert_int_equal(ctl(f, "lookup", "--ids", f->ids[0], "--ns", ns, NULL), CTL_FAILED);
}

static void write_file(char path[64], const char *text) {
    snprintf(path, 64, "/tmp/ctl-request-%d", (int)getpid());
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
}

/* E16: a real chat could not be looked up. The body goes in as a client sends it; only what makes tokens goes to the
 * worker. */
static void test_lookup_of_a_request(void **state) {
    struct fixture *f = *state;
    static const char *const good[] = {
        ("{\"model\":\"m\",\"temperature\":0,\"messages\":[{\"role\":\"user\",\"content\":[{"
         "\"type\":\"text\","
         "\"text\":\"hi\"}]}],\"stream\":true}"),
        "{\"prompt\":\"hi\",\"max_tokens\":3}", "{\"prompt\":[\"hi\"]}",
        "{\"prompt\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27]}"};
    char path[64];
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        write_file(path, good[i]);
        assert_int_equal(ctl(f, "--json", "lookup", "--request", path, "--worker", f->url, NULL),
                         CTL_OK);
        assert_int_equal(json_field(f, "resident_prefix_blocks"), 5);
        assert_int_equal(json_field(f, "tokens"), 28);
    }
    static const char *const bad[] = {"{", "{\"prompt\":[\"a\",\"b\"]}", "{}", "[]",
                                      "{\"prompt\":\"a\",\"messages\":[]}"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        write_file(path, bad[i]);
        assert_int_equal(ctl(f, "lookup", "--request", path, "--worker", f->url, NULL), CTL_FAILED);
        assert_non_null(strstr(f->err, path));
    }
    unlink(path);
    assert_int_equal(ctl(f, "lookup", "--request", path, "--worker", f->url, NULL), CTL_FAILED);
    assert_non_null(strstr(f->err, path));
    assert_int_equal(ctl(f, "lookup", "--request", path, NULL), CTL_USAGE);
}

/* E16: inspect took 64 digits only. */
static void test_prefixes_of_ids(void **state) {
    struct fixture *f = *state;
    char start[17], ns[9] = "05050505";
    snprintf(start, sizeof(start), "%.16s", f->ids[1]);
    assert_int_equal(ctl(f, "inspect", start, NULL), CTL_OK);
    assert_non_null(strstr(f->out, f->ids[1]));
    for (char *p = start; *p; p++)
        *p = (char)toupper((unsigned char)*p);
    assert_int_equal(ctl(f, "evict", start, "--dry-run", NULL), CTL_OK);
    assert_non_null(strstr(f->out, "would evict 1 blocks"));
    assert_int_equal(ctl(f, "--json", "list", "--ns", ns, NULL), CTL_OK);
    assert_int_equal(json_field(f, "blocks"), 5);
    assert_int_equal(ctl(f, "inspect", "123", NULL), CTL_USAGE); /* too few to name anybody */
    snprintf(start, sizeof(start), "%.16s", f->ids[7]);
    assert_int_equal(ctl(f, "inspect", start, NULL), CTL_FAILED);
    assert_non_null(strstr(f->err, start));
}

static void test_a_prefix_of_several_names_them(void **state) {
    struct fixture *f = *state;
    assert_int_equal(ctl(f, "list", "--ns", "0505", NULL), CTL_OK);
    assert_int_equal(ctl(f, "list", "--ns", "06060", NULL), CTL_OK);
    assert_int_equal(ctl(f, "list", "--ns", "0707", NULL), CTL_USAGE);
    assert_non_null(strstr(f->err, "several namespaces"));
    assert_int_equal(ctl(f, "evict", "--ns", "0707", NULL),
                     CTL_USAGE); /* and nothing was evicted */
    assert_int_equal(ctl(f, "--json", "list", NULL), CTL_OK);
    assert_int_equal(json_field(f, "blocks"), 5);
}

/* E16: with --json, standard output is one object whatever happened. */
static void test_json_always(void **state) {
    struct fixture *f = *state;
    assert_int_equal(ctl(f, "--json", "status", NULL), CTL_OK);
    assert_int_equal(json_field(f, "errors"), 0);
    assert_int_equal(ctl(f, "--json", "inspect", f->ids[7], NULL), CTL_FAILED);
    assert_int_equal(json_field(f, "errors"), 1);
    assert_int_equal(json_field(f, "blocks"), 0);
    assert_int_equal(ctl(f, "--json", "nonsense", NULL), CTL_USAGE);
    assert_int_equal(json_field(f, "errors"), 1);
    assert_int_equal(ctl(f, "--json", "lookup", NULL), CTL_USAGE);
    assert_int_equal(json_field(f, "errors"), 1);
    assert_int_equal(ctl(f, "status", "--json", "--node", "127.0.0.1:1", NULL), CTL_FAILED);
    assert_int_equal(json_field(f, "errors"), 1); /* of two nodes one answers */
    assert_int_equal(json_field(f, "nodes"), 1);
    kill(f->node, SIGKILL);
    waitpid(f->node, NULL, 0);
    assert_int_equal(ctl(f, "--json", "evict", "--from", "2h", NULL), CTL_UNREACHABLE);
    assert_int_equal(json_field(f, "errors"), 1);
    f->node = fork(); /* for teardown */
    if (f->node == 0)
        pause();
}

/* E16: the node's HTTP port, or a worker's, said "peer broke the wire protocol"; "Hello: Hello: wrong token". */
static void test_connection_errors_are_one_clear_sentence(void **state) {
    struct fixture *f = *state;
    const char *http = f->url + strlen("http://");
    char *argv[] = {(char[]){"incipitctl"}, (char[]){"--node"}, (char *)(uintptr_t)http,
                    (char[]){"status"}, NULL};
    FILE *out = open_memstream(&f->out, &f->n_out), *err = open_memstream(&f->err, &f->n_err);
    int rv = ctl_main(4, argv, out, err);
    fclose(out);
    fclose(err);
    assert_int_equal(rv, CTL_UNREACHABLE);
    assert_non_null(strstr(f->err, http));
    assert_non_null(strstr(f->err, "no cache node's RPC"));
    FILE *t = fopen(f->token_file, "w");
    fputs("wrong-wrong-wrong-wrong\n", t);
    fclose(t);
    assert_int_equal(ctl(f, "status", NULL), CTL_FAILED);
    assert_non_null(strstr(f->err, "Hello: "));
    assert_null(strstr(f->err, "Hello: Hello"));
}

/* B5: a client's name with an escape sequence, a line break and a C1 control forged rows of the terminal. */
static void test_nothing_of_others_is_printed_raw(void **state) {
    struct fixture *f = *state;
    assert_int_equal(ctl(f, "list", "sessions", NULL), CTL_OK);
    assert_non_null(strstr(f->out, "a\\x1b[2Jb\\x0aadmin \\xc2\\x9b1m"));
    for (const char *p = f->out; *p; p++)
        assert_true(*p == '\n' || (unsigned char)*p >= 0x20);
    assert_int_equal(ctl(f, "inspect", "x\x1b[31m", NULL), CTL_USAGE);
    assert_null(strchr(f->err, 0x1b));
    char cut[8];
    assert_string_equal(ctl_clean(STR("ab\xff\xff"), cut, sizeof(cut)), "ab\\xff");
    assert_string_equal(ctl_clean(STR("caf\xc3\xa9"), cut, sizeof(cut)), "caf\xc3\xa9");
}

/* E7: options marked live could be changed by nothing. */
static void test_config_get_and_set(void **state) {
    struct fixture *f = *state;
    assert_int_equal(ctl(f, "config", "get", NULL), CTL_OK);
    assert_non_null(strstr(f->out, "ram_bytes"));
    assert_non_null(strstr(f->out, "(live)"));
    assert_int_equal(ctl(f, "config", "set", "log-level", "debug", NULL), CTL_OK);
    assert_int_equal(ctl(f, "config", "get", "log_level", NULL), CTL_OK);
    assert_non_null(strstr(f->out, "debug"));
    assert_non_null(strstr(f->out, "how much is said"));
    assert_int_equal(ctl(f, "--json", "config", "get", NULL), CTL_OK);
    assert_int_equal(json_field(f, "nodes"), 1);
    assert_int_equal(ctl(f, "config", "set", "ram_bytes", "1g", NULL), CTL_FAILED);
    assert_non_null(strstr(f->err, "cannot change while running"));
    assert_int_equal(ctl(f, "config", "get", "nonsense", NULL), CTL_FAILED);
    assert_int_equal(ctl(f, "config", "set", "log_level", NULL), CTL_USAGE);
    assert_int_equal(ctl(f, "config", "frobnicate", NULL), CTL_USAGE);
}

static void test_evict_and_flush(void **state) {
    struct fixture *f = *state;
    assert_int_equal(ctl(f, "evict", f->ids[0], "--dry-run", NULL), CTL_OK);
    assert_non_null(strstr(f->out, "would evict 1 blocks, 128 B"));
    assert_int_equal(ctl(f, "--json", "evict", f->ids[0], f->ids[7], NULL), CTL_OK);
    assert_int_equal(json_field(f, "blocks"), 1);
    assert_int_equal(ctl(f, "inspect", f->ids[0], NULL), CTL_FAILED);
    assert_int_equal(ctl(f, "flush", NULL), CTL_USAGE);
    assert_non_null(strstr(f->err, "--yes"));
    assert_int_equal(ctl(f, "flush", "--yes", NULL), CTL_OK);
    assert_non_null(strstr(f->out, "flushed 4 blocks"));
    assert_int_equal(ctl(f, "evict", NULL), CTL_USAGE);
    assert_int_equal(ctl(f, "evict", "--from", "yesterday", NULL), CTL_USAGE);
    assert_int_equal(ctl(f, "evict", "--from", "2h", NULL), CTL_OK);
}

/* An id says nothing of its namespace: without --ns it is meant in each that has it, and that is said. */
static void test_evict_finds_the_namespace_of_ids(void **state) {
    struct fixture *f = *state;
    assert_int_equal(ctl(f, "evict", f->ids[1], "--ns", "0606", NULL), CTL_OK);
    assert_non_null(strstr(f->out, "evicted 0 blocks"));
    assert_int_equal(ctl(f, "evict", f->ids[1], "--dry-run", NULL), CTL_OK);
    assert_non_null(strstr(f->out, "would evict 1 blocks"));
    assert_null(strstr(f->err, f->ids[1]));
    assert_int_equal(ctl(f, "evict", f->ids[1], f->ids[0], "--dry-run", NULL), CTL_OK);
    assert_non_null(strstr(f->out, "would evict 3 blocks"));
    assert_non_null(strstr(f->err, f->ids[0]));
    assert_non_null(strstr(f->err, "is in 2 namespaces"));
    assert_null(strstr(f->err, f->ids[1]));
    assert_int_equal(ctl(f, "evict", f->ids[0], "--ns", "0505", NULL), CTL_OK);
    assert_non_null(strstr(f->out, "evicted 1 blocks"));
    assert_int_equal(ctl(f, "evict", f->ids[1], f->ids[0], "--chain", NULL), CTL_OK);
    assert_non_null(strstr(f->out, "evicted 2 blocks"));
    assert_int_equal(ctl(f, "--json", "evict", f->ids[7], f->ids[2], NULL), CTL_FAILED);
    assert_non_null(strstr(f->err, f->ids[7]));
    assert_int_equal(json_field(f, "blocks"), 1); /* what is there went all the same */
}

static void test_usage(void **state) {
    struct fixture *f = *state;
    assert_int_equal(ctl(f, NULL), CTL_USAGE);
    assert_int_equal(ctl(f, "nonsense", NULL), CTL_USAGE);
    assert_int_equal(ctl(f, "--nonsense", NULL), CTL_USAGE);
    assert_int_equal(ctl(f, "status", "--limit", "3", NULL), CTL_USAGE); /* not its option */
    assert_int_equal(ctl(f, "list", "--limit", "many", NULL), CTL_USAGE);
    assert_int_equal(ctl(f, "list", "--limit", NULL), CTL_USAGE);
    assert_int_equal(ctl(f, "list", "everything", NULL), CTL_USAGE);
    assert_int_equal(ctl(f, "--help", NULL), CTL_OK);
    assert_non_null(strstr(f->out, "exit codes"));
    static const char *const names[] = {"status", "list",  "inspect", "lookup",
                                        "evict",  "flush", "config"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        assert_int_equal(ctl(f, names[i], "--help", NULL), CTL_OK);
        assert_non_null(strstr(f->out, names[i]));
    }
}

static void test_node_gone_is_unreachable_and_wrong_token_failed(void **state) {
    struct fixture *f = *state;
    FILE *t = fopen(f->token_file, "w");
    fputs("wrong\n", t);
    fclose(t);
    assert_int_equal(ctl(f, "status", NULL), CTL_FAILED);
    assert_non_null(strstr(f->err, "wrong token"));
    kill(f->node, SIGKILL);
    waitpid(f->node, NULL, 0);
    assert_int_equal(ctl(f, "status", NULL), CTL_UNREACHABLE);
    assert_int_equal(f->n_out, 0);
    unlink(f->token_file);
    assert_int_equal(ctl(f, "status", NULL), CTL_FAILED);
    f->node = fork(); /* for teardown */
    if (f->node == 0)
        pause();
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        T(test_status_shows_a_node),
        cmocka_unit_test(test_age_is_that_of_the_put),
        T(test_list_follows_the_cursor),
        T(test_inspect_known_and_unknown),
        T(test_lookup_by_tokens_text_and_ids),
        T(test_lookup_errors_are_told),
        cmocka_unit_test_setup_teardown(test_lookup_wants_a_choice_of_namespace,
                                        setup_two_namespaces, teardown),
        T(test_lookup_of_a_request),
        T(test_prefixes_of_ids),
        cmocka_unit_test_setup_teardown(test_a_prefix_of_several_names_them, setup_twins, teardown),
        T(test_json_always),
        T(test_connection_errors_are_one_clear_sentence),
        T(test_nothing_of_others_is_printed_raw),
        T(test_config_get_and_set),
        T(test_evict_and_flush),
        cmocka_unit_test_setup_teardown(test_evict_finds_the_namespace_of_ids, setup_two_namespaces,
                                        teardown),
        T(test_usage),
        T(test_node_gone_is_unreachable_and_wrong_token_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
