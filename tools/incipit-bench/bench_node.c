/* bench_node.c - starts incipit-cachesvc and waits until its HTTP port says that it is ready. */
#include "tools/incipit-bench/bench_node.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"

#define READY_TIMEOUT_S 60

/* A port that was free a moment ago; the node refuses to start when somebody was faster. */
static int free_port(uint16_t *ret) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rv = fd < 0 || bind(fd, (struct sockaddr *)&a, len) < 0 ||
                     getsockname(fd, (struct sockaddr *)&a, &len) < 0
                 ? -errno
                 : 0;
    if (fd >= 0)
        close(fd);
    *ret = ntohs(a.sin_port);
    return rv;
}

/* True when GET /readyz on the port answers 200. */
static bool is_ready(uint16_t port) {
    static const char ask[] =
        "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char head[16] = "";
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool ok = fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0 &&
                    send(fd, ask, sizeof(ask) - 1, MSG_NOSIGNAL) == (ssize_t)sizeof(ask) - 1 &&
                    recv(fd, head, sizeof(head) - 1, MSG_WAITALL) > 0;
    if (fd >= 0)
        close(fd);
    return ok && strncmp(head, "HTTP/1.1 200", 12) == 0;
}

static int wait_ready(struct bench_node *n, uint16_t http, struct errbuf *eb) {
    const uint64_t end = clock_mono_ns(clock_real()) + READY_TIMEOUT_S * NS_PER_S;
    while (clock_mono_ns(clock_real()) < end) {
        int status;
        if (waitpid(n->pid, &status, WNOHANG) == n->pid) {
            n->pid = 0;
            return err_set(eb, ERR_UNAVAILABLE, "the cache node ended at start, status %d", status);
        }
        if (is_ready(http))
            return 0;
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    }
    return err_set(eb, ERR_TIMEOUT, "the cache node was not ready within %d s", READY_TIMEOUT_S);
}

static uint64_t resident_pages(int pid) {
    char path[32], text[64] = "";
    snprintf(path, sizeof(path), "/proc/%d/statm", pid);
    FILE *f = fopen(path, "r");
    unsigned long long total, resident = 0;
    if (f && fgets(text, sizeof(text), f) && sscanf(text, "%llu %llu", &total, &resident) != 2)
        resident = 0;
    if (f)
        fclose(f);
    return resident;
}

/* The node touches its memory in the background after it is ready; until that ends it may answer BUSY
 * and competes for memory. It has ended when the resident size stands still. */
static void wait_touched(const struct bench_node *n) {
    uint64_t before = 0, now;
    const uint64_t end = clock_mono_ns(clock_real()) + READY_TIMEOUT_S * NS_PER_S;
    while ((now = resident_pages(n->pid)) != before && clock_mono_ns(clock_real()) < end) {
        before = now;
        nanosleep(&(struct timespec){.tv_nsec = 400 * 1000 * 1000}, NULL);
    }
}

/* ../../cachesvc/incipit-cachesvc from our own program's folder, when it is there. */
static const char *find_program(char *buf, size_t cap) {
    const ssize_t n = readlink("/proc/self/exe", buf, cap - 1);
    buf[MAX(n, 0)] = 0;
    for (int up = 0; up < 3; up++) {
        char *slash = strrchr(buf, '/');
        if (!slash)
            return "incipit-cachesvc";
        *slash = 0;
    }
    const size_t len = strlen(buf);
    snprintf(buf + len, cap - len, "/cachesvc/incipit-cachesvc");
    return access(buf, X_OK) == 0 ? buf : "incipit-cachesvc";
}

static void exec_node(const struct bench_node *n, const char *program, uint16_t http,
                      uint64_t ram) {
    char http_addr[32], ram_text[24];
    snprintf(http_addr, sizeof(http_addr), "127.0.0.1:%u", http);
    snprintf(ram_text, sizeof(ram_text), "%llu", (unsigned long long)ram);
    const int null = open("/dev/null", O_RDWR);
    dup2(null, 0);
    dup2(null, 1);
    execlp(program, program, "--listen", n->tcp, "--unix-listen", n->unix_ + strlen("unix:"),
           "--http-listen", http_addr, "--ram-bytes", ram_text, "--log-level", "warn",
           (char *)NULL);
    fprintf(stderr, "incipit-bench: cannot run '%s': %s\n", program, err_text(-errno));
    _exit(127);
}

int bench_node_start(struct bench_node *n, const char *program, uint64_t ram_bytes,
                     struct errbuf *eb) {
    char path[4096];
    uint16_t rpc, http;
    const char *tmp = getenv("TMPDIR");
    *n = (struct bench_node){0};
    snprintf(n->dir, sizeof(n->dir), "%.30s/incipit-bench-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(n->dir)) {
        n->dir[0] = 0;
        return err_set(eb, -errno, "temporary folder");
    }
    if (free_port(&rpc) < 0 || free_port(&http) < 0)
        return err_set(eb, ERR_UNAVAILABLE, "no free port on loopback");
    snprintf(n->tcp, sizeof(n->tcp), "127.0.0.1:%u", rpc);
    snprintf(n->unix_, sizeof(n->unix_), "unix:%s/node.sock", n->dir);
    n->pid = fork();
    if (n->pid < 0)
        return err_set(eb, -errno, "fork");
    if (n->pid == 0)
        exec_node(n, program ? program : find_program(path, sizeof(path)), http, ram_bytes);
    const int rv = wait_ready(n, http, eb);
    if (rv == 0)
        wait_touched(n);
    return rv;
}

void bench_node_stop(struct bench_node *n) {
    if (n->pid > 0) {
        kill(n->pid, SIGTERM);
        waitpid(n->pid, NULL, 0);
        n->pid = 0;
    }
    if (n->dir[0]) {
        unlink(n->unix_ + strlen("unix:")); /* gone already after an orderly stop */
        rmdir(n->dir);
    }
}
