/* replay_main.c - main() for every fuzz target in ordinary builds: runs it over a corpus, then over
 * mutations of each file from a fixed seed, so that CI tries some garbage without libFuzzer.
 *
 *   fuzz_X [--mutations N] FILE_OR_FOLDER ...
 *
 * Thread: one. */
#include <dirent.h>

#include "common/compiler.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t rng = 1;

static uint64_t next_random(void) { /* splitmix64 */
    uint64_t z = (rng += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* An exact-size copy, so that ASan sees a read of one byte too many. */
static void run_copy(const uint8_t *p, size_t n) {
    uint8_t *copy = malloc(n ? n : 1);
    if (!copy)
        abort();
    if (n)
        memcpy(copy, p, n);
    (void)LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

/* A few changed bytes, extreme words, or a cut. */
static void mutate(uint8_t *p, size_t *n) {
    static const uint64_t words[] = {
        0, 1, 0x7f, 0xff, 0xffff, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, UINT64_MAX};
    for (uint64_t i = 1 + next_random() % 4; i > 0 && *n > 8; i--) {
        size_t at = next_random() % (*n - 8);
        switch (next_random() % 4) {
        case 0:
            p[at] = (uint8_t)next_random();
            break;
        case 1:
            p[at] ^= (uint8_t)(1u << next_random() % 8);
            break;
        case 2:
            memcpy(p + at, &words[next_random() % ARRAY_LEN(words)], next_random() % 2 ? 4 : 8);
            break;
        default:
            if (next_random() % 4 == 0)
                *n = at;
            break;
        }
    }
}

static void run_file(const char *path, unsigned long n_mutations) {
    FILE *f = fopen(path, "rbe");
    if (!f || fseek(f, 0, SEEK_END) != 0) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    size_t n = (size_t)ftell(f);
    rewind(f);
    uint8_t *p = malloc(n + 1), *m = malloc(n + 1);
    if (!p || !m || fread(p, 1, n, f) != n)
        exit(1);
    (void)fclose(f);
    run_copy(p, n);
    for (unsigned long i = 0; i < n_mutations; i++) {
        size_t len = n;
        memcpy(m, p, n);
        mutate(m, &len);
        run_copy(m, len);
    }
    free(p);
    free(m);
}

static int not_hidden(const struct dirent *e) {
    return e->d_name[0] != '.';
}

int main(int argc, char **argv) {
    unsigned long n_mutations = 0;
    size_t n_files = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--mutations") == 0 && i + 1 < argc) {
            n_mutations = strtoul(argv[++i], NULL, 10);
            continue;
        }
        struct dirent **entry;
        int n = scandir(argv[i], &entry, not_hidden, alphasort);
        if (n < 0) {
            run_file(argv[i], n_mutations);
            n_files++;
        }
        for (int k = 0; k < n; k++) {
            char path[4096];
            (void)snprintf(path, sizeof(path), "%s/%s", argv[i], entry[k]->d_name);
            run_file(path, n_mutations);
            n_files++;
            free(entry[k]);
        }
        if (n >= 0)
            free(entry);
    }
    printf("%zu files, %lu mutations each\n", n_files, n_mutations);
    return n_files ? 0 : 1;
}
