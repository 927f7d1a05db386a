/* Takes the place of index_redis.c while that one is not built: --redis is refused by name. */
#include "cachesvc/index/index.h"

int index_redis_open(struct index **ret, const struct index_redis_cfg *cfg, struct errbuf *eb) {
    (void)ret;
    return err_set(eb, ERR_UNSUPPORTED, "--redis %s: this build has no Redis index", cfg->addr);
}
