#!/usr/bin/env python3
"""incipit-bench perplexity against the same sum over logitdump's logits, computed here in double.

    test_perplexity.py INCIPIT_BENCH LOGITDUMP TOKDUMP MKMODEL
"""
import math
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest

BENCH, LOGITDUMP, TOKDUMP, MKMODEL = sys.argv[1:5]
TEXT = "The opening words of a text, used to name it, and the words that follow them.\n" * 3


def run(*args):
    return subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100)


class Perplexity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory()
        cls.model, cls.text, cls.ids, cls.out = (os.path.join(cls.tmp.name, x) for x in ("m.gguf", "t.txt", "ids", "out"))
        subprocess.run([MKMODEL, cls.model], check=True)
        with open(cls.text, "w") as f:
            f.write(TEXT)

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()

    def expected(self, dtype):
        dump = run(TOKDUMP, "--namespace", "0" * 64, self.model, TEXT).stdout
        ids = [int(x) for line in re.findall(r"^  ([0-9 ]+)$", dump, re.M) for x in line.split()]
        with open(self.ids, "w") as f:
            print(*ids, file=f)
        subprocess.run([LOGITDUMP, "--k-dtype", dtype, "--v-dtype", dtype, self.model, self.ids, self.out], check=True)
        with open(self.out, "rb") as f:
            raw = f.read()
        n_vocab = len(raw) // 4 // len(ids)
        total = 0.0
        for i, after in enumerate(ids[1:]):
            row = struct.unpack_from(f"<{n_vocab}f", raw, 4 * n_vocab * i)
            top = max(row)
            total += math.log(sum(math.exp(x - top) for x in row)) + top - row[after]
        return math.exp(total / (len(ids) - 1))

    def test_is_that_of_the_logits_for_each_dtype_the_heads_fit(self):
        r = run(BENCH, "perplexity", "--model", self.model, "--text", self.text)
        self.assertEqual(r.returncode, 0, r.stderr)
        rows = re.findall(r"^(\w+) +(\w+) +(\d+) +([\d.]+) +([-+][\d.]+)%$", r.stdout, re.M)
        # heads of 16: no scaled KV. 2 layers x 2 heads x 16 x (2 + 2) bytes
        self.assertEqual([x[:3] for x in rows], [("f16", "f16", "256"), ("f32", "f32", "512")])
        for dtype, row in zip(("f16", "f32"), rows):
            self.assertAlmostEqual(float(row[3]), self.expected(dtype), delta=1e-3)

    def test_refuses_what_it_cannot_judge(self):
        self.assertEqual(run(BENCH, "perplexity", "--model", self.model).returncode, 2)
        empty = os.path.join(self.tmp.name, "empty")
        with open(empty, "w"):
            pass
        r = run(BENCH, "perplexity", "--model", self.model, "--text", empty)
        self.assertEqual(r.returncode, 1)
        self.assertIn("two are needed", r.stderr)
        r = run(BENCH, "perplexity", "--model", self.model, "--text", empty + "x")
        self.assertIn("No such file", r.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
