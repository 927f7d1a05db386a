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
    "attn_v": "self_attn.v_proj", "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_gate_inp": "mlp.gate", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}


def rope(base=10000.0, **scaling):
    return {"rope_type": "default", "rope_theta": base, **scaling}


SCALED = {"factor": 4.0, "original_max_position_embeddings": 64}
YARN = rope(rope_type="yarn", **SCALED)
LINEAR = rope(rope_type="linear", factor=4.0)

# Gemma's names of its four norms, and of its groups of layers
GEMMA = {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
         "post_ffw_norm": "post_feedforward_layernorm"}
GEMMA3 = {"query_pre_attn_scalar": 32, "sliding_window": WINDOW, "hidden_activation": "gelu_pytorch_tanh",
          "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]}
OLMO = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}


def gemma3(**full):
    return {**GEMMA3, "rope_parameters": {"full_attention": rope(1e6, **full), "sliding_attention": rope()}}


PHI3 = {"ffn_up": "mlp.gate_up_proj"}


def phi3_long(original):
    """transformers chooses the side by the prompt's length; make_model() fills in the factors from the GGUF."""
    return {"original_max_position_embeddings": original, "rope_parameters": rope(
        rope_type="longrope", attention_factor=1.25, factor=4.0, partial_rotary_factor=.75,
        original_max_position_embeddings=original)}


OSS = {"post_attention_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.router", "interleaved": True}

# name: (arguments of mkmodel, transformers' model, layers, head size, options, names that differ, pairs of neighbours)
CASES = {
    "llama": (["llama"], "Llama", 2, 16, {}, {}, True),
    "llama-factors": (["llama", "--rope-freqs"], "Llama", 2, 16, {}, {}, True),
    "llama-window": (["llama", "--window", str(WINDOW)], "Mistral", 2, 16, {"sliding_window": WINDOW}, {}, True),
    "llama-experts": (["llama", "--experts", "8"], "Mixtral", 2, 16, {
        "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None}, {}, True),
    "llama-linear": (["llama", "--rope", "linear"], "Llama", 2, 16, {"rope_parameters": LINEAR}, {}, True),
    "qwen2": (["qwen2"], "Qwen2", 2, 16, {}, {}, False),
    "qwen2-yarn": (["qwen2", "--rope", "yarn"], "Qwen2", 2, 16, {"rope_parameters": YARN}, {}, False),
    "qwen3": (["qwen3"], "Qwen3", 2, 32, {}, {}, False),
    "qwen3moe": (["qwen3moe"], "Qwen3Moe", 2, 32, {
        "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": FF, "norm_topk_prob": True}, {}, False),
    "smollm3": (["smollm3"], "SmolLM3", 5, 16, {"no_rope_layer_interval": 4, "use_sliding_window": False}, {}, True),
    "gemma2": (["gemma2"], "Gemma2", 3, 16, {
        "query_pre_attn_scalar": 16, "sliding_window": WINDOW, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0,
        "hidden_activation": "gelu_pytorch_tanh", "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }, GEMMA, False),
    "gemma3": (["gemma3"], "Gemma3", 7, 32, gemma3(), GEMMA, False),
    "gemma3-linear": (["gemma3", "--rope", "linear"], "Gemma3", 7, 32, gemma3(rope_type="linear", factor=4.0), GEMMA, False),
    "phi3": (["phi3"], "Phi3", 2, 16, {"rope_parameters": rope(partial_rotary_factor=.75)}, PHI3, False),
    "phi3-window": (["phi3", "--window", str(WINDOW)], "Phi3", 2, 16, {
        "sliding_window": WINDOW, "rope_parameters": rope(partial_rotary_factor=.75)}, PHI3, False),
    "phi3-long": (["phi3", "--rope", "longrope"], "Phi3", 2, 16, phi3_long(64), PHI3, False),
    "phi3-short": (["phi3", "--rope", "longrope"], "Phi3", 2, 16, phi3_long(1024), PHI3, False),
    "granite": (["granite"], "Granite", 2, 16, {
        "embedding_multiplier": 3.0, "residual_multiplier": .5, "attention_multiplier": .2, "logits_scaling": 2.0}, {}, True),
    "granitemoe": (["granitemoe"], "GraniteMoe", 2, 16, {
        "embedding_multiplier": 3.0, "residual_multiplier": .5, "attention_multiplier": .2, "logits_scaling": 2.0,
        "num_local_experts": 6, "num_experts_per_tok": 2}, {
            "ffn_gate_inp": "block_sparse_moe.router", "experts": "block_sparse_moe.experts"}, True),
    "gpt-oss": (["gpt-oss", "--rope", "yarn"], "GptOss", 3, 16, {
        "rope_parameters": {**YARN, "truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}, "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "num_local_experts": 6, "num_experts_per_tok": 2}, OSS, False),
    "olmo2": (["olmo2"], "Olmo2", 2, 16, {}, OLMO, False),
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
        if key == "attn_sinks":
            state[f"model.layers.{i}.self_attn.sinks"] = w
            continue
        if names.get("interleaved") and key in ("ffn_down_exps", "ffn_gate_exps"):
            # gate and up by turns, outputs last
            part, also = ("down_proj", w) if "down" in key else ("gate_up_proj", weights[name.replace("gate", "up")])
            both = w if "down" in key else torch.stack([w, also], dim=2).flatten(1, 2)
            bias = suffix == "bias"
            state[f"model.layers.{i}.mlp.experts.{part}" + "_bias" * bias] = both if bias else both.transpose(1, 2)
        if names.get("interleaved") and key.endswith("_exps"):
            continue
        experts = f"model.layers.{i}.{names.get('experts', 'mlp.experts')}"
        if key == "ffn_down_exps":
            state[experts + ".down_proj"] = w
        if key == "ffn_gate_exps":
            state[experts + ".gate_up_proj"] = torch.cat([w, weights[name.replace("gate", "up")]], dim=1)
        if key.endswith("_exps"):
            continue
        if pairs and key in ("attn_q", "attn_k"):
            w = neighbours_to_halves(w, HEADS if key == "attn_q" else KV_HEADS)
        state[f"model.layers.{i}.{names.get(key) or LAYER[key]}.{suffix}"] = w
    for name in state:
        if minus_one and "norm" in name:
            state[name] = state[name] - 1  # the converter adds it
    return state


def make_model(path, cls, layers, head, options, names, pairs):
    weights = read_weights(path)
    if "rope_factors_long.weight" in weights:
        for side in ("long", "short"):
            options["rope_parameters"][f"{side}_factor"] = weights[f"rope_factors_{side}.weight"].tolist()
    config = getattr(tf, ("Gemma3Text" if cls == "Gemma3" else cls) + "Config")(
        vocab_size=VOCAB, hidden_size=EMBD, intermediate_size=FF, num_hidden_layers=layers, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, rms_norm_eps=1e-5, max_position_embeddings=CTX, tie_word_embeddings=True,
        head_dim=head, **{"rope_parameters": rope(), "pad_token_id": None, **options})
    config._attn_implementation = "eager"
    model = getattr(tf, cls + "ForCausalLM")(config).float().eval()
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
