/* model_digest.h - SHA-256 of a weights file, remembered between starts.
 *
 * Hashing 100 MB takes a tenth of a second, 40 GB half a minute; so the result is kept in a small file
 * that names device, inode, size, mtime and ctime of what was hashed. Every trouble with that file is
 * a reason to hash again, never an error.
 *
 * Thread: any. */
#pragma once

#include "common/digest.h"
#include "worker/model/gguf.h"

struct model_digest_cfg {
    const void *bytes; /* the whole file */
    size_t len;
    struct gguf_file_id id;
    /* NULL: $XDG_CACHE_HOME/incipit, else ~/.cache/incipit; "": remember nothing. */
    const char *cache_dir;
    /* Wall time. A file changed less than two seconds before is not remembered: another write could
     * still leave the same time stamps. */
    uint64_t now_ns;
};

/* True when the digest came from the cache. */
bool model_digest(const struct model_digest_cfg *cfg, uint8_t ret[DIGEST_BYTES]);
