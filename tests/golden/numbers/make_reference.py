#!/usr/bin/env python3
"""Writes reference_f32.bin and reference_f16.bin: see README.md beside this file."""

import argparse
import pathlib
import time

import numpy as np

import recorded
from llama_float import Model, log_softmax

here = pathlib.Path(__file__).parent
a = argparse.ArgumentParser()
a.add_argument("--model", required=True, help="SmolLM2-135M-Instruct.Q4_1.gguf")
a.add_argument("--weights", choices=["f32", "f16"], required=True)
a.add_argument("--dump", help="also write all log-probabilities as float32 here (400 MB)")
args = a.parse_args()

m = Model(args.model, args.weights)
ids = m.encode((here / "text.txt").read_text())
t0 = time.time()
hidden = m.forward(ids)
print(f"{len(ids)} tokens, forward {time.time() - t0:.0f} s")


def rows(n):
    for i in range(0, n, 64):
        yield from log_softmax(m.logits(hidden[i : min(i + 64, n)]))


n = len(ids) - 1
recorded.write(here / f"reference_{args.weights}.bin", ids, rows(n), len(m.tokens))
r = recorded.Recorded(here / f"reference_{args.weights}.bin")
print(f"perplexity {np.exp(-r.rec['next'].astype(np.float64).mean()):.4f}")
if args.dump:
    with open(args.dump, "wb") as f:
        for lp in rows(n):
            f.write(lp.astype("<f4").tobytes())
