#include "common/machine.h"

#include <sched.h>
#include <unistd.h>

#include "common/str.h"

#define FILE_BYTES 65536u
#define PATH_BYTES 4096u

/* A whole small file of /proc or /sys, without white space at its end; "" when it cannot be read. */
static struct str read_file(const char *path, char buf[FILE_BYTES]) {
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(buf, 1, FILE_BYTES, f) : 0;
    if (f)
        fclose(f);
    return str_trim((struct str){buf, n});
}

static struct str word(struct str *rest) {
    struct str w = {"", 0};
    (void)str_split(rest, ' ', &w);
    return w;
}

static bool has_item(struct str list, struct str item) {
    struct str one;
    while (str_split(&list, ',', &one))
        if (str_eq(one, item))
            return true;
    return false;
}

struct walk {
    struct machine *m;
    const char *root;
    char mounts[FILE_BYTES], groups[FILE_BYTES], file[FILE_BYTES];
};

/* A number in dir/name; UINT64_MAX for "max", -1 and what is not there. */
static uint64_t read_u64(struct walk *w, const char *dir, const char *name, struct str *ret_rest) {
    char path[PATH_BYTES];
    uint64_t v = UINT64_MAX;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    struct str text = read_file(path, w->file);
    (void)str_to_u64(word(&text), &v);
    *ret_rest = text;
    return v;
}

static void apply_cpu(struct machine *m, uint64_t quota, uint64_t period) {
    if (quota == UINT64_MAX || period == 0 || period == UINT64_MAX || quota / period >= m->cpus)
        return;
    m->cpus = (uint32_t)MAX(quota / period, 1ull);
    m->has_cpu_quota = true;
}

static void apply_memory(struct machine *m, uint64_t bytes) {
    if (bytes == UINT64_MAX || (m->memory_bytes && bytes >= m->memory_bytes))
        return;
    m->memory_bytes = bytes;
    m->has_memory_limit = true;
}

static void read_group(struct walk *w, const char *dir) {
    struct str rest;
    uint64_t quota = read_u64(w, dir, "cpu.max", &rest), period = 100000;
    if (rest.n)
        (void)str_to_u64(word(&rest), &period);
    apply_cpu(w->m, quota, period);
    apply_memory(w->m, read_u64(w, dir, "memory.max", &rest));
    quota = read_u64(w, dir, "cpu.cfs_quota_us", &rest);
    apply_cpu(w->m, quota, read_u64(w, dir, "cpu.cfs_period_us", &rest));
    apply_memory(w->m, read_u64(w, dir, "memory.limit_in_bytes", &rest));
}

/* The path of /proc/self/cgroup's line for this hierarchy: of version 2, or of one of the controllers. */
static struct str own_path(const struct walk *w, bool is_v2, struct str controllers) {
    struct str rest = {w->groups, strlen(w->groups)}, line, number, names;
    while (str_split(&rest, '\n', &line)) {
        if (!str_split(&line, ':', &number) || !str_split(&line, ':', &names))
            continue;
        struct str first = names, name;
        if (is_v2 ? names.n == 0 : str_split(&first, ',', &name) && has_item(controllers, name))
            return line;
    }
    return STR("/");
}

/* Each group from ours to the mount: a limit further up holds us, too. In a container the mount shows
 * but a part of the tree, whose root stands in front of our path. */
static void walk_mount(struct walk *w, struct str mount_root, struct str mount, struct str path) {
    char dir[PATH_BYTES];
    if (str_starts(path, mount_root) && mount_root.n > 1)
        path = str_cut(path, mount_root.n, path.n);
    else if (mount_root.n > 1 || str_starts(path, STR("/..")))
        path =
            STR(""); /* ours lies beside what is mounted: the mount's own limits are what we know */
    int top = snprintf(dir, sizeof(dir), "%s" STR_FMT, w->root, STR_ARG(mount));
    int n =
        snprintf(dir, sizeof(dir), "%s" STR_FMT STR_FMT, w->root, STR_ARG(mount), STR_ARG(path));
    if (top < 0 || n < 0 || (size_t)n >= sizeof(dir))
        return;
    for (;;) {
        read_group(w, dir);
        char *slash = strrchr(dir, '/');
        if (!slash || slash - dir < top)
            return;
        *slash = '\0';
    }
}

static void walk_groups(struct walk *w) {
    char path[PATH_BYTES];
    snprintf(path, sizeof(path), "%s/proc/self/cgroup", w->root);
    struct str groups = read_file(path, w->groups);
    w->groups[MIN(groups.n, sizeof(w->groups) - 1)] = '\0';
    snprintf(path, sizeof(path), "%s/proc/self/mountinfo", w->root);
    struct str rest = read_file(path, w->mounts), line;
    while (str_split(&rest, '\n', &line)) {
        size_t dash = str_find(line, STR(" - "), 0);
        if (dash == SIZE_MAX)
            continue;
        struct str tail = str_cut(line, dash + 3, line.n), type = word(&tail);
        (void)word(&tail); /* source */
        bool is_v2 = str_eq(type, STR("cgroup2"));
        if (!is_v2 && !str_eq(type, STR("cgroup")))
            continue;
        for (int i = 0; i < 3; i++) /* mount id, parent id, device */
            (void)word(&line);
        struct str mount_root = word(&line), mount = word(&line);
        walk_mount(w, mount_root, mount, own_path(w, is_v2, tail));
    }
}

void machine_read(struct machine *ret, const char *root) {
    cpu_set_t set;
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : (int)online;
    *ret = (struct machine){.cpus = (uint32_t)MAX(n, 1)};
    if (pages > 0 && page > 0)
        ret->memory_bytes = (uint64_t)pages * (uint64_t)page;
    struct walk *w = calloc(1, sizeof(*w));
    if (!w)
        return;
    w->m = ret;
    w->root = root;
    walk_groups(w);
    free(w);
}
