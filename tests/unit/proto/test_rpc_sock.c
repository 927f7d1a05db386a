/* A11: a host that vanishes without FIN. In a network of our own, loopback is taken down under a connection
 * that sends nothing: both ends must hear of it. Skipped where the machine gives no network namespace. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "proto/rpc_sock.h"

static int set_loopback(bool up) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct ifreq r = {.ifr_flags = (short)(up ? IFF_UP : 0)};
    memcpy(r.ifr_name, "lo", 3);
    int rv = ioctl(fd, SIOCSIFFLAGS, &r);
    close(fd);
    return rv;
}

static void test_a_peer_that_vanished_is_found(void **state) {
    (void)state;
    struct rpc_addr a;
    uint16_t port;
    const struct rpc_sock_opt opt = {.dead_ms = 4000};
    assert_int_equal(rpc_addr_parse("127.0.0.1:0", &a, NULL), 0);
    int l = rpc_sock_listen(&a, 4, &port, NULL);
    assert_true(l >= 0);
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int c = rpc_sock_connect((struct sockaddr *)&sa, sizeof(sa), &opt);
    assert_true(c >= 0);
    struct pollfd p = {.fd = l, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 5000), 1);
    int s = accept(l, NULL, NULL);
    bool is_tcp;
    assert_int_equal(rpc_sock_tune(s, &opt, &is_tcp), 0);
    assert_true(is_tcp);
    assert_int_equal(set_loopback(false), 0);
    struct pollfd ends[2] = {{.fd = c, .events = POLLIN}, {.fd = s, .events = POLLIN}};
    for (int i = 0; i < 2; i++)
        if (poll(&ends[i], 1, 30000) != 1)
            fail_msg("end %d has heard nothing in 30 s", i);
    close(s);
    close(c);
    close(l);
}

int main(void) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0 || set_loopback(true) < 0) {
        fprintf(stderr, "skipped: no network namespace: %s\n", strerror(errno));
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_peer_that_vanished_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
