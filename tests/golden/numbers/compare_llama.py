#!/usr/bin/env python3
"""Measures llama.cpp's logits (llama_logits score) against a recorded reference.

The same figures, over the same tokens and buckets, as tests/integration/test_oracle_numbers.c takes
of our own forward pass: README.md beside this file has the table.
"""

import argparse

import numpy as np

import recorded
from llama_float import log_softmax

a = argparse.ArgumentParser()
a.add_argument("reference")
a.add_argument("logits", help="f32 [n_tok, n_vocab]")
a.add_argument("--full", help="float32 log-probabilities of make_reference.py --dump")
args = a.parse_args()

r = recorded.Recorded(args.reference)
z = np.memmap(args.logits, "<f4", "r", shape=(r.n_tok, r.n_vocab))
full = np.memmap(args.full, "<f4", "r", shape=(r.n_tok - 1, r.n_vocab)) if args.full else None
kls, wide, same, diff = [], [], 0, []
for i in range(r.n_tok - 1):
    lp = log_softmax(z[i].astype(np.float64))
    kl, eq = r.compare(i, lp)
    kls.append(kl)
    same += eq
    diff.append(float(r.rec[i]["next"]) - lp[r.ids[i + 1]])
    if full is not None:
        p = full[i].astype(np.float64)
        wide.append((np.exp(p) * (p - lp)).sum())
d = np.asarray(diff)  # nats a token by which we are worse than the reference
n = len(kls)
print(f"mean KL            {np.mean(kls):.3e}  (256 tokens and the rest)")
if wide:
    print(f"mean KL            {np.mean(wide):.3e}  (whole vocabulary)")
print(f"same first choice  {100 * same / n:.2f}%")
print(f"perplexity ratio   {np.exp(d.mean()):.6f} +- {np.exp(d.mean()) * d.std(ddof=1) / n**0.5:.6f}")
