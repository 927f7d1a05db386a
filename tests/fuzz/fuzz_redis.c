/* fuzz_redis.c - any bytes as a Redis server's answers to the index: it goes on or connects anew, and its
 * epoch never falls. */
#include <signal.h>
#include <unistd.h>
#include <uv.h>

#include "cachesvc/index/index.h"
#include "common/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_TURNS 400 /* of the loop for one input: it ends far earlier unless something spins */

struct world {
    uv_loop_t loop;
    uv_pipe_t listener, conn;
    uv_write_t write;
    uint8_t *bytes;
    size_t n;
    bool has_conn, is_served, is_closed;
    struct index *ix;
};

static void on_conn_closed(uv_handle_t *h) {
    ((struct world *)h->data)->has_conn = false;
}
static void on_written(uv_write_t *req, int status) {
    struct world *w = req->data;
    (void)status;
    w->is_served = true;
    uv_close((uv_handle_t *)&w->conn, on_conn_closed);
}

/* The answers come before the questions: hiredis gives each command the next one. */
static void on_connection(uv_stream_t *l, int status) {
    struct world *w = l->data;
    if (status < 0 || w->has_conn || w->is_served)
        return;
    CHECK(uv_pipe_init(l->loop, &w->conn, 0) == 0 && uv_accept(l, (uv_stream_t *)&w->conn) == 0);
    w->conn.data = w->write.data = w;
    w->has_conn = true;
    uv_buf_t b = uv_buf_init((char *)w->bytes, (unsigned)w->n);
    CHECK(uv_write(&w->write, (uv_stream_t *)&w->conn, &b, 1, on_written) == 0);
}

static uint32_t scan(void *arg, uint64_t *cursor, struct index_seg *ret, uint32_t max) {
    (void)arg, (void)max;
    ret[0] = (struct index_seg){{1}};
    *cursor = 0;
    return 1;
}

static void on_closed(void *arg) {
    ((struct world *)arg)->is_closed = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint32_t number;
    char path[64], addr[80];
    struct world w = {.n = size};
    signal(SIGPIPE, SIG_IGN); /* as svc_main() does */
    snprintf(path, sizeof(path), "/tmp/incipit-fuzz-%d-%u", (int)getpid(), number++);
    snprintf(addr, sizeof(addr), "unix:%s", path);
    w.bytes = malloc(size + 1);
    CHECK(w.bytes && uv_loop_init(&w.loop) == 0 && uv_pipe_init(&w.loop, &w.listener, 0) == 0);
    memcpy(w.bytes, data, size);
    w.listener.data = &w;
    CHECK(uv_pipe_bind(&w.listener, path) == 0 &&
          uv_listen((uv_stream_t *)&w.listener, 8, on_connection) == 0);
    struct index_redis_cfg cfg = {
        .loop = &w.loop, .addr = addr, .node_id = 1, .node_addr = "n:1", .scan = scan};
    CHECK(index_redis_open(&w.ix, &cfg, NULL) == 0);
    uint32_t epoch = w.ix->ops->epoch(w.ix);
    w.ix->ops->publish(w.ix, &(struct index_seg){{2}});
    for (int i = 0; i < MAX_TURNS && (!w.is_served || w.has_conn || i < 8); i++)
        uv_run(&w.loop, UV_RUN_NOWAIT);
    CHECK(w.ix->ops->epoch(w.ix) >= epoch);
    w.ix->ops->close(w.ix, on_closed, &w);
    uv_close((uv_handle_t *)&w.listener, NULL);
    while (!w.is_closed || w.has_conn)
        uv_run(&w.loop, UV_RUN_ONCE);
    uv_run(&w.loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&w.loop) == 0);
    unlink(path);
    free(w.bytes);
    return 0;
}
