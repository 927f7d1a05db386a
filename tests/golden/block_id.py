#!/usr/bin/env python3
"""Makes block_id.json from the definition alone (ARCHITECTURE.md: Identity), without any of our C code.

    root = SHA-256("incipit/1" || namespace_digest)
    id[i] = SHA-256(id[i-1] || salt[32] || B tokens as u32 little-endian),  id[-1] = root
"""
import hashlib
import json
import struct
import sys


def chain(digest, tokens, block, salt, n_public):
    prev = hashlib.sha256(b"incipit/1" + digest).digest()
    out = []
    for i in range(len(tokens) // block):
        use = bytes(32) if salt is None or i < n_public else salt
        part = struct.pack(f"<{block}I", *tokens[i * block:(i + 1) * block])
        prev = hashlib.sha256(prev + use + part).digest()
        out.append(prev.hex())
    return out


def main():
    digest = hashlib.sha256(b"arch=llama\nblock=4\n").digest()
    salt = bytes(range(32))
    tokens = [(i * 2654435761) % 49152 for i in range(130)]
    cases = []
    for block, n, with_salt, n_public in [(32, 130, False, 0), (4, 19, False, 0), (4, 16, True, 0), (4, 16, True, 2), (16, 15, False, 0),
                                          (1, 3, True, 1)]:
        cases.append({"block": block, "tokens": tokens[:n], "salt": salt.hex() if with_salt else None, "n_public": n_public,
                      "ids": chain(digest, tokens[:n], block, salt if with_salt else None, n_public)})
    doc = {"namespace_digest": digest.hex(), "root": hashlib.sha256(b"incipit/1" + digest).hexdigest(), "cases": cases}
    json.dump(doc, sys.stdout, indent=1)
    print()


main()
