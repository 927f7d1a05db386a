# Sessions, roles, tokens, shares, methods.
ACCESS = "integration/access unit/cachesvc/session unit/cachesvc/auth"
NODE = "integration/rpc_roundtrip integration/shares integration/wire_client integration/observe"

mutant("namespace-list-of-a-token-ignored", "cachesvc/svc_kv.c", "if (!auth_ns_allowed(ss->auth, digest))", "if (0)", ACCESS)
mutant("reader-may-put", "cachesvc/svc_session.c", "    if (role != MSG_ROLE_READER)\n        g |= GRANT_WRITE;",
       "    g |= GRANT_WRITE;", ACCESS)
mutant("everybody-is-admin", "cachesvc/svc_session.c", "    if (role == MSG_ROLE_ADMIN)\n        g |= GRANT_ADMIN;",
       "    g |= GRANT_ADMIN;", ACCESS)
mutant("joined-reader-may-send-data", "cachesvc/svc_session.c", "(ss->role != MSG_ROLE_READER ? GRANT_WRITE : 0u)",
       "GRANT_WRITE", ACCESS)
mutant("role-of-a-token-ignored", "cachesvc/auth.c", " == 0 &&\n            a->tokens[i].role == role)",
       " == 0 &&\n            a->tokens[i].role + role > 0)", ACCESS)
mutant("wrong-token-passes", "cachesvc/auth.c", "return *ret ? 0 : ERR_DENIED;", "return 0;", ACCESS)
mutant("namespace-of-a-token-unchecked", "cachesvc/auth.c",
       "        if (memcmp(t->ns[i], digest, DIGEST_BYTES) == 0)\n            return true;\n    return false;",
       "        if (memcmp(t->ns[i], digest, DIGEST_BYTES) == 0)\n            return true;\n    return true;", ACCESS)
mutant("wrong-token-is-answered-at-once", "cachesvc/svc_session.c", "        if (now < d->due_ns)\n            return;\n",
       "        (void)now;\n", ACCESS + " " + NODE, survives="how long a refusal waits is a time, and no test asserts one")
mutant("wrong-token-may-try-again", "cachesvc/svc_session.c", "        rpc_server_end_conn(s->rpc, d->conn);\n",
       "        rpc_conn_pause(d->conn, false);\n", ACCESS + " " + NODE)
mutant("reader-registers-what-nobody-filled", "cachesvc/svc_kv.c",
       "ss->role == MSG_ROLE_READER && block_store_ns_find(s->store, digest, &ns) < 0", "0", ACCESS + " " + NODE)
mutant("digest-of-a-descriptor-unchecked", "cachesvc/svc_kv.c",
       "m.digest.n != DIGEST_BYTES || memcmp(digest, m.digest.p, DIGEST_BYTES) != 0", "m.digest.n != DIGEST_BYTES",
       ACCESS + " " + NODE)
mutant("handles-of-other-sessions-work", "cachesvc/session.c",
       "ns < SESSION_MAX_NS && (s->ns_registered[ns / 64] >> (ns % 64) & 1);", "ns < SESSION_MAX_NS;", ACCESS + " " + NODE)
mutant("names-are-kept-raw", "cachesvc/session.c", "bool is_good = n > 0 && is_printable(rest.p, n);",
       "bool is_good = n > 0 && (n < 9 || is_printable(rest.p, n));", ACCESS)
mutant("grants-of-a-method-ignored", "proto/rpc_server.c", "if (sc->row->need & ~rpc_conn_grants(sc->conn))", "if (0)",
       "unit/proto/rpc_server " + ACCESS)
mutant("references-of-ready-blocks-kept", "cachesvc/svc_fetch.c",
       "        } else if (b->state == BLOCK_READY) {\n            block_store_ref_drop(s->store, &b->ref);\n        }\n    }\n    uint64_t took",
       "        }\n    }\n    uint64_t took", NODE + " integration/node_stress_1")
mutant("deadline-of-a-fetch-ignored", "cachesvc/svc_fetch.c", "if (st->ask.deadline_ns && now > st->ask.deadline_ns)",
       "if (0)", NODE)
mutant("deadline-of-a-waiting-fetch-ignored", "cachesvc/svc_fetch.c", "if (w->ask.deadline_ns && now > w->ask.deadline_ns)",
       "if (0)", NODE)
mutant("payload-of-another-size-is-taken", "cachesvc/svc_put.c", "if (fill.payload_bytes != call->hdr.payload_len) {",
       "if (0) {", NODE + " integration/node_stress_1")
mutant("conflict-is-not-logged", "cachesvc/svc_put.c", "    log_conflicts(s, call, &m, status);\n",
       "    if (0)\n        log_conflicts(s, call, &m, status);\n", NODE)
mutant("nothing-is-kept-for-the-small", "common/share.c", "    return MAX(s->total / KEPT_PART, s->unit);", "    return 0;",
       "unit/common/share")
mutant("share-goes-by-all-sessions", "common/share.c", "    uint32_t n = t->n_wanting + !wants(u);\n", "    uint32_t n = 1;\n",
       "unit/common/share unit/cachesvc/store_share")
mutant("who-waits-is-passed-over", "common/share.c", "uint64_t first = is_within ? 0 : s->asked - u->asked;",
       "uint64_t first = 0;", "unit/common/share unit/cachesvc/store_share")
mutant("a-stream-in-one-go", "cachesvc/svc_fetch.c", "if (goes_on && clock_mono_ns(st->svc->clk) >= end_ns) {",
       "if (goes_on && end_ns == 0) {", "integration/shares")
mutant("namespace-of-ids-guessed", "cachesvc/svc_admin.c", "if (m.n_ids && !m.digest.n)", "if (0)", "integration/rpc_roundtrip")
mutant("session-without-its-tenant", "cachesvc/session.c", "block_store_session_open(store, s->tenant, &s->store)",
       "block_store_session_open(store, NULL, &s->store)", ACCESS)
