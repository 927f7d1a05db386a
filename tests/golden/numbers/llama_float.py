"""A plain float64 forward pass of the GGUF architecture `llama`, written from the formulas.

Independent of Incipit's code and of every inference library: only numpy, and the package `gguf` to
find the tensors in the file. Weights are dequantised here; nothing is ever rounded below float64,
so the result is what every float engine approximates.

`weights="f16"` rounds each matrix to half precision first (norms stay float32), which is what an
F16 copy of the same file holds.
"""

import numpy as np
from gguf import GGUFReader, GGMLQuantizationType as Q


def _halves(raw):
    """[n, 2] bytes -> [n, 1] float32 of the half-precision number."""
    return raw.copy().view("<f2").astype(np.float32)


def _nibbles(q):
    """[n, 16] bytes -> [n, 32]: low nibbles are elements 0-15, high nibbles 16-31."""
    return np.concatenate([q & 15, q >> 4], axis=1)


def dequantise(tensor):
    """The tensor as float32 [rows, cols] (or [cols]), by the block layouts of the GGUF format."""
    raw = np.ascontiguousarray(tensor.data)
    shape = [int(d) for d in reversed(tensor.shape)]
    kind = tensor.tensor_type
    if kind == Q.F32:
        return raw.astype(np.float32).reshape(shape)
    if kind == Q.F16:
        return raw.astype(np.float32).reshape(shape)
    raw = raw.view(np.uint8).reshape(-1)
    if kind == Q.Q8_0:  # f16 d, int8[32]
        b = raw.reshape(-1, 34)
        w = b[:, 2:].copy().view(np.int8).astype(np.float32) * _halves(b[:, :2])
    elif kind == Q.Q4_0:  # f16 d, 16 bytes of nibbles
        b = raw.reshape(-1, 18)
        w = (_nibbles(b[:, 2:]).astype(np.float32) - 8) * _halves(b[:, :2])
    elif kind == Q.Q4_1:  # f16 d, f16 m, 16 bytes of nibbles
        b = raw.reshape(-1, 20)
        w = _nibbles(b[:, 4:]).astype(np.float32) * _halves(b[:, :2]) + _halves(b[:, 2:4])
    else:
        raise SystemExit(f"{tensor.name}: type {kind.name} is not handled")
    return w.reshape(shape)


class Model:
    def __init__(self, path, weights="f32"):
        r = GGUFReader(path)
        get = lambda key: r.fields[key].contents()
        if get("general.architecture") != "llama":
            raise SystemExit("only the architecture llama")
        self.n_layer = get("llama.block_count")
        self.n_embd = get("llama.embedding_length")
        self.n_head = get("llama.attention.head_count")
        self.n_kv = get("llama.attention.head_count_kv")
        self.base = get("llama.rope.freq_base")
        self.eps = get("llama.attention.layer_norm_rms_epsilon")
        self.d = self.n_embd // self.n_head
        self.tokens = get("tokenizer.ggml.tokens")
        self.merges = get("tokenizer.ggml.merges")
        self.w = {}
        for t in r.tensors:
            w = dequantise(t)
            if weights == "f16" and w.ndim == 2:
                w = w.astype(np.float16)
            self.w[t.name] = w.astype(np.float64)
        self.head = self.w.get("output.weight", self.w["token_embd.weight"])

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + self.eps) * self.w[name]

    def rope(self, x, pos):
        """x [rows, heads, d]; adjacent pairs (2i, 2i+1) turn by pos * base^(-2i/d)."""
        freq = self.base ** (-2.0 * np.arange(self.d // 2) / self.d)
        angle = pos[:, None] * freq[None, :]
        c, s = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
        even, odd = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2] = even * c - odd * s
        out[..., 1::2] = even * s + odd * c
        return out

    def attention(self, q, k, v, pos0):
        """Causal; q [rows, n_head, d], k and v [ctx, n_kv, d]; row r sees positions 0..pos0+r."""
        rows, ctx = q.shape[0], k.shape[0]
        out = np.empty_like(q)
        hidden = np.arange(ctx)[None, :] > pos0 + np.arange(rows)[:, None]
        for h in range(self.n_head):
            g = h // (self.n_head // self.n_kv)
            s = q[:, h] @ k[:, g].T / np.sqrt(self.d)
            s[hidden] = -np.inf
            s = np.exp(s - s.max(axis=1, keepdims=True))
            out[:, h] = (s / s.sum(axis=1, keepdims=True)) @ v[:, g]
        return out

    def forward(self, ids, cache=None):
        """Hidden states [rows, n_embd] after the last norm. `cache` is a list of (k, v), one a
        layer, which this call extends; it starts as []."""
        cache = [] if cache is None else cache
        pos0 = cache[0][0].shape[0] if cache else 0
        rows = len(ids)
        pos = np.arange(pos0, pos0 + rows, dtype=np.float64)
        x = self.w["token_embd.weight"][np.asarray(ids)]
        fresh = not cache
        for i in range(self.n_layer):
            p = f"blk.{i}."
            w = lambda n: self.w[p + n + ".weight"]
            h = self.norm(x, p + "attn_norm.weight")
            q = self.rope((h @ w("attn_q").T).reshape(rows, self.n_head, self.d), pos)
            k = self.rope((h @ w("attn_k").T).reshape(rows, self.n_kv, self.d), pos)
            v = (h @ w("attn_v").T).reshape(rows, self.n_kv, self.d)
            if fresh:
                cache.append((k, v))
            else:
                cache[i] = (np.concatenate([cache[i][0], k]), np.concatenate([cache[i][1], v]))
            a = self.attention(q, *cache[i], pos0).reshape(rows, self.n_embd)
            x = x + a @ w("attn_output").T
            h = self.norm(x, p + "ffn_norm.weight")
            g = h @ w("ffn_gate").T
            x = x + (g / (1.0 + np.exp(-g)) * (h @ w("ffn_up").T)) @ w("ffn_down").T
        return self.norm(x, "output_norm.weight")

    def logits(self, hidden):
        return hidden @ self.head.T

    def encode(self, text):
        """Token ids by Hugging Face `tokenizers` over the file's own vocabulary (pre = smollm)."""
        from tokenizers import Tokenizer, models, pre_tokenizers

        vocab = {t: i for i, t in enumerate(self.tokens)}
        merges = [tuple(m.split(" ", 1)) for m in self.merges]
        t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        t.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        # Control tokens are recognised as a whole; only the templates of prompts.json use them.
        t.add_special_tokens([s for s in self.tokens[:17]])
        return t.encode(text).ids


def log_softmax(z):
    m = z.max(axis=-1, keepdims=True)
    return z - m - np.log(np.exp(z - m).sum(axis=-1, keepdims=True))
