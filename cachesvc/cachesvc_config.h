/* cachesvc_config.h - the node's options, one row each (common/config.h has the columns). */
#pragma once

#include "common/config.h"
#include "common/svc_main.h"

#define CACHESVC_CONFIG(X)                                                                         \
    SVC_OPTIONS(X)                                                                                 \
    X(listen, LIST, "127.0.0.1:7070", 0, 16, false,                                                \
      "RPC address, HOST:PORT; repeatable; empty: none")                                           \
    X(unix_listen, STR, "", 0, 107, false, "RPC on a Unix socket at this path")                    \
    X(http_listen, STR, "127.0.0.1:7071", 0, 256, false,                                           \
      "HOST:PORT of /metrics, /healthz, /readyz; empty: none")                                     \
    X(insecure_no_auth, BOOL, false, 0, 0, false,                                                  \
      "allow listening beyond loopback without --token-file")                                      \
    X(token_file, STR, "", 0, 4096, false,                                                         \
      "file of tokens, a line each: ROLE TOKEN [NAMESPACE-DIGEST ...]; roles worker, reader, "     \
      "admin")                                                                                     \
    X(hello_delay_ms, U32, 1000, 0, 10000, true,                                                   \
      "a Hello with a wrong token is answered after this, then its connection is closed, ms")      \
    X(access_log, BOOL, false, 0, 0, true,                                                         \
      "a log line for each request, and for each fetch that ends")                                 \
    X(node_id, U32, 1, 1, 65535, false, "this node's number in the pool, unique")                  \
    X(node_name, STR, "", 0, 63, false, "name in logs and listings; empty: node-<id>")             \
    X(advertise, STR, "", 0, 256, false,                                                           \
      "address for clients in the index; empty: the first --listen")                               \
    X(ram_bytes, U64, 1ull << 30, 1ull << 20, 1ull << 44, false, "RAM tier, bytes")                \
    X(huge_pages, BOOL, true, 0, 0, false,                                                         \
      "RAM tier in huge pages where the machine has some reserved")                                \
    X(disk_dir, STR, "", 0, 4000, false, "directory of the disk tier; empty: none")                \
    X(disk_bytes, U64, 0, 0, 1ull << 50, false, "disk tier, bytes, allocated at start; 0: none")   \
    X(disk_reformat, BOOL, false, 0, 0, false,                                                     \
      "replace a block file that is refused (other format, broken, other geometry) by a new one")  \
    X(max_blocks, U32, 0, 0, 1u << 31, false,                                                      \
      "directory entries, holes too; 0: (RAM + disk) / 256 KiB")                                   \
    X(min_slot_bytes, U32, 65536, 4096, 1u << 30, false, "smallest slot, a multiple of 4096")      \
    X(max_sessions, U32, 1024, 1, 65535, false, "client sessions")                                 \
    X(max_data_conns, U32, 4, 1, 4, false, "data connections of a session")                        \
    X(max_ids, U32, 4096, 8, 8192, false, "block ids in one request")                              \
    X(max_fetches, U32, 256, 1, 65535, false,                                                      \
      "fetch streams that run at a time; sessions share them")                                     \
    X(max_waiting, U32, 256, 1, 65535, false,                                                      \
      "Fetch requests of one session that wait for their turn; more are answered BUSY")            \
    X(max_waiting_bytes, U64, 64ull << 20, 1ull << 20, 1ull << 40, false,                          \
      "memory of all waiting requests; sessions share it")                                         \
    X(min_reader_bytes, U32, 16384, 0, 1u << 30, true,                                             \
      "a reader that takes fewer bytes a second than this for 10 s is dropped; 0: never")          \
    X(max_inflight_bytes, U64, 64ull << 20, 1ull << 20, 1ull << 40, false,                         \
      "payload queued on one connection")                                                          \
    X(max_puts, U32, 4096, 1, 65535, false, "open puts; sessions share them")                      \
    X(max_put_blocks, U32, 256, 1, 4096, false, "blocks of one put")                               \
    X(max_commits, U32, 1024, 1, 65535, false,                                                     \
      "commits that wait for payloads; sessions share them")                                       \
    X(lease_ttl_ms, U32, 5000, 100, 600000, false, "a lease without a heartbeat ends after, ms")   \
    X(put_ttl_ms, U32, 30000, 100, 600000, false, "a put without progress ends after, ms")         \
    X(max_received_bytes, U64, 64ull << 20, 2ull << 20, 1ull << 40, false,                         \
      "messages over 16 KiB that are half received, bytes in all; connections share them")         \
    X(hello_timeout_ms, U32, 5000, 10, 600000, false,                                              \
      "a connection ends without a Hello after, ms")                                               \
    X(stall_timeout_ms, U32, 30000, 10, 3600000, false,                                            \
      "a connection ends when its peer takes nothing that waits for it for, ms")                   \
    X(frame_timeout_ms, U32, 60000, 10, 3600000, false,                                            \
      "a connection ends when a frame takes longer from its first byte to its last, ms")           \
    X(session_silence_ms, U32, 300000, 100, 86400000, false,                                       \
      "a session that sends nothing on any of its connections ends after, ms")                     \
    X(tcp_dead_ms, U32, 30000, 4000, 3600000, false,                                               \
      "a TCP peer that acknowledges nothing is gone after, ms")                                    \
    X(disk_threads, U32, 2, 1, 64, false, "threads that read and write the disk tier")             \
    X(disk_queue, U32, 256, 8, 65536, false, "disk jobs that may wait")                            \
    X(buffered_io, BOOL, false, 0, 0, false, "do not use O_DIRECT")                                \
    X(tcp_congestion, STR, "auto", 0, 32, false,                                                   \
      "congestion control of RPC over TCP; auto: reno on loopback, the system's elsewhere")        \
    X(redis, STR, "", 0, 256, false, "Redis index, HOST:PORT or unix:PATH; empty: embedded")       \
    X(redis_user, STR, "", 0, 128, false, "AUTH user")                                             \
    X(redis_password_file, STR, "", 0, 4096, false, "file with the AUTH password")                 \
    X(redis_db, U32, 0, 0, 65535, false, "Redis database number")                                  \
    X(redis_backlog, U32, 65536, 64, 1u << 24, false, "index entries that may wait for Redis")

struct cachesvc_config {
    CFG_FIELDS(CACHESVC_CONFIG)
};
CFG_TABLE(cachesvc_config, CACHESVC_CONFIG)
