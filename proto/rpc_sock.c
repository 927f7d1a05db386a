#include "proto/rpc_sock.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/sock_path.h"

#define DEFAULT_SNDBUF_BYTES (1 << 20)
#define DEFAULT_DEAD_MS 30000u

static int copy_part(char *dst, size_t cap, const char *src, size_t n) {
    if (n == 0 || n >= cap)
        return ERR_INVALID;
    memcpy(dst, src, n);
    dst[n] = '\0';
    return 0;
}

int rpc_addr_parse(const char *text, struct rpc_addr *ret, struct errbuf *eb) {
    struct rpc_addr a = {0};
    const char *path = strncmp(text, "unix:", 5) == 0 ? text + 5 : text[0] == '/' ? text : NULL;
    if (path) {
        a.is_unix = true;
        struct sockaddr_un un;
        if (copy_part(a.host, MIN(sizeof(a.host), sizeof(un.sun_path)), path, strlen(path)) < 0)
            return err_set(eb, ERR_INVALID, "'%s': path of a socket is empty or too long", text);
        *ret = a;
        return 0;
    }
    const char *colon = strrchr(text, ':');
    if (!colon)
        return err_set(eb, ERR_INVALID, "'%s': want host:port or unix:/path", text);
    const char *host = text;
    size_t host_len = (size_t)(colon - text);
    if (host_len >= 2 && host[0] == '[' && host[host_len - 1] == ']') {
        host++;
        host_len -= 2;
    } else if (memchr(host, ':', host_len)) {
        return err_set(eb, ERR_INVALID, "'%s': write an IPv6 address as [addr]:port", text);
    }
    if (copy_part(a.host, sizeof(a.host), host, host_len) < 0)
        return err_set(eb, ERR_INVALID, "'%s': host is empty or too long", text);
    size_t digits = strspn(colon + 1, "0123456789");
    if (colon[1 + digits] != '\0' || digits > 5 || digits == 0 ||
        strtoul(colon + 1, NULL, 10) > 65535)
        return err_set(eb, ERR_INVALID, "'%s': port must be 0 to 65535", text);
    memcpy(a.port, colon + 1, digits + 1);
    *ret = a;
    return 0;
}

static bool sockaddr_is_loopback(const struct sockaddr_storage *ss) {
    if (ss->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)ss;
        return (ntohl(in->sin_addr.s_addr) >> 24) == 127;
    }
    if (ss->ss_family == AF_INET6) {
        const struct in6_addr *a6 = &((const struct sockaddr_in6 *)(const void *)ss)->sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(a6) || (IN6_IS_ADDR_V4MAPPED(a6) && a6->s6_addr[12] == 127);
    }
    return false;
}

/* Pacing congestion control (bbr) halves loopback throughput; on a real link it is the system's
 * business. */
static void tune_congestion(int fd, const char *name) {
    if (!name) {
        struct sockaddr_storage ss = {0};
        socklen_t len = sizeof(ss);
        if (getsockname(fd, (struct sockaddr *)&ss, &len) < 0 || !sockaddr_is_loopback(&ss))
            return;
        name = "reno";
    }
    if (name[0])
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name));
}

/* Options that are refused (another kernel, fewer rights) cost speed, not function: only the modes
 * that the loop depends on are errors. */
/* A host that vanishes sends no FIN: what is sent and not acknowledged, or three probes of an idle
 * connection without an answer, end it after dead_ms. */
static void tune_death(int fd, uint32_t dead_ms) {
    int one = 1, step_s = (int)MAX(dead_ms / 4000, 1u), probes = 3;
    unsigned user_ms = dead_ms;
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &step_s, sizeof(step_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &step_s, sizeof(step_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof(user_ms));
}

int rpc_sock_tune(int fd, const struct rpc_sock_opt *opt, bool *ret_is_tcp) {
    int fl = fcntl(fd, F_GETFL);
    if (fl < 0 || fcntl(fd, F_SETFL, fl | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return -errno;
    struct sockaddr_storage ss = {0};
    socklen_t len = sizeof(ss);
    if (getsockname(fd, (struct sockaddr *)&ss, &len) < 0)
        return -errno;
    bool is_tcp = ss.ss_family == AF_INET || ss.ss_family == AF_INET6;
    if (is_tcp) {
        int one = 1;
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        tune_congestion(fd, opt ? opt->tcp_congestion : NULL);
        tune_death(fd, opt && opt->dead_ms ? opt->dead_ms : DEFAULT_DEAD_MS);
    } else {
        /* The default of 208 KiB costs a third of the throughput (TCP tunes itself). */
        int bytes = opt && opt->sndbuf_bytes ? opt->sndbuf_bytes : DEFAULT_SNDBUF_BYTES;
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    }
    *ret_is_tcp = is_tcp;
    return 0;
}

static int unix_sockaddr(const char *path, struct sockaddr_un *ret) {
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    return copy_part(ret->sun_path, sizeof(ret->sun_path), path, strlen(path));
}

/* A socket file that nobody listens on is left over from a process that was killed. */
static int remove_stale_socket(const struct sockaddr_un *un, struct errbuf *eb) {
    struct stat st;
    if (lstat(un->sun_path, &st) < 0)
        return errno == ENOENT ? 0 : sock_path_error(eb, -errno, un->sun_path);
    if (!S_ISSOCK(st.st_mode))
        return err_set(eb, ERR_EXISTS, "'%s' exists and is no socket", un->sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_set(eb, -errno, "socket: %s", err_text(-errno));
    bool is_alive = connect(fd, (const struct sockaddr *)un, sizeof(*un)) == 0;
    close(fd);
    if (is_alive)
        return err_set(eb, ERR_EXISTS, "another process listens on '%s'", un->sun_path);
    return unlink(un->sun_path) < 0 && errno != ENOENT ? sock_path_error(eb, -errno, un->sun_path)
                                                       : 0;
}

static int listen_unix(const struct rpc_addr *a, int backlog, struct errbuf *eb) {
    struct sockaddr_un un;
    if (unix_sockaddr(a->host, &un) < 0)
        return err_set(eb, ERR_INVALID, "'%s': path too long", a->host);
    int rv = remove_stale_socket(&un, eb);
    if (rv < 0)
        return rv;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_set(eb, -errno, "socket: %s", err_text(-errno));
    if (bind(fd, (struct sockaddr *)&un, sizeof(un)) < 0 || listen(fd, backlog) < 0) {
        rv = sock_path_error(eb, -errno, a->host);
        close(fd);
        return rv;
    }
    return fd;
}

/* SO_REUSEADDR: a restart must not wait for old connections in TIME_WAIT. */
static int listen_one(const struct addrinfo *ai, int backlog) {
    int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int one = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) < 0 || listen(fd, backlog) < 0) {
        int rv = -errno;
        close(fd);
        return rv;
    }
    return fd;
}

static uint16_t bound_port(int fd) {
    struct sockaddr_storage ss = {0};
    socklen_t len = sizeof(ss);
    if (getsockname(fd, (struct sockaddr *)&ss, &len) < 0)
        return 0;
    if (ss.ss_family == AF_INET)
        return ntohs(((const struct sockaddr_in *)(const void *)&ss)->sin_port);
    return ntohs(((const struct sockaddr_in6 *)(const void *)&ss)->sin6_port);
}

int rpc_sock_listen(const struct rpc_addr *a, int backlog, uint16_t *ret_port, struct errbuf *eb) {
    if (a->is_unix)
        return listen_unix(a, backlog, eb);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *res = NULL;
    int gai = getaddrinfo(a->host, a->port, &hints, &res);
    if (gai != 0)
        return err_set(eb, ERR_INVALID, "address '%s': %s", a->host, gai_strerror(gai));
    int fd = ERR_UNAVAILABLE;
    for (const struct addrinfo *ai = res; ai && fd < 0; ai = ai->ai_next)
        fd = listen_one(ai, backlog);
    freeaddrinfo(res);
    if (fd < 0)
        return err_set(eb, fd, "listen on %s:%s: %s", a->host, a->port, err_text(fd));
    if (ret_port)
        *ret_port = bound_port(fd);
    return fd;
}

int rpc_sock_connect(const struct sockaddr *sa, socklen_t len, const struct rpc_sock_opt *opt) {
    int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    bool is_tcp;
    int rv = 0;
    if (connect(fd, sa, len) < 0 && errno != EINPROGRESS)
        rv = -errno;
    /* After connect(): only then the local address tells whether this is loopback. */
    if (rv == 0)
        rv = rpc_sock_tune(fd, opt, &is_tcp);
    if (rv < 0)
        close(fd);
    return rv < 0 ? rv : fd;
}

int rpc_sock_connect_unix(const char *path, const struct rpc_sock_opt *opt) {
    struct sockaddr_un un;
    if (unix_sockaddr(path, &un) < 0)
        return ERR_INVALID;
    return rpc_sock_connect((const struct sockaddr *)&un, sizeof(un), opt);
}

void rpc_sock_peer_name(int fd, char *ret, size_t cap) {
    struct sockaddr_storage ss = {0};
    socklen_t len = sizeof(ss);
    char host[64], port[8];
    if (getpeername(fd, (struct sockaddr *)&ss, &len) < 0)
        snprintf(ret, cap, "?");
    else if (ss.ss_family == AF_UNIX)
        snprintf(ret, cap, "unix");
    else if (getnameinfo((struct sockaddr *)&ss, len, host, sizeof(host), port, sizeof(port),
                         NI_NUMERICHOST | NI_NUMERICSERV) == 0)
        snprintf(ret, cap, ss.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    else
        snprintf(ret, cap, "?");
}

int rpc_addr_is_public(const struct rpc_addr *a, struct errbuf *eb) {
    if (a->is_unix)
        return 0;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *res = NULL;
    int gai = getaddrinfo(a->host, a->port, &hints, &res);
    if (gai != 0)
        return err_set(eb, ERR_INVALID, "address '%s': %s", a->host, gai_strerror(gai));
    bool is_public = false;
    for (const struct addrinfo *ai = res; ai; ai = ai->ai_next) {
        struct sockaddr_storage ss = {0};
        memcpy(&ss, ai->ai_addr, MIN((size_t)ai->ai_addrlen, sizeof(ss)));
        is_public = is_public || !sockaddr_is_loopback(&ss);
    }
    freeaddrinfo(res);
    return is_public;
}
