#!/usr/bin/env python3
"""Makes kv_layout.txt, pages of each KV dtype, from the definition alone (worker/kernels/kv_layout.h).

Three layers, the middle one with a window; 2 KV heads of 32, 16 tokens. A line: K's dtype, V's dtype, n_full, range
sizes, SHA-256 of the page, the page's first range in hex. Value number i of a page (K of all layers, then V; each
[layer][token][head][d]) is value(i).
"""
import hashlib
import os
import struct

L, H, D, B = 3, 2, 32, 16
WINDOW = [0, 4, 0]


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def half(x):
    return struct.unpack("<H", struct.pack("<e", x))[0]


def from_half(h):
    return struct.unpack("<e", struct.pack("<H", h))[0]


def value(i):
    tok = i // (H * D) % B
    h = (i * 0x9E3779B9 + 0x7F4A7C15) & 0xFFFFFFFF
    h = ((h ^ h >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
    h = ((h ^ h >> 13) * 0xC2B2AE35) & 0xFFFFFFFF
    h ^= h >> 16
    x = ((h >> 8) - (1 << 23)) * 2.0**-21
    if tok == 0:
        return 0.0
    if tok == 1:
        return x * 2.0**-30  # scales round to zero
    if tok == 2:
        return 3.0 if i % 2 else -3.0  # ties: the lowest d decides the sign
    if tok == 3:
        return x * 2.0**12
    return x


def quant(row, dtype):
    m = row[0]
    for x in row:
        if abs(x) > abs(m):
            m = x
    s = half(f32(abs(m) / 127.0)) if dtype == "q8_0" else half(f32(m / -8.0))
    if s & 0x7FFF == 0:
        return [0] * 32, 0
    inv = f32(1.0 / from_half(s))
    low, high = (-127, 127) if dtype == "q8_0" else (-8, 7)
    return [max(low, min(high, round(f32(x * inv)))) for x in row], s


def run(x, dtype, is_k):
    """x[token][head][d] to bytes: values, then scales."""
    if dtype in ("f16", "f32"):
        fmt = "<e" if dtype == "f16" else "<f"
        order = [(t, h, d) for h in range(H) for d in range(D) for t in range(B)] if is_k else \
                [(t, h, d) for h in range(H) for t in range(B) for d in range(D)]
        return b"".join(struct.pack(fmt, x[t][h][d]) for t, h, d in order)
    q = [[quant(x[t][h], dtype) for h in range(H)] for t in range(B)]
    out = bytearray()
    for h in range(H):
        if is_k and dtype == "q8_0":
            for g in range(D // 4):
                for t in range(B):
                    out += struct.pack("4b", *q[t][h][0][4 * g:4 * g + 4])
        elif is_k:
            for g in range(D // 8):
                for t in range(B):
                    v = q[t][h][0]
                    out += bytes((v[8 * g + j] + 8) | (v[8 * g + 4 + j] + 8) << 4 for j in range(4))
        else:
            for t in range(B):
                v = q[t][h][0]
                out += struct.pack(f"{D}b", *v) if dtype == "q8_0" else bytes((v[j] + 8) | (v[j + 16] + 8) << 4 for j in range(16))
    for h in range(H):
        for t in range(B):  # one block of 32 a head: [h][token] either way
            out += struct.pack("<H", q[t][h][1])
    return bytes(out)


def page(k_dtype, v_dtype):
    def rows(first):
        return [[[[f32(value(first + ((l * B + t) * H + h) * D + d)) for d in range(D)] for h in range(H)]
                 for t in range(B)] for l in range(L)]
    k, v = rows(0), rows(L * B * H * D)
    ranges = [run(k[l], k_dtype, True) + run(v[l], v_dtype, False)
              for l in sorted(range(L), key=lambda l: (WINDOW[l] != 0, l))]
    return sum(w == 0 for w in WINDOW), ranges


with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "kv_layout.txt"), "w", encoding="ascii") as f:
    for kd, vd in (("f16", "f16"), ("f32", "f32"), ("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q8_0", "q4_0"), ("q4_0", "f16")):
        n_full, ranges = page(kd, vd)
        whole = b"".join(ranges)
        first = ranges[0].hex() if "q" in kd else "-"
        f.write(f"{kd} {vd} {n_full} {','.join(str(len(r)) for r in ranges)} {hashlib.sha256(whole).hexdigest()} {first}\n")
