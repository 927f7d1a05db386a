#include "worker/api/openai_parse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define CHAT(rest) "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]" rest "}"
#define COMPLETION(rest) "{\"prompt\":\"hi\"" rest "}"

static void accept(struct api_request *r, enum api_kind kind, const char *body) {
    struct api_error e;
    if (api_request_parse(r, kind, str_of(body), &e) < 0)
        fail_msg("%s: %s", body, e.text.text);
}

static void refuse(enum api_kind kind, const char *body, const char *param) {
    struct api_request r;
    struct api_error e = {0};
    if (api_request_parse(&r, kind, str_of(body), &e) == 0) {
        api_request_fini(&r);
        fail_msg("%s was taken", body);
    }
    assert_int_equal(e.status, 400);
    assert_true(e.text.text[0] != '\0');
    if (param && (!e.param || strcmp(e.param, param) != 0))
        fail_msg("%s: param is '%s', not '%s'", body, e.param ? e.param : "(null)", param);
}

static void test_defaults_are_openais(void **state) {
    (void)state;
    struct api_request r;
    accept(&r, API_CHAT, CHAT(""));
    assert_true(r.sample.temperature >= 1 && r.sample.temperature <= 1);
    assert_true(r.sample.top_p >= 1);
    assert_int_equal(r.sample.top_k, 0);
    assert_false(r.max_tokens_set || r.stream || r.logprobs || r.echo || r.seed_set ||
                 r.ignore_eos);
    api_request_fini(&r);
    accept(&r, API_COMPLETION, COMPLETION(""));
    assert_true(r.max_tokens_set);
    assert_int_equal(r.max_tokens, 16);
    assert_int_equal(r.n_prompts, 1);
    assert_null(r.prompts[0].ids);
    api_request_fini(&r);
}

static void test_fields_are_honoured(void **state) {
    (void)state;
    struct api_request r;
    accept(&r, API_CHAT,
           CHAT(",\"temperature\":0.5,\"top_p\":0.25,\"top_k\":7,\"min_p\":0.125,\"seed\":-3,\"max_"
                "completion_tokens\":9,"
                "\"stop\":[\"a\",\"bc\"],\"stream\":true,\"stream_options\":{\"include_usage\":"
                "true},\"logprobs\":true,"
                "\"top_logprobs\":5,\"ignore_eos\":true"));
    assert_memory_equal(&r.sample.temperature, &(float){0.5f}, sizeof(float));
    assert_memory_equal(&r.sample.top_p, &(float){0.25f}, sizeof(float));
    assert_memory_equal(&r.sample.min_p, &(float){0.125f}, sizeof(float));
    assert_int_equal(r.sample.top_k, 7);
    assert_true(r.seed_set && r.sample.seed == (uint64_t)-3);
    assert_true(r.max_tokens_set && r.max_tokens == 9);
    assert_int_equal(r.n_stop, 2);
    assert_int_equal(r.stop[1].len, 2);
    assert_memory_equal(r.stop[1].p, "bc", 2);
    assert_true(r.stream && r.include_usage && r.logprobs && r.ignore_eos);
    assert_int_equal(r.n_top, 5);
    api_request_fini(&r);
}

static void test_messages(void **state) {
    (void)state;
    struct api_request r;
    accept(&r, API_CHAT,
           "{\"messages\":[{\"role\":\"developer\",\"content\":\"s\"},{\"role\":\"user\",\"name\":"
           "\"n\",\"content\":"
           "[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]},"
           "{\"role\":\"assistant\",\"content\":\"\\u00e9\",\"tool_calls\":null}]}");
    assert_int_equal(r.n_msgs, 3);
    assert_memory_equal(r.msgs[0].role.p, "system", 6);
    assert_int_equal(r.msgs[1].content.len, 3);
    assert_memory_equal(r.msgs[1].content.p, "a\nb", 3);
    assert_memory_equal(r.msgs[2].content.p, "\xC3\xA9", 2);
    api_request_fini(&r);
    refuse(API_CHAT, "{\"messages\":[]}", "messages");
    refuse(API_CHAT, "{\"messages\":{}}", "messages");
    refuse(API_CHAT, "{}", "messages");
    refuse(API_CHAT, "{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content");
    refuse(API_CHAT, "{\"messages\":[{\"content\":\"x\"}]}", "messages[0].role");
    refuse(API_CHAT, "{\"messages\":[\"x\"]}", "messages[0]");
    refuse(API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":null}]}",
           "messages[0].content");
    refuse(API_CHAT,
           "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
           "{\"type\":\"image_url\"}]}]}",
           "messages[0].content[1]");
#define AFTER_USER(assistant)                                                                      \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\"," assistant "}]" \
    "}"
    refuse(API_CHAT, AFTER_USER("\"content\":\"\",\"tool_calls\":[{}]"), "messages[1].tool_calls");
    refuse(API_CHAT, AFTER_USER("\"content\":\"a\",\"reasoning_content\":\"hm\""),
           "messages[1].reasoning_content");
    refuse(API_CHAT, AFTER_USER("\"content\":null,\"refusal\":\"no\""), "messages[1].refusal");
    refuse(API_CHAT, AFTER_USER("\"content\":\"a\",\"prefix\":true"), "messages[1].prefix");
}

static void test_prompts(void **state) {
    (void)state;
    struct api_request r;
    accept(&r, API_COMPLETION, "{\"prompt\":[1,2,3]}");
    assert_int_equal(r.n_prompts, 1);
    assert_int_equal(r.prompts[0].n_ids, 3);
    assert_int_equal(r.prompts[0].ids[2], 3);
    api_request_fini(&r);
    accept(&r, API_COMPLETION, "{\"prompt\":[\"a\",[5],\"b\"]}");
    assert_int_equal(r.n_prompts, 3);
    assert_int_equal(r.prompts[1].ids[0], 5);
    assert_true(str_eq(r.prompts[2].text, STR("b")));
    api_request_fini(&r);
    refuse(API_COMPLETION, "{}", "prompt");
    refuse(API_COMPLETION, "{\"prompt\":5}", "prompt");
    refuse(API_COMPLETION, "{\"prompt\":[]}", "prompt");
    refuse(API_COMPLETION, "{\"prompt\":[1,-2]}", "prompt");
    refuse(API_COMPLETION, "{\"prompt\":[1,\"a\"]}", "prompt");
    refuse(API_COMPLETION, "{\"prompt\":[1,4294967296]}", "prompt");
}

/* F9: refused, although it can't change the output or says nothing. */
static void test_what_says_nothing_in_a_message_is_taken(void **state) {
    (void)state;
    static const char *const taken[] = {
        "\"content\":\"a\",\"tool_calls\":[],\"reasoning_content\":\"\",\"function_call\":null",
        "\"content\":\"a\",\"id\":\"m1\",\"date\":17,\"annotations\":[{\"x\":1}],\"name\":\"n\","
        "\"prefix\":false",
        "\"content\":null",
        "\"content\":null,\"tool_calls\":[],\"audio\":{},\"refusal\":\"\"",
        "\"name\":\"n\"",
        "\"content\":[]",
        "\"content\":[{\"type\":\"input_text\",\"text\":\"a\"},{\"type\":\"output_text\",\"text\":"
        "\"b\"}]",
    };
    for (size_t i = 0; i < ARRAY_LEN(taken); i++) {
        char body[512];
        struct api_request r;
        snprintf(body, sizeof(body), AFTER_USER("%s"), taken[i]);
        accept(&r, API_CHAT, body);
        assert_int_equal(r.n_msgs, 2);
        api_request_fini(&r);
    }
}

/* F10: these were "the body is not JSON: too big integer", or a flag of the library. */
static void test_odd_json_is_judged_by_its_field(void **state) {
    (void)state;
    struct api_request r;
    refuse(API_CHAT, CHAT(",\"seed\":99999999999999999999"), "seed");
    refuse(API_CHAT, CHAT(",\"max_tokens\":1e999"), "max_tokens");
    refuse(API_CHAT, CHAT(",\"temperature\":99999999999999999999"), "temperature");
    refuse(API_COMPLETION, "{\"prompt\":[1,18446744073709551616]}", "prompt");
    accept(&r, API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\\ud800\"}]}");
    assert_int_equal(r.msgs[0].content.len, 6);
    assert_memory_equal(r.msgs[0].content.p, "a\0b\xef\xbf\xbd", 6);
    api_request_fini(&r);
    accept(&r, API_COMPLETION, "{\"prompt\":\"\\u0000\",\"stop\":\"\\u0000x\"}");
    assert_int_equal(r.prompts[0].text.n, 1);
    assert_int_equal(r.stop[0].len, 2);
    api_request_fini(&r);
}

/* More values than json.h takes: the text names the bound, and not the field, which nobody has seen. */
static void test_too_many_values_are_refused(void **state) {
    (void)state;
    struct strbuf b;
    struct api_request r;
    struct api_error e;
    strbuf_init(&b);
    strbuf_addz(&b, "{\"prompt\":[1");
    for (uint32_t i = 0; i < JSON_MAX_VALUES; i++)
        strbuf_addz(&b, ",1");
    strbuf_addz(&b, "]}");
    assert_int_equal(api_request_parse(&r, API_COMPLETION, strbuf_view(&b), &e), ERR_INVALID);
    assert_int_equal(e.status, 400);
    assert_non_null(strstr(e.text.text, "more than 1048576 values"));
    strbuf_fini(&b);
}

/* Each would change the answer. */
static void test_what_we_do_not_do_is_refused_by_name(void **state) {
    (void)state;
    static const char *const chat[][2] = {
        {"tools", "[{}]"},
        {"functions", "[{}]"},
        {"tool_choice", "\"required\""},
        {"function_call", "{\"name\":\"f\"}"},
        {"response_format", "{\"type\":\"json_object\"}"},
        {"logit_bias", "{\"5\":1}"},
        {"n", "2"},
        {"n", "0"},
        {"presence_penalty", "0.1"},
        {"frequency_penalty", "-1"},
        {"modalities", "[\"audio\"]"},
        {"audio", "{}"},
        {"web_search_options", "{}"},
        {"guided_json", "{\"a\":1}"},
        {"grammar", "\"x\""},
        {"chat_template", "\"x\""},
        {"mirostat", "2"},
        {"allowed_token_ids", "[1]"},
        {"cache_salt", "\"x\""},
        {"repetition_penalty", "1.1"},
        {"echo", "true"},
        {"prompt", "\"x\""},
        {"no_such_field", "1"},
        {"Temperature", "1"},
    };
    for (size_t i = 0; i < ARRAY_LEN(chat); i++) {
        char body[256];
        snprintf(body, sizeof(body), CHAT(",\"%s\":%s"), chat[i][0], chat[i][1]);
        refuse(API_CHAT, body, chat[i][0]);
    }
    refuse(API_CHAT, CHAT(",\"tools\":[{}],\"tool_choice\":\"auto\""), "tools");
    refuse(API_CHAT, CHAT(",\"stream_options\":{\"x\":1}"), "stream_options.x");
    refuse(API_COMPLETION, COMPLETION(",\"best_of\":2"), "best_of");
    refuse(API_COMPLETION, COMPLETION(",\"suffix\":\"x\""), "suffix");
    refuse(API_COMPLETION, COMPLETION(",\"messages\":[]"), "messages");
}

static void test_neutral_values_and_null_are_taken(void **state) {
    (void)state;
    struct api_request r;
    accept(&r, API_CHAT,
           CHAT(",\"tools\":[],\"tool_choice\":\"none\",\"functions\":null,\"response_format\":{"
                "\"type\":\"text\"},"
                "\"logit_bias\":{},\"n\":1,\"presence_penalty\":0,\"frequency_penalty\":0.0,"
                "\"modalities\":[\"text\"],"
                "\"user\":\"u\",\"metadata\":{\"a\":\"b\"},\"store\":true,\"service_tier\":"
                "\"auto\",\"stop\":null,"
                "\"temperature\":null,\"audio\":null,\"prediction\":{\"type\":\"content\","
                "\"content\":\"x\"}"));
    api_request_fini(&r);
    accept(&r, API_COMPLETION, COMPLETION(",\"best_of\":1,\"suffix\":\"\",\"user\":\"u\",\"n\":1"));
    api_request_fini(&r);
    /* F9 */
    accept(&r, API_CHAT,
           CHAT(",\"chat_template_kwargs\":{\"enable_thinking\":false},\"reasoning_effort\":"
                "\"low\",\"verbosity\":\"low\","
                "\"tools\":[{\"type\":\"function\"}],\"tool_choice\":\"none\",\"temperature\":3.5,"
                "\"top_k\":7.0,\"seed\":5.0,"
                "\"max_tokens\":-1,\"stop\":[],\"guided_json\":null,\"echo\":false,\"stream\":true,"
                "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true,\"x\":"
                "null}"));
    assert_true(r.continuous_usage && r.include_usage && !r.max_tokens_set);
    assert_int_equal(r.sample.top_k, 7);
    assert_int_equal(r.sample.seed, 5);
    assert_true(r.sample.temperature > 3.4f);
    api_request_fini(&r);
    accept(&r, API_COMPLETION,
           COMPLETION(",\"max_tokens\":3.0,\"metadata\":{},\"store\":false,\"prompt_cache_key\":"
                      "\"k\",\"logprobs\":false"));
    assert_int_equal(r.max_tokens, 3);
    assert_false(r.logprobs);
    api_request_fini(&r);
    accept(&r, API_COMPLETION, COMPLETION(",\"max_tokens\":-1"));
    assert_false(r.max_tokens_set); /* up to the context */
    api_request_fini(&r);
    accept(&r, API_COMPLETION, "{\"prompt\":[1.0,2]}");
    assert_int_equal(r.prompts[0].ids[0], 1);
    api_request_fini(&r);
}

static void test_values_out_of_bounds(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"temperature", "-0.1"},  {"temperature", "\"hot\""},
        {"top_p", "1.5"},         {"min_p", "-1"},
        {"top_k", "-2"},          {"top_k", "1.5"},
        {"seed", "1.5"},          {"seed", "\"x\""},
        {"max_tokens", "0"},      {"max_tokens", "-2"},
        {"max_tokens", "1.5"},    {"stop", "[1]"},
        {"stop", "{\"a\":1}"},    {"stream", "1"},
        {"stream_options", "[]"}, {"logprobs", "3"},
        {"top_logprobs", "21"},   {"top_logprobs", "3"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        char body[256];
        snprintf(body, sizeof(body), CHAT(",\"%s\":%s"), bad[i][0], bad[i][1]);
        refuse(API_CHAT, body, bad[i][0]);
    }
    refuse(API_COMPLETION, COMPLETION(",\"logprobs\":true"), "logprobs");
    refuse(API_COMPLETION, COMPLETION(",\"logprobs\":21"), "logprobs");
    refuse(API_COMPLETION, COMPLETION(",\"max_tokens\":0"), "max_tokens");
    refuse(API_CHAT, CHAT(",\"max_tokens\":5,\"max_completion_tokens\":3"),
           "max_completion_tokens");
    refuse(API_CHAT, CHAT(",\"max_completion_tokens\":5,\"max_tokens\":3"), "max_tokens");
    struct api_request r;
    accept(&r, API_CHAT, CHAT(",\"max_completion_tokens\":5,\"max_tokens\":5"));
    assert_true(r.max_tokens_set && r.max_tokens == 5);
    api_request_fini(&r);
    accept(&r, API_COMPLETION, COMPLETION(",\"max_tokens\":0,\"echo\":true,\"logprobs\":0"));
    assert_true(r.logprobs && r.echo && r.max_tokens_set && r.max_tokens == 0);
    api_request_fini(&r);
}

static void test_too_many_and_too_long(void **state) {
    (void)state;
    struct strbuf b = {0};
    strbuf_addz(&b, "{\"prompt\":[");
    for (int i = 0; i <= API_MAX_PROMPTS; i++)
        strbuf_addz(&b, i ? ",\"a\"" : "\"a\"");
    strbuf_addz(&b, "]}");
    refuse(API_COMPLETION, b.p, "prompt");
    strbuf_clear(&b);
    strbuf_addz(&b, "{\"prompt\":\"a\",\"stop\":[");
    for (int i = 0; i <= STOP_MAX_STRINGS; i++)
        strbuf_addz(&b, i ? ",\"a\"" : "\"a\"");
    strbuf_addz(&b, "]}");
    refuse(API_COMPLETION, b.p, "stop");
    strbuf_clear(&b);
    strbuf_addz(&b, "{\"prompt\":\"a\",\"stop\":\"");
    for (int i = 0; i <= STOP_MAX_BYTES; i++)
        strbuf_addc(&b, 'x');
    strbuf_addz(&b, "\"}");
    refuse(API_COMPLETION, b.p, "stop");
    strbuf_fini(&b);
}

static void test_what_is_no_json_object(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      "{",
                                      "[]",
                                      "null",
                                      "\"x\"",
                                      "{\"prompt\":\"a\"} x",
                                      "{\"prompt\":\"\xFF\"}",
                                      "{\"prompt\":\"a\",\"prompt\":\"b\"}"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        refuse(API_COMPLETION, bad[i], NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_openais),
        cmocka_unit_test(test_fields_are_honoured),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_too_many_values_are_refused),
        cmocka_unit_test(test_what_we_do_not_do_is_refused_by_name),
        cmocka_unit_test(test_neutral_values_and_null_are_taken),
        cmocka_unit_test(test_what_says_nothing_in_a_message_is_taken),
        cmocka_unit_test(test_odd_json_is_judged_by_its_field),
        cmocka_unit_test(test_values_out_of_bounds),
        cmocka_unit_test(test_too_many_and_too_long),
        cmocka_unit_test(test_what_is_no_json_object),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
