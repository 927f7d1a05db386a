#!/usr/bin/env python3
"""A client of the node in another language, from proto/WIRE.md and the .proto files alone.

    wire_client.py INCIPIT_CACHESVC

Starts a node on a Unix socket, opens a session with a data connection, puts two blocks, looks them up, fetches
them, and checks every kind of refusal that the page promises. Frames come from tests/golden/frames.py, which
shares no code with proto/.
"""
import hashlib
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "golden"))
from frames import (END, ERROR, METHOD, ONEWAY, PAYLOAD, RANGE_SIZES, RANGE_SUMS, RESPONSE,  # noqa: E402
                    block_id, block_sum, crc32c, data, frame, num, packed, packed64)

DESCRIPTOR = b"block_tokens=4\nwho=python\n"
METHOD["wait"] = 12
SHAPE = packed(6, RANGE_SIZES) + num(7, 2) + num(8, 8)


def read_varint(b, i):
    value = shift = 0
    while True:
        value |= (b[i] & 0x7F) << shift
        shift += 7
        i += 1
        if not b[i - 1] & 0x80:
            return value, i


def decode(message):
    """{field number: last value}; enough for messages without repeated submessages."""
    out, i = {}, 0
    while i < len(message):
        tag, i = read_varint(message, i)
        if tag & 7 == 0:
            out[tag >> 3], i = read_varint(message, i)
        elif tag & 7 == 1:
            out[tag >> 3] = int.from_bytes(message[i:i + 8], "little")
            i += 8
        else:
            n, i = read_varint(message, i)
            out[tag >> 3] = message[i:i + n]
            i += n
    return out


class Conn:
    def __init__(self, path):
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.s.settimeout(10)
        self.s.connect(path)

    def exact(self, n):
        b = b""
        while len(b) < n:
            piece = self.s.recv(n - len(b))
            if not piece:
                raise EOFError
            b += piece
        return b

    def read(self, want_id, version=2):
        head = self.exact(32)
        assert head[:4] == b"INCP" and head[4] == version, head
        flags, request_id = head[5], int.from_bytes(head[8:16], "little")
        n, n_payload = (int.from_bytes(head[k:k + 4], "little") for k in (16, 20))
        message = self.exact(n)
        assert crc32c(head[:28] + message) == int.from_bytes(head[28:], "little"), "CRC"
        assert request_id == want_id, (request_id, want_id)
        return flags, decode(message), self.exact(n_payload)

    def call(self, method, request_id, message, **kw):
        self.s.sendall(frame(method, 0, request_id, message, **kw))
        flags, m, _ = self.read(request_id)
        assert flags & RESPONSE and flags & END, flags
        return ("error", m[1]) if flags & ERROR else m

    def is_closed(self):
        try:
            return self.s.recv(1) == b""
        except ConnectionResetError:
            return True


def hello(session=b"", role=1):
    return num(1, 2) + num(2, 2) + num(4, role) + data(6, "python") + data(7, session)


def happy_path(path):
    control, conn = Conn(path), Conn(path)
    m = control.call("hello", 1, hello(), deadline_ms=2000)
    session = m[5]
    assert m[1] == 2 and len(session) == 16 and m.get(2, 0) == 0, m
    m = conn.call("hello", 1, hello(session))
    assert m.get(14) == 1, m  # the first data connection
    digest = hashlib.sha256(DESCRIPTOR).digest()
    m = control.call("register_ns", 2, data(1, digest) + data(2, DESCRIPTOR) + SHAPE)
    ns = m[1]
    ids = block_id(0) + block_id(1)
    m = control.call("lookup", 3, num(1, ns) + data(2, ids))
    assert m[1] == b"\0\0" and m.get(2, 0) == 0, m

    # Put: both wanted; data on the data connection, COMMIT on control before it: the node waits.
    m = control.call("put_begin", 4, num(1, ns) + data(2, ids) + data(3, bytes(32) + block_id(0)) + packed(4, [0, 1])
                     + packed64(5, [block_sum(RANGE_SUMS, block_id(i)) for i in (0, 1)]))
    put_id = m[1]
    assert m[2] == b"\0\0", m
    control.s.sendall(frame("put_commit", 0, 5, num(1, put_id) + packed(2, [0, 1]) + num(3, 1)))
    for i in range(2):
        conn.s.sendall(frame("put_data", ONEWAY, 90 + i, num(1, put_id) + num(2, i) + packed64(3, RANGE_SUMS), PAYLOAD))
    flags, m, _ = control.read(5)
    assert flags == RESPONSE | END and m[1] == b"\0\0", (flags, m)

    # Pipelined: a lookup with a lease, and an unknown method behind it.
    control.s.sendall(frame("lookup", 0, 6, num(1, ns) + data(2, ids) + num(4, 3))
                      + frame("wait", 0, 7, num(1, ns) + data(2, ids)))
    flags, m, _ = control.read(6)
    assert m[1] == b"\1\1" and m[2] == 2 and m[3] != 0 and m[5] == 2, m
    lease = m[3]
    flags, e, _ = control.read(7)
    assert flags & ERROR and e[1] == 2, (flags, e)

    # Fetch: two there, one not.
    conn.s.sendall(frame("fetch", 0, 8, num(1, ns) + data(2, ids + block_id(5))))
    for i in range(3):
        flags, m, payload = conn.read(8)
        assert m.get(1, 0) == i and bool(flags & END) == (i == 2), (flags, m)
        if i < 2:
            sums = [int.from_bytes(m[5][k:k + 8], "little") for k in (0, 8)]
            assert payload == PAYLOAD and sums == RANGE_SUMS and m[4] == block_sum(sums, block_id(i)), m
        else:
            assert m[3] == 1 and payload == b"", m
    control.s.sendall(frame("release", ONEWAY, 9, num(1, lease) + num(2, 2)))
    m = control.call("touch", 10, num(1, ns) + data(2, block_id(1)))
    assert m.get(1) == 1, m
    # A put of the same id with another checksum is a conflict; a depth that does not fit is bad,
    # and takes none of its neighbours with it.
    m = control.call("put_begin", 11, num(1, ns) + data(2, block_id(0)) + data(3, bytes(32)) + packed(4, [0])
                     + packed64(5, [1]))
    assert m[2] == b"\3" and m.get(1, 0) == 0, m
    m = control.call("put_begin", 12, num(1, ns) + data(2, block_id(7) + block_id(2))
                     + data(3, block_id(1) + block_id(1)) + packed(4, [9, 2]) + packed64(5, [1, 1]))
    assert m[2] == b"\5\0", m
    control.call("put_abort", 13, num(1, m[1]))

    # Origin: who computed a block and when travels with it; a time to come is now.
    def put_as(number, i, origin, time_ms):
        got = control.call("put_begin", number, num(1, ns) + data(2, block_id(i)) + data(3, block_id(1)) + packed(4, [2])
                           + packed64(5, [block_sum(RANGE_SUMS, block_id(i))]) + data(12, origin) + packed(13, [time_ms]))
        if got[2] == b"\0":
            conn.s.sendall(frame("put_data", ONEWAY, 95, num(1, got[1]) + packed64(3, RANGE_SUMS), PAYLOAD))
            assert control.call("put_commit", number + 1, num(1, got[1]) + packed(2, [0]) + num(3, 1))[1] == b"\0"
        return got[2]

    def origin_of(number, i):
        conn.s.sendall(frame("fetch", 0, number, num(1, ns) + data(2, block_id(i))))
        got = conn.read(number)[1]
        return got[10], got[11]

    origin, then = bytes(range(16)), 1650000000123
    assert put_as(20, 2, origin, then) == b"\0"
    assert origin_of(22, 2) == (origin, then)
    assert put_as(23, 3, origin, 4000000000000) == b"\0"
    assert abs(origin_of(25, 3)[1] / 1000 - time.time()) < 60

    # What an operator removed is not taken again with an origin from before; computed anew it is.
    admin = Conn(path)
    admin.call("hello", 1, hello(role=3))
    m = admin.call("evict", 2, data(1, block_id(2)) + data(3, digest))
    assert m[1] == 1 and m[2] == len(PAYLOAD), m
    assert put_as(26, 2, origin, then) == b"\6"
    assert put_as(27, 2, origin, 0) == b"\0"
    return control


def refusals(path):
    c = Conn(path)
    assert c.call("lookup", 1, b"") == ("error", 5), "before Hello"
    c.call("hello", 2, hello())
    assert c.call("evict", 3, data(1, block_id(0))) == ("error", 5), "a worker may not evict"
    assert c.call("lookup", 4, b"\xff\xff") == ("error", 13), "garbled message"
    assert c.call("lookup", 5, num(1, 99) + data(2, block_id(0)))[0] == "error", "unknown namespace"
    assert c.call("register_ns", 6, data(1, bytes(32)) + data(2, DESCRIPTOR) + SHAPE) == ("error", 1), "digest of another descriptor"
    # What ends the connection: one error frame with the code of the page, then the end.
    good = frame("lookup", 0, 7, b"")
    for name, at, value, code in (("version", 4, 9, 14), ("CRC", 28, good[28] ^ 1, 10), ("message", 19, 0x7F, 7),
                                  ("payload", 23, 0x7F, 7), ("magic", 0, 0, None), ("flags", 5, 0x80, None)):
        c = Conn(path)
        c.call("hello", 1, hello())
        c.s.sendall(good[:at] + bytes([value]) + good[at + 1:])
        if code:
            flags, e, _ = c.read(7)
            assert flags & ERROR and e[1] == code, (name, flags, e)
        assert c.is_closed(), name
    c = Conn(path)
    assert c.call("hello", 1, hello(session=bytes(16)))[0] == "error", "unknown session token"
    # Version 1 has the same layout: its client is told in a frame that it can read.
    c = Conn(path)
    c.s.sendall(frame("hello", 0, 7, hello(), version=1))
    flags, e, _ = c.read(7, version=1)
    assert flags & ERROR and e[1] == 14 and c.is_closed(), (flags, e)


def times(path):
    """A node with short limits: what a client leaves open ends by itself."""
    c = Conn(path)
    assert c.is_closed(), "A8: no Hello"
    c = Conn(path)
    c.call("hello", 1, hello())
    c.s.sendall(frame("lookup", 0, 2, b"")[:-7])
    assert c.is_closed(), "A8: half a frame"
    control, conn = Conn(path), Conn(path)
    m = control.call("hello", 1, hello())
    conn.call("hello", 2, hello(m[5]))
    assert control.is_closed() and conn.is_closed(), "A11: a silent session"


class Node:
    def __init__(self, program, path, *more):
        self.p = subprocess.Popen([program, "--listen", "", "--http-listen", "", "--unix-listen", path, "--ram-bytes", "16m",
                                   "--min-slot-bytes", "4k", "--log-level", "error", *more], stdout=subprocess.DEVNULL)
        end = time.monotonic() + 20
        while not pathlib.Path(path).exists():
            assert time.monotonic() < end and self.p.poll() is None, "the node did not start"
            time.sleep(0.02)

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.p.terminate()
        code = self.p.wait(20)
        assert code == 0, code


def main():
    with tempfile.TemporaryDirectory() as tmp:
        path = tmp + "/node.sock"
        with Node(sys.argv[1], path):
            keep = happy_path(path)
            refusals(path)
            keep.call("touch", 14, num(1, 1) + data(2, block_id(1)))  # still served after all that
        with Node(sys.argv[1], path, "--hello-timeout-ms", "300", "--frame-timeout-ms", "300",
                  "--session-silence-ms", "1000"):
            times(path)
    print("ok")


if __name__ == "__main__":
    main()
