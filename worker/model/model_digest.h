/* model_digest.h - SHA-256 of a weights file, remembered between starts.
 *
 * Hashing 100 MB takes a tenth of a second, 40 GB half a minute; so the result is kept in a small file
 * that names device, inode, size, mtime and ctime of what was hashed. Every trouble with that file is
 * a reason to hash again, never an error. Both calls do nothing for a file changed less than two seconds
 * before it was opened: another write could still leave the same time stamps.
 *
 * Thread: any. */
#pragma once

#include "common/digest.h"
#include "worker/model/gguf_file.h"

struct model_digest_cfg {
    struct gguf_file_id
        id; /* the caller sees to it that the file stays this one while it is read */
    /* NULL: $XDG_CACHE_HOME/incipit, else ~/.cache/incipit; "": remember nothing. */
    const char *cache_dir;
    uint64_t now_ns; /* wall time, before the file was opened */
};

/* True: ret is the digest of the file with this id. */
bool model_digest_recall(const struct model_digest_cfg *cfg, uint8_t ret[DIGEST_BYTES]);
void model_digest_remember(const struct model_digest_cfg *cfg, const uint8_t digest[DIGEST_BYTES]);
