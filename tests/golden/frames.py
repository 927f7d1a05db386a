#!/usr/bin/env python3
"""Makes frames.txt: one frame a line, "name hex", from WIRE.md and the .proto files alone.

It shares no code with proto/, on purpose: the unit test compares what our C writes with what this page's
reader would write. XXH3-64 is written out below for the lengths that the examples have (python has none).
"""
import struct

METHOD = dict(hello=1, register_ns=2, lookup=3, touch=4, fetch=5, cancel=6, put_begin=7, put_data=8,
              put_commit=9, put_abort=10, release=11, stats=64, evict=67, pin=69)
RESPONSE, END, ERROR, ONEWAY = 1, 2, 4, 8


def crc32c(data, crc=0):
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


XXH3_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8"
    "fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364")
MASK64 = (1 << 64) - 1


def xxh3(b):
    """XXH3-64 of 17 to 128 bytes, seed 0: pairs of 16 bytes from both ends."""
    assert 17 <= len(b) <= 128

    def mix(at, secret_at):
        x0, x1 = struct.unpack_from("<QQ", b, at)
        s0, s1 = struct.unpack_from("<QQ", XXH3_SECRET, secret_at)
        product = (x0 ^ s0) * (x1 ^ s1)
        return (product & MASK64) ^ (product >> 64)

    h = len(b) * 0x9E3779B185EBCA87
    for k in range((len(b) - 1) // 32, -1, -1):
        h += mix(16 * k, 32 * k) + mix(len(b) - 16 * (k + 1), 32 * k + 16)
    h &= MASK64
    h = (h ^ (h >> 37)) * 0x165667919E3779F9 & MASK64
    return h ^ (h >> 32)


def block_sum(sums, ident):
    return xxh3(b"".join(struct.pack("<Q", n) for n in sums) + ident)


def varint(n):
    out = b""
    while n > 0x7F:
        out += bytes([n & 0x7F | 0x80])
        n >>= 7
    return out + bytes([n])


def num(field, n):
    return varint(field << 3) + varint(n) if n else b""


def fix64(field, n):
    return varint(field << 3 | 1) + struct.pack("<Q", n) if n else b""


def data(field, b):
    b = b.encode() if isinstance(b, str) else b
    return varint(field << 3 | 2) + varint(len(b)) + b if b else b""


def packed(field, numbers):
    return data(field, b"".join(varint(n) for n in numbers))


def packed64(field, numbers):
    return data(field, b"".join(struct.pack("<Q", n) for n in numbers))


def frame(method, flags, request_id, message, payload=b"", deadline_ms=0, version=2):
    head = struct.pack("<4sBBHQIII", b"INCP", version, flags, METHOD[method], request_id, len(message),
                       len(payload), deadline_ms)
    return head + struct.pack("<I", crc32c(head + message)) + message + payload


def block_id(i):
    return bytes((i * 16 + k) & 255 for k in range(32))


PAYLOAD = bytes(range(192))  # two ranges, of 64 and 128 bytes
RANGE_SIZES = [64, 128]
RANGE_SUMS = [xxh3(PAYLOAD[:64]), xxh3(PAYLOAD[64:])]
BLOCK_SUM = block_sum(RANGE_SUMS, block_id(0))
IDS = block_id(0) + block_id(1)

FRAMES = [
    ("hello_req", frame("hello", 0, 1, num(1, 2) + num(2, 2) + num(4, 1) + data(5, "a-secret-of-a-worker")
                        + data(6, "worker-a"), deadline_ms=2000)),
    ("hello_res", frame("hello", RESPONSE | END, 1, num(1, 2) + num(3, 7) + num(4, 1767225600)
                        + data(5, bytes(range(16))) + data(6, "node-7") + data(7, "0.1.0")
                        + num(8, 1 << 20) + num(9, 256 << 20) + num(10, 8192) + num(11, 4)
                        + num(12, 5000) + num(13, 256))),
    ("hello_join", frame("hello", 0, 2, num(1, 2) + num(2, 2) + num(4, 1) + data(5, "a-secret-of-a-worker")
                         + data(6, "worker-a") + data(7, bytes(range(16))), deadline_ms=2000)),
    ("register_ns_req", frame("register_ns", 0, 3, data(1, block_id(9)) + data(2, "b=32\nkv=f16\n")
                              + packed(6, RANGE_SIZES) + num(7, 2) + num(8, 8))),
    ("register_ns_res", frame("register_ns", RESPONSE | END, 3, num(1, 1) + num(2, 4096))),
    ("lookup_req", frame("lookup", 0, 4, num(1, 1) + data(2, IDS) + num(3, 1) + num(4, 3)
                         + data(5, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
                         deadline_ms=50)),
    ("lookup_res", frame("lookup", RESPONSE | END, 4, data(1, bytes([1, 2])) + num(2, 2) + num(3, 77)
                         + num(4, 1) + num(5, 1) + num(6, 5000))),
    ("fetch_req", frame("fetch", 0, 5, num(1, 1) + data(2, IDS), deadline_ms=250)),
    ("fetch_block", frame("fetch", RESPONSE, 5, num(2, 1) + fix64(4, BLOCK_SUM)
                          + packed64(5, RANGE_SUMS) + num(7, 2), PAYLOAD)),
    ("fetch_miss", frame("fetch", RESPONSE | END, 5, num(1, 1) + num(2, 1) + num(3, 1))),
    ("cancel", frame("cancel", ONEWAY, 6, num(1, 5))),
    ("put_begin_req", frame("put_begin", 0, 7, num(1, 1) + data(2, IDS)
                            + data(3, bytes(32) + block_id(0)) + packed(4, [0, 1])
                            + packed64(5, [BLOCK_SUM, 99]) + data(6, bytes([0, 1]))
                            + num(8, 5) + num(9, 1))),
    ("put_begin_res", frame("put_begin", RESPONSE | END, 7, num(1, 12) + data(2, bytes([0, 1]))
                            + num(3, 30000))),
    ("put_data", frame("put_data", ONEWAY, 8, num(1, 12) + packed64(3, RANGE_SUMS), PAYLOAD)),
    ("put_commit_req", frame("put_commit", 0, 9, num(1, 12) + packed(2, [0]) + num(3, 1))),
    ("put_commit_res", frame("put_commit", RESPONSE | END, 9, data(1, bytes([0])))),
    ("release", frame("release", ONEWAY, 10, num(1, 77) + num(2, 2))),
    ("version_error", frame("hello", RESPONSE | END | ERROR, 1, num(1, 14) + data(2, "frame version 2 is spoken here"),
                            version=1)),
    ("pin_error", frame("pin", RESPONSE | END | ERROR, 11, num(1, 2)
                        + data(2, "Pin (69) is not implemented"))),
    ("evict_req", frame("evict", 0, 12, data(1, block_id(1)) + num(2, 1))),
]

if __name__ == "__main__":
    for name, raw in FRAMES:
        print(name, raw.hex())
