#!/usr/bin/env python3
"""Makes messages.txt: one message a line, "name hex", every field of every message set.

    tests/golden/messages.py > tests/golden/messages.txt
    tests/golden/messages.py --corpus tests/fuzz/corpus/wire_msg

From the .proto files alone; tests/unit/proto/wire_samples.c has the same values, test_wire_golden.c compares. The
fuzzer's corpus is the same messages, each behind its number in the list.
"""
import pathlib
import struct
import sys

import frames
from page_frames import load_proto

B16 = bytes(range(1, 17))
B32 = bytes([9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2, 3, 4, 5, 6]) + bytes(16)
IDS = bytes([1, 2, 3]) + bytes(29) + bytes([4, 5, 6]) + bytes(29)
U32S = [1, 0, 4000000000]
U64S = [0, (1 << 64) - 1]
BLOCK = dict(id=B32, parent=B32, digest=B32, depth=1, state=1, ram=3, disk=4, payload_bytes=100, checksum=5, generation=6,
             leases=7, pins=8, n_children=9, put_time_ms=10, put_seq=11, writer=B16, group=12, foreign=1, encoding=13,
             stored_bytes=14)
NAMESPACE = dict(digest=B32, descriptor=b"a=1\n", payload_bytes=1, n_ranges=2, slot_bytes=4, blocks_ram=5, blocks_disk=6,
                 range_sizes=U32S, n_full=7, seg_blocks=8)
SESSION = dict(session=1, client_name="w", peer="p:1", role=1, data_conns=2, leases=3, puts_open=4, age_ms=5)
MEMBER = dict(node_id=1, address="a:1", epoch=2, capacity_bytes=3, used_bytes=4, mac=b"mac", weight=5, state=1,
              store_id=B16, time_ms=6, load=7)
STATS = ("node_id epoch uptime_ms state ram_bytes ram_used_bytes disk_bytes disk_used_bytes max_blocks blocks_ram "
         "blocks_disk holes leases pins puts_open sessions connections namespaces lookup_blocks lookup_hits fetch_blocks "
         "put_blocks evict_blocks conflicts corrupt").split()

# name in C, message, fields; in the order of wire_samples.c
MESSAGES = [
    ("error", "Error", dict(code=3, text="busy")),
    ("ack", "Ack", dict(count=1 << 40)),
    ("hello_req", "HelloReq", dict(version_min=1, version_max=2, features=3, role=4, token=b"secret", client_name="name",
                                   session_token=B16, writer=B16, node_id=5, node_epoch=6)),
    ("hello_res", "HelloRes", dict(version=1, features=2, node_id=3, epoch=4, session_token=B16, node_name="node",
                                   server_version="0.1.0", max_message_bytes=5, max_payload_bytes=6, max_ids=7,
                                   max_data_conns=8, lease_ttl_ms=9, max_inflight=10, conn=11, map_bytes=12,
                                   min_slot_bytes=13, map_table_offset=14, pool_time_ms=15)),
    ("register_ns_req", "RegisterNamespaceReq", dict(digest=B32, descriptor=b"a=1\n", range_sizes=U32S, n_full=2,
                                                     seg_blocks=8)),
    ("register_ns_res", "RegisterNamespaceRes", dict(ns=1, slot_bytes=4096, resident_blocks=5)),
    ("lookup_req", "LookupReq", dict(ns=1, ids=IDS, have=1, flags=11, traceparent="00-1", group=4)),
    ("lookup_res", "LookupRes", dict(status=b"\1\2\0", n_prefix=2, lease_id=3, lease_first=1, lease_count=2,
                                     lease_ttl_ms=5000, hint_nodes=U32S, claim_id=4, claim_first=5, claim_wait_ms=6,
                                     map_offset=U64S, map_generation=U64S, claim_home=7, why=b"\3\0", why_age_s=U32S,
                                     map_checksums=U64S, hint_epochs=U64S)),
    ("touch_req", "TouchReq", dict(ns=1, ids=IDS, traceparent="t")),
    ("fetch_req", "FetchReq", dict(ns=1, ids=IDS, lease_id=2, first_range=3, n_ranges=4, flags=1, traceparent="t",
                                   group=5)),
    ("fetch_block", "FetchBlock", dict(index=1, count=2, status=3, checksum=U64S[1], range_checksums=U64S, first_range=4,
                                       n_ranges=5, map_offset=6, map_generation=7, origin_writer=B16, origin_time_ms=8)),
    ("cancel_req", "CancelReq", dict(request_id=5, conn=2)),
    ("put_begin_req", "PutBeginReq", dict(ns=1, ids=IDS, parents=IDS, depths=U32S, checksums=U64S, block_flags=b"\0\1",
                                          writer=B16, group=2, priority=1, claim_id=3, traceparent="t",
                                          origin_writers=B32, origin_times_ms=U64S)),
    ("put_begin_res", "PutBeginRes", dict(put_id=1, status=b"\0\1", ttl_ms=3)),
    ("put_data", "PutData", dict(put_id=1, index=2, range_checksums=U64S)),
    ("put_commit_req", "PutCommitReq", dict(put_id=1, indexes=U32S, last=1)),
    ("put_commit_res", "PutCommitRes", dict(status=b"\0\2")),
    ("put_abort_req", "PutAbortReq", dict(put_id=1)),
    ("release_req", "ReleaseReq", dict(lease_id=1, used=2, claim_id=3)),
    ("wait_req", "WaitReq", dict(ns=1, ids=IDS, traceparent="t", claim_id=2, home_node=3)),
    ("wait_event", "WaitEvent", dict(index=1, count=2, status=3)),
    ("heartbeat_req", "HeartbeatReq", dict(lease_ids=U64S, claim_ids=U64S)),
    ("heartbeat_res", "HeartbeatRes", dict(renewed=1, recalled=U64S, ended=U64S)),
    ("members_req", "MembersReq", dict(follow=1, after_removal=2)),
    ("members_res", "MembersRes", dict(members=[MEMBER, {}], version=5, placement_version=6, hot=B16,
                                       removals=bytes([1, 2, 3]) + bytes(125))),
    ("claim_req", "ClaimReq", dict(ns=1, ids=IDS, expect_ms=2, group=3, traceparent="t")),
    ("claim_res", "ClaimRes", dict(claim_id=1, taken_id=2, covered=3, done=4, eta_ms=5)),
    ("claim_mark_req", "ClaimMarkReq", dict(ns=1, claim_id=2, home_node=3, ids=IDS, ttl_ms=4)),
    ("claim_progress", "ClaimProgress", dict(claim_id=1, done=2, eta_ms=3)),
    ("handover_list_req", "HandoverListReq", dict(digest=B32, node_id=1, placement_version=2, cursor=b"cur", limit=3)),
    ("handover_list_res", "HandoverListRes", dict(ids=IDS, parents=IDS, depths=U32S, checksums=U64S, origin_writers=B32,
                                                  origin_times_ms=U64S, groups=U64S, ages_s=U32S, block_flags=b"\0\1",
                                                  cursor=b"next")),
    ("stats_req", "StatsReq", {}),
    ("stats_res", "StatsRes", dict(dict(zip(STATS, [1, 2, 3, 1] + list(range(4, 25)))), node_name="n", version="v",
                                   index_state=2, counters=[dict(name="x_total", value=1.5), dict(name="y", value=-.25)])),
    ("list_req", "ListReq", dict(what=1, cursor=b"cur", limit=10, digest=B32)),
    ("list_res", "ListRes", dict(blocks=[BLOCK], namespaces=[NAMESPACE], sessions=[SESSION], cursor=b"next")),
    ("inspect_req", "InspectReq", dict(id=B32, digest=B32)),
    ("inspect_res", "InspectRes", dict(block=BLOCK, children=IDS, range_checksums=U64S, nodes=U32S)),
    ("evict_req", "EvictReq", dict(ids=IDS, descendants=1, digest=B32, from_ms=1, to_ms=2, writer=B16, dry_run=1,
                                   before_ms=3, group=4)),
    ("evict_res", "EvictRes", dict(blocks=1, bytes=2, deferred=3, puts_aborted=4, before_ms=5)),
    ("flush_req", "FlushReq", dict(digest=B32, before_ms=1)),
    ("pin_req", "PinReq", dict(ids=IDS, descendants=1, label="why", digest=B32)),
    ("pin_res", "PinRes", dict(blocks=1, absent=2, over_limit=3)),
    ("scrub_req", "ScrubReq", dict(op=1, bytes_per_s=2)),
    ("scrub_res", "ScrubRes", dict(running=1, checked=2, corrupt=3, left=4)),
    ("drain_req", "DrainReq", dict(on=1, grace_ms=100)),
    ("config_get_req", "ConfigGetReq", dict(name="ram_bytes")),
    ("config_get_res", "ConfigGetRes", dict(items=[dict(name="a", value="b", default_value="c", live=1, help="help")])),
    ("config_set_req", "ConfigSetReq", dict(name="a", value="b")),
    ("events_req", "EventsReq", dict(kinds=1, after_seq=2)),
    ("event", "Event", dict(seq=1, time_ms=2, kind=3, ids=IDS, text="t", lost=4)),
]


def encode(proto, message, fields):
    out, rest = b"", dict(fields)
    for number, (name, kind) in sorted(proto[message].items()):
        if name not in rest:
            continue
        value = rest.pop(name)
        if kind in proto:
            out += b"".join(frames.varint(number << 3 | 2) + frames.varint(len(b)) + b
                            for b in (encode(proto, kind, v) for v in (value if isinstance(value, list) else [value])))
        elif isinstance(value, list):
            out += (frames.packed64 if kind == "fixed64" else frames.packed)(number, value)
        elif kind in ("bytes", "string"):
            out += frames.data(number, value)
        elif kind == "fixed64":
            out += frames.fix64(number, value)
        elif kind == "double":
            out += frames.varint(number << 3 | 1) + struct.pack("<d", value)
        else:
            out += frames.num(number, value)
    assert not rest, (message, rest)
    return out


def main():
    proto = load_proto()
    for i, (name, message, fields) in enumerate(MESSAGES):
        raw = encode(proto, message, fields)
        if len(sys.argv) == 3:
            (pathlib.Path(sys.argv[2]) / name).write_bytes(bytes([i]) + raw)
        else:
            print(name, raw.hex())


if __name__ == "__main__":
    main()
