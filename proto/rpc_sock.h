/* rpc_sock.h - addresses and socket options of RPC connections.
 *
 * An address is "unix:/path" (or a plain "/path"), "host:port" or "[v6]:port".
 * Thread: any. */
#pragma once

#include <sys/socket.h>

#include "common/compiler.h"
#include "common/err.h"

struct rpc_addr {
    bool is_unix;
    char host[256]; /* or the path of the socket */
    char port[8];
};

int rpc_addr_parse(const char *text, struct rpc_addr *ret, struct errbuf *eb);

struct rpc_sock_opt {
    const char *tcp_congestion; /* NULL: "reno" on loopback only; "": leave alone */
    int sndbuf_bytes;           /* Unix sockets; 0: 1 MiB */
    uint32_t dead_ms; /* TCP: a peer that acknowledges nothing for so long is gone; 0: 30,000 */
};

/* Options of a connected (or connecting) stream: non-blocking, close-on-exec, TCP_NODELAY,
 * congestion control, keepalive, SO_SNDBUF. Only a refused non-blocking mode is an error. *ret_is_tcp says
 * what it is. */
int rpc_sock_tune(int fd, const struct rpc_sock_opt *opt, bool *ret_is_tcp);

/* A listening, non-blocking socket; the fd, or < 0. A stale Unix socket file is replaced, one that
 * a living process listens on is ERR_EXISTS. Resolves names in place: for start-up. */
int rpc_sock_listen(const struct rpc_addr *a, int backlog, uint16_t *ret_port, struct errbuf *eb);

/* Starts to connect to a resolved TCP address or a Unix path; the fd, or < 0. Success comes with
 * writability. */
int rpc_sock_connect(const struct sockaddr *sa, socklen_t len, const struct rpc_sock_opt *opt);
int rpc_sock_connect_unix(const char *path, const struct rpc_sock_opt *opt);

/* "127.0.0.1:4711", "unix" and so on, for logs. */
void rpc_sock_peer_name(int fd, char *ret, size_t cap);
/* For the rule that nobody listens beyond loopback without tokens: 1 for a TCP address that is not all
 * loopback, else 0. A name is resolved, which may take seconds: at start only. ERR_INVALID: it leads to
 * no address. */
int rpc_addr_is_public(const struct rpc_addr *a, struct errbuf *eb);
