/* bench_raw.c - plain sockets between two processes. */
#include "tools/incipit-bench/bench_raw.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"

#define TCP_READ_CAP (256u << 10)
#define UNIX_SNDBUF (1 << 20)

struct bench_raw {
    int fd;
    bool tcp;
    pid_t child;
    uint8_t *buf;
    size_t bytes;
};

static bool send_all(int fd, const uint8_t *p, size_t n) {
    while (n) {
        const ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

static bool recv_all(int fd, uint8_t *p, size_t n, bool tcp) {
    while (n) {
        const ssize_t k = recv(fd, p, tcp ? MIN(n, (size_t)TCP_READ_CAP) : n, 0);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

/* The other side: 'f' sends a repetition, 'p' takes one and acknowledges it. */
static void serve(int fd, bool tcp, size_t bytes) {
    const size_t huge = (size_t)2 << 20;
    uint8_t *buf = aligned_alloc(huge, (bytes + huge - 1) / huge * huge), what;
    if (!buf)
        return;
    (void)madvise(buf, bytes, MADV_HUGEPAGE); /* as the node's RAM tier has them */
    memset(buf, 0x5a, bytes);                 /* pages exist before the first measurement */
    while (recv_all(fd, &what, 1, tcp)) {
        if (what == 'f' && !send_all(fd, buf, bytes))
            break;
        if (what == 'p' && !(recv_all(fd, buf, bytes, tcp) && send_all(fd, &what, 1)))
            break;
    }
    free(buf);
}

static void tune(int fd, bool tcp) {
    const int one = 1, sndbuf = UNIX_SNDBUF;
    if (tcp) {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    } else {
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof(sndbuf));
    }
}

/* A connected pair over loopback TCP. */
static int tcp_pair(int fd[2]) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    const int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fd[1] = -1;
    if (l >= 0 && fd[0] >= 0 && bind(l, (struct sockaddr *)&a, len) == 0 && listen(l, 1) == 0 &&
        getsockname(l, (struct sockaddr *)&a, &len) == 0 &&
        connect(fd[0], (struct sockaddr *)&a, len) == 0)
        fd[1] = accept4(l, NULL, NULL, SOCK_CLOEXEC);
    const int rv = fd[1] >= 0 ? 0 : -errno;
    if (rv && fd[0] >= 0)
        close(fd[0]);
    if (l >= 0)
        close(l);
    return rv;
}

int bench_raw_open(struct bench_raw **ret, bool tcp, uint8_t *buf, size_t bytes,
                   struct errbuf *eb) {
    struct bench_raw *r = calloc(1, sizeof(*r));
    if (!r)
        return ERR_NOMEM;
    int fd[2];
    int rv =
        tcp ? tcp_pair(fd) : (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) ? -errno : 0);
    if (rv < 0) {
        free(r);
        return err_set(eb, rv, "raw sockets");
    }
    tune(fd[0], tcp);
    tune(fd[1], tcp);
    *r = (struct bench_raw){.fd = fd[0], .tcp = tcp, .buf = buf, .bytes = bytes, .child = fork()};
    if (r->child == 0) {
        close(fd[0]);
        serve(fd[1], tcp, bytes);
        _exit(0);
    }
    close(fd[1]);
    if (r->child < 0) {
        rv = err_set(eb, -errno, "fork");
        close(fd[0]);
        free(r);
        return rv;
    }
    *ret = r;
    return 0;
}

void bench_raw_close(struct bench_raw *r) {
    if (!r)
        return;
    close(r->fd); /* the child's next receive ends it */
    waitpid(r->child, NULL, 0);
    free(r);
}

static double since(uint64_t t0) {
    return (double)(clock_mono_ns(clock_real()) - t0) * 1e-9;
}

double bench_raw_fetch(struct bench_raw *r) {
    const uint64_t t0 = clock_mono_ns(clock_real());
    const uint8_t what = 'f';
    const bool ok = send_all(r->fd, &what, 1) && recv_all(r->fd, r->buf, r->bytes, r->tcp);
    return ok ? since(t0) : -1;
}

double bench_raw_put(struct bench_raw *r) {
    const uint64_t t0 = clock_mono_ns(clock_real());
    uint8_t what = 'p';
    const bool ok = send_all(r->fd, &what, 1) && send_all(r->fd, r->buf, r->bytes) &&
                    recv_all(r->fd, &what, 1, r->tcp);
    return ok ? since(t0) : -1;
}
