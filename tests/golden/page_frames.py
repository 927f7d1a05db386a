#!/usr/bin/env python3
"""Writes the example frames of proto/WIRE.md again, in place, from frames.py and the .proto files.

    tests/golden/page_frames.py

Each "<!-- frame NAME -->" of the page is followed by one fenced block: the frame's bytes, a field a line.
"""
import pathlib
import re

import frames

TOP = pathlib.Path(__file__).resolve().parents[2]
PAGE = TOP / "proto" / "WIRE.md"
FLAGS = ((1, "RESPONSE"), (2, "END"), (4, "ERROR"), (8, "ONEWAY"))


def load_proto():
    """{message: {number: (name, type)}} of both files."""
    out = {}
    for path in sorted((TOP / "proto").glob("*.proto")):
        for name, body in re.findall(r"^message (\w+) \{\n(.*?)^\}", path.read_text(), re.S | re.M):
            rows = re.findall(r"^ +(?:repeated )?(\w+) (\w+) = (\d+);", body, re.M)
            out[name] = {int(number): (field, kind) for kind, field, number in rows}
    return out


def method_names():
    """{number: (method, request, answer)} of the page's tables."""
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\w+)[^|]*? → (?:stream of )?(\w+)", PAGE.read_text(), re.M)
    rows += [(n, m, r, "Ack") for n, m, r in re.findall(r"^\| (\d+) \| (\w+) \| (\w+), ONEWAY", PAGE.read_text(), re.M)]
    return {int(n): (m, req, res) for n, m, req, res in rows}


def varint(b, i):
    end = i
    while b[end] & 0x80:
        end += 1
    return sum((b[k] & 0x7F) << 7 * (k - i) for k in range(i, end + 1)), end + 1


def show(kind, wire, value):
    if wire != 2:
        return f" = {value:x}" if wire == 1 else f" = {value}"
    if kind == "string" or (len(value) < 16 and all(32 <= c < 127 or c == 10 for c in value) and kind == "bytes"):
        return f" = {value.decode()!r}"
    return f", {len(value)} byte" + "s" * (len(value) != 1)


def rows_of(raw, proto, names):
    method, flags = int.from_bytes(raw[6:8], "little"), raw[5]
    n_msg, n_payload, deadline = (int.from_bytes(raw[k:k + 4], "little") for k in (16, 20, 24))
    name, req, res = names[method]
    set_flags = " | ".join(text for bit, text in FLAGS if flags & bit)
    yield raw[0:4], 'magic "INCP"'
    yield raw[4:5], f"version {raw[4]}"
    yield raw[5:6], f"flags {set_flags}" if set_flags else "flags 0: a request"
    yield raw[6:8], f"method {method} {name}"
    yield raw[8:16], f"request id {int.from_bytes(raw[8:16], 'little')}"
    yield raw[16:20], f"message {n_msg} bytes"
    yield raw[20:24], f"payload {n_payload} bytes"
    yield raw[24:28], f"deadline {deadline} ms"
    yield raw[28:32], "crc32c"
    fields = proto["Error" if flags & 4 else res if flags & 1 else req]
    at, end = 32, 32 + n_msg
    while at < end:
        tag, i = varint(raw, at)
        if tag & 7 == 0:
            value, i = varint(raw, i)
        elif tag & 7 == 1:
            value, i = int.from_bytes(raw[i:i + 8], "little"), i + 8
        else:
            n, i = varint(raw, i)
            value, i = raw[i:i + n], i + n
        field, kind = fields[tag >> 3]
        yield raw[at:i], field + show(kind, tag & 7, value)
        at = i
    if n_payload:
        yield raw[end:], "payload"


def block(raw, proto, names):
    out = ["```"]
    for b, text in rows_of(raw, proto, names):
        for k in range(0, len(b), 16):
            line = " ".join(f"{c:02x}" for c in b[k:k + 16])
            out.append(f"{line:<47} # {text}" if k == 0 else line)
    return "\n".join(out + ["```"])


def main():
    proto, names, raw = load_proto(), method_names(), dict(frames.FRAMES)
    page = re.sub(r"<!-- frame (\w+) -->\n```\n.*?```",
                  lambda m: f"<!-- frame {m[1]} -->\n" + block(raw[m[1]], proto, names), PAGE.read_text(), flags=re.S)
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
