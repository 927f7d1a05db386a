#include "common/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

void process_stdio(void) {
    /* open() gives the lowest number that is free: in ascending order each hole is filled by its own. */
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY) != fd)
            _exit(127); /* and nowhere to say why */
}

void process_memory(void) {
    (void)mallopt(M_MMAP_THRESHOLD, 128 << 10); /* setting it ends that it is raised */
}

void process_raise_files(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit); /* else fewer connections */
}

void process_notify(const char *state) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    size_t n = path ? strlen(path) : 0;
    if (n < 2 || n >= sizeof(sa.sun_path) || (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(sa.sun_path, path, n);
    if (path[0] == '@')
        sa.sun_path[0] = '\0'; /* an abstract name */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    /* Lost when the manager's queue is full: the loop does not wait for it. */
    (void)!sendto(fd, state, strlen(state), MSG_DONTWAIT | MSG_NOSIGNAL,
                  (const struct sockaddr *)&sa,
                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
    close(fd);
}

/* Field number n (from 1, at least 3) of /proc/self/stat; the name in field 2 may hold blanks. */
static uint64_t stat_field(unsigned n) {
    char text[1024];
    FILE *f = fopen("/proc/self/stat", "re");
    size_t len = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
    if (f)
        fclose(f);
    text[len] = '\0';
    char *at = strrchr(text, ')');
    for (unsigned i = 2; at && i < n; i++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

static void refresh_start(struct process_metrics *m) {
    struct timespec up, wall;
    uint64_t ticks = stat_field(22);
    long hz = sysconf(_SC_CLK_TCK);
    if (ticks == 0 || hz <= 0 || clock_gettime(CLOCK_BOOTTIME, &up) < 0 ||
        clock_gettime(CLOCK_REALTIME, &wall) < 0)
        return;
    double age = (double)up.tv_sec + (double)up.tv_nsec / 1e9 - (double)ticks / (double)hz;
    METRIC_SETF(m, start_time_seconds, (double)wall.tv_sec + (double)wall.tv_nsec / 1e9 - age);
}

static void refresh_memory(struct process_metrics *m) {
    uint64_t pages[2];
    FILE *f = fopen("/proc/self/statm", "re");
    int n = f ? fscanf(f, "%" SCNu64 " %" SCNu64, &pages[0], &pages[1]) : 0;
    if (f)
        fclose(f);
    if (n != 2)
        return;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    METRIC_SET(m, virtual_memory_bytes, (int64_t)(pages[0] * page));
    METRIC_SET(m, resident_memory_bytes, (int64_t)(pages[1] * page));
}

static void refresh_fds(struct process_metrics *m) {
    struct rlimit limit;
    DIR *d = opendir("/proc/self/fd");
    if (d) {
        int64_t n = -3; /* ".", ".." and the directory itself */
        while (readdir(d))
            n++;
        closedir(d);
        METRIC_SET(m, open_fds, n);
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        METRIC_SET(m, max_fds, (int64_t)limit.rlim_cur);
}

void process_metrics_refresh(struct process_metrics *m, const struct log *log) {
    struct rusage u;
    METRIC_SET(m, log_dropped_total, log_dropped_total(log));
    METRIC_SET(m, log_suppressed_total, log_suppressed_total(log));
    METRIC_SET(m, build_info, 1);
    if (getrusage(RUSAGE_SELF, &u) == 0)
        METRIC_SETF(m, cpu_seconds_total,
                    (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                        (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6);
    if (atomic_load_explicit(&m->start_time_seconds, memory_order_relaxed) == 0)
        refresh_start(m); /* once: a clock that is set must not look like a restart */
    refresh_memory(m);
    refresh_fds(m);
}
