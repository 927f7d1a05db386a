/* What control groups leave of a machine. Trees of files stand for /proc and /sys. */
#include "common/machine.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/support/tmpdir.h"

static struct tmpdir dir;

static void put(const char *name, const char *text) {
    char path[512];
    tmpdir_join(&dir, name, path, sizeof(path));
    for (char *slash = path + strlen(dir.path) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    tmpdir_write(&dir, name, text, strlen(text));
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

static struct machine bare(void) {
    struct machine m;
    machine_read(&m, "/nowhere");
    assert_true(m.cpus >= 1 && m.memory_bytes > 0 && !m.has_cpu_quota && !m.has_memory_limit);
    return m;
}

/* F13: 64 spinning threads in a container of 2 CPUs; "ready", then killed for memory. */
static void test_version_2_takes_the_least_on_the_way_up(void **state) {
    (void)state;
    struct machine m;
    put("proc/self/cgroup", "0::/a.slice/b.scope\n");
    put("proc/self/mountinfo",
        "22 1 0:5 / /proc rw - proc proc rw\n"
        "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
    put("sys/fs/cgroup/a.slice/b.scope/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/a.slice/b.scope/memory.max", "300000000\n");
    put("sys/fs/cgroup/a.slice/cpu.max", "199999 100000\n"); /* almost two are one */
    put("sys/fs/cgroup/a.slice/memory.max", "200000000\n");
    put("sys/fs/cgroup/memory.max", "max\n");
    machine_read(&m, dir.path);
    assert_int_equal(m.cpus, 1);
    assert_int_equal(m.has_cpu_quota, bare().cpus > 1);
    assert_int_equal(m.memory_bytes, 200000000);
    assert_true(m.has_memory_limit);
    put("sys/fs/cgroup/a.slice/b.scope/cpu.max", "10000 100000\n"); /* a tenth: still one */
    machine_read(&m, dir.path);
    assert_int_equal(m.cpus, 1);
}

static void test_version_1_and_a_container_that_sees_part_of_the_tree(void **state) {
    (void)state;
    struct machine m;
    put("proc/self/cgroup",
        "9:name=systemd:/x\n4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n");
    put("proc/self/mountinfo",
        "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "100000\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "64000000\n");
    machine_read(&m, dir.path);
    assert_int_equal(m.cpus, 1);
    assert_int_equal(m.memory_bytes, 64000000);
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
    machine_read(&m, dir.path);
    assert_int_equal(m.cpus, bare().cpus);
    assert_int_equal(m.memory_bytes, bare().memory_bytes);
    assert_false(m.has_memory_limit);
}

static void test_what_makes_no_sense_limits_nothing(void **state) {
    (void)state;
    struct machine m;
    put("proc/self/cgroup", "0::/../../elsewhere\n:::\nx\n");
    put("proc/self/mountinfo",
        " - \n1 2 - cgroup2\n31 23 0:28 / /sys/fs/cgroup rw - cgroup2 c rw\n");
    put("sys/fs/cgroup/cpu.max", "100000 0\n");
    put("sys/fs/cgroup/memory.max", "-5 many\n");
    machine_read(&m, dir.path);
    assert_int_equal(m.cpus, bare().cpus);
    assert_int_equal(m.memory_bytes, bare().memory_bytes);
}

static void test_affinity_counts(void **state) {
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET((size_t)i, &all))
            CPU_SET((size_t)i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    struct machine m;
    machine_read(&m, "");
    assert_int_equal(m.cpus, 1);
    assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
    machine_read(&m, "");
    assert_true(m.cpus >= 1 && m.cpus <= (uint32_t)CPU_COUNT(&all));
    assert_true(m.memory_bytes > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_version_2_takes_the_least_on_the_way_up, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_version_1_and_a_container_that_sees_part_of_the_tree,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_makes_no_sense_limits_nothing, setup, teardown),
        cmocka_unit_test(test_affinity_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
