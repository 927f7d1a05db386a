# Disk, directory, room, puts, leases.
DISK = ("unit/cachesvc/store_crash unit/cachesvc/store_disk unit/cachesvc/store_recover unit/cachesvc/disk_io "
        "unit/cachesvc/store_faults unit/cachesvc/store_health")
PUT = "unit/cachesvc/store_put unit/cachesvc/store_model unit/cachesvc/store_share"
ROOM = "unit/cachesvc/store_room unit/cachesvc/store_lease unit/cachesvc/store_model unit/cachesvc/policy"
EVICT = "unit/cachesvc/store_evict unit/cachesvc/removal_log unit/cachesvc/store_crash unit/cachesvc/store_ns"

mutant("sync-does-nothing", "cachesvc/store/disk_io.c",
       "    return fdatasync(op->fd) < 0 ? -errno : 0;", "    (void)op;\n    return 0;", DISK)
mutant("probe-is-not-read-back", "cachesvc/store/disk_io.c",
       "if (op->kind == DISK_PROBE && op->rv == 0)", "if (0 && op->rv == 0)", DISK)
mutant("read-ignores-the-block-checksum", "cachesvc/store/disk_io.c",
       "    if (checksum_of_sums(sums, op->n_ranges, op->id.b) != op->checksum)\n        return ERR_CORRUPT;\n", "", DISK)
mutant("read-ignores-range-sums", "cachesvc/store/disk_io.c",
       " || checksum_xxh3(op->buf + at, end - at) != sums[i])", ")", DISK)
mutant("drain-ends-with-unwritten-blocks", "cachesvc/store/block_store.c",
       "s->behind_n > 0 || s->rescan_dirty || s->st.now.writes_in_flight > 0", "0", DISK)
mutant("drain-without-sync", "cachesvc/store/block_store.c",
       "    disk_tier_wait(&s->disk, &s->drain_wait, DISK_WAIT_ALL, on_drain_synced);",
       "    on_drain_synced(&s->drain_wait, 0);", DISK,
       survives="a block counts as written once its header is synced; the wait is for headers that are being cleared, "
                "and the removal log keeps those blocks away as well")
mutant("oldest-header-wins", "cachesvc/store/store_recover.c", "dir_seq(e) >= h->put_seq ||",
       "dir_seq(e) <= h->put_seq ||", DISK)
mutant("extent-generation-ignored", "cachesvc/store/disk_recover.c",
       "rv < 0 || h.extent_generation != eh->generation", "rv < 0", DISK)
mutant("foreign-store-is-taken", "cachesvc/store/disk_recover.c",
       "memcmp(eh.store_id, t->super.store_id, sizeof(eh.store_id)) == 0 &&", "true &&",
       DISK + " unit/cachesvc/store_open")
mutant("recovery-forgets-removals", "cachesvc/store/store_recover.c", "if (removal_log_matches(&s->removals, &b)) {",
       "if (0 && removal_log_matches(&s->removals, &b)) {", EVICT)
mutant("recovery-lends-no-age", "cachesvc/store/store_recover.c",
       "set_newest(s, up, MAX(newest(s, up), newest(s, cur)));", "set_newest(s, up, newest(s, up));", DISK)
mutant("skipped-extents-unsaid", "cachesvc/store/store_recover.c",
       "    s->st.recover_skipped += st.n_skipped + st.n_refused;\n", "", DISK + " unit/cachesvc/store_open")
mutant("failing-disk-is-looked-up", "cachesvc/store/store_lookup.c",
       "return store_disk_works(s) ? STORE_DISK : STORE_ABSENT;", "return STORE_DISK;", DISK)
mutant("stalled-disk-is-well", "cachesvc/store/disk_ops.c",
       "        disk_tier_fail(t, ERR_TIMEOUT, \"an operation is under way for more than 10 s\");\n", "        (void)now;\n",
       DISK)
mutant("failing-disk-is-well-after-a-while", "cachesvc/store/disk_ops.c",
       "    if (op->rv < 0 || disk_tier_is_stalled(t))\n        return;\n", "", DISK)
mutant("write-error-is-silent", "cachesvc/store/store_behind.c",
       "            disk_tier_fail(&s->disk, op->rv, \"write of a block\");\n", "", DISK)
mutant("header-error-counts-as-clean", "cachesvc/store/store_behind.c", "if (is_ours(w) && rv < 0) {",
       "if (is_ours(w) && rv < 0 && rv > 0) {", DISK)
mutant("removed-while-written", "cachesvc/store/store_behind.c",
       "return store_ref_is_live(w->s, w->e) && e->disk == TIER_WRITING &&", "return e->disk == TIER_WRITING &&",
       EVICT + " unit/cachesvc/store_disk unit/cachesvc/store_faults")

mutant("held-blocks-may-leave-disk", "cachesvc/store/store_room.c",
       "e->disk != TIER_CLEAN || e->ram == TIER_READING || dir_is_held(e)",
       "e->disk != TIER_CLEAN || e->ram == TIER_READING", ROOM)
mutant("leased-slots-may-leave", "cachesvc/store/store_room.c", "!entry_in_ram(e) || e->leases || e->pins ||",
       "!entry_in_ram(e) || e->pins ||", ROOM)
mutant("slots-being-sent-may-leave", "cachesvc/store/store_room.c",
       "\n        e->disk == TIER_WRITING || ram_tier_side(&s->ram, e->slot[DIR_RAM])->refs)",
       "\n        e->disk == TIER_WRITING)", ROOM + " " + PUT)
mutant("only-copies-of-the-held-leave", "cachesvc/store/store_room.c",
       "if (e->disk != TIER_CLEAN && dir_is_held(e))", "if (0)", ROOM)
mutant("orphans-leave-last", "cachesvc/store/store_room.c",
       "    if (e->orphan)\n        return DIR_ORPHANS;\n", "", ROOM)
mutant("touch-skips-the-disk-list", "cachesvc/store/policy_lru.c",
       "        for (enum dir_tier t = DIR_RAM; t < DIR_TIERS; t++)\n            touch_one(p, t, idx, DIR_NONE);",
       "        touch_one(p, DIR_RAM, idx, DIR_NONE);", ROOM + " unit/cachesvc/store_disk")
mutant("extents-are-not-stamped", "cachesvc/store/policy_lru.c",
       "        slots_touch(p->slots[tier], slot, ++p->stamp);", "        (void)slot;", ROOM + " unit/cachesvc/slots")
mutant("new-blocks-above-their-parents", "cachesvc/store/policy_lru.c",
       "uint32_t up = is_used ? DIR_NONE : nearest(p, t, e->parent, list, NEAREST_STEPS);", "uint32_t up = DIR_NONE;",
       ROOM + " unit/cachesvc/store_disk")
mutant("touch-without-end", "cachesvc/store/policy_lru.c", "        if (++n > max)\n            return 0;", "        ++n;",
       ROOM + " unit/cachesvc/store_segs")
mutant("ends-of-holds-touch-nothing", "cachesvc/store/store_room.c",
       "settle(s, idx, /* is_used= */ !dir_is_held(store_at(s, idx)));", "settle(s, idx, /* is_used= */ false);",
       ROOM + " " + PUT)
mutant("hold-does-not-reach-the-parent", "cachesvc/store/directory.c", "            p->held_children++;\n        else",
       "            (void)p;\n        else", "unit/cachesvc/directory unit/cachesvc/store_lease")

mutant("slots-of-puts-without-bound", "cachesvc/store/store_put.c", "    if (!share_take(&p->ss->fills, slot_bytes))\n        return ERR_BUSY;",
       "    while (!share_take(&p->ss->fills, slot_bytes))\n        share_set_total(p->ss->fills.tenant->of, p->ss->fills.tenant->of->total * 2);", PUT,
       survives="what was promised fits already: promise() asks the same bound")
mutant("commit-does-not-renew-a-put", "cachesvc/store/store_put.c",
       "    list_push_back(&p->commits, &c->link);\n    p->deadline = store_now(s) + s->cfg.put_ttl_ns;",
       "    list_push_back(&p->commits, &c->link);", PUT)
mutant("child-of-a-refused-block-is-taken", "cachesvc/store/store_put.c",
       "return is_refused ? STORE_PUT_BUSY : STORE_PUT_WANTED;", "return STORE_PUT_WANTED + 0 * is_refused;", PUT)
mutant("conflict-passes-as-present", "cachesvc/store/store_put.c",
       "    if (e->checksum != b->checksum)\n        return STORE_PUT_CONFLICT;\n", "", PUT)
mutant("parent-is-not-checked", "cachesvc/store/store_put.c",
       "if (b->depth > DIR_DEPTH_MAX || !parent_fits(s, a->ns, b))", "if (b->depth > DIR_DEPTH_MAX && !parent_fits(s, a->ns, b))", PUT)
mutant("removed-comes-back-by-put", "cachesvc/store/store_put.c",
       "        return STORE_PUT_REMOVED;\n    uint32_t idx", "        s->st.put_removed += 0;\n    uint32_t idx", EVICT + " " + PUT)
mutant("origin-from-the-future", "cachesvc/store/store_put.c", "return b->time_ms ? MIN(b->time_ms, now) : now;",
       "return b->time_ms ? b->time_ms : now;", EVICT + " " + PUT + " unit/cachesvc/origin")
mutant("dead-put-keeps-its-slot", "cachesvc/store/store_put.c", "        ram_tier_disown(&s->ram, b->slot);\n", "", PUT)

mutant("expired-lease-holds-on", "cachesvc/store/store_lease.c", "        if (now < l->ends_ns)\n            break;",
       "        if (now < l->ends_ns * 2)\n            break;", ROOM + " unit/cachesvc/store_share")
mutant("nothing-is-recalled", "cachesvc/store/store_lease.c", "        recall(s, best);\n    }\n}",
       "        return;\n        recall(s, best);\n    }\n}", "unit/cachesvc/store_share unit/cachesvc/store_lease")
mutant("closed-session-keeps-leases", "cachesvc/store/store_lease.c", "    free_all(&ss->leases);\n",
       "    list_init(&ss->leases);\n", ROOM + " unit/cachesvc/store_share")
mutant("store-knows-one-tenant", "cachesvc/store/store_lease.c", "        if (t->name != name)\n            continue;\n", "",
       "unit/cachesvc/store_share")

mutant("evict-by-writer-takes-all", "cachesvc/store/store_admin.c",
       "        (f->by_writer && memcmp(o->writer, f->writer, sizeof(o->writer)) != 0) ||\n", "", EVICT)
mutant("list-shows-all-namespaces", "cachesvc/store/store_admin.c",
       "        (f->by_ns && memcmp(s->ns[e->ns].digest, f->digest, DIGEST_BYTES) != 0) ||\n", "",
       EVICT + " integration/access")
mutant("record-covers-other-namespaces", "cachesvc/store/removal_log.c",
       " ||\n        (!is_every_ns(by->ns) && memcmp(by->ns, r->ns, sizeof(r->ns)) != 0))", ")", EVICT)
mutant("covered-records-go-before-the-sync", "cachesvc/store/removal_log.c",
       "if (l->covered_by[i] && l->covered_by[i] <= seq)", "if (l->covered_by[i] && seq)", EVICT)
mutant("records-never-end", "cachesvc/store/removal_log.c",
       "if (l->recs[i].seq && l->recs[i].logged_ms + REMOVAL_LIFE_MS <= now_ms)", "if (l->recs[i].seq && now_ms == 0)", EVICT)
