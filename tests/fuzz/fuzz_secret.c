/* fuzz_secret.c - a file of tokens, keys or passwords of any bytes: an error that names the file, or lines and words
 * without blanks, controls and comments. */
#include <sys/mman.h>
#include <unistd.h>

#include "common/check.h"
#include "common/secret.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_word(struct str w) {
    CHECK(w.n > 0 && str_is_utf8(w));
    for (size_t i = 0; i < w.n; i++)
        CHECK((unsigned char)w.p[i] > ' ' && w.p[i] != 0x7f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    int fd = memfd_create("secret", MFD_CLOEXEC);
    CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    struct secret_file f;
    struct errbuf warn, eb = {{0}};
    int rv = secret_file_open(&f, "file", path, &warn, &eb);
    close(fd);
    if (rv < 0) {
        CHECK(strstr(eb.text, path));
        return 0;
    }
    struct str line, word;
    for (unsigned at = 0; secret_file_next(&f, &line); at = f.line) {
        CHECK(f.line > at && line.n > 0 && line.p[0] != '#');
        while (secret_word(&line, &word))
            check_word(word);
    }
    secret_file_close(&f);
    return 0;
}
