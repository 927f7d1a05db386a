/* node_fixture.h - a real node and the real client on one loop, over TCP or a Unix socket; calls wait for their
 * end. Blocks have a payload that can be told from their number.
 * Thread: the test's. */
#pragma once

#include "cachesvc/cachesvc.h"
#include "common/block_id.h"
#include "proto/kv_client.h"
#include "tests/support/test_loop.h"
#include "tests/support/tmpdir.h"

#define NODE_RANGES 4u
#define NODE_PAYLOAD 65536u
#define NODE_DESCRIPTOR "block=32\ndtype=f16\nmodel=test\n"
#define NODE_TOKEN "0123456789abcdef-worker"
#define NODE_ADMIN_TOKEN "0123456789abcdef-admin"

extern const uint32_t node_range_sizes[NODE_RANGES];

struct node_fixture {
    struct test_loop tl;
    struct tmpdir dir;
    struct cachesvc_config cfg; /* change between init and start */
    const struct clock *clk;    /* of the node; NULL: the real one */
    struct log *log;            /* of the node; NULL: silent */
    struct cachesvc *node;
    char unix_path[300], token_path[300], disk_path[300];
    bool over_unix;
    struct kv_client *client;
    uint32_t ns;
    uint8_t ns_digest[32];
};

void node_fixture_init(
    struct node_fixture *f); /* default options: small RAM tier, no disk, ephemeral ports */
void node_fixture_set(struct node_fixture *f, const char *name,
                      const char *value);         /* a text option */
void node_fixture_disk(struct node_fixture *f);   /* a disk tier in the fixture's directory */
void node_fixture_tokens(struct node_fixture *f); /* token file with a worker's and an admin's */
void node_fixture_token_file(struct node_fixture *f, const char *text);
void node_fixture_start(struct node_fixture *f);
void node_fixture_stop(struct node_fixture *f); /* as SIGTERM does */
void node_fixture_fini(struct node_fixture *f);

/* A client of its own; token may be NULL. Does not wait. */
struct kv_client *node_fixture_client(struct node_fixture *f, enum msg_role role,
                                      const char *token);
/* The fixture's own client with its namespace; waits until the node is up. */
void node_fixture_connect(struct node_fixture *f, enum msg_role role, const char *token);
void node_fixture_disconnect(struct node_fixture *f);
void node_fixture_close_client(struct node_fixture *f, struct kv_client *c);
bool node_fixture_wait_up(struct node_fixture *f, struct kv_client *c);

/* Chain `tag`: its block ids and payloads are functions of tag and position. */
void node_chain(uint32_t tag, struct block_id *ret, uint32_t n);
void node_payload(uint32_t tag, uint32_t pos, uint8_t *ret); /* [NODE_PAYLOAD] */

/* Put blocks [first, first+n) of chain tag; lie >= 0: that block's announced checksum is wrong; status[n]. */
int node_put(struct node_fixture *f, uint32_t tag, uint32_t first, uint32_t n, int lie,
             int *status);
/* The same without trying again where a block is BUSY. */
int node_put_once(struct node_fixture *f, uint32_t tag, uint32_t first, uint32_t n, int lie,
                  int *status);
/* Fetch them; checks every byte of what came; status[n]. */
int node_fetch(struct node_fixture *f, uint32_t tag, uint32_t first, uint32_t n, int *status);
/* Resident prefix of chain tag, of n blocks; keeps no lease. */
uint32_t node_lookup(struct node_fixture *f, uint32_t tag, uint32_t n, uint32_t flags);
/* GET on the node's HTTP port: status line, headers, body. */
void node_http_get(struct node_fixture *f, const char *path, char *ret, size_t cap);
struct msg_stats_res node_stats(struct node_fixture *f); /* the plain numbers of it */
