/* fuzz_chat_template.c - any bytes as a template: refused, or one of the families and then it renders. */
#include "common/check.h"
#include "worker/text/chat_template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct tok_str bos = {"<s>", 3};
    struct chat_template *ct = NULL;
    struct errbuf eb = {""};
    if (chat_template_new(&ct, (const char *)data, size, bos, bos, &eb) < 0) {
        CHECK(eb.text[0]);
        return 0;
    }
    const struct tok_str user = {"user", 4};
    const struct chat_msg m = {user, {(const char *)data, (uint32_t)size}};
    struct chat_prompt p = {0};
    CHECK(chat_template_render(ct, &m, 1, true, &p, &eb) == 0);
    size_t users = 0;
    for (size_t i = 0; i < p.n; i++)
        users += p.parts[i].origin == TOK_ORIGIN_USER;
    CHECK(users <= 1);
    chat_prompt_fini(&p);
    chat_template_free(ct);
    return 0;
}
