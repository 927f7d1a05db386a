#!/usr/bin/env python3
"""Writes disk_format.bin: super block, extent header, slot header and removal records as
cachesvc/store/disk_format.h describes them, made without our C code
(tests/unit/cachesvc/test_disk_format.c compares)."""
import struct
import sys


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def seal(body, size):
    body += bytes(size - 4 - len(body))
    return body + struct.pack("<I", crc32c(body))


def sealed_record(body):
    return seal(body, 128)


store_id = bytes(range(0xA0, 0xB0))
pool_id = bytes(range(0xC0, 0xD0))
super_block = seal(
    b"INCIPIT2"
    + struct.pack("<IIQ", 2, 65536, 64 << 20)
    + store_id
    + pool_id
    + struct.pack("<H6xQQ", 513, 8192, 65536 * 128),
    4096,
)
namespace = bytes(range(0, 32))
removals = (
    sealed_record(struct.pack("<QQQQH6x", 1, 1700000000123, 1700000000456, 0, 1))
    + sealed_record(
        struct.pack("<QQQQH6x", 2, 1700000000123, 1700000000456, 1600000000000, 2)
        + namespace
        + bytes(range(96, 112))
    )
    + sealed_record(
        struct.pack("<QQQQH6x", 3, 1700000000123, 1700000000456, 0, 3)
        + namespace
        + bytes(range(32, 64))
    )
    + sealed_record(
        struct.pack("<QQQQH6x", 4, 1700000000123, 1700000000456, 0, 4)
        + bytes(32)
        + struct.pack("<Q", 0xFEDCBA9876543210)
    )
)
extent = seal(b"INX1" + struct.pack("<IIIQ", 1, 741376, 90, 7) + store_id, 4096)
slot = seal(
    b"INS1"
    + struct.pack("<HHQQQ", 2, 1, 7, 0x123456789A, 1700000000123)
    + namespace
    + bytes(range(32, 64))  # id
    + bytes(range(64, 96))  # parent
    + bytes(range(96, 112))  # writer
    + struct.pack("<QQQ", 0xFEDCBA9876543210, 0x0123456789ABCDEF, 11)
    + struct.pack("<III", 737280, 30, 46)
    + struct.pack("<HxxI", 1, 512),  # an encoding to come, and what it left of the payload
    512,
)
sys.stdout.buffer.write(super_block + extent + slot + removals)
