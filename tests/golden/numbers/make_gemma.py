#!/usr/bin/env python3
"""Writes reference_gemma3.bin: make_gemma.py MODEL, with MODEL from tools/dev/get-model gemma3.

transformers computes in float32 over the dequantised weights. The tokens are the model's own SPM: pieces that the
vocabulary marks as user-defined first, then pairs joined by the highest score, leftmost first.
"""
import heapq
import pathlib
import sys

import gguf
import numpy as np
import torch
import transformers as tf
from gguf.quants import dequantize

import recorded

HERE = pathlib.Path(__file__).parent
N_TOK, N_TOP, STRIDE, LAYERS, VOCAB = 3000, 48, 6, 18, 262144
USER_DEFINED = 4
NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}


def join(text, ids, scores):
    """Pieces of a text without user-defined ones; all characters are in this vocabulary."""
    left, right, piece = list(range(-1, len(text) - 1)), list(range(1, len(text) + 1)), list(text)
    heap = []

    def offer(a, b):
        if a >= 0 and b < len(text) and piece[a] + piece[b] in ids:
            heapq.heappush(heap, (-scores[ids[piece[a] + piece[b]]], a, b, piece[a] + piece[b]))

    for i in range(len(text) - 1):
        offer(i, i + 1)
    while heap:
        _, a, b, both = heapq.heappop(heap)
        if piece[a] is None or piece[b] is None or piece[a] + piece[b] != both or right[a] != b:
            continue
        piece[a], piece[b], right[a] = both, None, right[b]
        if right[b] < len(text):
            left[right[b]] = a
        offer(left[a], a)
        offer(a, right[a])
    return [ids[p] for p in piece if p is not None]


def encode(reader, text):
    tokens, scores, kinds = (reader.fields["tokenizer.ggml." + k].contents() for k in ("tokens", "scores", "token_type"))
    ids = {t: i for i, t in enumerate(tokens)}
    own = sorted((t for t, k in zip(tokens, kinds) if k == USER_DEFINED), key=lambda t: -len(t))
    by_first = {}
    for t in own:
        by_first.setdefault(t[0], []).append(t)
    out, start, i = [reader.fields["tokenizer.ggml.bos_token_id"].contents()], 0, 0
    text = text.replace(" ", "\u2581")
    while i < len(text):
        hit = next((t for t in by_first.get(text[i], ()) if text.startswith(t, i)), None)
        if hit:
            out += join(text[start:i], ids, scores) + [ids[hit]]
            start = i + len(hit)
        i += len(hit) if hit else 1
    return out + join(text[start:], ids, scores)


def load(reader):
    kinds = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(LAYERS)]
    config = tf.Gemma3TextConfig(
        vocab_size=VOCAB, hidden_size=640, intermediate_size=2048, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=1, head_dim=256, rms_norm_eps=1e-6, max_position_embeddings=32768, tie_word_embeddings=True,
        query_pre_attn_scalar=256, sliding_window=512, hidden_activation="gelu_pytorch_tanh", layer_types=kinds,
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1e6},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})
    config._attn_implementation = "eager"
    model = tf.Gemma3ForCausalLM(config).float().eval()
    state = {}
    for t in reader.tensors:
        w = torch.tensor(dequantize(t.data, t.tensor_type).astype(np.float32))
        _, i, key, suffix = t.name.split(".") if t.name.startswith("blk.") else (None,) * 4
        name = f"model.layers.{i}.{NAMES[key]}.{suffix}" if key else {
            "token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[t.name]
        state[name] = w - 1 if "norm" in name else w  # the converter adds 1
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model


def main():
    reader = gguf.GGUFReader(sys.argv[1])
    text = (HERE / "text.txt").read_text()
    ids = encode(reader, text + text)[:N_TOK]
    assert len(ids) == N_TOK
    model = load(reader)
    with torch.no_grad():
        hidden = model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
        rows = (torch.log_softmax(model.lm_head(hidden[i]).double(), -1).numpy() for i in range(0, N_TOK - 1, STRIDE))
        recorded.write(HERE / "reference_gemma3.bin", ids, rows, VOCAB, N_TOP, STRIDE)


main()
