/* kv_client_fixture.h - a client, up to three fake nodes on its loop, and calls that note their end.
 * Thread: the test's. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>
#include <uv.h>

#include "common/checksum.h"
#include "proto/kv_client.h"
#include "tests/support/fake_node.h"
#include "tests/support/fault.h"

#define N_RANGES 6u
#define PAYLOAD_BYTES 120000u
#define MAX_BLOCKS 64u
#define DEADLINE_MS 5000u

extern const uint32_t range_sizes[N_RANGES];

/* A client, up to three nodes, and a chain with recognisable payloads. */
struct fixture {
    uv_loop_t loop;
    struct fake_node nodes[3];
    uint32_t n_nodes;
    bool is_node_open[3];
    char addrs[3][64];
    struct kv_client *client;
    bool is_client_closed;
    uint32_t ns;
    struct block_id chain[MAX_BLOCKS];
    uint8_t *payload[MAX_BLOCKS];
    uint64_t checksum[MAX_BLOCKS], sums[MAX_BLOCKS][N_RANGES];
    uint8_t *dst[MAX_BLOCKS];
    /* results */
    int n_done, rv;
    int block_rv[MAX_BLOCKS];
    uint32_t n_block_cbs;
    struct kv_call *cancel_on_block;
    struct kv_fetch_res fetch;
    int put_status[MAX_BLOCKS];
    struct kv_put_res put;
    uint8_t status[MAX_BLOCKS];
    uint32_t n_prefix;
    struct kv_lease lease;
    int n_up, n_down, last_down;
    const struct clock *clk; /* NULL: the real one */
};

void on_node(void *arg, uint32_t node, enum kv_node_state state, int err, const char *text);
void run_until(struct fixture *f, const int *counter, int target);
void turn(struct fixture *f, int n);
void open_client(struct fixture *f, const char *token, uint32_t n_data);
void make_chain(struct fixture *f);
int setup_nodes(void **state, uint32_t n_nodes, bool is_unix);
int setup_tcp(void **state);
int setup_unix(void **state);
int setup_three(void **state);
void on_client_closed(void *arg);
void close_client(struct fixture *f);
void close_node(struct fixture *f, uint32_t i);
int teardown(void **state);
void on_lookup(void *arg, int rv, const struct kv_lookup_res *res);
void on_block(void *arg, uint32_t i, int rv);
void on_fetch(void *arg, int rv, const struct kv_fetch_res *res);
void on_put(void *arg, int rv, const struct kv_put_res *res);
void on_put_count(void *arg, int rv, const struct kv_put_res *res);
void on_done(void *arg, int rv);
int do_lookup(struct fixture *f, uint32_t n, uint32_t have, uint32_t flags);
int do_fetch(struct fixture *f, uint32_t first, uint32_t n, uint32_t deadline_ms,
             struct kv_call **ret);
int do_put(struct fixture *f, uint32_t first, uint32_t n, uint32_t deadline_ms,
           struct kv_call **ret);
int do_touch(struct fixture *f);
void put_and_wait(struct fixture *f, uint32_t first, uint32_t n);
int setup_no_client(void **state);

#define T(fn, setup) cmocka_unit_test_setup_teardown(fn, setup, teardown)
