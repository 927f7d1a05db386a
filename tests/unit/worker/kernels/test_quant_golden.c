/* test_quant_golden.c - weights as another implementation reads them: tests/golden/quants/quants.txt. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "worker/kernels/quant.h"

static const char *golden_path;

static uint8_t hex_byte(const char *p) {
    unsigned v = 0;
    for (int i = 0; i < 2; i++)
        v = v << 4 | (unsigned)(p[i] <= '9' ? p[i] - '0' : p[i] - 'a' + 10);
    return (uint8_t)v;
}

/* Where a min is added we round once and they twice: half a unit of each of their roundings apart. */
static float allowed(const struct quant_type *t, float most) {
    return t->has_min ? most * 0x1p-23f : 0.0f;
}

static void test_weights_are_those_of_another_reader(void **state) {
    (void)state;
    static char line[4096];
    unsigned n_of[64] = {0};
    FILE *f = fopen(golden_path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        char *rest = line;
        const struct quant_type *t = quant_type_named(strtok_r(rest, " ", &rest));
        const char *bytes = strtok_r(rest, " ", &rest), *want = strtok_r(rest, "\n", &rest);
        uint8_t block[256];
        float got[256], w[256], most = 0;
        assert_int_equal(strlen(bytes), 2u * t->block_bytes);
        assert_int_equal(strlen(want), 8u * t->block_items);
        for (size_t i = 0; i < t->block_bytes; i++)
            block[i] = hex_byte(bytes + 2 * i);
        for (size_t i = 0; i < t->block_items; i++) {
            uint32_t bits = 0;
            for (size_t k = 0; k < 4; k++)
                bits = bits << 8 | hex_byte(want + 8 * i + 2 * k);
            memcpy(&w[i], &bits, 4);
            most = fmaxf(most, fabsf(w[i]));
        }
        assert_int_equal(quant_first_bad(t, block, t->block_items), 1);
        quant_dequant(t, got, block, t->block_items);
        for (size_t i = 0; i < t->block_items; i++)
            if (!(fabsf(got[i] - w[i]) <= allowed(t, most)))
                fail_msg("%s weight %zu: %a, should be %a", t->name, i, (double)got[i],
                         (double)w[i]);
        n_of[t->dtype]++;
    }
    (void)fclose(f);
    size_t n;
    const struct quant_type *types = quant_type_table(&n);
    for (size_t i = 0; i < n; i++)
        assert_true(types[i].block_items == 1 || n_of[types[i].dtype] >= 3);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_are_those_of_another_reader),
    };
    if (argc != 2)
        return 2;
    golden_path = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
