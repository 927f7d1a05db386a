#!/usr/bin/env python3
"""Vocabularies of the npm packages as GGUF files without tensors, for tests of the tokenizers.

Usage: make_vocabs.py OUT_DIR      (needs: pip install gguf; npm; network)

Writes OUT_DIR/llama3.gguf from llama3-tokenizer-js (BPE, pre llama-bpe) and OUT_DIR/llama2.gguf from
llama-tokenizer-js (SPM). Tests look for them in $INCIPIT_TEST_VOCABS and skip without.
"""
import json
import os
import subprocess
import sys
import tempfile

import gguf

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


def write_llama3(path, d):
    tokens = d["llama3"]
    # The map is in order of rank already, but say so.
    merges = [m for m, _ in sorted(d["merges"], key=lambda e: e[1])]
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("llama-bpe")
    w.add_token_list(tokens)
    w.add_token_types([CONTROL if t.startswith("<|") and t.endswith("|>") else NORMAL for t in tokens])
    w.add_token_merges(merges)
    w.add_bos_token_id(tokens.index("<|begin_of_text|>"))
    w.add_eos_token_id(tokens.index("<|end_of_text|>"))
    finish(w)


def write_llama2(path, d):
    tokens = d["llama2"]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(tokens) - 259)
    assert tokens[3] == "<0x00>" and tokens[258] == "<0xFF>"
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model("llama")
    w.add_token_list(tokens)
    # sentencepiece's BPE scores of this vocabulary: minus the position behind the byte tokens.
    w.add_token_scores([0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)])
    w.add_token_types(types)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    finish(w)


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    d = dump()
    write_llama3(os.path.join(out, "llama3.gguf"), d)
    write_llama2(os.path.join(out, "llama2.gguf"), d)


main()
