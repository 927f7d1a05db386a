/* Huge pages that are there and may not be used: this machine's, or the shim's below. */
#include "tests/unit/cachesvc/store_fixture.h"

#include <errno.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cachesvc/store/ram_tier.h"

static struct {
    int fail_from; /* this populate, from 1, and all later ones fail; 0: none */
    int n_populate, n_dontdump;
    size_t dontdump_bytes;
} shim;

/* Any file counts as one of huge pages, whatever the machine has reserved. */
int memfd_create(const char *name, unsigned flags) {
    return (int)syscall(SYS_memfd_create, name, flags & ~(unsigned)MFD_HUGETLB);
}

/* What the kernel does for a page that a limit of the container forbids. */
int madvise(void *p, size_t len, int advice) {
    if (advice == MADV_DONTDUMP) {
        shim.n_dontdump++;
        shim.dontdump_bytes = len;
    }
    if (advice == 23 /* MADV_POPULATE_WRITE */ && ++shim.n_populate >= shim.fail_from &&
        shim.fail_from) {
        errno = EFAULT;
        return -1;
    }
    return (int)syscall(SYS_madvise, p, len, advice);
}

static struct ram_tier_cfg cfg(void) {
    return (struct ram_tier_cfg){.ram_bytes = 32 << 20,
                                 .extent_bytes = 4 << 20,
                                 .bounce_bytes = 4 << 20,
                                 .min_slot_bytes = 65536,
                                 .huge_pages = true,
                                 .background_touch = true};
}

/* G1: the host has huge pages, the container's limit on them is 0: a Bus error at start, and nothing
 * said. Normal pages serve, and it is said once. */
static void test_a_limit_on_huge_pages_falls_back_and_says_so(void **state) {
    (void)state;
    memset(&shim, 0, sizeof(shim));
    struct ram_tier t;
    struct ram_tier_cfg c = cfg();
    c.background_touch = false;
    shim.fail_from = 1;
    assert_int_equal(ram_tier_init(&t, &c, NULL), 0);
    assert_false(t.huge);
    const char *note = ram_tier_note(&t);
    assert_non_null(note);
    assert_non_null(strstr(note, "huge pages"));
    assert_null(ram_tier_note(&t));
    uint32_t cls = (uint32_t)slots_class(&t.slots, 65536), slot = ram_tier_take(&t, cls, 1);
    memset(ram_tier_at(&t, slot), 1, 65536);
    assert_int_equal(t.bytes, c.ram_bytes);
    ram_tier_fini(&t);
    /* switched off: not even tried */
    memset(&shim, 0, sizeof(shim));
    c.huge_pages = false;
    assert_int_equal(ram_tier_init(&t, &c, NULL), 0);
    assert_int_equal(shim.n_populate, 0);
    assert_null(ram_tier_note(&t));
    ram_tier_fini(&t);
}

/* G1: the limit is above 0 and below the tier: what can't be had is never touched, and said. */
static void test_pages_that_run_out_leave_a_smaller_tier(void **state) {
    (void)state;
    memset(&shim, 0, sizeof(shim));
    struct ram_tier t;
    struct ram_tier_cfg c = cfg();
    shim.fail_from = 4; /* the head, the reserve, one more extent */
    assert_int_equal(ram_tier_init(&t, &c, NULL), 0);
    assert_true(t.huge);
    pthread_join(t.toucher, NULL);
    t.toucher_runs = false;
    assert_int_equal(atomic_load(&t.n_touched), 2);
    const char *note = ram_tier_note(&t);
    assert_non_null(note);
    assert_non_null(strstr(note, "only 8388608 bytes"));
    assert_null(ram_tier_note(&t));
    uint32_t cls = (uint32_t)slots_class(&t.slots, 65536), n = 0;
    while (ram_tier_take(&t, cls, n) != SLOT_NONE)
        n++;
    assert_int_equal(n, (4 << 20) / 65536);
    ram_tier_fini(&t);
}

/* B9: what clients keep in the node is in no core file. */
static void test_the_memory_file_is_in_no_core_dump(void **state) {
    (void)state;
    memset(&shim, 0, sizeof(shim));
    struct ram_tier t;
    struct ram_tier_cfg c = cfg();
    c.huge_pages = false;
    assert_int_equal(ram_tier_init(&t, &c, NULL), 0);
    assert_int_equal(shim.n_dontdump, 1);
    assert_int_equal(shim.dontdump_bytes, t.bytes);
    ram_tier_fini(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_limit_on_huge_pages_falls_back_and_says_so),
        cmocka_unit_test(test_pages_that_run_out_leave_a_smaller_tier),
        cmocka_unit_test(test_the_memory_file_is_in_no_core_dump),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
