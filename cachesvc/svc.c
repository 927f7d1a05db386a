/* What the handlers of all methods share. */
#include "cachesvc/svc.h"

int svc_reply_ack(struct rpc_call *call, uint64_t count) {
    struct msg_ack m = {.count = count};
    return SVC_REPLY(call, ack, &m);
}

int svc_check_ns(struct cachesvc *s, struct rpc_call *call, uint32_t handle, uint32_t *ret_ns,
                 struct errbuf *eb) {
    (void)s;
    if (!session_may_use_ns(session_of(call->conn)->session, handle))
        return err_set(eb, ERR_INVALID, "namespace handle %u is not registered in this session",
                       handle);
    *ret_ns = handle - 1;
    return 0;
}

int svc_check_ids(struct cachesvc *s, size_t n_ids, struct errbuf *eb) {
    if (n_ids > s->cfg->max_ids)
        return err_set(eb, ERR_TOOBIG, "%zu ids in one request, the limit is %u", n_ids,
                       s->cfg->max_ids);
    return 0;
}

void svc_on_request(void *arg, struct rpc_conn *c, const struct wire_hdr *h, int rv,
                    const char *text) {
    struct cachesvc *s = arg;
    const struct session_conn *sc = session_of(c);
    unsigned long long session = sc ? sc->session->number : 0, id = h->request_id;
    if (rv < 0)
        log_info(s->log, "a request was refused",
                 "method=%s session=%llu peer=%s request=%llu err=%s why=%s trace=%s",
                 wire_method_name(h->method), session, rpc_conn_peer(c), id, err_name(rv), text,
                 s->trace);
    else if (s->cfg->access_log)
        log_info(s->log, "request",
                 "method=%s session=%llu peer=%s request=%llu bytes=%llu deadline_ms=%u trace=%s",
                 wire_method_name(h->method), session, rpc_conn_peer(c), id,
                 (unsigned long long)h->msg_len + h->payload_len, h->deadline_ms, s->trace);
    s->trace[0] = '\0';
}

/* W3C: two digits of version, 32 of trace, 16 of parent, two of flags, all lower-case hex. What is not
 * that comes from a client that is not ours, and goes into no log. */
const char *svc_trace(const char *traceparent) {
    static const char form[] = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
    if (!traceparent || strlen(traceparent) != sizeof(form) - 1)
        return "";
    for (size_t i = 0; i < sizeof(form) - 1; i++) {
        char c = traceparent[i];
        bool is_hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
        if (form[i] == '-' ? c != '-' : !is_hex)
            return "";
    }
    return traceparent;
}

void svc_note_trace(struct cachesvc *s, const char *traceparent) {
    snprintf(s->trace, sizeof(s->trace), "%s", svc_trace(traceparent));
}
