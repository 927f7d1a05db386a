#!/usr/bin/env python3
"""Makes quants.txt: blocks of random bytes of each weight type, read by the Python package gguf (pip, 0.19.0 here).

A line: type, bytes in hex, the weights as f32 bits in hex. Bytes are random but for scales, which are halves of
ordinary size (their exponent is cut to 2^-15 .. 2^0; MXFP4: 2^-14 .. 2^1).
"""
import os

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

# Type: places of halves in a block.
TYPES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
         T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0], T.MXFP4: []}


def main():
    rng = np.random.default_rng(7)
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "quants.txt")
    with open(out, "w") as f:
        for t, halves in TYPES.items():
            items, size = GGML_QUANT_SIZES[t]
            for _ in range(3 if items == 256 else 6):
                block = rng.integers(0, 256, size, dtype=np.uint8)
                for at in halves:
                    block[at + 1] &= 0xBF
                if t == T.MXFP4:
                    block[0] = 114 + block[0] % 16
                w = dequantize(block, t).astype(np.float32)
                f.write(f"{t.name.lower()} {block.tobytes().hex()} {w.astype('>f4').tobytes().hex()}\n")


if __name__ == "__main__":
    main()
