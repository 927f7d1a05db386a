/* The method table: who may call what, on which connection, and who handles it. Methods without a row
 * answer UNIMPLEMENTED. tests/integration/test_access.c holds what each row must answer to every role. */
#include "cachesvc/svc.h"

#define CONTROL_READ (GRANT_CONTROL | GRANT_READ)
#define CONTROL_WRITE (GRANT_CONTROL | GRANT_WRITE)
#define CONTROL_ADMIN (GRANT_CONTROL | GRANT_ADMIN)

/* number, grants, handler, sink, end inside the payload */
const struct rpc_method svc_methods[] = {
    {WIRE_HELLO, 0, svc_hello, NULL, NULL},
    {WIRE_REGISTER_NS, CONTROL_READ, svc_register_ns, NULL, NULL},
    {WIRE_LOOKUP, CONTROL_READ, svc_lookup, NULL, NULL},
    {WIRE_TOUCH, CONTROL_READ, svc_touch, NULL, NULL},
    {WIRE_FETCH, GRANT_DATA | GRANT_READ, svc_fetch, NULL, NULL},
    {WIRE_CANCEL, GRANT_SESSION, svc_cancel, NULL, NULL},
    {WIRE_PUT_BEGIN, CONTROL_WRITE, svc_put_begin, NULL, NULL},
    {WIRE_PUT_DATA, GRANT_DATA | GRANT_WRITE, svc_put_data, svc_put_sink, svc_put_sink_abort},
    {WIRE_PUT_COMMIT, CONTROL_WRITE, svc_put_commit, NULL, NULL},
    {WIRE_PUT_ABORT, CONTROL_WRITE, svc_put_abort, NULL, NULL},
    {WIRE_RELEASE, CONTROL_READ, svc_release, NULL, NULL},
    {WIRE_HEARTBEAT, CONTROL_READ, svc_heartbeat, NULL, NULL},
    {WIRE_STATS, CONTROL_READ, svc_stats, NULL, NULL},
    {WIRE_LIST, CONTROL_ADMIN, svc_list, NULL, NULL},
    {WIRE_INSPECT, CONTROL_ADMIN, svc_inspect, NULL, NULL},
    {WIRE_EVICT, CONTROL_ADMIN, svc_evict, NULL, NULL},
    {WIRE_FLUSH, CONTROL_ADMIN, svc_flush, NULL, NULL},
    {WIRE_CONFIG_GET, CONTROL_ADMIN, svc_config_get, NULL, NULL},
    {WIRE_CONFIG_SET, CONTROL_ADMIN, svc_config_set, NULL, NULL},
};
const size_t svc_n_methods = ARRAY_LEN(svc_methods);
