#!/usr/bin/env python3
"""Records what jinja2 makes of chat templates, as transformers runs them.

Usage: render.py VOCABS > rendered.txt      (needs: pip install jinja2)

VOCABS is the folder of tools/dev/get-vocabs, which has the long templates; the short ones lie beside this script. A line:
template, messages as role=content separated by |, and the prompt, separated by tabs; \\n stands for a line break; the
prompt "!" means that the template raises. tests/unit/worker/text/test_chat_template.c compares.
"""
import os
import sys

from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.dirname(os.path.abspath(__file__))
TEMPLATES = ["gemma-3", "mistral", "mixtral", "google-gemma-2-2b-it", "Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B"]
CONVERSATIONS = [
    [("user", " hi\n")],
    [("system", " be brief "), ("user", " hi")],
    [("user", "a"), ("assistant", " b\n"), ("user", "c ")],
    [("system", "s"), ("user", "a"), ("assistant", "<think>\nx\n</think>\n\nb"), ("user", "c")],
    [("user", "a"), ("user", "b")],
    [("assistant", "a"), ("user", "b")],
]


def raise_exception(message):
    raise ValueError(message)


def main():
    for name in TEMPLATES:
        path = os.path.join(HERE, name + ".jinja")
        if not os.path.exists(path):
            path = os.path.join(sys.argv[1], name + ".jinja")
        env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        env.globals["raise_exception"] = raise_exception
        with open(path) as f:
            template = env.from_string(f.read())
        for c in CONVERSATIONS:
            try:
                out = template.render(messages=[{"role": r, "content": t} for r, t in c], bos_token="<bos>",
                                      eos_token="<eos>", add_generation_prompt=True)
            except ValueError:
                out = "!"
            line = "\t".join([name, "|".join(f"{r}={t}" for r, t in c), out])
            print(line.replace("\n", "\\n"))


main()
