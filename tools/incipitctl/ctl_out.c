#include "common/clock.h"
#include "common/digest.h"
#include "tools/incipitctl/ctl.h"

/* C1 controls are two bytes of UTF-8 and move a terminal's cursor as well as ESC does. */
static bool is_printable(struct str s, size_t len) {
    const unsigned char *p = (const unsigned char *)s.p;
    return len > 1 ? !(p[0] == 0xc2 && p[1] < 0xa0) : len == 1 && p[0] >= 0x20 && p[0] != 0x7f;
}

const char *ctl_clean(struct str s, char *ret, size_t cap) {
    size_t n = 0;
    for (size_t i = 0; i < s.n;) {
        struct str rest = str_cut(s, i, s.n - i);
        size_t len = str_utf8_len(rest), take = MAX(len, (size_t)1);
        size_t need = is_printable(rest, len) ? take : 4 * take;
        if (n + need >= cap)
            break;
        if (is_printable(rest, len))
            memcpy(ret + n, rest.p, take);
        else
            for (size_t k = 0; k < take; k++)
                snprintf(ret + n + 4 * k, 5, "\\x%02x", (unsigned char)rest.p[k]);
        n += need;
        i += take;
    }
    ret[n] = '\0';
    return ret;
}

const char *ctl_hex(struct msg_bytes b, char ret[65]) {
    ret[0] = '\0';
    digest_hex(b.p, MIN(b.n, (size_t)32), ret);
    return ret;
}

void ctl_json_hex(struct ctl *c, const char *key, struct msg_bytes b) {
    char hex[65];
    ctl_json_text(c, key, ctl_hex(b, hex));
}

void ctl_json_u64(struct ctl *c, const char *key, uint64_t v) {
    json_w_key(&c->w, key);
    json_w_u64(&c->w, v);
}

void ctl_json_text(struct ctl *c, const char *key, const char *v) {
    json_w_kstr(&c->w, key, str_of(v));
}

const char *ctl_bytes(uint64_t n, char ret[32]) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double v = (double)n;
    size_t u = 0;
    while (v >= 1024 && u + 1 < ARRAY_LEN(unit)) {
        v /= 1024;
        u++;
    }
    snprintf(ret, 32, u == 0 ? "%.0f %s" : "%.1f %s", v, unit[u]);
    return ret;
}

const char *ctl_age(uint64_t ms, char ret[32]) {
    unsigned long long s = ms / 1000;
    if (s < 60)
        snprintf(ret, 32, "%llu.%llus", s, (unsigned long long)(ms % 1000 / 100));
    else if (s < 3600)
        snprintf(ret, 32, "%llum %llus", s / 60, s % 60);
    else if (s < 86400)
        snprintf(ret, 32, "%lluh %llum", s / 3600, s / 60 % 60);
    else
        snprintf(ret, 32, "%llud %lluh", s / 86400, s / 3600 % 24);
    return ret;
}

const char *ctl_age_of(uint64_t unix_ms, char ret[32]) {
    uint64_t now_ms = clock_wall_ns(clock_real()) / NS_PER_MS;
    if (unix_ms == 0) {
        snprintf(ret, 32, "-");
        return ret;
    }
    /* The node's clock may be ahead of ours. */
    return ctl_age(now_ms > unix_ms ? now_ms - unix_ms : 0, ret);
}

struct str ctl_descriptor_value(struct msg_bytes descriptor, const char *key) {
    struct str rest = {(const char *)descriptor.p, descriptor.n}, line;
    size_t n = strlen(key);
    while (str_split(&rest, '\n', &line))
        if (line.n > n && memcmp(line.p, key, n) == 0 && line.p[n] == '=')
            return str_cut(line, n + 1, line.n);
    return (struct str){"", 0};
}
