#include "common/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "tests/support/tmpdir.h"

#define TOY_CONFIG(X)                                                                              \
    X(listen_port, U32, 7070, 1, 65535, false, "port")                                             \
    X(ram_bytes, U64, 1ull << 30, 1u << 20, 1ull << 40, true, "budget")                            \
    X(fetch, ENUM, "auto", "auto|always|never", 0, true, "when")                                   \
    X(cache, LIST, "", 0, 3, true, "addresses")                                                    \
    X(model, STR, "", 0, 20, false, "file")                                                        \
    X(verbose, BOOL, false, 0, 0, true, "talk")                                                    \
    X(ratio, F64, 0.5, 0.0, 1.0, true, "share")
struct toy_config {
    CFG_FIELDS(TOY_CONFIG)
};
CFG_TABLE(toy_config, TOY_CONFIG)

static const struct cfg_prog prog = {"toy", "a toy"};

static int load(struct toy_config *c, struct errbuf *eb, FILE *out, const char *const *envp,
                size_t argc, const char *const *argv) {
    eb->text[0] = '\0';
    return cfg_load(toy_config_table(), &prog, c, (int)argc, (char *const *)(uintptr_t)argv,
                    (char *const *)(uintptr_t)envp, out, eb);
}
#define LOAD(c, eb, envp, ...)                                                                     \
    load((c), (eb), stdout, (envp), ARRAY_LEN(((const char *[]){"toy", ##__VA_ARGS__})),           \
         (const char *[]){"toy", ##__VA_ARGS__, NULL})

static void test_defaults(void **state) {
    (void)state;
    struct toy_config c;
    struct errbuf eb;
    assert_int_equal(LOAD(&c, &eb, NULL), 0);
    assert_int_equal(c.listen_port, 7070);
    assert_int_equal(c.ram_bytes, 1u << 30);
    assert_int_equal(c.fetch, 0);
    assert_int_equal(c.cache.n, 0);
    assert_string_equal(c.model, "");
    assert_false(c.verbose);
    assert_true(c.ratio == 0.5);
    cfg_free(toy_config_table(), &c);
}

static void test_stronger_source_wins(void **state) {
    (void)state;
    struct tmpdir d;
    char path[512], arg[600];
    tmpdir_setup(&d);
    const char ini[] = "; a file\nlisten-port = 1000\nram_bytes = 2m\nratio = 0.25\ncache = a, "
                       "b\nmodel = from-file\n";
    tmpdir_write(&d, "x.ini", ini, sizeof(ini) - 1);
    snprintf(arg, sizeof(arg), "--config=%s", tmpdir_join(&d, "x.ini", path, sizeof(path)));
    const char *envp[] = {"INCIPIT_RAM_BYTES=3m", "INCIPIT_LISTEN_PORT=2000", "INCIPIT_OTHER=x",
                          "INCIPIT_CACHE=c", NULL};
    struct toy_config c;
    struct errbuf eb;
    assert_int_equal(
        LOAD(&c, &eb, envp, arg, "--listen-port", "3000", "--verbose", "--fetch=never"), 0);
    assert_int_equal(c.listen_port, 3000);   /* command line over environment over file */
    assert_int_equal(c.ram_bytes, 3u << 20); /* environment over file */
    assert_true(c.ratio == 0.25);
    assert_string_equal(c.model, "from-file");
    assert_int_equal(c.cache.n, 1); /* a list is replaced, not joined */
    assert_string_equal(c.cache.v[0], "c");
    assert_true(c.verbose);
    assert_int_equal(c.fetch, 2);
    cfg_free(toy_config_table(), &c);
    tmpdir_teardown(&d);
}

static void test_list_and_bool_forms(void **state) {
    (void)state;
    struct toy_config c;
    struct errbuf eb;
    assert_int_equal(
        LOAD(&c, &eb, NULL, "--cache", "a", "--cache=b,c", "--verbose=on", "--no-verbose"), 0);
    assert_int_equal(c.cache.n, 3);
    assert_string_equal(c.cache.v[2], "c");
    assert_false(c.verbose);
    cfg_free(toy_config_table(), &c);
}

static void expect_error(const char *want, size_t argc, const char *const *argv,
                         const char *const *envp) {
    struct toy_config c;
    struct errbuf eb;
    assert_true(load(&c, &eb, stdout, envp, argc, argv) < 0);
    if (!strstr(eb.text, want))
        fail_msg("'%s' lacks '%s'", eb.text, want);
}
#define EXPECT_ERROR(want, ...)                                                                    \
    expect_error((want), ARRAY_LEN(((const char *[]){"toy", __VA_ARGS__})),                        \
                 (const char *[]){"toy", __VA_ARGS__, NULL}, NULL)

static void test_errors_name_the_option(void **state) {
    (void)state;
    EXPECT_ERROR("--listen-prt", "--listen-prt=3");
    EXPECT_ERROR("listen-port", "--listen-port", "70000");
    EXPECT_ERROR("listen-port", "--listen-port", "1k"); /* no suffix without _bytes */
    EXPECT_ERROR("listen-port", "--listen-port", "-1");
    EXPECT_ERROR("--model", "--model");
    EXPECT_ERROR("ram-bytes", "--ram-bytes", "99999999999g");
    EXPECT_ERROR("auto|always|never", "--fetch", "sometimes");
    EXPECT_ERROR("ratio", "--ratio", "nan");
    EXPECT_ERROR("verbose", "--verbose=perhaps");
    EXPECT_ERROR("model", "--model", "a name that is far too long");
    EXPECT_ERROR("cache", "--cache", "a,b,c,d");
    EXPECT_ERROR("stray", "stray");
    EXPECT_ERROR("/nonexistent", "--config", "/nonexistent/x.ini");
    const char *envp[] = {"INCIPIT_RATIO=2", NULL};
    const char *argv[] = {"toy", NULL};
    expect_error("INCIPIT_RATIO", 1, argv, envp);
}

static void test_file_errors(void **state) {
    (void)state;
    static const struct {
        const char *text, *want;
    } cases[] = {{"port = 3\n", "unknown option 'port'"},
                 {"[section]\nlisten_port = 3\n", "no sections"},
                 {"listen_port = x\n", "listen_port"},
                 {"listen_port\n", "line 1"},
                 {" = 3\n", "line 1"},
                 {"\n\nratio = 3", "line 3"},
                 {"a\x01 = 3\n", "control character"}};
    struct tmpdir d;
    tmpdir_setup(&d);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char path[512];
        tmpdir_write(&d, "x.ini", cases[i].text, strlen(cases[i].text));
        EXPECT_ERROR(cases[i].want, "--config", tmpdir_join(&d, "x.ini", path, sizeof(path)));
    }
    tmpdir_teardown(&d);
}

/* B7's kind: a line of 200 bytes or more was read as two: the rest of a comment set options, and a list
 * of a dozen addresses was an error. */
static void test_lines_of_any_length(void **state) {
    (void)state;
    struct tmpdir d;
    struct toy_config c;
    struct errbuf eb = {{0}};
    char path[512], text[9000] = "\xef\xbb\xbf; ";
    tmpdir_setup(&d);
    size_t n = strlen(text);
    memset(text + n, 'x', 194);
    n += 194;
    n += (size_t)snprintf(text + n, sizeof(text) - n,
                          " listen_port = 1\r\n# listen_port = 2\n  cache : ");
    memset(text + n, 'h', 5000);
    n += 5000;
    n += (size_t)snprintf(text + n, sizeof(text) - n,
                          ", b ; two\n\tmodel=a;b\nverbose = on ;\nratio = 0.75");
    tmpdir_write(&d, "x.ini", text, n);
    if (LOAD(&c, &eb, NULL, "--config", tmpdir_join(&d, "x.ini", path, sizeof(path))) < 0)
        fail_msg("%s", eb.text);
    assert_int_equal(c.listen_port, 7070);
    assert_int_equal(c.cache.n, 2);
    assert_int_equal(strlen(c.cache.v[0]), 5000);
    assert_string_equal(c.cache.v[1], "b");
    assert_string_equal(c.model, "a;b");
    assert_true(c.verbose && c.ratio == 0.75);
    cfg_free(toy_config_table(), &c);
    tmpdir_teardown(&d);
}

static void test_printing(void **state) {
    (void)state;
    static const char *const flags[] = {"--help", "--version", "--dump-config"};
    static const char *const want[] = {"--ram-bytes", "toy 0", ";ram_bytes = 1g"};
    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        struct toy_config c;
        struct errbuf eb;
        char *text = NULL;
        size_t n = 0;
        FILE *out = open_memstream(&text, &n);
        const char *argv[] = {"toy", flags[i], NULL};
        assert_int_equal(load(&c, &eb, out, NULL, 2, argv), CFG_DONE);
        fclose(out);
        assert_non_null(strstr(text, want[i]));
        free(text);
    }
}

static void test_dump_with_comments_removed_loads(void **state) {
    (void)state;
    struct tmpdir d;
    char path[512], *text = NULL;
    size_t n = 0;
    tmpdir_setup(&d);
    FILE *out = open_memstream(&text, &n);
    cfg_dump(toy_config_table(), &prog, out);
    fclose(out);
    for (char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (line[0] == ';' && line[1] != ' ' && line[1])
            line[0] = ' '; /* ";name = value" becomes live */
    char *live = malloc(n + 1);
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (!(text[i] == ' ' && (i == 0 || text[i - 1] == '\n')))
            live[m++] = text[i];
    tmpdir_write(&d, "x.ini", live, m);
    struct toy_config c;
    struct errbuf eb;
    assert_int_equal(LOAD(&c, &eb, NULL, "--config", tmpdir_join(&d, "x.ini", path, sizeof(path))),
                     0);
    assert_int_equal(c.ram_bytes, 1u << 30);
    cfg_free(toy_config_table(), &c);
    free(live);
    free(text);
    tmpdir_teardown(&d);
}

static void test_set_and_get(void **state) {
    (void)state;
    const struct cfg_table *t = toy_config_table();
    struct toy_config c;
    struct errbuf eb;
    char text[64];
    assert_int_equal(cfg_defaults(t, &c), 0);
    assert_int_equal(cfg_set(t, &c, "ram_bytes", "64m", &eb), 0);
    assert_int_equal(cfg_get(t, &c, "ram_bytes", text, sizeof(text)), 0);
    assert_string_equal(text, "64m");
    assert_int_equal(cfg_set(t, &c, "cache", "x,y", &eb), 0);
    assert_int_equal(cfg_set(t, &c, "cache", "z", &eb), 0);
    assert_int_equal(cfg_get(t, &c, "cache", text, sizeof(text)), 0);
    assert_string_equal(text, "z");
    assert_int_equal(cfg_set(t, &c, "cache", "a,b,c,d", &eb), ERR_INVALID); /* more than three */
    assert_int_equal(cfg_get(t, &c, "cache", text, sizeof(text)), 0);
    assert_string_equal(text, "z"); /* E7: an error emptied a list or left half a one */
    assert_int_equal(cfg_set(t, &c, "listen_port", "1", &eb), ERR_DENIED);
    assert_int_equal(cfg_set(t, &c, "nothing", "1", &eb), ERR_NOTFOUND);
    assert_int_equal(cfg_set(t, &c, "ratio", "7", &eb), ERR_INVALID);
    assert_int_equal(cfg_get(t, &c, "ratio", text, 2), ERR_TOOBIG);
    assert_true(c.ratio == 0.5);
    cfg_free(t, &c);
}

struct seen {
    char text[128];
};
static void on_differs(void *arg, const struct cfg_opt *o) {
    struct seen *seen = arg;
    snprintf(seen->text + strlen(seen->text), sizeof(seen->text) - strlen(seen->text), "%s%s ",
             o->name, o->live ? "" : "!");
}

/* E6, E7: what SIGHUP stands on: live rows change, others are named, an error changes nothing. */
static void test_reload_changes_live_rows_only(void **state) {
    (void)state;
    const struct cfg_table *t = toy_config_table();
    struct tmpdir d;
    struct toy_config c;
    struct errbuf eb = {{0}};
    struct seen seen = {{0}};
    char path[512];
    tmpdir_setup(&d);
    tmpdir_join(&d, "x.ini", path, sizeof(path));
    static const char first[] = "ratio = 0.25\ncache = a\nmodel = m\n";
    tmpdir_write(&d, "x.ini", first, sizeof(first) - 1);
    char *argv[] = {(char *)(uintptr_t) "toy", (char *)(uintptr_t) "--config", path,
                    (char *)(uintptr_t) "--verbose"};
    assert_int_equal(cfg_load(t, &prog, &c, 4, argv, NULL, stdout, &eb), 0);
    assert_int_equal(cfg_reload(t, &prog, &c, 4, argv, NULL, on_differs, &seen, &eb), 0);
    assert_string_equal(seen.text, "");
    static const char other[] =
        "ratio = 0.75\ncache = a,b\nmodel = n\nverbose = false\nfetch = never\n";
    tmpdir_write(&d, "x.ini", other, sizeof(other) - 1);
    assert_int_equal(cfg_reload(t, &prog, &c, 4, argv, NULL, on_differs, &seen, &eb), 0);
    assert_string_equal(seen.text, "fetch cache model! ratio ");
    assert_true(c.ratio == 0.75 && c.verbose &&
                c.fetch == 2); /* the command line is stronger still */
    assert_int_equal(c.cache.n, 2);
    assert_string_equal(c.cache.v[1], "b");
    assert_string_equal(c.model, "m");
    seen.text[0] = '\0';
    static const char wrong[] = "ratio = 0.1\nratio = 9\n";
    tmpdir_write(&d, "x.ini", wrong, sizeof(wrong) - 1);
    assert_true(cfg_reload(t, &prog, &c, 4, argv, NULL, on_differs, &seen, &eb) < 0);
    assert_non_null(strstr(eb.text, "ratio"));
    tmpdir_teardown(&d);
    assert_true(cfg_reload(t, &prog, &c, 4, argv, NULL, on_differs, &seen, &eb) < 0); /* no file */
    assert_string_equal(seen.text, "");
    assert_true(c.ratio == 0.75);
    cfg_free(t, &c);
}

/* H: what the tools copied by hand: options and words in any order, nothing of files and environment. */
static void test_a_tools_arguments(void **state) {
    (void)state;
    struct toy_config c;
    struct cfg_asked asked;
    struct errbuf eb;
    bool given[7] = {0};
    char *argv[] = {(char[]){"toy"},     (char[]){"list"}, (char[]){"--cache=a"}, (char[]){"more"},
                    (char[]){"--cache"}, (char[]){"b"},    (char[]){"--verbose"}, NULL};
    assert_int_equal(cfg_args(toy_config_table(), &c, 7, argv, &asked, given, &eb), 0);
    assert_int_equal(c.cache.n, 2);
    assert_true(c.verbose);
    assert_int_equal(c.ram_bytes, 1u << 30);
    assert_int_equal(asked.first_word, 5);
    assert_string_equal(argv[5], "list");
    assert_string_equal(argv[6], "more");
    assert_true(given[3] && given[5] && !given[0] && !given[4]);
    cfg_free(toy_config_table(), &c);
    static const char *const wrong[][2] = {{"--config=/nonexistent", "--config"},
                                           {"--dump-config", "--dump-config"},
                                           {"--ram-bytes=x", "--ram-bytes"},
                                           {"--nonsense", "--nonsense"},
                                           {"--fetch", "--fetch"}};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        char text[64];
        snprintf(text, sizeof(text), "%s", wrong[i][0]);
        char *bad[] = {(char[]){"toy"}, (char[]){"word"}, text, NULL};
        assert_int_equal(cfg_args(toy_config_table(), &c, 3, bad, &asked, NULL, &eb), ERR_INVALID);
        assert_non_null(strstr(eb.text, wrong[i][1]));
        cfg_free(toy_config_table(), &c);
    }
    char *help[] = {(char[]){"toy"}, (char[]){"word"}, (char[]){"-h"}, NULL};
    assert_int_equal(cfg_args(toy_config_table(), &c, 3, help, &asked, NULL, &eb), CFG_DONE);
    assert_true(asked.help && !asked.version);
    cfg_free(toy_config_table(), &c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_stronger_source_wins),
        cmocka_unit_test(test_list_and_bool_forms),
        cmocka_unit_test(test_errors_name_the_option),
        cmocka_unit_test(test_file_errors),
        cmocka_unit_test(test_lines_of_any_length),
        cmocka_unit_test(test_printing),
        cmocka_unit_test(test_dump_with_comments_removed_loads),
        cmocka_unit_test(test_set_and_get),
        cmocka_unit_test(test_reload_changes_live_rows_only),
        cmocka_unit_test(test_a_tools_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
