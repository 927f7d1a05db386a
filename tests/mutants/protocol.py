# Frames, checksums, ids, routing, the client library.
CLIENT = "unit/proto/kv_client unit/proto/kv_client_node integration/kv_client_node"

mutant("crc-of-a-frame-ignored", "proto/wire_frame.c", "return crc == want ? 0 : ERR_CORRUPT;",
       "return crc == want ? 0 : 0;", "unit/proto/wire_frame unit/proto/rpc_conn integration/wire_client")
mutant("lengths-over-the-limit-pass", "proto/wire_frame.c",
       "ret->msg_len > lim->max_msg_bytes || ret->payload_len > lim->max_payload_bytes", "ret->msg_len > lim->max_msg_bytes",
       "unit/proto/wire_frame unit/proto/rpc_server integration/wire_client")
mutant("other-versions-pass", "proto/wire_frame.c",
       "    if (ret->version != WIRE_VERSION)\n        return ERR_UNSUPPORTED;\n", "",
       "unit/proto/wire_frame integration/wire_client")
mutant("unknown-flags-pass", "proto/wire_frame.c", "return (ret->flags & ~WIRE_F_KNOWN) ? ERR_PROTO : 0;", "return 0;",
       "unit/proto/wire_frame integration/wire_client")
mutant("deadline-is-not-sent", "proto/kv_client.c", ".deadline_ms = kv_call_left_ms(p->call)};", ".deadline_ms = 0};", CLIENT)
mutant("deadline-of-a-call-ignored", "proto/kv_client.c",
       "while ((first = first_due(c)) && first->deadline_ns <= now)",
       "while ((first = first_due(c)) && first->deadline_ns * 2 <= now)", CLIENT)
mutant("no-backoff", "proto/kv_client_node.c", "i < n->attempts && ms < cfg->backoff_max_ms; i++)",
       "i < n->attempts && ms < 1; i++)", CLIENT)
mutant("two-nodes-of-one-number", "proto/kv_client_node.c",
       "            c->nodes[i].hello.node_id == n->hello.node_id)\n            return true;",
       "            c->nodes[i].hello.node_id == n->hello.node_id)\n            return false;", CLIENT)
mutant("id-is-not-in-the-checksum", "common/checksum.c", "return XXH3_64bits(bytes, 8 * n + CHECKSUM_ID_BYTES);",
       "return XXH3_64bits(bytes, 8 * n);", "unit/common/checksum unit/proto/kv_client")
mutant("salt-is-not-in-the-id", "common/block_id.c", "digest_update(d, is_public ? zero_salt : cfg->salt, BLOCK_SALT_BYTES);",
       "digest_update(d, is_public ? zero_salt : zero_salt, BLOCK_SALT_BYTES);", "unit/common/block_id")
mutant("id-forgets-its-parent", "common/block_id.c", "digest_update(d, i ? ids[i - 1].b : root.b, BLOCK_ID_BYTES);",
       "digest_update(d, i ? ids[0].b : root.b, BLOCK_ID_BYTES);", "unit/common/block_id")
mutant("segments-are-not-kept-together", "proto/kv_route.c",
       "owner = kv_route_owner(&chain[s * seg_blocks], node_ids, n_nodes);",
       "owner = kv_route_owner(&chain[i], node_ids, n_nodes);", "unit/proto/kv_route unit/proto/kv_client")
mutant("first-node-owns-all", "proto/kv_route.c",
       "            best = i;\n            best_score = s;\n        }\n    }\n    return best;",
       "            best_score = s;\n        }\n    }\n    return best;", "unit/proto/kv_route")
mutant("no-slices-of-a-turn", "proto/rpc_conn.c", "if (has_begun && c->in.len > c->in.off && is_slice_over(c)) {",
       "if (has_begun && c->slice_end_ns == 0) {", "unit/proto/rpc_conn")
