#!/usr/bin/env python3
"""check-tree finds each kind of offence in a tree made for it, and nothing in a clean one."""
import os
import subprocess
import sys
import tempfile

CLEAN = {
    "common/err.h": "#pragma once\nint err_set(int x);\n",
    "common/err.c": '#include "common/err.h"\n\nint err_set(int x) {\n    return x;\n}\n',
    "proto/rpc_conn.c": '#include "common/err.h"\n\nint rpc_conn_open(void) {\n    return 0;\n}\n',
    "cachesvc/main.c": '#include "proto/wire.h"\n\nint main(void) {\n    return 0;\n}\n',
    "proto/wire.h": "#pragma once\n",
    "worker/kv/x.h": "#pragma once\n",
}
OFFENCES = [  # file, text, what must be said
    ("common/a.c", '#include "proto/wire.h"\n', "common/ may not include proto/wire.h"),
    ("cachesvc/a.c", '#include "worker/kv/x.h"\n', "cachesvc/ may not include worker/kv/x.h"),
    ("worker/kernels/a.c", '#include "worker/kv/x.h"\n', "worker/kernels/ may not include"),
    ("cachesvc/store/a.c", "#include <hiredis/hiredis.h>\n", "<hiredis/hiredis.h> is known to"),
    ("common/b.c", "#include <uv.h>\n", "<uv.h> is known to"),
    ("proto/rpc_x.c", '#include "proto/kvcache.pb-c.h"\n', "belongs to proto/wire_msg"),
    ("common/c.h", "int x;\n", "#pragma once is missing"),
    ("common/d.c", "// why\n", "comments are"),
    ("common/e.c", "/* TODO: later */\n", "TODO without an issue number"),
    ("common/e2.c", "/* as design 7.4 says */\n", "not in the repository"),
    ("common/f.c", "void *f_x(void) {\n    return alloca(3);\n}\n", "alloca"),
    ("common/g.c", "int g_x(void) {\n" + "    g();\n" * 130 + "}\n", "g_x() has 132 lines"),
    ("common/h.c", "/* */\n" * 901, "more than 900"),
    ("common/i.c", "int other_thing(void) {\n    return 0;\n}\n", "a public name begins with a word of 'i'"),
    ("common/err2.h", "#pragma once\n", None),
    ("common/err2.c", '#include "common/err.h"\n#include "common/err2.h"\n', "comes first"),
    ("common/k.c", "void k_x(void) {\n    log_info(l, \"e\", \"v='%s'\", z);\n}\n", "quotes around a value"),
    ("worker/x_metrics.h", '#pragma once\n#define X_METRICS(X) \\\n    X(lost_total, COUNTER, "lost")\n',
     "metric lost_total: no test names it"),
    ("common/j.c", '#include "../common/err.h"\n', "from the root"),
]


def run(tool, files):
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as f:
                f.write(text)
        p = subprocess.run([sys.executable, tool, root], capture_output=True, text=True)
        return p.returncode, p.stdout


def main():
    tool = sys.argv[1]
    code, out = run(tool, CLEAN)
    assert code == 0, out
    for path, text, want in OFFENCES:
        if want is None:
            continue
        files = dict(CLEAN)
        files[path] = text
        files["common/err2.h"] = "#pragma once\n"
        code, out = run(tool, files)
        assert code == 1 and want in out, f"{path}: {out!r} lacks {want!r}"
        assert "1 offences" in out, out
    print(f"{len(OFFENCES)} offences found")


main()
