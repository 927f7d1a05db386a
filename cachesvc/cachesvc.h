/* cachesvc.h - one node: start, drain and close order of all its parts.
 *
 * Embeddable: tests run whole nodes in their own process and loop.
 * Thread: loop thread. */
#pragma once

#include "cachesvc/cachesvc_config.h"
#include "common/clock.h"
#include "common/log.h"

struct cachesvc;

struct cachesvc_env {
    uv_loop_t *loop;
    const struct clock *clk; /* NULL: the real one */
    struct log *log;         /* NULL: silent */
    struct svc *daemon;      /* NULL: not run by svc_main() */
};

/* cfg must outlive the node. On error nothing is left open (the loop was run for that) and eb says what is
 * wrong: an address in use, a full disk, a locked directory, a token file that cannot be read. */
int cachesvc_open(struct cachesvc **ret, const struct cachesvc_env *env,
                  const struct cachesvc_config *cfg, struct errbuf *eb);
/* Reads the token file and Redis' password again. Sessions whose token is gone or may use other namespaces
 * now end. On error eb says why and nothing has changed. */
int cachesvc_reload(struct cachesvc *s, struct errbuf *eb);
/* No new connections or sessions; cb once fetches and puts under way have ended. */
void cachesvc_drain(struct cachesvc *s);
bool cachesvc_is_drained(const struct cachesvc *s);
/* Ends every session, writes what is dirty to the disk tier, closes everything, frees s, then calls cb. */
void cachesvc_close(struct cachesvc *s, void (*cb)(void *arg), void *arg);

/* TCP ports really bound, for port 0. */
uint16_t cachesvc_rpc_port(const struct cachesvc *s);
uint16_t cachesvc_http_port(const struct cachesvc *s);

int cachesvc_main(int argc, char **argv);
