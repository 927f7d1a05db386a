#!/usr/bin/env python3
"""Makes descriptor.txt, graph.txt and rope.txt from the definitions alone, without any of our C code.

descriptor.txt  line 1 its SHA-256, then the ten lines (worker/kv/namespace_desc.h), then the first two block
                ids of tokens 0..2B-1 in that namespace (common/block_id.h)
graph.txt       line 1 its SHA-256, then the graph's text of tests' tiny model (worker/model/model_graph.h)
rope.txt        per line: base, n_rot, scale, YaRN's trained context or 0, magnitude, base of a second, unscaled
                group or 0, SHA-256 (worker/kernels/kernels.h, rope_digest()). The logarithm
                and the exponential are the contract's own series, operation by operation: Python's floats are
                the same doubles
"""
import hashlib
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))


def write(name, text):
    with open(os.path.join(HERE, name), "w", encoding="ascii") as f:
        f.write(text)


def sha(b):
    return hashlib.sha256(b).hexdigest()


def f32(x):
    return f"{struct.unpack('<I', struct.pack('<f', x))[0]:08x}"


def lines(d):
    return "".join(f"{k}={d[k]}\n" for k in sorted(d))


def descriptor():
    b = 32
    text = lines({"arch": "llama", "b": b, "graph": "11" * 32, "k_dtype": "f16", "layout": 2, "numerics": "2-" + "22" * 32,
                  "rope": "33" * 32, "tokenizer": "44" * 32, "v_dtype": "f16", "weights": "55" * 32})
    digest = hashlib.sha256(text.encode()).digest()
    ident = hashlib.sha256(b"incipit/1" + digest).digest()
    ids = ""
    for i in range(2):
        ident = hashlib.sha256(ident + bytes(32) + struct.pack(f"<{b}I", *range(i * b, (i + 1) * b))).digest()
        ids += ident.hex() + "\n"
    write("descriptor.txt", sha(text.encode()) + "\n" + text + ids)


def graph():
    n = 2

    def per_layer(v):
        return ",".join([str(v)] * n)

    text = lines({
        "activation": "silu", "attn_scale": f32(0.25), "attn_sink": per_layer(0), "attn_softcap": f32(0), "d_head": per_layer(16),
        "embd_scale": f32(1), "expert_count": per_layer(0), "expert_used": per_layer(0), "logit_scale": f32(1),
        "logit_softcap": f32(0), "n_embd": 64, "n_ff": per_layer(160), "n_head": per_layer(4), "n_head_kv": per_layer(2),
        "n_layer": n, "n_rot": per_layer(16), "n_vocab": 307, "norm": "rms", "norm_eps": f32(1e-5), "norm_place": "pre",
        "qk_norm": 0, "residual_scale": f32(1), "rope_group": per_layer(0), "rope_pairs": "neighbours", "tied": 1,
        "window": per_layer(0)})
    write("graph.txt", sha(text.encode()) + "\n" + text)


LN2_HI, LN2_LO = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")


def ln_pos(x):
    bits = struct.unpack("<Q", struct.pack("<d", x))[0]
    e = (bits >> 52) - 1023
    m = struct.unpack("<d", struct.pack("<Q", (bits & (2**52 - 1)) | 1023 << 52))[0]
    if m > 1.4142135623730951:
        m *= 0.5
        e += 1
    z = (m - 1.0) / (m + 1.0)
    z2, total = z * z, 0.0
    for k in range(23, 0, -2):
        total = total * z2 + 1.0 / k
    return 2.0 * z * total + e * LN2_LO + e * LN2_HI


def exp_any(x):
    t = x * 1.4426950408889634
    n = int(t - 0.5 if t < 0 else t + 0.5)
    r = (x - n * LN2_HI) - n * LN2_LO
    p = 1.0
    for k in range(20, 0, -1):
        p = 1.0 + p * r / k
    return p * struct.unpack("<d", struct.pack("<Q", (n + 1023) << 52))[0]


def floor_to(x, most):
    return float(int(min(max(x, 0.0), most)))


def group(base, n_rot, scale, orig_ctx, magnitude):
    """u32 count, the frequencies as f64, the magnitude as f64, all little-endian. orig_ctx 0: no YaRN."""
    freqs = [exp_any(-(2.0 * i / n_rot) * ln_pos(base)) / 1.0 * (1.0 if orig_ctx else scale) for i in range(n_rot // 2)]
    if orig_ctx:
        def pair(turns):
            return n_rot * ln_pos(orig_ctx / (turns * 6.283185307179586)) / (2.0 * ln_pos(base))
        most = n_rot - 1.0
        low, slow = floor_to(pair(32.0), most), min(max(pair(1.0), 0.0), most)
        high = float(int(slow)) + (1.0 if int(slow) < slow else 0.0)
        for i in range(n_rot // 2):
            ramp = min(max((i - low) / max(high - low, 1e-3), 0.0), 1.0)
            freqs[i] *= ramp * scale + (1.0 - ramp)
        magnitude *= 1.0 + 0.1 * ln_pos(1.0 / scale)
    return struct.pack("<I", len(freqs)) + b"".join(struct.pack("<d", f) for f in freqs) + struct.pack("<d", magnitude)


def rope():
    out = ""
    for base, n_rot, scale, orig_ctx, magnitude, local in (
            (10000.0, 64, 1.0, 0, 1.0, 0), (10000.0, 64, 0.25, 0, 1.0, 0), (500000.0, 128, 1.0, 0, 1.0, 0), (1.0, 8, 0.5, 0, 1.0, 0),
            (10000.0, 128, 0.25, 4096, 1.0, 0), (1000000.0, 64, 0.125, 32768, 1.25, 0), (1000000.0, 256, 0.125, 0, 1.0, 10000)):
        raw = group(base, n_rot, scale, orig_ctx, magnitude)
        if local:
            raw += group(float(local), n_rot, 1.0, 0, 1.0)
        out += f"{base:g} {n_rot} {scale:g} {orig_ctx} {magnitude:g} {local} {sha(raw)}\n"
    write("rope.txt", out)


descriptor()
graph()
rope()
