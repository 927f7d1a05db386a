"""The recorded form of a reference: its most likely tokens a position, the rest one bucket.

File, little-endian                                            off   len
  magic      "INCR"                                              0     4
  version    1, or 2 where n_vocab exceeds 65536                 4     4
  n_tok      tokens of the text                                  8     4
  n_top      256 unless told                                    12     4
  n_vocab                                                       16     4
  stride     version 2; in version 1 zero, which means 1        20     4
  reserved   zero                                               24     8
  tok        u32[n_tok]                                         32     4*n_tok
  then for each position 0, stride, 2 stride .. n_tok-2, which predicts token i+1:
    next_lp  f32  log-probability of the text's next token
    rest_lp  f32  log of the probability of all tokens not listed
    id       u16[n_top] (version 2: u32)  most likely first; ties by lowest id
    lp       u16[n_top]  -log-probability in steps of 1/2048, rounded

A step of 1/2048 is an error of 1.4e-4 in the mean. A reader scales the listed probabilities so that
they and the rest sum to one; then the steps add only 1e-8 to a KL divergence (unscaled, their sum's
error enters it in the first order, some 1e-6).
"""

import struct
import numpy as np

TOP, STEPS = 256, 2048.0


def write(path, ids, rows, n_vocab, n_top=TOP, stride=1):
    """rows: iterable of float64 log-probabilities [n_vocab], one for each position but the last, by stride."""
    version = 2 if n_vocab > 65536 else 1
    with open(path, "wb") as f:
        f.write(struct.pack("<4sIIIII8x", b"INCR", version, len(ids), n_top, n_vocab, stride if version == 2 else 0))
        f.write(np.asarray(ids, "<u4").tobytes())
        for i, lp in enumerate(rows):
            order = np.lexsort((np.arange(n_vocab), -lp))[:n_top]
            rest = np.delete(lp, order)
            top = rest.max()
            rest_lp = top + np.log(np.exp(rest - top).sum())
            f.write(struct.pack("<ff", lp[ids[i * stride + 1]], rest_lp))
            f.write(order.astype("<u4" if version == 2 else "<u2").tobytes())
            f.write(np.minimum(np.rint(-lp[order] * STEPS), 65535).astype("<u2").tobytes())


class Recorded:
    def __init__(self, path):
        raw = open(path, "rb").read()
        magic, version, self.n_tok, self.n_top, self.n_vocab = struct.unpack_from("<4sIIII", raw)
        assert magic == b"INCR" and version == 1
        self.ids = np.frombuffer(raw, "<u4", self.n_tok, 32)
        rec = np.dtype(
            [("next", "<f4"), ("rest", "<f4"), ("id", "<u2", self.n_top), ("lp", "<u2", self.n_top)]
        )
        self.rec = np.frombuffer(raw, rec, self.n_tok - 1, 32 + 4 * self.n_tok)

    def compare(self, i, lp):
        """(KL from the reference to lp over the 256 tokens and the rest, same first choice)."""
        r = self.rec[i]
        p = -r["lp"].astype(np.float64) / STEPS
        p += np.log(-np.expm1(float(r["rest"])) / np.exp(p).sum())
        q = lp[r["id"]]
        q_rest = np.log(max(1.0 - np.exp(q).sum(), 1e-30))
        kl = (np.exp(p) * (p - q)).sum() + np.exp(float(r["rest"])) * (float(r["rest"]) - q_rest)
        return kl, int(lp.argmax()) == int(r["id"][0])
