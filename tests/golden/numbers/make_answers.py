#!/usr/bin/env python3
"""Writes answers.json: the greedy answers to prompts.json by the float64 reference and by llama.cpp.

See README.md beside this file. Each answer is at most 64 tokens and ends before <|im_end|>.
With --ours FILE only our own answers are replaced, by the ids that
`INCIPIT_WRITE_ANSWERS=FILE test_oracle_answers` wrote.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import numpy as np

from llama_float import Model, log_softmax

here = pathlib.Path(__file__).parent
a = argparse.ArgumentParser()
a.add_argument("--model", required=True, help="SmolLM2-135M-Instruct.Q4_1.gguf")
a.add_argument("--f16", help="its F16 copy, made by llama-quantize")
a.add_argument("--llama-logits", help="program built from llama_logits.c")
a.add_argument("--ours", help="JSON list of our own answers' ids")
args = a.parse_args()

MAX, EOG = 64, {0, 2}
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
prompts = json.loads((here / "prompts.json").read_text())
model = Model(args.model)
id_of = {t: i for i, t in enumerate(model.tokens)}


def render(messages):
    """The template in the file: ChatML, with a default system message."""
    if messages[0]["role"] != "system":
        messages = [{"role": "system", "content": SYSTEM}] + messages
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return text + "<|im_start|>assistant\n"


def byte_table():
    """GPT-2's printable stand-ins for bytes, inverted."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in keep]
    return {chr(c): b for b, c in [(b, b) for b in keep] + [(b, 256 + i) for i, b in enumerate(rest)]}


BYTES = byte_table()


def text_of(ids):
    return bytes(BYTES[c] for i in ids for c in model.tokens[i]).decode("utf-8", "replace")


def by_llama(path, ids, kv):
    with tempfile.TemporaryDirectory() as d:
        src, dst = f"{d}/in", f"{d}/out"
        np.asarray(ids, "<u4").tofile(src)
        cmd = [args.llama_logits, "greedy", path, src, kv, dst, str(MAX)]
        subprocess.run(cmd, check=True, stderr=subprocess.DEVNULL)
        return [int(t) for t in np.fromfile(dst, "<u4")]


def by_reference(ids):
    """Ids, and for each the log-probability gap to the second choice: a tie shows as a small one."""
    cache, out, gaps = [], [], []
    todo = list(ids)
    while len(out) < MAX:
        lp = log_softmax(model.logits(model.forward(todo, cache)[-1:]))[0]
        second, best = np.sort(lp)[-2:]
        todo = [int(lp.argmax())]
        if todo[0] in EOG:
            break
        out += todo
        gaps.append(round(float(best - second), 5))
    return out, gaps


def measure():
    answers = []
    for p in prompts:
        ids = model.encode(render(p["messages"]))
        ref, gaps = by_reference(ids)
        row = {"prompt_ids": ids, "reference_ids": ref, "reference_gaps": gaps}
        row["reference"] = text_of(ref)
        row["llama_cpp_f16"] = text_of(by_llama(args.f16, ids, "f16"))
        row["llama_cpp_q4_1"] = text_of(by_llama(args.model, ids, "f16"))
        answers.append(row)
        print(f"{len(answers)}: {row['reference'][:70]!r}")
    return answers


def merge_ours():
    answers = json.loads((here / "answers.json").read_text())
    for row, ids in zip(answers, json.loads(pathlib.Path(args.ours).read_text())):
        row["incipit_q4_1_ids"] = ids
        row["incipit_q4_1"] = text_of(ids)
    for name in ("llama_cpp_f16", "llama_cpp_q4_1", "incipit_q4_1"):
        print(f"{name}: {sum(r[name] == r['reference'] for r in answers)} equal the reference's")
    return answers


def line(row):
    return "  {" + ",\n   ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in row.items()) + "}"


answers = merge_ours() if args.ours else measure()
(here / "answers.json").write_text("[\n" + ",\n".join(line(r) for r in answers) + "\n]\n")
