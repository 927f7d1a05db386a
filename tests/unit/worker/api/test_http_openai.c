/* The OpenAI edge over a real socket, a real loop and a real engine with a fake model. */
#include "worker/api/http_openai.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/check.h"
#include "common/json.h"
#include "tests/unit/worker/sched/engine_fixture.h"

#define CHATML                                                                                     \
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "                   \
    "message['content'] + "                                                                        \
    "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ "                          \
    "'<|im_start|>assistant\\n' }}{% endif %}"

struct fixture {
    struct engine_fx e;
    struct http_openai_cfg cfg;
    struct http_openai *api;
    struct http_server *http;
    struct http_route routes[HTTP_OPENAI_ROUTES];
    struct chat_template *chat;
    bool http_closed, api_closed, drained;
    struct log *log; /* of an access log: NULL or set before start() */
    int log_fds[2];
};

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof(*f));
    CHECK(f);
    engine_fx_init(&f->e);
    f->e.cfg.remote = NULL;
    f->cfg = (struct http_openai_cfg){.loop = &f->e.loop,
                                      .work = f->e.work,
                                      .tok = f->e.tok,
                                      .chat_error = "none",
                                      .model_name = "org/m",
                                      .worker_name = "w1",
                                      .namespace_digest = f->e.cfg.namespace_digest};
    *state = f;
    return 0;
}

/* The engine's and the API's configuration may be changed before. */
static void start(struct fixture *f) {
    struct errbuf eb = {""};
    engine_fx_open(&f->e);
    f->cfg.engine = f->e.engine;
    f->cfg.max_ctx = f->e.cfg.max_ctx;
    f->cfg.block_tok = f->e.cfg.block_tok;
    if (http_openai_open(&f->api, &f->cfg, &eb) < 0)
        fail_msg("%s", eb.text);
    http_openai_routes(f->api, f->routes);
    const struct http_server_cfg hc = {.host = "127.0.0.1",
                                       .routes = f->routes,
                                       .n_routes = ARRAY_LEN(f->routes),
                                       .log = f->log,
                                       .access_log = f->log != NULL};
    if (http_server_open(&f->http, &f->e.loop, &hc, &eb) < 0)
        fail_msg("%s", eb.text);
}

static void set_flag(void *arg) {
    *(bool *)arg = true;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    http_server_close(f->http, set_flag, &f->http_closed);
    engine_fx_close_engine(&f->e);
    while (!f->http_closed)
        uv_run(&f->e.loop, UV_RUN_ONCE);
    http_openai_close(f->api, set_flag, &f->api_closed);
    while (!f->api_closed)
        uv_run(&f->e.loop, UV_RUN_ONCE);
    engine_fx_fini(&f->e);
    chat_template_free(f->chat);
    log_free(f->log);
    free(f);
    return 0;
}

/* --- a client on the same loop --- */

struct client {
    int fd;
    struct strbuf in;
    bool at_end;
};

static void client_connect(struct client *c, struct fixture *f) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(http_server_port(f->http)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    *c = (struct client){.fd = socket(AF_INET, SOCK_STREAM, 0)};
    CHECK(c->fd >= 0 && connect(c->fd, (struct sockaddr *)&to, sizeof(to)) == 0);
}

static void client_send(struct client *c, struct fixture *f, const char *path, const char *body,
                        const char *headers) {
    struct strbuf out = {0};
    client_connect(c, f);
    strbuf_addf(&out, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s",
                body ? "POST" : "GET", path, headers);
    if (body)
        strbuf_addf(&out, "%sContent-Length: %zu\r\n",
                    strstr(headers, "Content-Type") ? "" : "Content-Type: application/json\r\n",
                    strlen(body));
    strbuf_addf(&out, "\r\n%s", body ? body : "");
    CHECK(send(c->fd, out.p, out.len, 0) == (ssize_t)out.len);
    strbuf_fini(&out);
}

static void client_poll(struct client *c, struct fixture *f) {
    char buf[4096];
    uv_run(&f->e.loop, UV_RUN_NOWAIT);
    for (ssize_t n; !c->at_end && (n = recv(c->fd, buf, sizeof(buf), MSG_DONTWAIT)) != -1;) {
        if (n == 0)
            c->at_end = true;
        strbuf_add(&c->in, buf, (size_t)n);
    }
    if (!c->at_end && errno != EAGAIN)
        c->at_end = true;
}

static void client_wait(struct client *c, struct fixture *f) {
    while (!c->at_end)
        client_poll(c, f);
}

static void client_wait_for(struct client *c, struct fixture *f, const char *text) {
    while (!c->at_end && !(c->in.p && strstr(c->in.p, text)))
        client_poll(c, f);
    assert_non_null(strstr(c->in.p, text));
}

static void client_fini(struct client *c) {
    close(c->fd);
    strbuf_fini(&c->in);
}

static int client_status(const struct client *c) {
    CHECK(c->in.len > 12 && memcmp(c->in.p, "HTTP/1.1 ", 9) == 0);
    return (int)strtol(c->in.p + 9, NULL, 10);
}

static struct json_t *client_json(const struct client *c) {
    struct json_t *doc = NULL;
    struct errbuf eb = {""};
    const char *body = strstr(c->in.p, "\r\n\r\n");
    CHECK(body);
    if (json_parse(str_of(body + 4), &doc, &eb) < 0)
        fail_msg("%s: %s", eb.text, body);
    return doc;
}

static struct json_t *ask(struct fixture *f, const char *path, const char *body,
                          const char *headers, int status) {
    struct client c;
    client_send(&c, f, path, body, headers);
    client_wait(&c, f);
    if (client_status(&c) != status)
        fail_msg("%s", c.in.p);
    struct json_t *doc = client_json(&c);
    client_fini(&c);
    return doc;
}

static const char *error_code(const struct json_t *doc) {
    return json_text(json_member(json_member(doc, "error"), "code")).p;
}

static const struct json_t *choice(const struct json_t *doc, size_t i) {
    return json_item(json_member(doc, "choices"), i);
}

static void expected_text(const char *prompt, uint32_t n, char *ret) {
    int32_t ids[64];
    CHECK(n <= 64);
    fx_expect(prompt, n, ids);
    for (uint32_t i = 0; i < n; i++)
        ret[i] = (char)ids[i];
    ret[n] = '\0';
}

/* --- tests --- */

static void test_completion(void **state) {
    struct fixture *f = *state;
    char want[65];
    start(f);
    struct json_t *doc = ask(f, "/v1/completions",
                             "{\"prompt\":\"hello\",\"max_tokens\":6,\"temperature\":0}", "", 200);
    expected_text("hello", 6, want);
    assert_string_equal(json_text(json_member(choice(doc, 0), "text")).p, want);
    assert_int_equal(json_int(json_member(json_member(doc, "usage"), "prompt_tokens")), 5);
    json_free(doc);
}

static void test_prompts_become_choices(void **state) {
    struct fixture *f = *state;
    char want[65];
    start(f);
    struct json_t *doc =
        ask(f, "/v1/completions",
            "{\"prompt\":[\"one\",[116,119,111],\"three\"],\"max_tokens\":4,\"temperature\":0}", "",
            200);
    static const char *const prompts[] = {"one", "two", "three"};
    for (size_t i = 0; i < 3; i++) {
        expected_text(prompts[i], 4, want);
        assert_string_equal(json_text(json_member(choice(doc, i), "text")).p, want);
        assert_int_equal(json_int(json_member(choice(doc, i), "index")), i);
    }
    json_free(doc);
    /* One that cannot be done fails them all, and nothing is left running. */
    struct strbuf body = {0};
    strbuf_addz(&body, "{\"max_tokens\":50,\"prompt\":[\"one\",\"");
    for (int i = 0; i < 300; i++)
        strbuf_addc(&body, 'x');
    strbuf_addz(&body, "\"]}");
    doc = ask(f, "/v1/completions", body.p, "", 400);
    assert_string_equal(error_code(doc), "context_length_exceeded");
    assert_int_equal(engine_n_open(f->e.engine), 0);
    json_free(doc);
    strbuf_fini(&body);
}

/* Sum of all "text" members of a stream. */
static void stream_text(const char *p, char *ret, size_t room) {
    size_t n = 0;
    ret[0] = '\0';
    while ((p = strstr(p, "data: {")) != NULL) {
        const char *end = strstr(p, "\n\n");
        struct json_t *doc = NULL;
        CHECK(end && json_parse((struct str){p + 6, (size_t)(end - p) - 6}, &doc, NULL) == 0);
        struct str s = json_text(json_member(choice(doc, 0), "text"));
        CHECK(n + s.n < room);
        memcpy(ret + n, s.p, s.n + 1);
        n += s.n;
        json_free(doc);
        p = end;
    }
}

static void test_stream(void **state) {
    struct fixture *f = *state;
    struct client c;
    char want[65], got[65];
    start(f);
    client_send(&c, f, "/v1/completions",
                "{\"prompt\":\"hello\",\"max_tokens\":20,\"temperature\":0,\"stream\":true,"
                "\"stream_options\":{\"include_usage\":true}}",
                "");
    client_wait(&c, f);
    assert_int_equal(client_status(&c), 200);
    assert_non_null(strstr(c.in.p, "text/event-stream"));
    assert_non_null(
        strstr(c.in.p, "X-Accel-Buffering: no\r\n")); /* F17: 46 tokens in 3 reads through nginx */
    assert_non_null(strstr(c.in.p, "data: [DONE]\n\n"));
    assert_non_null(strstr(c.in.p, "\"completion_tokens\":20"));
    assert_non_null(strstr(c.in.p, "\"finish_reason\":\"length\""));
    expected_text("hello", 20, want);
    stream_text(c.in.p, got, sizeof(got));
    assert_string_equal(got, want);
    assert_null(strstr(c.in.p, "\"completion_tokens\":19"));
    client_fini(&c);
    /* F9: vLLM's continuous_usage_stats: each chunk says how many there are by now */
    client_send(&c, f, "/v1/completions",
                "{\"prompt\":\"hello\",\"max_tokens\":3,\"temperature\":0,\"stream\":true,\"stream_"
                "options\":{\"continuous_usage_stats\":true}}",
                "");
    client_wait(&c, f);
    assert_non_null(strstr(
        c.in.p, "\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":3,\"total_tokens\":8}"));
    client_fini(&c);
}

/* The error of a stream that has not begun is an HTTP status, not an event. */
static void test_too_long_is_400_and_nothing_is_cut(void **state) {
    struct fixture *f = *state;
    struct strbuf body = {0};
    start(f);
    for (int stream = 0; stream < 2; stream++) {
        strbuf_clear(&body);
        strbuf_addf(&body, "{\"stream\":%s,\"prompt\":\"", stream ? "true" : "false");
        for (int i = 0; i < 250; i++)
            strbuf_addc(&body, 'x');
        strbuf_addz(&body, "\"}");
        struct json_t *doc = ask(f, "/v1/completions", body.p, "", 400);
        assert_string_equal(error_code(doc), "context_length_exceeded");
        assert_non_null(
            strstr(json_text(json_member(json_member(doc, "error"), "message")).p, "250"));
        json_free(doc);
    }
    strbuf_fini(&body);
}

static void test_full_queue_is_429_with_retry_after(void **state) {
    struct fixture *f = *state;
    enum { N = 8 };
    struct client c[N];
    unsigned refused = 0;
    f->e.cfg.max_queue = 1;
    f->e.cfg.max_seqs = 1;
    start(f);
    atomic_store(&f->e.model.step_us, 2000);
    for (int i = 0; i < N; i++)
        client_send(&c[i], f, "/v1/completions", "{\"prompt\":\"hello\",\"max_tokens\":20}", "");
    for (int i = 0; i < N; i++) {
        client_wait(&c[i], f);
        int status = client_status(&c[i]);
        assert_true(status == 200 || status == 429);
        if (status == 429) {
            refused++;
            assert_non_null(strstr(c[i].in.p, "Retry-After: "));
        }
        client_fini(&c[i]);
    }
    assert_true(refused > 0 && refused < N);
}

/* llama.cpp 24496 and others: work that goes on after its client left. */
static void test_client_gone_stops_the_work(void **state) {
    struct fixture *f = *state;
    struct client c;
    start(f);
    atomic_store(&f->e.model.step_us, 1000);
    client_send(&c, f, "/v1/completions",
                "{\"prompt\":\"hello\",\"max_tokens\":190,\"stream\":true,\"ignore_eos\":true}",
                "");
    client_wait_for(&c, f, "data: {");
    client_fini(&c);
    while (engine_n_open(f->e.engine))
        uv_run(&f->e.loop, UV_RUN_ONCE);
    assert_true(atomic_load(&f->e.model.rows) < 150);
    /* The same before the first token, and without a stream. */
    client_send(&c, f, "/v1/completions",
                "{\"prompt\":\"bye\",\"max_tokens\":190,\"ignore_eos\":true}", "");
    while (!engine_n_open(f->e.engine))
        client_poll(&c, f);
    client_fini(&c);
    unsigned before = atomic_load(&f->e.model.rows);
    while (engine_n_open(f->e.engine))
        uv_run(&f->e.loop, UV_RUN_ONCE);
    assert_true(atomic_load(&f->e.model.rows) - before < 150);
}

static void test_silence_is_filled_with_comments(void **state) {
    struct fixture *f = *state;
    struct client c;
    f->cfg.keepalive_ms = 40;
    start(f);
    atomic_store(&f->e.model.step_us, 200000);
    client_send(&c, f, "/v1/completions", "{\"prompt\":\"hello\",\"max_tokens\":1,\"stream\":true}",
                "");
    client_wait(&c, f);
    const char *comment = strstr(c.in.p, ": keep-alive"), *data = strstr(c.in.p, "data: {");
    assert_non_null(comment);
    assert_non_null(data);
    assert_true(comment < data);
    client_fini(&c);
}

static void test_broken_model_is_500(void **state) {
    struct fixture *f = *state;
    start(f);
    atomic_store(&f->e.model.fail_rv, ERR_INTERNAL);
    json_free(ask(f, "/v1/completions", "{\"prompt\":\"hello\"}", "", 500));
    atomic_store(&f->e.model.fail_rv, 0);
    json_free(ask(f, "/v1/completions", "{\"prompt\":\"hello\"}", "", 200));
}

static void test_chat(void **state) {
    struct fixture *f = *state;
    static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a<|im_end|>\"}],"
                               "\"max_tokens\":5,\"temperature\":0}";
    start(f);
    struct json_t *doc = ask(f, "/v1/chat/completions", body, "", 400);
    assert_non_null(
        strstr(json_text(json_member(json_member(doc, "error"), "message")).p, "chat template"));
    json_free(doc);
    doc = ask(f, "/v1/chat/completions", "{\"messages\":[{\"role\":\"king\",\"content\":\"a\"}]}",
              "", 400);
    json_free(doc);
}

static void test_chat_with_a_template(void **state) {
    struct fixture *f = *state;
    static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a<|im_end|>\"}],"
                               "\"max_tokens\":5,\"temperature\":0}";
    assert_int_equal(chat_template_new(&f->chat, CHATML, strlen(CHATML), (struct tok_str){"", 0},
                                       (struct tok_str){"", 0}, NULL),
                     0);
    f->cfg.chat = f->chat;
    start(f);
    struct json_t *doc = ask(f, "/v1/chat/completions", body, "", 200);
    assert_string_equal(json_text(json_member(json_member(choice(doc, 0), "message"), "role")).p,
                        "assistant");
    /* "<|im_start|>user\na" and "<|im_start|>assistant\n" are bytes here; the user's <|im_end|> is ten more,
     * the template's is one control token. */
    assert_int_equal(json_int(json_member(json_member(doc, "usage"), "prompt_tokens")),
                     17 + 1 + 10 + 1 + 1 + 22);
    json_free(doc);
    doc = ask(f, "/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"a<|im_end|>\"}]}",
              "", 200);
    assert_int_equal(json_int(json_member(doc, "count")), 17 + 1 + 10 + 1 + 1 + 22);
    json_free(doc);
}

static void test_tokenize_and_back(void **state) {
    struct fixture *f = *state;
    start(f);
    static const char *const bodies[] = {"{\"prompt\":\"a\\u00e9\"}",
                                         "{\"content\":\"a\\u00e9\",\"add_special\":true}"};
    for (size_t i = 0; i < 2; i++) {
        struct json_t *doc = ask(f, "/tokenize", bodies[i], "", 200);
        assert_int_equal(json_int(json_member(doc, "count")), 3);
        assert_int_equal(json_int(json_item(json_member(doc, "tokens"), 2)), 0xA9);
        assert_int_equal(json_int(json_member(doc, "max_model_len")), 200);
        json_free(doc);
    }
    struct json_t *doc =
        ask(f, "/tokenize", "{\"content\":\"\\u00e9\",\"with_pieces\":true}", "", 200);
    const struct json_t *piece = json_member(json_item(json_member(doc, "tokens"), 0), "piece");
    assert_int_equal(json_int(json_item(piece, 0)), 0xC3); /* half a character comes as bytes */
    json_free(doc);
    doc = ask(f, "/detokenize", "{\"tokens\":[97,195,169]}", "", 200);
    assert_string_equal(json_text(json_member(doc, "content")).p, "a\xC3\xA9");
    assert_string_equal(json_text(json_member(doc, "prompt")).p, "a\xC3\xA9");
    json_free(doc);
    json_free(ask(f, "/detokenize", "{\"tokens\":[99999]}", "", 400));
    json_free(ask(f, "/detokenize", "{}", "", 400));
    json_free(ask(f, "/tokenize", "{\"prompt\":\"a\",\"x\":1}", "", 400));
    json_free(ask(f, "/tokenize", "{", "", 400));
}

static void test_models(void **state) {
    struct fixture *f = *state;
    start(f);
    struct json_t *doc = ask(f, "/v1/models", NULL, "", 200);
    const struct json_t *m = json_item(json_member(doc, "data"), 0);
    assert_string_equal(json_text(json_member(m, "id")).p, "org/m");
    assert_int_equal(strlen(json_text(json_member(json_member(m, "incipit"), "namespace")).p), 64);
    json_free(doc);
    json_free(ask(f, "/v1/models/org%2Fm", NULL, "", 200));
    json_free(ask(f, "/v1/models/org/m", NULL, "", 200));
    doc = ask(f, "/v1/models/other", NULL, "", 404);
    assert_string_equal(error_code(doc), "model_not_found");
    json_free(doc);
}

static void test_api_keys(void **state) {
    struct fixture *f = *state;
    char path[] = "/tmp/incipit-keys-XXXXXX";
    int fd = mkstemp(path);
    /* G7, B7: a byte order mark, CR LF, a tab, no last newline: such a key never matched, in silence */
    static const char keys[] =
        "\xef\xbb\xbf"
        "secret-bom\r\n# a comment\nsecret-one\nsecret-tab\t"
        "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\nsecret-two "
        "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    CHECK(fd >= 0 && write(fd, keys, sizeof(keys) - 1) == (ssize_t)sizeof(keys) - 1);
    close(fd);
    f->cfg.api_key_file = path;
    start(f);
    static const char body[] = "{\"prompt\":\"hello\",\"max_tokens\":2}";
    json_free(ask(f, "/v1/completions", body, "", 401));
    json_free(ask(f, "/v1/completions", body, "Authorization: Bearer secret\r\n", 401));
    json_free(ask(f, "/v1/completions", body, "Authorization: Basic secret-one\r\n", 401));
    json_free(ask(f, "/tokenize", body, "", 401));
    json_free(ask(f, "/v1/models", NULL, "", 401));
    json_free(ask(f, "/v1/completions", body, "Authorization: Bearer secret-one\r\n", 200));
    json_free(ask(f, "/v1/completions", body, "Authorization: Bearer secret-two\r\n", 200));
    json_free(ask(f, "/v1/completions", body, "Authorization: Bearer secret-tab\r\n", 200));
    json_free(ask(f, "/v1/completions", body, "Authorization: Bearer secret-bom\r\n", 200));

    /* E6: keys change by a reload; a file with an error in it changes none */
    struct errbuf eb;
    FILE *file = fopen(path, "we");
    CHECK(file && fputs("secret-new\nsecret-two\n", file) >= 0 && fclose(file) == 0);
    assert_int_equal(http_openai_reload(f->api, &eb), 0);
    json_free(ask(f, "/v1/completions", body, "Authorization: Bearer secret-one\r\n", 401));
    json_free(ask(f, "/v1/completions", body, "Authorization: Bearer secret-new\r\n", 200));
    file = fopen(path, "we");
    CHECK(file && fputs("secret-two not-a-salt\n", file) >= 0 && fclose(file) == 0);
    assert_int_equal(http_openai_reload(f->api, &eb), ERR_INVALID);
    unlink(path);
    assert_true(http_openai_reload(f->api, &eb) < 0);
    json_free(ask(f, "/v1/completions", body, "Authorization: Bearer secret-new\r\n", 200));
}

static int64_t cached_tokens(struct fixture *f, const char *key) {
    char auth[128];
    snprintf(auth, sizeof(auth), "Authorization: Bearer %s\r\n", key);
    struct json_t *doc =
        ask(f, "/v1/completions", "{\"prompt\":\"a prompt of several blocks\",\"max_tokens\":1}",
            auth, 200);
    int64_t n = json_int(json_member(
        json_member(json_member(doc, "usage"), "prompt_tokens_details"), "cached_tokens"));
    json_free(doc);
    return n;
}

/* B, tenants: the salt of a key reaches the block ids of its requests: nobody finds what another tenant, or
 * the public, has left, and each finds its own. */
static void test_a_tenant_finds_its_own_blocks_only(void **state) {
    struct fixture *f = *state;
    char path[] = "/tmp/incipit-keys-XXXXXX";
    static const char *const tenants[] = {"public-key", "tenant-one", "tenant-two", "no-salt-too"};
    int fd = mkstemp(path);
    static const char keys[] =
        "public-key\nno-salt-too\n"
        "tenant-one 00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n"
        "tenant-two 00112233445566778899aabbccddeeff00112233445566778899aabbccddeefe\n";
    CHECK(fd >= 0 && write(fd, keys, sizeof(keys) - 1) == (ssize_t)sizeof(keys) - 1);
    close(fd);
    f->cfg.api_key_file = path;
    start(f);
    unlink(path);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(cached_tokens(f, tenants[i]), 0);
    for (size_t i = 0; i < ARRAY_LEN(tenants); i++) /* the last one has no salt either */
        assert_true(cached_tokens(f, tenants[i]) > 0);
}

/* B4: "model": "gpt-4o" was answered by whatever was loaded. */
static void test_another_model_is_404(void **state) {
    struct fixture *f = *state;
    static const char *const aliases[] = {"small", "org/other"};
    static const char *const paths[] = {"/v1/completions", "/tokenize"};
    f->cfg.aliases = aliases;
    f->cfg.n_aliases = 2;
    start(f);
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        struct json_t *doc =
            ask(f, paths[i], "{\"prompt\":\"hello\",\"model\":\"gpt-4o\"}", "", 404);
        assert_string_equal(error_code(doc), "model_not_found");
        assert_string_equal(json_text(json_member(json_member(doc, "error"), "param")).p, "model");
        json_free(doc);
        json_free(ask(f, paths[i], "{\"prompt\":\"hello\",\"model\":\"org/m\"}", "", 200));
        json_free(ask(f, paths[i], "{\"prompt\":\"hello\",\"model\":\"org/other\"}", "", 200));
        json_free(ask(f, paths[i], "{\"prompt\":\"hello\",\"model\":null}", "", 200));
    }
    json_free(ask(f, "/v1/chat/completions",
                  "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"model\":\"gpt-4o\"}", "",
                  404));
    json_free(ask(f, "/detokenize", "{\"tokens\":[97],\"model\":\"gpt-4o\"}", "", 404));
    json_free(ask(f, "/v1/completions", "{\"prompt\":\"hello\",\"model\":3}", "", 400));
    struct json_t *doc = ask(f, "/v1/models", NULL, "", 200);
    assert_int_equal(json_count(json_member(doc, "data")), 3);
    json_free(doc);
    json_free(ask(f, "/v1/models/small", NULL, "", 200));
}

static void test_any_model_is_an_option(void **state) {
    struct fixture *f = *state;
    f->cfg.any_model = true;
    start(f);
    struct json_t *doc =
        ask(f, "/v1/completions", "{\"prompt\":\"hello\",\"model\":\"gpt-4o\"}", "", 200);
    assert_string_equal(json_text(json_member(doc, "model")).p, "org/m"); /* what answered */
    json_free(doc);
}

/* B8: a web page may post text/plain, or a body without a type, to any address without asking. */
static void test_only_json_is_taken(void **state) {
    struct fixture *f = *state;
    static const char body[] = "{\"prompt\":\"hello\",\"max_tokens\":1}";
    static const char *const bad[] = {"Content-Type: text/plain\r\n", "X-Content-Type: none\r\n",
                                      "Content-Type: application/x-www-form-urlencoded\r\n",
                                      "Content-Type: text/plain; x=application/json\r\n",
                                      "Content-Type: \r\n"};
    start(f);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        json_free(ask(f, "/v1/completions", body, bad[i], 415));
        json_free(ask(f, "/tokenize", body, bad[i], 415));
    }
    json_free(
        ask(f, "/v1/completions", body, "Content-Type: Application/JSON ; charset=utf-8\r\n", 200));
}

/* A9: the key is asked for before the body is read: 40 of 16 MB cost 600 MB without a key. */
static void test_the_key_is_asked_before_the_body(void **state) {
    struct fixture *f = *state;
    char path[] = "/tmp/incipit-keys-XXXXXX", head[256];
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, "secret-one\n", 11) == 11);
    close(fd);
    f->cfg.api_key_file = path;
    start(f);
    unlink(path);
    static const char *const paths[] = {"/v1/completions", "/v1/chat/completions", "/tokenize",
                                        "/detokenize"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        struct client c;
        client_connect(&c, f);
        int n = snprintf(head, sizeof(head),
                         "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                         "Content-Length: 16000000\r\n\r\n",
                         paths[i]);
        CHECK(send(c.fd, head, (size_t)n, 0) == n);
        client_wait(&c, f); /* nothing of the body is ever sent */
        assert_int_equal(client_status(&c), 401);
        client_fini(&c);
    }
}

/* E8: the line of a generation says what it was, what it cost and why it ended. */
static void test_access_log_tells_what_a_generation_was(void **state) {
    (void)state;
    struct fixture *f = *state;
    static char lines[8192];
    CHECK(pipe(f->log_fds) == 0);
    const struct log_cfg lc = {.prog = "t", .fd = f->log_fds[1], .sync = true};
    CHECK(log_new(&f->log, &lc) == 0);
    start(f);
    for (int i = 0; i < 2; i++)
        json_free(ask(f, "/v1/completions",
                      "{\"prompt\":\"hello there\",\"max_tokens\":3,\"temperature\":0}",
                      "X-Request-Id: r-1\r\nTraceparent: "
                      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n",
                      200));
    json_free(ask(f, "/v1/completions", "{\"prompt\":\"hello\",\"max_tokens\":9000}", "", 400));
    json_free(ask(f, "/v1/completions", "{\"prompt\":\"hello\",\"n\":9}", "", 400));
    atomic_store(&f->e.model.fail_rv, ERR_INTERNAL);
    json_free(ask(f, "/v1/completions", "{\"prompt\":\"what fails\"}", "", 500));
    close(f->log_fds[1]);
    CHECK(read(f->log_fds[0], lines, sizeof(lines) - 1) > 0);
    close(f->log_fds[0]);
    assert_non_null(strstr(
        lines,
        "id=r-1 client=127.0.0.1 trace=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 "
        "method=POST path=/v1/completions status=200"));
    assert_non_null(strstr(lines, "prompt_tokens=11 cached_tokens=0 tokens=3 ttft_ms="));
    assert_non_null(strstr(lines, "prompt_tokens=11 cached_tokens=8 tokens=3 ttft_ms="));
    assert_non_null(strstr(lines, "reason=length"));
    assert_non_null(strstr(lines, "status=400"));
    assert_non_null(strstr(lines, "context limit"));
    assert_non_null(strstr(lines, "error=\"'n' is not supported"));
    assert_non_null(strstr(lines, "status=500"));
    assert_non_null(strstr(lines, "error=\"forward pass"));
}

struct gate {
    struct loop_job job;
    pthread_mutex_t shut;
    bool done;
};
static int wait_at_gate(struct loop_job *j) {
    struct gate *g = CONTAINER_OF(j, struct gate, job);
    pthread_mutex_lock(&g->shut);
    pthread_mutex_unlock(&g->shut);
    return 0;
}
static void gate_passed(struct loop_job *j, int rv) {
    (void)rv;
    CONTAINER_OF(j, struct gate, job)->done = true;
}

/* F12: 16 MiB of JSON take .4 s to parse, on the loop: nobody's stream got its tokens meanwhile. Here the pool for
 * long ones is stuck: theirs wait, others are answered; one that leaves is forgotten. */
static void test_long_bodies_are_parsed_elsewhere(void **state) {
    (void)state;
    struct fixture *f = *state;
    struct loop_work *pool;
    struct gate g = {.job = {.run = wait_at_gate, .done = gate_passed},
                     .shut = PTHREAD_MUTEX_INITIALIZER};
    const struct loop_work_cfg wc = {.n_threads = 1, .max_queued = 10, .name = "long"};
    static const char *const heads[] = {"{\"prompt\":\"hello\",\"max_tokens\":2",
                                        "{\"prompt\":\"hello\"", "{\"no\":1"};
    static const char *const paths[] = {"/v1/completions", "/tokenize", "/v1/completions"};
    static const int statuses[] = {200, 200, 400};
    struct client c[3], gone;
    struct strbuf body = {0};
    bool closed = false;
    CHECK(loop_work_open(&pool, &f->e.loop, &wc) == 0);
    f->cfg.work_long = pool;
    start(f);
    pthread_mutex_lock(&g.shut);
    CHECK(loop_work_submit(pool, &g.job) == 0);
    for (size_t i = 0; i < 3; i++) {
        strbuf_clear(&body);
        strbuf_addz(&body, heads[i]);
        while (body.len < 200000)
            strbuf_addz(&body, "                    ");
        strbuf_addz(&body, "}");
        client_send(&c[i], f, paths[i], body.p, "");
        if (i == 0)
            client_send(&gone, f, paths[i], body.p, "");
    }
    strbuf_fini(&body);
    for (int i = 0; i < 300; i++) /* more than it takes to read them: 64 KiB of each a turn */
        client_poll(&c[0], f);
    struct http_server_stats st;
    http_server_stats(f->http, &st);
    assert_int_equal(st.requests_open, 4);
    client_fini(&gone);
    for (int i = 0; i < 3; i++)
        json_free(ask(f, "/v1/completions", "{\"prompt\":\"hello\",\"max_tokens\":2}", "", 200));
    for (size_t i = 0; i < 3; i++) {
        client_poll(&c[i], f);
        assert_int_equal(c[i].in.len, 0);
    }
    pthread_mutex_unlock(&g.shut);
    for (size_t i = 0; i < 3; i++) {
        client_wait(&c[i], f);
        assert_int_equal(client_status(&c[i]), statuses[i]);
        client_fini(&c[i]);
    }
    loop_work_close(pool, set_flag, &closed);
    while (!closed || !g.done)
        uv_run(&f->e.loop, UV_RUN_ONCE);
}

static void test_draining_is_503(void **state) {
    struct fixture *f = *state;
    start(f);
    engine_drain(f->e.engine, 0, set_flag, &f->drained);
    json_free(ask(f, "/v1/completions", "{\"prompt\":\"hello\"}", "", 503));
    while (!f->drained)
        uv_run(&f->e.loop, UV_RUN_ONCE);
}

/* Closing with requests open: teardown must still find every one of them ended. */
static void test_close_with_requests_open(void **state) {
    struct fixture *f = *state;
    struct client c[3];
    start(f);
    atomic_store(&f->e.model.step_us, 1000);
    for (int i = 0; i < 3; i++)
        client_send(&c[i], f, "/v1/completions",
                    i ? "{\"prompt\":\"hello\",\"max_tokens\":150,\"stream\":true}"
                      : "{\"prompt\":\"hello\",\"max_tokens\":150}",
                    "");
    while (engine_n_open(f->e.engine) < 3)
        client_poll(&c[0], f);
    for (int i = 0; i < 3; i++)
        client_fini(&c[i]);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN); /* as the daemons do: libuv does not */
#define TEST(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_completion),
        TEST(test_prompts_become_choices),
        TEST(test_stream),
        TEST(test_too_long_is_400_and_nothing_is_cut),
        TEST(test_full_queue_is_429_with_retry_after),
        TEST(test_client_gone_stops_the_work),
        TEST(test_silence_is_filled_with_comments),
        TEST(test_broken_model_is_500),
        TEST(test_chat),
        TEST(test_chat_with_a_template),
        TEST(test_tokenize_and_back),
        TEST(test_models),
        TEST(test_api_keys),
        TEST(test_a_tenant_finds_its_own_blocks_only),
        TEST(test_another_model_is_404),
        TEST(test_any_model_is_an_option),
        TEST(test_only_json_is_taken),
        TEST(test_the_key_is_asked_before_the_body),
        TEST(test_access_log_tells_what_a_generation_was),
        TEST(test_long_bodies_are_parsed_elsewhere),
        TEST(test_draining_is_503),
        TEST(test_close_with_requests_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
