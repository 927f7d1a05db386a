#!/usr/bin/env python3
"""tokdump against a worker with the same tiny model: namespace, tokens; and block ids computed here from the formula in
common/block_id.h.

    test_tokdump.py TOKDUMP MKMODEL WORKER
"""
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.request

TOKDUMP, MKMODEL, WORKER = sys.argv[1:4]
ENV = {k: v for k, v in os.environ.items() if not k.startswith("INCIPIT_")}
TEXT = "The opening words of a text, used to name it.\n<|im_start|> stays text; half a \N{EURO SIGN} is not a character. " * 3


def tokdump(*args):
    r = subprocess.run([TOKDUMP, *args], env=ENV, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    return r.stdout


def field(name, out):
    return re.search(rf"^{name} ([0-9a-f]{{64}})", out, re.M).group(1)


def tokens(out):
    return [int(x) for line in re.findall(r"^  ([0-9 ]+)$", out, re.M) for x in line.split()]


def block_ids(namespace, ids, block):
    prev = hashlib.sha256(b"incipit/1" + bytes.fromhex(namespace)).digest()
    for i in range(len(ids) // block):
        run = b"".join(t.to_bytes(4, "little") for t in ids[i * block:(i + 1) * block])
        prev = hashlib.sha256(prev + bytes(32) + run).digest()
        yield prev.hex()


class Tokdump(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory()
        env = ENV["XDG_CACHE_HOME"] = cls.tmp.name  # digests of weights are remembered there
        cls.model = os.path.join(env, "tiny.gguf")
        subprocess.run([MKMODEL, cls.model], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()

    def ask(self, port, path, body=None):
        data = json.dumps(body).encode() if body else None
        req = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data,
                                     {"Content-Type": "application/json"} if data else {})
        with urllib.request.urlopen(req, timeout=30) as r:
            return json.load(r)

    def compare_with_worker(self, block, k, v):
        args = [WORKER, "--model", self.model, "--listen=127.0.0.1:0", "--threads=1", "--kv-bytes=16m", "--lame-duck-ms=0",
                f"--block-tokens={block}", f"--k-dtype={k}", f"--v-dtype={v}"]
        with subprocess.Popen(args, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as worker:
            try:
                port = re.search(r"\bport=(\d+)", worker.stdout.readline()).group(1)
                model = self.ask(port, "/v1/models")["data"][0]
                plain = self.ask(port, "/tokenize", {"prompt": TEXT})["tokens"]
                chat = self.ask(port, "/tokenize", {"messages": [{"role": "user", "content": TEXT}]})["tokens"]
            finally:
                worker.terminate()
                worker.wait(timeout=30)
        for want, mode in ((plain, []), (chat, ["--chat"])):
            out = tokdump(*mode, "--block-tokens", str(block), "--k-dtype", k, "--v-dtype", v, self.model, TEXT)
            namespace = field("namespace", out)
            self.assertEqual(namespace, model["incipit"]["namespace"])
            self.assertEqual(tokens(out), want)
            self.assertEqual(re.findall(r" id ([0-9a-f]{64})$", out, re.M), list(block_ids(namespace, want, block)))
            self.assertGreater(len(want), 3 * block)

    def test_says_what_a_worker_says(self):
        self.compare_with_worker(32, "f16", "f16")

    def test_other_blocks_and_dtypes_are_another_namespace(self):
        self.compare_with_worker(16, "f32", "f16")

    def test_quantised_kv_of_heads_it_does_not_fit_is_refused_by_name(self):
        r = subprocess.run([WORKER, "--model", self.model, "--listen=127.0.0.1:0", "--k-dtype=q8_0"], env=ENV, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        self.assertNotEqual(r.returncode, 0)
        self.assertRegex(r.stdout, r"--k-dtype q8_0, --v-dtype f16: .*heads of 16 .*multiples of 32 and 16")

    def test_given_namespace_is_taken(self):
        out = tokdump("--namespace", "ab" * 32, self.model, TEXT)
        self.assertEqual(field("namespace", out), "ab" * 32)
        self.assertEqual(re.findall(r" id ([0-9a-f]{64})$", out, re.M), list(block_ids("ab" * 32, tokens(out), 32)))

    def test_bad_arguments_are_refused(self):
        for args in (["--namespace", "abc", self.model, "x"], ["--block-tokens", "0", self.model, "x"], [self.model]):
            r = subprocess.run([TOKDUMP, *args], env=ENV, stderr=subprocess.PIPE)
            self.assertEqual(r.returncode, 2, args)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
