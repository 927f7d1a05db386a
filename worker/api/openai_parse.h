/* openai_parse.h - a JSON body to a generation request, with limits; pure.
 *
 * Every field is one of: honoured; harmless (it cannot change the output); neutral (taken with the value that
 * changes nothing, n = 1 for example, or with one that says nothing: null, false, "", [], {}); refused by name,
 * with its path (messages[1].tool_calls). Nothing that could change the output is ignored silently.
 *
 * Thread: any; one owner. Memory: an api_request owns the parsed document, into which its strings point. */
#pragma once

#include "common/json.h"
#include "worker/sample/sampler.h"
#include "worker/sample/stop.h"
#include "worker/text/chat_template.h"

#define API_MAX_MESSAGES 4096
#define API_MAX_PROMPTS 32

enum api_kind { API_CHAT, API_COMPLETION };

struct api_prompt {
    struct str text; /* when ids is NULL */
    int32_t *ids;    /* [n_ids] or NULL */
    size_t n_ids;
};

struct api_request {
    enum api_kind kind;
    struct json_t *doc;
    struct str model;      /* as asked for; p NULL: not named */
    struct chat_msg *msgs; /* chat: [n_msgs] */
    size_t n_msgs;
    struct api_prompt *prompts; /* completion: [n_prompts] */
    size_t n_prompts;
    char **joined; /* [n_joined] contents put together from several parts */
    size_t n_joined;

    struct sample_params sample;
    bool seed_set;
    bool stream, include_usage, continuous_usage, echo, logprobs, ignore_eos;
    bool add_special_tokens; /* completion: BOS if the vocabulary asks for it */
    uint32_t n_top;
    bool max_tokens_set;
    uint32_t max_tokens;
    struct stop_str stop[STOP_MAX_STRINGS];
    uint32_t n_stop;
    const char *tools; /* field that names some, NULL: none */
    bool no_tools;     /* tool_choice or function_call is "none" */
};

/* What is wrong, in OpenAI's terms. */
struct api_error {
    int status;        /* HTTP */
    const char *param; /* the field, NULL: none */
    char field[64];    /* storage behind param */
    struct errbuf text;
};

/* 0, or ERR_INVALID with *ret_err filled; *ret then needs no fini. */
int api_request_parse(struct api_request *ret, enum api_kind kind, struct str body,
                      struct api_error *ret_err);
void api_request_fini(struct api_request *r);

/* "messages" of a chat request or of /tokenize. */
int api_parse_messages(struct api_request *r, const struct json_t *arr, struct api_error *e);
/* An array of token ids; *ret is malloc'd. */
int api_parse_ids(const struct json_t *arr, const char *field, int32_t **ret, size_t *ret_n,
                  struct api_error *e);
int api_fail(struct api_error *e, const char *field, const char *fmt, ...) PRINTF_LIKE(3, 4);
