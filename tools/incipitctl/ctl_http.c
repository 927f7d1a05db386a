#include "tools/incipitctl/ctl_http.h"

#include <errno.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define MAX_BODY_BYTES (64u << 20)

static void closep(int *fd) {
    if (*fd >= 0)
        close(*fd);
}

static int split_url(const char *url, char host[256], char port[8], struct errbuf *eb) {
    struct str s = str_of(url);
    if (!str_starts(s, STR("http://")))
        return err_set(eb, ERR_INVALID, "'%s': want http://host:port", url);
    s = str_cut(s, 7, s.n);
    if (str_ends(s, STR("/")))
        s.n--;
    size_t colon = s.n;
    while (colon > 0 && s.p[colon - 1] != ':')
        colon--;
    struct str h = str_cut(s, 0, colon ? colon - 1 : s.n);
    struct str p = colon ? str_cut(s, colon, s.n) : STR("80");
    uint64_t n;
    if (h.n == 0 || h.n > 255 || str_to_u64(p, &n) < 0 || n == 0 || n > 65535)
        return err_set(eb, ERR_INVALID, "'%s': want http://host:port", url);
    snprintf(host, 256, STR_FMT, STR_ARG(h));
    snprintf(port, 8, "%u", (unsigned)n);
    return 0;
}

static int connect_to(const char *host, const char *port, uint32_t timeout_ms, struct errbuf *eb) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *res = NULL;
    int gai = getaddrinfo(host, port, &hints, &res);
    if (gai != 0)
        return err_set(eb, ERR_UNAVAILABLE, "%s: %s", host, gai_strerror(gai));
    int fd = -1, err = ENOENT;
    for (const struct addrinfo *ai = res; ai && fd < 0; ai = ai->ai_next) {
        fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct timeval tv = {.tv_sec = timeout_ms / 1000,
                             .tv_usec = (suseconds_t)(timeout_ms % 1000) * 1000};
        if (fd >= 0) {
            (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
            (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
        }
        if (fd < 0 || connect(fd, ai->ai_addr, ai->ai_addrlen) < 0) {
            err = errno;
            closep(&fd);
            fd = -1;
        }
    }
    freeaddrinfo(res);
    if (fd < 0)
        return err_set(eb, ERR_UNAVAILABLE, "worker %s:%s: %s", host, port, err_text(-err));
    return fd;
}

static int send_all(int fd, const char *p, size_t n) {
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k < 0 && errno != EINTR)
            return -errno;
        p += k > 0 ? k : 0;
        n -= k > 0 ? (size_t)k : 0;
    }
    return 0;
}

/* To the end of the stream: the request asks the worker to close. */
static int read_all(int fd, struct strbuf *b) {
    char piece[16384];
    ssize_t n;
    while ((n = recv(fd, piece, sizeof(piece), 0)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (b->len + (size_t)n > MAX_BODY_BYTES)
            return ERR_TOOBIG;
        strbuf_add(b, piece, (size_t)n);
    }
    return b->oom ? ERR_NOMEM : 0;
}

static int split_answer(struct str all, int *ret_status, struct strbuf *ret_body) {
    size_t end = str_find(all, STR("\r\n\r\n"), 0);
    uint64_t status;
    if (!str_starts(all, STR("HTTP/1.")) || end == SIZE_MAX ||
        str_to_u64(str_cut(all, 9, 3), &status) < 0)
        return ERR_PROTO;
    *ret_status = (int)status;
    strbuf_adds(ret_body, str_cut(all, end + 4, all.n));
    return ret_body->oom ? ERR_NOMEM : 0;
}

int ctl_http_post(const char *url, const char *path, struct str body, uint32_t timeout_ms,
                  int *ret_status, struct strbuf *ret_body, struct errbuf *eb) {
    char host[256], port[8];
    int rv = split_url(url, host, port, eb);
    if (rv < 0)
        return rv;
    CLEANUP(closep) int fd = connect_to(host, port, timeout_ms, eb);
    if (fd < 0)
        return fd;
    struct strbuf req = {0}, all = {0};
    /* 1.0, so that the answer is not chunked. */
    strbuf_addf(&req,
                "POST %s HTTP/1.0\r\nHost: %s:%s\r\nContent-Type: application/json\r\n"
                "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                path, host, port, body.n);
    strbuf_adds(&req, body);
    rv = req.oom ? ERR_NOMEM : send_all(fd, req.p, req.len);
    if (rv == 0)
        rv = read_all(fd, &all);
    if (rv == 0)
        rv = split_answer(strbuf_view(&all), ret_status, ret_body);
    strbuf_fini(&req);
    strbuf_fini(&all);
    return rv < 0 ? err_set(eb, rv, "worker %s%s: %s", url, path, err_text(rv)) : 0;
}
