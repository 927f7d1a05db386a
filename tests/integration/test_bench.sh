#!/bin/sh
# test_bench.sh BENCH MKMODEL CACHESVC - both subcommands of incipit-bench run through on small sizes, and
# their JSON has every row. Speed is not judged here: CI machines are shared.
set -eu
bench=$1 mkmodel=$2 cachesvc=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$mkmodel" --type q4_1 --ctx 512 "$dir/m.gguf"
"$bench" engine --model "$dir/m.gguf" --prefill 32,128 --decode-context 1,64 --decode-tokens 8 \
    --json "$dir/engine.json"
"$bench" transfer --cachesvc "$cachesvc" --mib 16 --reps 5 --json "$dir/transfer.json"
python3 - "$dir" <<'PY'
import json, sys
def rows(name):
    return {r["name"]: r for r in json.load(open(f"{sys.argv[1]}/{name}.json"))["rows"]}
e, t = rows("engine"), rows("transfer")
assert set(e) == {"prefill 32", "prefill 128", "decode 8 @ 0", "decode 8 @ 64"}, e
assert set(t) == {f"{op} {net} {size}" for op in ("fetch", "put") for net in ("tcp", "unix")
                  for size in ("720 KiB", "4 MiB")}, t
assert all(r["median"] > 0 and len(r["samples"]) >= 5 for r in [*e.values(), *t.values()])
assert all(r["ratio"] > 0 for r in t.values())
PY
if "$bench" engine --model /nonexistent 2>"$dir/err"; then exit 1; fi
grep -q nonexistent "$dir/err"
if "$bench" transfer --reps 4 2>/dev/null; then exit 1; fi
