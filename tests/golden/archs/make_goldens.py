#!/usr/bin/env python3
"""Records what transformers computes, in float32, on the tiny random models that tools/dev/mkmodel writes.

    make_goldens.py MKMODEL [CASE ...]      needs torch, transformers and gguf; writes CASE.txt beside itself

Each case gives the model's options as transformers names them, by hand: only weights are read from the GGUF. A file
holds the prompt, the tokens that greedy decoding adds, and all logits of some positions.
"""
import os
import subprocess
import sys
import tempfile

import gguf
import torch
import transformers as tf

HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB, EMBD, HEADS, KV_HEADS, FF, CTX, WINDOW = 307, 64, 4, 2, 160, 2048, 24
N_PROMPT, N_GREEDY, POSITIONS = 200, 16, (61, 199)
PROMPT = [(i * i * 7 + i * 13 + 5) % VOCAB for i in range(N_PROMPT)]

LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}


def rope(base=10000.0, **scaling):
    return {"rope_type": "default", "rope_theta": base, **scaling}


SCALED = {"factor": 4.0, "original_max_position_embeddings": 64}
YARN = rope(rope_type="yarn", **SCALED)
LINEAR = rope(rope_type="linear", factor=4.0)

# name: (arguments of mkmodel, transformers' model, layers, head size, options, names that differ, pairs of neighbours)
CASES = {
    "llama": (["llama"], "Llama", 2, 16, {}, {}, True),
    "llama-factors": (["llama", "--rope-freqs"], "Llama", 2, 16, {}, {}, True),
    "llama-linear": (["llama", "--rope", "linear"], "Llama", 2, 16, {"rope_parameters": LINEAR}, {}, True),
    "qwen2": (["qwen2"], "Qwen2", 2, 16, {}, {}, False),
    "qwen2-yarn": (["qwen2", "--rope", "yarn"], "Qwen2", 2, 16, {"rope_parameters": YARN}, {}, False),
    "qwen3": (["qwen3"], "Qwen3", 2, 32, {}, {}, False),
}


def neighbours_to_halves(w, n_head):
    """Rows of q and k for pairs (2i, 2i + 1) as those for pairs (i, i + d/2)."""
    return w.reshape(n_head, w.shape[0] // n_head // 2, 2, *w.shape[1:]).transpose(1, 2).reshape(w.shape)


def read_weights(path):
    return {t.name: torch.tensor(t.data.reshape(list(reversed(t.shape.tolist())))) for t in gguf.GGUFReader(path).tensors}


def hf_state(weights, names, pairs, minus_one):
    state = {"model.embed_tokens.weight": weights.pop("token_embd.weight"),
             "model.norm.weight": weights.pop("output_norm.weight")}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    for name, w in weights.items():
        if not name.startswith("blk."):
            continue
        _, i, key, suffix = name.split(".")
        if pairs and key in ("attn_q", "attn_k"):
            w = neighbours_to_halves(w, HEADS if key == "attn_q" else KV_HEADS)
        state[f"model.layers.{i}.{names.get(key) or LAYER[key]}.{suffix}"] = w
    for name in state:
        if minus_one and "norm" in name:
            state[name] = state[name] - 1  # the converter adds it
    return state


def make_model(path, cls, layers, head, options, names, pairs):
    config = getattr(tf, ("Gemma3Text" if cls == "Gemma3" else cls) + "Config")(
        vocab_size=VOCAB, hidden_size=EMBD, intermediate_size=FF, num_hidden_layers=layers, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, rms_norm_eps=1e-5, max_position_embeddings=CTX, tie_word_embeddings=True,
        head_dim=head, **{"rope_parameters": rope(), "pad_token_id": None, **options})
    config._attn_implementation = "eager"
    model = getattr(tf, cls + "ForCausalLM")(config).float().eval()
    weights = read_weights(path)
    missing, unexpected = model.load_state_dict(hf_state(dict(weights), names, pairs, cls.startswith("Gemma")), strict=False)
    assert not unexpected and all("rotary" in m for m in missing), (missing, unexpected)
    if "rope_freqs.weight" in weights:
        model.model.rotary_emb.inv_freq /= weights["rope_freqs.weight"]
    return model


def record(name, model):
    tokens, greedy = list(PROMPT), []
    with torch.no_grad():
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
        out = [f"tokens {len(tokens)} " + " ".join(map(str, tokens))]
        rows = [f"logits {p} " + " ".join(f"{x:.7g}" for x in logits[p].tolist()) for p in POSITIONS]
        for _ in range(N_GREEDY):
            greedy.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
            tokens.append(greedy[-1])
    with open(os.path.join(HERE, name + ".txt"), "w", encoding="ascii") as f:
        f.write("\n".join(out + [f"greedy {len(greedy)} " + " ".join(map(str, greedy))] + rows) + "\n")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name in sys.argv[2:] or CASES:
        args, *rest = CASES[name]
        with tempfile.TemporaryDirectory() as tmp:
            path = os.path.join(tmp, "m.gguf")
            subprocess.run([sys.argv[1], "--arch", *args, path], check=True)
            record(name, make_model(path, *rest))
        print(name, flush=True)


main()
