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
METHOD.update(wait=12, heartbeat=13, members=14, claim=15, handover_list=16, claim_mark=17, claim_progress=18, list=65,
              inspect=66, flush=68, unpin=70, scrub=71, drain=72, events=75)
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
        self.s.settimeout(60)  # for a busy machine; nothing here waits so long
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

    def send(self, method, flags, request_id, message, *payload, **kw):
        self.s.sendall(frame(method, flags, request_id, message, *payload, **kw))

    def call(self, method, request_id, message, *payload, **kw):
        self.s.sendall(frame(method, 0, request_id, message, *payload, **kw))
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


class Session:
    """A control and a data connection, with a namespace of its own."""

    def __init__(self, path, who="python", role=1, token=b""):
        self.control, self.conn, self.next = Conn(path), Conn(path), 100
        self.hello = self.control.call("hello", 1, hello(role=role) + data(5, token))
        assert self.conn.call("hello", 1, hello(self.hello[5])).get(14) == 1
        self.descriptor = b"block_tokens=4\nwho=" + who.encode() + b"\n"
        self.digest = hashlib.sha256(self.descriptor).digest()
        m = self.ask("register_ns", data(1, self.digest) + data(2, self.descriptor) + SHAPE)
        self.ns = num(1, m[1]) if isinstance(m, dict) else m

    def id(self):
        self.next += 1
        return self.next

    def ask(self, method, message, *payload, conn=None, **kw):
        return (conn or self.control).call(method, self.id(), message, *payload, **kw)

    def begin(self, first, n, sums=None):
        ids = [block_id(first + i) for i in range(n)]
        parents = [bytes(32)] + ids if first == 0 else [block_id(first - 1)] + ids
        sums = sums or [block_sum(RANGE_SUMS, i) for i in ids]
        return self.ask("put_begin", self.ns + data(2, b"".join(ids)) + data(3, b"".join(parents[:n]))
                        + packed(4, [first + i for i in range(n)]) + packed64(5, sums))

    def put(self, first, n):
        m = self.begin(first, n)
        for i in range(n):
            assert self.ask("put_data", num(1, m[1]) + num(2, i), PAYLOAD, conn=self.conn) == {1: 1}
        m = self.ask("put_commit", num(1, m[1]) + packed(2, range(n)) + num(3, 1))
        assert m == {1: bytes(n)}, m

    def stream(self, message, **kw):
        """The whole answer to a Fetch: (fields, payload) a frame; or its error."""
        request_id, out = self.id(), []
        self.conn.send("fetch", 0, request_id, self.ns + message, **kw)
        while True:
            flags, m, payload = self.conn.read(request_id)
            if flags & ERROR:
                return "error", m[1]
            out.append((m, payload))
            if flags & END:
                return out

    def lookup(self, first, n, flags=0):
        return self.ask("lookup", self.ns + data(2, b"".join(block_id(first + i) for i in range(n))) + num(4, flags))


def sentences_of_reading(path):
    s = Session(path, "reading")
    s.put(0, 3)
    ids = b"".join(block_id(i) for i in range(3))
    # Fetch needs no lease; a run of ranges with all sums of the block; ranges that are none; a map.
    for first, n, part in ((0, 0, PAYLOAD), (0, 1, PAYLOAD[:64]), (1, 1, PAYLOAD[64:]), (1, 0, PAYLOAD[64:])):
        frames = s.stream(data(2, ids) + num(4, first) + num(5, n))
        assert [payload for _, payload in frames] == [part] * 3, (first, n)
        assert all(m.get(6, 0) == first and len(m[5]) == 16 for m, _ in frames)
        assert all(m[4] == block_sum(RANGE_SUMS, block_id(i)) for i, (m, _) in enumerate(frames))
    assert s.stream(data(2, ids) + num(4, 2)) == ("error", 1) == s.stream(data(2, ids) + num(5, 3)), "ranges"
    assert s.stream(data(2, ids) + num(6, 1)) == ("error", 2), "map is a feature"
    # With a lease and no ids: all that it covers, in order. Neither: refused. No such lease.
    m = s.lookup(0, 3, 2 + 8 + 64)
    frames = s.stream(num(3, m[3]))
    assert [f[0][4] for f in frames] == [block_sum(RANGE_SUMS, block_id(i)) for i in range(3)], frames
    assert s.stream(b"") == ("error", 1) and s.stream(num(3, m[3] + 1)) == ("error", 4)
    # Heartbeat renews what it names and nothing else, and says what has ended.
    assert s.ask("heartbeat", packed(1, [m[3]])) == {1: 1} and s.ask("heartbeat", b"") == {}
    assert s.ask("release", num(1, m[3])) == {1: 1}
    assert s.ask("heartbeat", packed(1, [m[3]])) == {3: packed(3, [m[3]])[2:]}
    # Unknown fields are skipped; Cancel of nothing; a Fetch of another connection can be named.
    assert s.ask("lookup", s.ns + data(2, ids) + data(99, b"x"))[1] == b"\1\1\1"
    assert s.ask("cancel", num(1, 77)) == {} == s.ask("cancel", num(1, 77) + num(2, 1))
    # One more id than Hello allows.
    assert s.ask("lookup", s.ns + data(2, bytes(32) * (s.hello[10] + 1))) == ("error", 7)
    return s


def sentences_of_putting(path):
    s = Session(path, "putting")
    # A corrupt payload is said by COMMIT, and by PutData when it is not one-way.
    m = s.begin(0, 2)
    s.conn.send("put_data", ONEWAY, s.id(), num(1, m[1]), bytes(192))
    assert s.ask("put_data", num(1, m[1]) + num(2, 1), bytes(192), conn=s.conn) == ("error", 10)
    m = s.ask("put_commit", num(1, m[1]) + packed(2, [0, 1]) + num(3, 1))
    assert m == {1: b"\2\2"}, m
    # What PutData answers: no such put, no block's size, there already; the sums may be there or not.
    assert s.ask("put_data", num(1, 1 << 40), PAYLOAD, conn=s.conn) == ("error", 4)
    m = s.begin(0, 2)
    assert s.ask("put_data", num(1, m[1]), PAYLOAD, conn=s.conn) == {1: 1}
    assert s.ask("put_data", num(1, m[1]), PAYLOAD, conn=s.conn) == ("error", 16)
    assert s.ask("put_data", num(1, m[1]) + num(2, 1), PAYLOAD[:64], conn=s.conn) == ("error", 1)
    # PutAbort: a COMMIT that waits answers CANCELED.
    m = s.begin(2, 1)
    commit = s.id()
    s.control.send("put_commit", 0, commit, num(1, m[1]) + packed(2, [0]))
    abort = s.id()
    s.control.send("put_abort", 0, abort, num(1, m[1]))
    flags, e, _ = s.control.read(commit)
    assert flags & ERROR and e[1] == 9, (flags, e)
    assert s.control.read(abort)[1] == {1: 1}
    # A COMMIT whose time passes answers DEADLINE, and stands. It held nothing up meanwhile.
    m = s.begin(2, 1)
    commit, touch = s.id(), s.id()
    s.control.send("put_commit", 0, commit, num(1, m[1]) + packed(2, [0]) + num(3, 1), deadline_ms=300)
    s.control.send("touch", 0, touch, s.ns + data(2, block_id(2)))
    s.control.read(touch)
    flags, e, _ = s.control.read(commit)
    assert flags & ERROR and e[1] == 8, (flags, e)
    assert s.ask("put_data", num(1, m[1]), PAYLOAD, conn=s.conn) == {1: 1}
    assert s.lookup(2, 1)[1] == b"\1"
    # More blocks than a put may have; fields that differ in number.
    n = 257
    assert s.begin(0, n, [0] * n) == ("error", 7)
    assert s.ask("put_begin", s.ns + data(2, block_id(0))) == ("error", 1)
    return s


def sentences_of_sessions(path):
    s = Session(path, "sessions")
    # Registration: sizes a multiple of 64, at most 512; any bytes of at most 4 KiB; the same again, other values.
    for shape in (packed(6, [64, 100]), packed(6, [64] * 513) + num(7, 1), b"", packed(6, [64]) + num(7, 2) + num(8, 8)):
        m = s.ask("register_ns", data(1, hashlib.sha256(b"x").digest()) + data(2, b"x") + shape + num(8, 8))
        assert m == ("error", 1), shape
    big, odd = b"y" * 4097, bytes(range(256)) * 16
    assert s.ask("register_ns", data(1, hashlib.sha256(big).digest()) + data(2, big) + SHAPE) == ("error", 1)
    assert s.ask("register_ns", data(1, hashlib.sha256(odd).digest()) + data(2, odd) + SHAPE)[1] > 0
    again = data(1, s.digest) + data(2, s.descriptor)
    assert num(1, s.ask("register_ns", again + SHAPE)[1]) == s.ns
    assert s.ask("register_ns", again + packed(6, RANGE_SIZES) + num(7, 1) + num(8, 8)) == ("error", 1)
    # Connections: methods keep to theirs; four data connections; one Hello each.
    assert s.stream.__self__.control.call("fetch", s.id(), s.ns + data(2, block_id(0))) == ("error", 5)
    assert s.ask("lookup", s.ns, conn=s.conn) == ("error", 5)
    assert s.ask("hello", hello()) == ("error", 13)
    assert s.ask("lookup", s.ns, b"x") == ("error", 1), "a payload where none belongs"
    more = [Conn(path) for _ in range(4)]
    assert [c.call("hello", 1, hello(s.hello[5])).get(14) for c in more[:3]] == [2, 3, 4]
    assert more[3].call("hello", 1, hello(s.hello[5])) == ("error", 3)
    # ONEWAY gets no answer, not even an error: the next answer is the next request's.
    s.control.send("lookup", ONEWAY, s.id(), num(1, 99))
    assert s.ask("touch", s.ns + data(2, block_id(0))) == {}
    for name in "wait members claim handover_list claim_mark claim_progress pin unpin scrub drain events".split():
        assert s.ask(name, b"") == ("error", 2), name
    # Features: CONFIG is offered, and on when the client has it, too. A version that is not spoken.
    assert Conn(path).call("hello", 1, hello() + num(3, 0x3FF)).get(2, 0) == 0x40
    assert Conn(path).call("hello", 1, num(1, 3) + num(2, 9) + num(4, 1)) == ("error", 14)
    # An answer sent to a node ends the connection; so does the session with its control connection.
    s.control.send("touch", RESPONSE, s.id(), b"")
    assert s.control.is_closed() and s.conn.is_closed() and more[0].is_closed()


def sentences_of_operators(path, tokens):
    s = Session(path, "operators", 3, tokens["admin"])
    s.put(0, 3)
    for n in (1, 2, 256):  # page by page, each once
        seen, cursor = [], b""
        while True:
            m = s.ask("list", num(1, 1) + data(2, cursor) + num(3, n) + data(4, s.digest))
            seen += [m[1]] if 1 in m else []
            cursor = m.get(4, b"")
            if not cursor:
                break
        assert n > 1 or len(seen) == 3, (n, len(seen))
    m = s.ask("inspect", data(1, block_id(1)) + data(2, s.digest))
    sums = [int.from_bytes(m[3][k:k + 8], "little") for k in (0, 8)]
    assert m[2] == block_id(2) and sums == RANGE_SUMS and decode(m[1])[4] == 1, m
    assert s.ask("inspect", data(1, block_id(1)) + data(2, bytes(32))) == ("error", 4)
    lease = s.lookup(0, 3, 2)[3]
    assert any(decode(m)[6] == 1 for m in [s.ask("list", num(1, 3))[3]]), "a session's leases"
    assert s.ask("evict", b"") == ("error", 1), "nothing says which"
    assert s.ask("evict", data(1, block_id(1))) == ("error", 1), "ids without their namespace"
    m = s.ask("evict", data(1, block_id(1)) + num(2, 1) + data(3, s.digest) + num(7, 1))
    assert m[1] == 2 and s.lookup(0, 3)[2] == 3, "a dry run"
    put_ms = decode(s.ask("inspect", data(1, block_id(0)) + data(2, s.digest))[1])[14]
    m = s.ask("evict", data(3, s.digest) + num(4, 1) + num(5, put_ms) + num(7, 1))
    assert m.get(1, 0) == 0, "to_ms itself is outside"
    m = s.ask("evict", data(3, s.digest) + num(4, put_ms) + num(5, put_ms + 1) + num(7, 1))
    assert m[1] >= 1, m
    m = s.ask("evict", data(1, block_id(1)) + num(2, 1) + data(3, s.digest))
    assert m[1] == 2 and m[5] > 0 and s.lookup(0, 3)[1] == b"\1\0\0", "invisible at once, leased or not"
    assert s.ask("release", num(1, lease)) == {1: 1}
    assert s.ask("flush", data(1, s.digest))[1] == 1
    # Roles and tokens.
    reader = Session(path, "operators", 2, tokens["reader"])
    assert reader.begin(0, 1) == ("error", 5), "a reader does not put"
    worker = Session(path, "operators", 1, tokens["worker"])
    assert worker.ask("evict", data(1, block_id(0))) == ("error", 5) == worker.ask("list", num(1, 1))
    for role, token in ((1, b"no-such-token-at-all"), (3, tokens["worker"]), (4, tokens["admin"]), (9, b"")):
        c = Conn(path)
        e = c.call("hello", 1, hello(role=role) + data(5, token))
        assert e in (("error", 5), ("error", 1)), (role, e)


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


def wrong_sizes(path):
    """A payload that is not as long as a block: nothing of it becomes visible, and nothing else suffers."""
    control, conn = Conn(path), Conn(path)
    m = control.call("hello", 1, hello())
    conn.call("hello", 2, hello(m[5]))
    digest = hashlib.sha256(DESCRIPTOR).digest()
    ns = control.call("register_ns", 2, data(1, digest) + data(2, DESCRIPTOR) + SHAPE)[1]
    for i, payload in ((120, PAYLOAD + PAYLOAD[:64]), (121, PAYLOAD + PAYLOAD), (122, PAYLOAD[:-64])):
        ident = block_id(i)
        put = control.call("put_begin", 3 * i, num(1, ns) + data(2, ident) + data(3, bytes(32)) + packed(4, [0])
                           + packed64(5, [block_sum(RANGE_SUMS, ident)]))[1]
        conn.s.sendall(frame("put_data", ONEWAY, 5, num(1, put) + num(2, 0) + packed64(3, RANGE_SUMS), payload))
        done = control.call("put_commit", 3 * i + 1, num(1, put) + packed(2, [0]) + num(3, 1))
        assert done[1] not in (b"\0", b"\1"), (len(payload), done)
        assert control.call("lookup", 3 * i + 2, num(1, ns) + data(2, ident))[1] == b"\0", len(payload)


def times(path):
    """A node with short limits: what a client leaves open ends by itself."""
    s = Session(path, "times")
    s.put(0, 1)
    lease = s.lookup(0, 1, 2)[3]
    while s.ask("heartbeat", packed(1, [lease])).get(1):
        time.sleep(s.hello[12] / 900)  # not renewed in time
    m = s.begin(1, 1)
    m = s.ask("put_commit", num(1, m[1]) + packed(2, [0]))
    assert m == {1: b"\3"}, "a put without progress"
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
        end = time.monotonic() + 60
        while not self.is_listening(path):
            assert time.monotonic() < end and self.p.poll() is None, "the node did not start"
            time.sleep(0.02)

    @staticmethod
    def is_listening(path):
        """Its file is there a moment before anybody listens on it."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            return s.connect_ex(path) == 0

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.p.terminate()
        code = self.p.wait(60)
        assert code == 0, code


TOKENS = {role: f"a-token-for-the-{role}".encode() for role in ("worker", "reader", "admin")}


def main():
    with tempfile.TemporaryDirectory() as tmp:
        path = tmp + "/node.sock"
        tokens = pathlib.Path(tmp) / "tokens"
        tokens.write_text("".join(f"{role} {token.decode()}\n" for role, token in TOKENS.items()))
        tokens.chmod(0o600)
        with Node(sys.argv[1], path):
            keep = happy_path(path)
            refusals(path)
            kept = sentences_of_reading(path), sentences_of_putting(path)
            sentences_of_sessions(path)
            wrong_sizes(path)
            keep.call("touch", 14, num(1, 1) + data(2, block_id(1)))  # still served after all that
            assert all(k.lookup(0, 1)[1] in (b"\0", b"\1") for k in kept)
        with Node(sys.argv[1], path, "--token-file", str(tokens), "--hello-delay-ms", "10"):
            sentences_of_operators(path, TOKENS)
        with Node(sys.argv[1], path, "--hello-timeout-ms", "1500", "--frame-timeout-ms", "800", "--session-silence-ms", "2500",
                  "--lease-ttl-ms", "300", "--put-ttl-ms", "300"):
            times(path)
    print("ok")


if __name__ == "__main__":
    main()
