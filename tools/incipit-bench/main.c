/* main.c - incipit-bench: how fast the engine computes and how fast blocks move. */
#include "common/compiler.h"
#include "common/process.h"
#include "tools/incipit-bench/bench.h"

static const struct {
    const char *name, *help;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"engine", "prefill and decode of a model, beside llama-bench", bench_engine_main},
    {"perplexity", "of a text for each KV dtype", bench_perplexity_main},
    {"transfer", "fetch and put of blocks through a cache node, beside raw sockets",
     bench_transfer_main},
};

static int usage(FILE *out, int code) {
    fprintf(out, "usage: incipit-bench COMMAND [OPTIONS]     (COMMAND --help lists its options)\n");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
    return code;
}

int main(int argc, char **argv) {
    process_stdio();
    if (argc < 2)
        return usage(stderr, 2);
    if (strcmp(argv[1], "--version") == 0) {
        printf("incipit-bench %s\n", INCIPIT_VERSION);
        return 0;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return usage(stdout, 0);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "incipit-bench: unknown command '%s'\n", argv[1]);
    return usage(stderr, 2);
}
