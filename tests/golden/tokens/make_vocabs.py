#!/usr/bin/env python3
"""Vocabularies of the npm packages as GGUF files without tensors, for tests of the tokenizers.

Usage: make_vocabs.py OUT_DIR      (needs node, npm and the network; tools/dev/get-vocabs calls it once)

Writes OUT_DIR/llama3.gguf from llama3-tokenizer-js (BPE, pre llama-bpe) and OUT_DIR/llama2.gguf from
llama-tokenizer-js (SPM). Tests look for them in $INCIPIT_TEST_VOCABS and skip without.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

PACKAGES = ["llama3-tokenizer-js@1.2.0", "llama-tokenizer-js@1.2.2"]
DUMP = """
import l3 from 'llama3-tokenizer-js';
import l2 from 'llama-tokenizer-js';
import fs from 'fs';
const llama3 = l3.default ?? l3, llama2 = l2.default ?? l2;
fs.writeFileSync('dump.json', JSON.stringify({
  llama3: llama3.vocabById, merges: [...llama3.merges.entries()], llama2: llama2.vocabById}));
"""
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def dump():
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "package.json"), "w") as f:
            f.write('{"type": "module"}')
        with open(os.path.join(d, "dump.mjs"), "w") as f:
            f.write(DUMP)
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", *PACKAGES], cwd=d, check=True)
        subprocess.run(["node", "dump.mjs"], cwd=d, check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(d, "dump.json")) as f:
            return json.load(f)


# GGUF's numbers of value types, and how a scalar of each is packed.
U32, I32, F32, STRING, ARRAY = 4, 5, 6, 8, 9
PACK = {U32: "<I", I32: "<i", F32: "<f"}


def value(kind, v):
    if kind == STRING:
        b = v.encode("utf-8")
        return struct.pack("<Q", len(b)) + b
    return struct.pack(PACK[kind], v)


def array(kind, vs):
    return struct.pack("<IQ", kind, len(vs)) + b"".join(value(kind, v) for v in vs)


def write_gguf(path, items):
    """items: (key, type, value), a list for an array. Version 3, no tensors."""
    out = [struct.pack("<4sIQQ", b"GGUF", 3, 0, len(items))]
    for key, kind, v in items:
        is_array = isinstance(v, list)
        out += [value(STRING, key), struct.pack("<I", ARRAY if is_array else kind),
                array(kind, v) if is_array else value(kind, v)]
    with open(path, "wb") as f:
        f.write(b"".join(out))


def write_llama3(path, d):
    tokens = d["llama3"]
    # The map is in order of rank already, but say so.
    merges = [m for m, _ in sorted(d["merges"], key=lambda e: e[1])]
    t = "tokenizer.ggml."
    write_gguf(path, [
        ("general.architecture", STRING, "llama"), (t + "model", STRING, "gpt2"), (t + "pre", STRING, "llama-bpe"),
        (t + "tokens", STRING, tokens),
        (t + "token_type", I32, [CONTROL if x.startswith("<|") and x.endswith("|>") else NORMAL for x in tokens]),
        (t + "merges", STRING, merges), (t + "bos_token_id", U32, tokens.index("<|begin_of_text|>")),
        (t + "eos_token_id", U32, tokens.index("<|end_of_text|>"))])


def write_llama2(path, d):
    tokens = d["llama2"]
    assert tokens[3] == "<0x00>" and tokens[258] == "<0xFF>"
    t = "tokenizer.ggml."
    write_gguf(path, [
        ("general.architecture", STRING, "llama"), (t + "model", STRING, "llama"), (t + "tokens", STRING, tokens),
        # sentencepiece's BPE scores of this vocabulary: minus the position behind the byte tokens.
        (t + "scores", F32, [0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)]),
        (t + "token_type", I32, [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(tokens) - 259)),
        (t + "bos_token_id", U32, 1), (t + "eos_token_id", U32, 2), (t + "unknown_token_id", U32, 0)])


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    d = dump()
    write_llama3(os.path.join(out, "llama3.gguf"), d)
    write_llama2(os.path.join(out, "llama2.gguf"), d)


main()
