/* fuzz_config.c - a configuration file of any bytes, and a value of any bytes for each option: an error with a text, or a
 * table within its bounds. */
#include <sys/mman.h>
#include <unistd.h>

#include "common/check.h"
#include "common/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define TOY_CONFIG(X)                                                                              \
    X(listen_port, U32, 7070, 1, 65535, true, "port")                                              \
    X(ram_bytes, U64, 1ull << 30, 1u << 20, 1ull << 40, true, "budget")                            \
    X(fetch, ENUM, "auto", "auto|always|never", 0, true, "when")                                   \
    X(cache, LIST, "", 0, 3, true, "addresses")                                                    \
    X(model, STR, "", 0, 20, true, "file")                                                         \
    X(verbose, BOOL, false, 0, 0, true, "talk")                                                    \
    X(ratio, F64, 0.5, 0.0, 1.0, true, "share")
struct toy_config {
    CFG_FIELDS(TOY_CONFIG)
};
CFG_TABLE(toy_config, TOY_CONFIG)

static void check_bounds(const struct toy_config *c) {
    CHECK(c->listen_port >= 1 && c->listen_port <= 65535);
    CHECK(c->ram_bytes >= 1u << 20 && c->ram_bytes <= 1ull << 40);
    CHECK(c->fetch <= 2 && c->cache.n <= 3 && strlen(c->model) <= 20);
    CHECK(c->ratio >= 0.0 && c->ratio <= 1.0);
}

/* What an option has it can be given again, and has it still. */
static void set_each(struct toy_config *c, const char *value) {
    const struct cfg_table *t = toy_config_table();
    struct errbuf eb;
    char is[512], again[512];
    for (size_t i = 0; i < t->n_opts; i++) {
        const char *name = t->opts[i].name;
        if (cfg_set(t, c, name, value, &eb) < 0) {
            CHECK(eb.text[0]);
            continue;
        }
        check_bounds(c);
        if (cfg_get(t, c, name, is, sizeof(is)) == 0) {
            CHECK(cfg_set(t, c, name, is, &eb) == 0);
            CHECK(cfg_get(t, c, name, again, sizeof(again)) == 0 && strcmp(is, again) == 0);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct cfg_prog prog = {"toy", "a toy"};
    struct toy_config c;
    struct errbuf eb;
    char path[64];
    int fd = memfd_create("config", MFD_CLOEXEC);
    CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    (void)snprintf(path, sizeof(path), "--config=/proc/self/fd/%d", fd);
    char *argv[] = {(char[]){"toy"}, path, NULL};
    int rv = cfg_load(toy_config_table(), &prog, &c, 2, argv, NULL, stdout, &eb);
    close(fd);
    if (rv == 0) {
        check_bounds(&c);
        cfg_free(toy_config_table(), &c);
    } else {
        CHECK(rv < 0 && eb.text[0]);
    }
    char *value = malloc(size + 1);
    CHECK(value && cfg_defaults(toy_config_table(), &c) == 0);
    memcpy(value, data, size);
    value[size] = '\0';
    set_each(&c, value);
    cfg_free(toy_config_table(), &c);
    free(value);
    return 0;
}
