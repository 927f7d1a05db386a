/* resp_server.h - a Redis stand-in on the test's own loop: enough commands for our index, and every
 * way to misbehave that a real server does not offer.
 *
 * Knows AUTH, SELECT, GET, SET (NX), DEL, HSET, HMGET, HDEL, EXPIRE; keys and values are copied,
 * expiry is noted and never happens. Thread: the loop's. Failure: CHECKs. */
#pragma once

#include <uv.h>

#include "common/compiler.h"

#define RESP_MAX_KEYS 512

struct resp_key {
    char key[64],
        value[512]; /* a hash: its one field's value; of more fields "field=value\n" each */
    uint32_t key_len, value_len, ttl_s;
};

struct resp_conn;
struct resp_server {
    uv_tcp_t listener;
    uint16_t port;
    struct resp_conn *conns; /* singly linked */
    struct resp_key keys[RESP_MAX_KEYS];
    uint32_t n_keys;
    uint32_t n_accepted, n_commands, n_hset;
    char raw[4096]; /* the bytes of all commands behind AUTH and SELECT, as far as they fit */
    size_t n_raw;
    char last[32]; /* last command's name */
    /* knobs */
    const char *password;    /* AUTH must name it; NULL: any or none */
    bool is_mute;            /* reads, answers nothing */
    bool is_garbage;         /* answers bytes that are no RESP */
    bool is_doubling;        /* answers each command twice */
    const char *error;       /* answers this to all but AUTH and SELECT: "OOM ..." */
    const char *write_error; /* to SET, HSET, HDEL, DEL and EXPIRE: "READONLY ..." */
    uint32_t close_after; /* closes the connection instead of answering the n-th command from now;
                             0: never */
    bool drip;            /* answers byte by byte, a write each */
};

void resp_server_open(struct resp_server *s, uv_loop_t *loop);
/* The same on an address and port of choice; false: that address is not there. */
bool resp_server_open_at(struct resp_server *s, uv_loop_t *loop, const char *ip, uint16_t port);
void resp_server_drop_all(struct resp_server *s); /* connections */
void resp_server_flush(struct resp_server *s);    /* all keys */
void resp_server_close(
    struct resp_server *s); /* listener and connections; the loop then runs empty */
const struct resp_key *resp_server_find(const struct resp_server *s, const void *key, size_t n);
