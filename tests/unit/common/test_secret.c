/* Memory for secrets, and the reader of the files that hold them. */
#include "common/secret.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/support/tmpdir.h"

static struct tmpdir dir;
static char path[512];

static int make(const void *text, size_t n, mode_t mode) {
    tmpdir_write(&dir, "f", text, n);
    return chmod(tmpdir_join(&dir, "f", path, sizeof(path)), mode);
}

/* Every line's words as "a|b|" and a newline. */
static int read_file(const void *text, size_t n, char *ret, size_t cap, struct errbuf *eb) {
    struct secret_file f;
    struct str line, word;
    ret[0] = '\0';
    assert_int_equal(make(text, n, 0600), 0);
    int rv = secret_file_open(&f, "token file", path, NULL, eb);
    while (rv == 0 && secret_file_next(&f, &line)) {
        while (secret_word(&line, &word))
            snprintf(ret + strlen(ret), cap - strlen(ret), STR_FMT "|", STR_ARG(word));
        snprintf(ret + strlen(ret), cap - strlen(ret), "%u\n", f.line);
    }
    secret_file_close(&f);
    return rv;
}

/* B7: a tab between words, a comment of any length, a BOM, CR LF, no newline at the end: one reading
 * for the node's tokens, the client's token and the worker's keys. */
static void test_lines_and_words(void **state) {
    (void)state;
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"a b\n", "a|b|1\n"},
        {"a\tb \t c", "a|b|c|1\n"},
        {"\xef\xbb\xbf"
         "a\n",
         "a|1\n"},
        {"a\r\n\r\nb\r\n", "a|1\nb|3\n"},
        {"\n \n # c d\n#e\n  a # b \n", "a|#|b|5\n"},
        {"a\vb\fc", "a|b|c|1\n"},
        {"\xef\xbb\xbf# all\n", ""},
        {"", ""},
        {"gr\xc3\xbc\xc3\x9f"
         "e\n",
         "gr\xc3\xbc\xc3\x9f"
         "e|1\n"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char got[200];
        struct errbuf eb;
        assert_int_equal(read_file(cases[i].text, strlen(cases[i].text), got, sizeof(got), &eb), 0);
        assert_string_equal(got, cases[i].want);
    }
}

/* B7: the rest of a comment longer than a buffer was read as a line of its own: a token out of a
 * comment opened a session. */
static void test_no_line_is_too_long(void **state) {
    (void)state;
    enum { N = 300000 };
    char *text = malloc(2 * N + 64), got[200];
    struct errbuf eb;
    size_t n = 0;
    text[n++] = '#';
    for (; n < N; n++)
        text[n] = n % 7 ? 'x' : ' ';
    n += (size_t)snprintf(text + n, 64, " worker token-of-the-comment\na ");
    memset(text + n, 'k', N);
    n += N;
    assert_int_equal(make(text, n, 0600), 0);
    struct secret_file f;
    struct str line, a, k;
    assert_int_equal(secret_file_open(&f, "token file", path, NULL, &eb), 0);
    assert_true(secret_file_next(&f, &line));
    assert_int_equal(f.line, 2);
    assert_true(secret_word(&line, &a) && secret_word(&line, &k));
    assert_int_equal(a.n, 1);
    assert_int_equal(k.n, N);
    assert_false(secret_file_next(&f, &line));
    secret_file_close(&f);
    free(text);
    assert_int_equal(read_file("#", 1, got, sizeof(got), &eb), 0);
}

/* G7: what an editor does not show is said, not read as part of a key that then never matches. */
static void test_what_is_no_text_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t n;
        const char *want;
    } cases[] = {
        {"\xff\xfe"
         "a\0",
         4, "UTF-16"},
        {"\xfe\xff\0a", 4, "UTF-16"},
        {"ok\nsec\0ret", 10, "line 2: con"},
        {"a\x1b[0m", 5, "line 1: control"},
        {"a\n\nb\xe9\n", 6, "line 3: byte 233"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char got[200];
        struct errbuf eb = {{0}};
        assert_true(read_file(cases[i].text, cases[i].n, got, sizeof(got), &eb) < 0);
        if (!strstr(eb.text, cases[i].want) || !strstr(eb.text, path))
            fail_msg("'%s' lacks '%s' or the path", eb.text, cases[i].want);
    }
    struct secret_file f;
    struct errbuf eb;
    assert_true(secret_file_open(&f, "key file", "/nowhere/at/all", NULL, &eb) < 0);
    assert_string_equal(eb.text, "key file '/nowhere/at/all': No such file or directory");
    assert_int_equal(secret_file_open(&f, "key file", "/dev/zero", NULL, &eb), ERR_TOOBIG);
}

/* B7: who else may read the file is said. */
static void test_open_to_others_is_a_warning(void **state) {
    (void)state;
    static const struct {
        mode_t mode;
        const char *want;
    } cases[] = {
        {0600, ""}, {0400, ""}, {0640, "its group"}, {0604, "everybody"}, {0644, "everybody"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct secret_file f;
        struct errbuf warn, eb;
        assert_int_equal(make("a\n", 2, cases[i].mode), 0);
        assert_int_equal(secret_file_open(&f, "token file", path, &warn, &eb), 0);
        secret_file_close(&f);
        if (*cases[i].want ? !strstr(warn.text, cases[i].want) : warn.text[0])
            fail_msg("mode %o: '%s'", (unsigned)cases[i].mode, warn.text);
    }
}

/* B9: the kernel says of the mapping that no core dump has it ("dd" among its flags). */
static bool is_left_out_of_dumps(const void *p) {
    char line[512];
    bool mine = false, dd = false;
    FILE *f = fopen("/proc/self/smaps", "re");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        unsigned long lo, hi;
        if (sscanf(line, "%lx-%lx ", &lo, &hi) == 2)
            mine = lo <= (uintptr_t)p && (uintptr_t)p < hi;
        else if (mine && strncmp(line, "VmFlags:", 8) == 0)
            dd = strstr(line, " dd") != NULL;
    }
    fclose(f);
    return dd;
}

static void test_memory_is_in_no_core_dump(void **state) {
    (void)state;
    char *p = secret_dup("salt", 4);
    assert_string_equal(p, "salt");
    assert_true(is_left_out_of_dumps(p));
    p = secret_resize(p, 5, 1 << 20);
    assert_string_equal(p, "salt");
    assert_true(is_left_out_of_dumps(p) && is_left_out_of_dumps(p + (1 << 20) - 1));
    secret_free(p, 1 << 20);
    secret_free(NULL, 7);
}

static int setup(void **state) {
    (void)state;
    tmpdir_setup(&dir);
    return 0;
}
static int teardown(void **state) {
    (void)state;
    tmpdir_teardown(&dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_and_words),
        cmocka_unit_test(test_no_line_is_too_long),
        cmocka_unit_test(test_what_is_no_text_is_refused),
        cmocka_unit_test(test_open_to_others_is_a_warning),
        cmocka_unit_test(test_memory_is_in_no_core_dump),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
