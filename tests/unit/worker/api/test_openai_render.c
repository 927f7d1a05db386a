#include "worker/api/openai_render.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "common/json.h"

#define T(s)                                                                                       \
    { s, sizeof(s) - 1 }

/* E1 and E2 are the halves of e-acute. */
enum { BOS, END, A, B, E1, E2, AB, N_TOK };
static const struct tok_str tokens[N_TOK] = {
    [BOS] = T("<s>"),     [END] = T("</s>"),    [A] = T("a"),   [B] = T("b"),
    [E1] = T("\xC3\x83"), [E2] = T("\xC2\xA9"), [AB] = T("ab"),
};
static const int32_t types[N_TOK] = {3, 3, 1, 1, 1, 1, 1};
static const struct tok_str merges[] = {T("a b")};

struct fixture {
    struct tokenizer *tok;
    struct gen_request *gen;
    struct render_ctx c;
    struct render_choice ch;
    struct strbuf out;
};

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof(*f));
    struct tokenizer_src s = TOKENIZER_SRC_EMPTY;
    struct errbuf eb = {""};
    s.model = "gpt2";
    s.pre = "gpt-2";
    s.n_tokens = N_TOK;
    s.tokens = tokens;
    s.types = types;
    s.merges = merges;
    s.n_merges = 1;
    s.bos_id = BOS;
    s.eos_id = END;
    if (!f || tokenizer_new(&f->tok, &s, &eb) < 0)
        fail_msg("%s", eb.text);
    f->gen = gen_request_new();
    f->c = (struct render_ctx){.tok = f->tok,
                               .kind = API_CHAT,
                               .id = "chatcmpl-1",
                               .created = 7,
                               .model = "m",
                               .worker = "w"};
    f->ch.req = f->gen;
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    strbuf_fini(&f->out);
    f->gen->out = NULL;
    gen_request_free(f->gen);
    tokenizer_free(f->tok);
    free(f);
    return 0;
}

/* The text of one event, or of the whole answer, as a document. */
static struct json_t *parse(struct str s) {
    struct json_t *doc = NULL;
    struct errbuf eb = {""};
    if (str_starts(s, STR("data: "))) {
        assert_true(str_ends(s, STR("\n\n")));
        /* An event is one line: a raw line break would end it. */
        s = str_cut(s, 6, s.n - 8);
        assert_null(memchr(s.p, '\n', s.n));
    }
    if (json_parse(s, &doc, &eb) < 0)
        fail_msg("%.*s: %s", (int)s.n, s.p, eb.text);
    return doc;
}

static const struct json_t *choice0(const struct json_t *doc) {
    return json_item(json_member(doc, "choices"), 0);
}

static void expect_text(const struct json_t *v, const char *want) {
    assert_int_equal(json_kind(v), JSON_KIND_STRING);
    assert_string_equal(json_text(v).p, want);
}

static const struct gen_token two_tokens[] = {{.id = A, .text = "a", .text_len = 1},
                                              {.id = B, .text = "\"\n", .text_len = 2}};

static void fill_usage(struct fixture *f) {
    f->gen->out = two_tokens;
    f->gen->usage = (struct gen_usage){.n_prompt = 100,
                                       .n_completion = 2,
                                       .n_local = 32,
                                       .n_remote = 64,
                                       .submitted_ns = 1000000,
                                       .started_ns = 2000000,
                                       .first_token_ns = 3500000};
}

static void test_chat_answer(void **state) {
    struct fixture *f = *state;
    fill_usage(f);
    enum finish_reason why = FINISH_STOP;
    render_answer(&f->c, &f->ch, 1, &why, &f->out);
    struct json_t *doc = parse(strbuf_view(&f->out));
    expect_text(json_member(doc, "id"), "chatcmpl-1");
    expect_text(json_member(doc, "object"), "chat.completion");
    const struct json_t *msg = json_member(choice0(doc), "message");
    expect_text(json_member(msg, "role"), "assistant");
    expect_text(json_member(msg, "content"), "a\"\n");
    expect_text(json_member(choice0(doc), "finish_reason"), "stop");
    assert_int_equal(json_kind(json_member(choice0(doc), "logprobs")), JSON_KIND_NULL);
    const struct json_t *u = json_member(doc, "usage");
    assert_int_equal(json_int(json_member(u, "prompt_tokens")), 100);
    assert_int_equal(json_int(json_member(u, "total_tokens")), 102);
    assert_int_equal(
        json_int(json_member(json_member(u, "prompt_tokens_details"), "cached_tokens")), 96);
    const struct json_t *x = json_member(doc, "incipit");
    expect_text(json_member(x, "worker"), "w");
    assert_int_equal(json_int(json_member(json_member(x, "prompt_tokens_by_source"), "computed")),
                     4);
    assert_true(fabs(json_num(json_member(x, "ttft_ms")) - 2.5) < 1e-9);
    assert_int_equal(json_kind(json_member(x, "first_logits_sha256")), JSON_KIND_NONE);
    json_free(doc);
}

static void test_logits_digest_only_when_asked(void **state) {
    struct fixture *f = *state;
    fill_usage(f);
    f->gen->usage.has_logits_digest = true;
    f->gen->usage.logits_digest[0] = 0xAB;
    f->c.debug_logits = true;
    enum finish_reason why = FINISH_LENGTH;
    render_answer(&f->c, &f->ch, 1, &why, &f->out);
    struct json_t *doc = parse(strbuf_view(&f->out));
    const char *hex = json_text(json_member(json_member(doc, "incipit"), "first_logits_sha256")).p;
    assert_int_equal(strlen(hex), 64);
    assert_memory_equal(hex, "ab00", 4);
    expect_text(json_member(choice0(doc), "finish_reason"), "length");
    json_free(doc);
}

static void test_chat_logprobs(void **state) {
    struct fixture *f = *state;
    const struct sample_logprob top[] = {{A, -0.5f}, {E1, -INFINITY}};
    const struct gen_token tok[] = {{.id = E1, .text = "", .text_len = 0, .lp = {-1.5f, 2, top}}};
    f->c.logprobs = true;
    render_chunk_tokens(&f->c, &f->ch, tok, 1, &f->out);
    struct json_t *doc = parse(strbuf_view(&f->out));
    const struct json_t *e =
        json_item(json_member(json_member(choice0(doc), "logprobs"), "content"), 0);
    assert_true(json_num(json_member(e, "logprob")) <= -1.5);
    assert_int_equal(json_int(json_item(json_member(e, "bytes"), 0)), 0xC3);
    const struct json_t *tops = json_member(e, "top_logprobs");
    assert_int_equal(json_count(tops), 2);
    expect_text(json_member(json_item(tops, 0), "token"), "a");
    /* JSON has no infinity, and a client's number may not be null. */
    assert_true(json_is_num(json_member(json_item(tops, 1), "logprob")));
    json_free(doc);
}

static void test_stream_of_chat(void **state) {
    struct fixture *f = *state;
    fill_usage(f);
    render_chunk_role(&f->c, 0, &f->out);
    struct json_t *doc = parse(strbuf_view(&f->out));
    expect_text(json_member(doc, "object"), "chat.completion.chunk");
    expect_text(json_member(json_member(choice0(doc), "delta"), "role"), "assistant");
    json_free(doc);
    strbuf_clear(&f->out);
    render_chunk_tokens(&f->c, &f->ch, &two_tokens[1], 1, &f->out);
    doc = parse(strbuf_view(&f->out));
    expect_text(json_member(json_member(choice0(doc), "delta"), "content"), "\"\n");
    assert_int_equal(json_kind(json_member(choice0(doc), "finish_reason")), JSON_KIND_NULL);
    json_free(doc);
    strbuf_clear(&f->out);
    /* Half a character: nothing to say. */
    const struct gen_token none = {.id = E1, .text = "", .text_len = 0};
    render_chunk_tokens(&f->c, &f->ch, &none, 1, &f->out);
    assert_int_equal(f->out.len, 0);
    render_chunk_finish(&f->c, &f->ch, FINISH_LENGTH, &f->out);
    doc = parse(strbuf_view(&f->out));
    expect_text(json_member(choice0(doc), "finish_reason"), "length");
    expect_text(json_member(json_member(doc, "incipit"), "worker"), "w");
    json_free(doc);
    strbuf_clear(&f->out);
    render_chunk_usage(&f->c, &f->ch, 1, &f->out);
    doc = parse(strbuf_view(&f->out));
    assert_int_equal(json_count(json_member(doc, "choices")), 0);
    assert_int_equal(json_int(json_member(json_member(doc, "usage"), "completion_tokens")), 2);
    json_free(doc);
    strbuf_clear(&f->out);
    render_done(&f->out);
    assert_string_equal(f->out.p, "data: [DONE]\n\n");
}

/* A text prompt is echoed as it came, though its ids begin with BOS; offsets count characters of it. */
static void test_echo_of_text(void **state) {
    struct fixture *f = *state;
    static const int32_t prompt[] = {BOS, E1, E2, A};
    const struct sample_logprob top[] = {{A, -0.5f}};
    const struct gen_logprob lp[] = {{0, 0, NULL}, {-1, 1, top}, {-2, 1, top}, {-3, 1, top}};
    const struct gen_token out[] = {{.id = B, .text = "b", .text_len = 1, .lp = {-4, 1, top}},
                                    {.id = END, .text = "", .text_len = 0, .lp = {-5, 1, top}}};
    f->c.kind = API_COMPLETION;
    f->c.echo = f->c.logprobs = true;
    f->ch.prompt = STR("\xC3\xA9"
                       "a");
    f->gen->prompt = prompt;
    f->gen->prompt_lp = lp;
    f->gen->out = out;
    f->gen->usage = (struct gen_usage){.n_prompt = 4, .n_completion = 2};
    enum finish_reason why = FINISH_STOP;
    render_answer(&f->c, &f->ch, 1, &why, &f->out);
    struct json_t *doc = parse(strbuf_view(&f->out));
    expect_text(json_member(doc, "object"), "text_completion");
    expect_text(json_member(choice0(doc), "text"), "\xC3\xA9"
                                                   "ab");
    const struct json_t *p = json_member(choice0(doc), "logprobs");
    static const int64_t offsets[] = {0, 0, 1, 1, 2, 3};
    static const char *const texts[] = {"<s>", "bytes:\\xc3", "bytes:\\xa9", "a", "b", "</s>"};
    assert_int_equal(json_count(json_member(p, "tokens")), 6);
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(json_int(json_item(json_member(p, "text_offset"), i)), offsets[i]);
        expect_text(json_item(json_member(p, "tokens"), i), texts[i]);
    }
    assert_int_equal(json_kind(json_item(json_member(p, "token_logprobs"), 0)), JSON_KIND_NULL);
    assert_int_equal(json_kind(json_item(json_member(p, "top_logprobs"), 0)), JSON_KIND_NULL);
    assert_true(json_num(json_item(json_member(p, "token_logprobs"), 3)) <= -3);
    assert_true(json_is_num(json_member(json_item(json_member(p, "top_logprobs"), 4), "a")));
    json_free(doc);
}

/* Ids are echoed as they spell, and a stream's offsets go on from chunk to chunk. */
static void test_echo_of_ids_in_a_stream(void **state) {
    struct fixture *f = *state;
    static const int32_t prompt[] = {BOS, A};
    f->c.kind = API_COMPLETION;
    f->c.echo = f->c.logprobs = true;
    f->gen->prompt = prompt;
    f->gen->usage.n_prompt = 2;
    render_chunk_prompt(&f->c, &f->ch, &f->out);
    struct json_t *doc = parse(strbuf_view(&f->out));
    expect_text(json_member(choice0(doc), "text"), "<s>a");
    assert_int_equal(
        json_int(json_item(json_member(json_member(choice0(doc), "logprobs"), "text_offset"), 1)),
        3);
    json_free(doc);
    strbuf_clear(&f->out);
    render_chunk_tokens(&f->c, &f->ch, two_tokens, 1, &f->out);
    doc = parse(strbuf_view(&f->out));
    assert_int_equal(
        json_int(json_item(json_member(json_member(choice0(doc), "logprobs"), "text_offset"), 0)),
        4);
    json_free(doc);
}

static void test_error_event(void **state) {
    struct fixture *f = *state;
    render_chunk_error("server_error", "line one\nline two", &f->out);
    struct json_t *doc = parse(strbuf_view(&f->out));
    expect_text(json_member(json_member(doc, "error"), "message"), "line one\nline two");
    expect_text(json_member(json_member(doc, "error"), "type"), "server_error");
    json_free(doc);
}

int main(void) {
#define TEST(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_chat_answer),   TEST(test_logits_digest_only_when_asked),
        TEST(test_chat_logprobs), TEST(test_stream_of_chat),
        TEST(test_echo_of_text),  TEST(test_echo_of_ids_in_a_stream),
        TEST(test_error_event),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
