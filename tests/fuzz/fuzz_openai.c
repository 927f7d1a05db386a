/* fuzz_openai.c - any bytes as the body of a chat or completions request: refused with a text, or parsed. */
#include "common/check.h"
#include "worker/api/openai_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    for (int kind = API_CHAT; kind <= API_COMPLETION; kind++) {
        struct api_request r;
        struct api_error e;
        if (api_request_parse(&r, (enum api_kind)kind, (struct str){(const char *)data, size}, &e) <
            0) {
            CHECK(e.status == 400 && e.text.text[0]);
            continue;
        }
        CHECK(r.n_stop <= STOP_MAX_STRINGS && r.n_top <= SAMPLE_MAX_TOP);
        CHECK(kind == API_CHAT ? r.n_msgs > 0 : r.n_prompts > 0);
        size_t sink = 0;
        for (size_t i = 0; i < r.n_msgs; i++)
            for (uint32_t b = 0; b < r.msgs[i].content.len; b++)
                sink += (uint8_t)r.msgs[i].content.p[b];
        __asm__ volatile("" : : "r"(sink)); /* the reads may not be optimised away */
        api_request_fini(&r);
    }
    return 0;
}
