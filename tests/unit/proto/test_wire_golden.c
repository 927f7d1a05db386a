/* What our C writes, byte for byte, against frames made by tests/golden/frames.py from WIRE.md
 * alone, and the examples on that page against the same. argv[1]: the source tree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/checksum.h"
#include "common/digest.h"
#include "proto/wire_frame.h"
#include "proto/wire_msg.h"
#include "tests/unit/proto/wire_samples.h"

#define MAX_FRAME 1024

struct golden {
    char name[32];
    uint8_t raw[MAX_FRAME];
    size_t n;
};

static char root[512];
static struct golden golden[64]; /* test data, filled once by main() */
static size_t n_golden;
static const uint32_t range_sizes[2] = {64, 128};

static void load(void) {
    char path[600], line[4 * MAX_FRAME];
    snprintf(path, sizeof(path), "%s/tests/golden/frames.txt", root);
    FILE *fp = fopen(path, "r");
    if (!fp) {
        perror(path);
        exit(1);
    }
    while (fgets(line, sizeof(line), fp)) {
        struct golden *g = &golden[n_golden++];
        char *hex = strchr(line, ' ');
        size_t digits = strspn(hex + 1, "0123456789abcdef");
        snprintf(g->name, sizeof(g->name), "%.*s", (int)(hex - line), line);
        hex[1 + digits] = '\0';
        g->n = digits / 2;
        if (g->n > MAX_FRAME || digest_unhex(hex + 1, g->n, g->raw) < 0)
            exit(1);
    }
    fclose(fp);
}

static const struct golden *find(const char *name) {
    for (size_t i = 0; i < n_golden; i++)
        if (strcmp(golden[i].name, name) == 0)
            return &golden[i];
    fail_msg("no golden frame '%s'", name);
    return NULL;
}

static struct block_id bid(int i) {
    struct block_id id;
    for (int k = 0; k < 32; k++)
        id.b[k] = (uint8_t)(i * 16 + k);
    return id;
}

/* The frame of a message that encode() has written into out. */
static void check(uint8_t version, const char *name, uint16_t method, uint8_t flags, uint64_t id,
                  uint32_t deadline_ms, const struct buf *out, const void *payload,
                  size_t n_payload) {
    const struct golden *g = find(name);
    uint8_t raw[MAX_FRAME];
    struct wire_hdr h = {.version = version,
                         .flags = flags,
                         .method = method,
                         .request_id = id,
                         .msg_len = (uint32_t)out->len,
                         .payload_len = (uint32_t)n_payload,
                         .deadline_ms = deadline_ms};
    wire_hdr_encode(&h, out->data, raw);
    memcpy(raw + WIRE_HDR_BYTES, out->data, out->len);
    if (n_payload)
        memcpy(raw + WIRE_HDR_BYTES + out->len, payload, n_payload);
    assert_int_equal(g->n, WIRE_HDR_BYTES + out->len + n_payload);
    assert_memory_equal(raw, g->raw, g->n);
}

#define CHECK_FRAME(...) CHECK_FRAME_OF(WIRE_VERSION, __VA_ARGS__)
#define CHECK_FRAME_OF(version, name, type, method, flags, id, deadline_ms, payload, n_payload,    \
                       ...)                                                                        \
    do {                                                                                           \
        uint8_t arena[4096], bytes[MAX_FRAME];                                                     \
        struct bump scratch = {.base = arena, .cap = sizeof(arena)};                               \
        struct buf out = {.data = bytes, .cap = sizeof(bytes)};                                    \
        struct msg_##type m = {__VA_ARGS__};                                                       \
        assert_int_equal(wire_msg_##type##_encode(&scratch, &m, &out), 0);                         \
        check(version, name, method, flags, id, deadline_ms, &out, payload, n_payload);            \
    } while (0)

#define REPLY (WIRE_F_RESPONSE | WIRE_F_END)

static void test_session_frames(void **state) {
    uint8_t session[16];
    struct block_id ns = bid(9);
    (void)state;
    for (int i = 0; i < 16; i++)
        session[i] = (uint8_t)i;
    CHECK_FRAME("hello_req", hello_req, WIRE_HELLO, 0, 1, 2000, NULL, 0, .version_min = 2,
                .version_max = 2, .role = MSG_ROLE_WORKER,
                .token = {(const uint8_t *)"a-secret-of-a-worker", 20}, .client_name = "worker-a");
    CHECK_FRAME("hello_res", hello_res, WIRE_HELLO, REPLY, 1, 0, NULL, 0, .version = 2,
                .node_id = 7, .epoch = 1767225600, .session_token = {session, 16},
                .node_name = "node-7", .server_version = "0.1.0", .max_message_bytes = 1u << 20,
                .max_payload_bytes = 256u << 20, .max_ids = 8192, .max_data_conns = 4,
                .lease_ttl_ms = 5000, .max_inflight = 256);
    CHECK_FRAME("hello_join", hello_req, WIRE_HELLO, 0, 2, 2000, NULL, 0, .version_min = 2,
                .version_max = 2, .role = MSG_ROLE_WORKER,
                .token = {(const uint8_t *)"a-secret-of-a-worker", 20}, .client_name = "worker-a",
                .session_token = {session, 16});
    CHECK_FRAME("register_ns_req", register_ns_req, WIRE_REGISTER_NS, 0, 3, 0, NULL, 0,
                .digest = {ns.b, 32}, .descriptor = {(const uint8_t *)"b=32\nkv=f16\n", 12},
                .n_range_sizes = 2, .range_sizes = range_sizes, .n_full = 2, .seg_blocks = 8);
    CHECK_FRAME("register_ns_res", register_ns_res, WIRE_REGISTER_NS, REPLY, 3, 0, NULL, 0, .ns = 1,
                .slot_bytes = 4096);
}

static void test_read_frames(void **state) {
    struct block_id ids[2] = {bid(0), bid(1)};
    uint8_t payload[192];
    uint64_t sums[2];
    (void)state;
    for (int i = 0; i < 192; i++)
        payload[i] = (uint8_t)i;
    uint64_t sum = checksum_block(payload, range_sizes, 2, ids[0].b, sums);
    CHECK_FRAME("lookup_req", lookup_req, WIRE_LOOKUP, 0, 4, 50, NULL, 0, .ns = 1, .n_ids = 2,
                .ids = ids, .have = 1, .flags = MSG_LOOKUP_F_TOUCH | MSG_LOOKUP_F_LEASE,
                .traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    CHECK_FRAME("lookup_res", lookup_res, WIRE_LOOKUP, REPLY, 4, 0, NULL, 0,
                .status = {(const uint8_t *)"\1\2", 2}, .n_prefix = 2, .lease_id = 77,
                .lease_first = 1, .lease_count = 1, .lease_ttl_ms = 5000);
    CHECK_FRAME("fetch_req", fetch_req, WIRE_FETCH, 0, 5, 250, NULL, 0, .ns = 1, .n_ids = 2,
                .ids = ids);
    CHECK_FRAME("fetch_block", fetch_block, WIRE_FETCH, WIRE_F_RESPONSE, 5, 0, payload, 192,
                .index = 0, .count = 1, .checksum = sum, .n_range_checksums = 2,
                .range_checksums = sums, .n_ranges = 2);
    CHECK_FRAME("fetch_miss", fetch_block, WIRE_FETCH, REPLY, 5, 0, NULL, 0, .index = 1, .count = 1,
                .status = MSG_FETCH_ABSENT);
    CHECK_FRAME("cancel", cancel_req, WIRE_CANCEL, WIRE_F_ONEWAY, 6, 0, NULL, 0, .request_id = 5);
    CHECK_FRAME("release", release_req, WIRE_RELEASE, WIRE_F_ONEWAY, 10, 0, NULL, 0, .lease_id = 77,
                .used = 2);
}

static void test_put_frames(void **state) {
    struct block_id ids[2] = {bid(0), bid(1)}, parents[2] = {{{0}}, bid(0)};
    uint32_t depths[2] = {0, 1}, indexes[1] = {0};
    uint8_t payload[192];
    uint64_t sums[2];
    (void)state;
    for (int i = 0; i < 192; i++)
        payload[i] = (uint8_t)i;
    uint64_t checksums[2] = {checksum_block(payload, range_sizes, 2, ids[0].b, sums), 99};
    CHECK_FRAME("put_begin_req", put_begin_req, WIRE_PUT_BEGIN, 0, 7, 0, NULL, 0, .ns = 1,
                .n_ids = 2, .ids = ids, .n_parents = 2, .parents = parents, .n_depths = 2,
                .depths = depths, .n_checksums = 2, .checksums = checksums,
                .block_flags = {(const uint8_t *)"\0\1", 2}, .group = 5, .priority = 1);
    CHECK_FRAME("put_begin_res", put_begin_res, WIRE_PUT_BEGIN, REPLY, 7, 0, NULL, 0, .put_id = 12,
                .status = {(const uint8_t *)"\0\1", 2}, .ttl_ms = 30000);
    CHECK_FRAME("put_data", put_data, WIRE_PUT_DATA, WIRE_F_ONEWAY, 8, 0, payload, 192,
                .put_id = 12, .n_range_checksums = 2, .range_checksums = sums);
    CHECK_FRAME("put_commit_req", put_commit_req, WIRE_PUT_COMMIT, 0, 9, 0, NULL, 0, .put_id = 12,
                .n_indexes = 1, .indexes = indexes, .last = true);
    CHECK_FRAME("put_commit_res", put_commit_res, WIRE_PUT_COMMIT, REPLY, 9, 0, NULL, 0,
                .status = {(const uint8_t *)"\0", 1});
}

/* Every field of every message, those of features to come as well: no later change moves one. */
static void test_messages(void **state) {
    char path[600], line[4 * MAX_FRAME];
    (void)state;
    snprintf(path, sizeof(path), "%s/tests/golden/messages.txt", root);
    FILE *fp = fopen(path, "r");
    assert_non_null(fp);
    for (size_t i = 0; i < n_wire_samples; i++) {
        uint8_t arena[4096], bytes[MAX_FRAME], want[MAX_FRAME];
        struct bump scratch = {.base = arena, .cap = sizeof(arena)};
        struct buf out = {.data = bytes, .cap = sizeof(bytes)};
        assert_non_null(fgets(line, sizeof(line), fp));
        char *hex = strchr(line, ' ');
        *hex++ = '\0';
        hex[strcspn(hex, "\n")] = '\0';
        assert_string_equal(line, wire_samples[i].name);
        assert_int_equal(wire_samples[i].encode(&scratch, wire_samples[i].m, &out), 0);
        if (strlen(hex) != 2 * out.len)
            fail_msg("%s: %zu bytes, golden %zu", line, out.len, strlen(hex) / 2);
        assert_int_equal(digest_unhex(hex, out.len, want), 0);
        if (memcmp(bytes, want, out.len) != 0)
            fail_msg("%s", line);
    }
    assert_null(fgets(line, sizeof(line), fp));
    fclose(fp);
}

static void test_other_frames(void **state) {
    struct block_id id = bid(1);
    (void)state;
    CHECK_FRAME_OF(1, "version_error", error, WIRE_HELLO, REPLY | WIRE_F_ERROR, 1, 0, NULL, 0,
                   .code = 14, .text = "frame version 2 is spoken here");
    CHECK_FRAME("pin_error", error, WIRE_PIN, REPLY | WIRE_F_ERROR, 11, 0, NULL, 0, .code = 2,
                .text = "Pin (69) is not implemented");
    CHECK_FRAME("evict_req", evict_req, WIRE_EVICT, 0, 12, 0, NULL, 0, .n_ids = 1, .ids = &id,
                .descendants = true);
}

static void test_every_golden_frame_reads(void **state) {
    struct wire_limits lim = {WIRE_MAX_MSG_BYTES, WIRE_MAX_PAYLOAD_BYTES};
    (void)state;
    assert_true(n_golden >= 19);
    for (size_t i = 0; i < n_golden; i++) {
        struct wire_hdr h;
        int want = strcmp(golden[i].name, "version_error") == 0 ? ERR_UNSUPPORTED : 0;
        assert_int_equal(wire_frame_read(&lim, golden[i].raw, golden[i].n, &h), want);
        assert_int_equal(WIRE_HDR_BYTES + h.msg_len + h.payload_len, golden[i].n);
    }
}

/* Reads a block of hex that follows "<!-- frame NAME -->": digits, white space, and text after
 * '#'. */
static size_t read_hex_block(FILE *fp, uint8_t *ret) {
    char line[256], hex[2 * MAX_FRAME + 1];
    size_t n = 0;
    bool is_open = false;
    while (fgets(line, sizeof(line), fp)) {
        if (strncmp(line, "```", 3) == 0) {
            if (is_open)
                break;
            is_open = true;
            continue;
        }
        for (char *c = line; is_open && *c && *c != '#'; c++)
            if (strchr("0123456789abcdef", *c) && n < sizeof(hex) - 1)
                hex[n++] = *c;
    }
    hex[n] = '\0';
    assert_int_equal(digest_unhex(hex, n / 2, ret), 0);
    return n / 2;
}

static void test_examples_of_the_page_are_the_golden_frames(void **state) {
    char path[600], line[256], name[32];
    uint8_t raw[MAX_FRAME];
    int n_seen = 0;
    (void)state;
    snprintf(path, sizeof(path), "%s/proto/WIRE.md", root);
    FILE *fp = fopen(path, "r");
    assert_non_null(fp);
    while (fgets(line, sizeof(line), fp)) {
        if (sscanf(line, "<!-- frame %31[a-z_] -->", name) != 1)
            continue;
        const struct golden *g = find(name);
        assert_int_equal(read_hex_block(fp, raw), g->n);
        assert_memory_equal(raw, g->raw, g->n);
        n_seen++;
    }
    fclose(fp);
    assert_true(n_seen >= 10);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    snprintf(root, sizeof(root), "%s", argv[1]);
    load();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_session_frames),
        cmocka_unit_test(test_read_frames),
        cmocka_unit_test(test_put_frames),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_other_frames),
        cmocka_unit_test(test_every_golden_frame_reads),
        cmocka_unit_test(test_examples_of_the_page_are_the_golden_frames),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
