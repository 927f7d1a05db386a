/* Twenty greedy answers (tests/golden/numbers/answers.json): the F32 copy must say, token for token,
 * what the float64 reference says, whose first and second choice are never closer than 0.005 nat; the
 * Q4_1 file must say what it said when the file was recorded, on every CPU, since nothing that may vary
 * between machines reaches a logit.
 *
 * INCIPIT_WRITE_ANSWERS=FILE writes the Q4_1 answers instead of comparing them; make_answers.py merges
 * them (tests/golden/numbers/README.md). Needs INCIPIT_TEST_MODEL; skipped without. */
#include "tests/support/greedy.h"
#include "tests/integration/oracle_common.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define MAX_NEW 64
#define MAX_PROMPT 256

static json_t *load_answers(void) {
    json_error_t e;
    json_t *a = json_load_file(oracle_path("answers.json"), 0, &e);
    if (!a)
        fail_msg("answers.json:%d: %s", e.line, e.text);
    assert_int_equal(json_array_size(a), 20);
    return a;
}

static uint32_t ids_of(const json_t *row, const char *key, int32_t *ret, uint32_t max) {
    const json_t *list = json_object_get(row, key);
    size_t n = json_array_size(list);
    assert_true(n <= max);
    for (size_t i = 0; i < n; i++)
        ret[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)n;
}

/* Greedy answer to a prompt, at most MAX_NEW tokens, without the end token. */
static uint32_t answer(struct oracle_run *run, const int32_t *prompt, uint32_t n, int32_t *ret) {
    uint32_t n_vocab = run->model->hp.n_vocab, made = 0;
    float *z = calloc(n_vocab, sizeof(*z));
    assert_non_null(z);
    oracle_step(run, prompt, n, 0, 1, z);
    while (made < MAX_NEW) {
        int32_t t = greedy(z, n_vocab);
        if (t == 0 || t == 2) /* <|endoftext|>, <|im_end|> */
            break;
        ret[made++] = t;
        oracle_step(run, &t, 1, n + made - 1, 1, z);
    }
    free(z);
    return made;
}

static bool same_ids(const int32_t *a, uint32_t na, const int32_t *b, uint32_t nb) {
    return na == nb && memcmp(a, b, na * sizeof(*a)) == 0;
}

static void test_f32_answers_equal_the_reference(void **state) {
    (void)state;
    struct oracle_run run;
    if (!oracle_run_open(&run, ORACLE_F32, KV_F32, MAX_PROMPT, MAX_PROMPT + MAX_NEW))
        skip();
    json_t *all = load_answers();
    uint32_t wrong = 0;
    for (size_t i = 0; i < json_array_size(all); i++) {
        int32_t prompt[MAX_PROMPT], want[MAX_NEW], got[MAX_NEW];
        const json_t *row = json_array_get(all, i);
        uint32_t n = ids_of(row, "prompt_ids", prompt, MAX_PROMPT);
        uint32_t n_want = ids_of(row, "reference_ids", want, MAX_NEW);
        if (!same_ids(got, answer(&run, prompt, n, got), want, n_want)) {
            print_message("answer %zu differs from the reference's\n", i + 1);
            wrong++;
        }
    }
    json_decref(all);
    oracle_run_close(&run);
    assert_int_equal(wrong, 0);
}

static json_t *json_ids(const int32_t *ids, uint32_t n) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static void test_q4_1_answers_are_the_recorded_ones(void **state) {
    (void)state;
    struct oracle_run run;
    if (!oracle_run_open(&run, ORACLE_AS_IS, KV_F16, MAX_PROMPT, MAX_PROMPT + MAX_NEW))
        skip();
    const char *write_to = getenv("INCIPIT_WRITE_ANSWERS");
    json_t *all = load_answers(), *out = json_array();
    uint32_t wrong = 0;
    for (size_t i = 0; i < json_array_size(all); i++) {
        int32_t prompt[MAX_PROMPT], want[MAX_NEW], got[MAX_NEW];
        const json_t *row = json_array_get(all, i);
        uint32_t n = ids_of(row, "prompt_ids", prompt, MAX_PROMPT);
        uint32_t n_want = ids_of(row, "incipit_q4_1_ids", want, MAX_NEW);
        uint32_t n_got = answer(&run, prompt, n, got);
        json_array_append_new(out, json_ids(got, n_got));
        if (!write_to && !same_ids(got, n_got, want, n_want)) {
            print_message("answer %zu is not the recorded one\n", i + 1);
            wrong++;
        }
    }
    if (write_to)
        assert_int_equal(json_dump_file(out, write_to, JSON_COMPACT), 0);
    json_decref(all);
    json_decref(out);
    oracle_run_close(&run);
    assert_int_equal(wrong, 0);
}

int main(int argc, char **argv) {
    oracle_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32_answers_equal_the_reference),
        cmocka_unit_test(test_q4_1_answers_are_the_recorded_ones),
    };
    int rv = cmocka_run_group_tests(tests, NULL, NULL);
    oracle_exit();
    return rv;
}
