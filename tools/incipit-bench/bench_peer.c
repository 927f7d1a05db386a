/* bench_peer.c - runs llama-bench and reads its JSON. */
#include "tools/incipit-bench/bench_peer.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/json.h"

#define MAX_ARGS 24

/* Starts the program with its standard output on a pipe and its chatter thrown away. */
static int start(char *const argv[], pid_t *ret_pid, int *ret_fd, struct errbuf *eb) {
    int fd[2];
    if (pipe(fd) < 0)
        return err_set(eb, -errno, "pipe");
    const pid_t pid = fork();
    if (pid < 0) {
        close(fd[0]);
        close(fd[1]);
        return err_set(eb, -errno, "fork");
    }
    if (pid == 0) {
        const int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(fd[1], 1);
        dup2(null, 2);
        close(fd[0]);
        execvp(argv[0], argv);
        _exit(127);
    }
    close(fd[1]);
    *ret_pid = pid;
    *ret_fd = fd[0];
    return 0;
}

static int output_of(char *const argv[], struct strbuf *out, struct errbuf *eb) {
    pid_t pid = 0;
    int fd = -1, status = -1;
    const int rv = start(argv, &pid, &fd, eb);
    if (rv < 0)
        return rv;
    char buf[4096];
    ssize_t n;
    while ((n = read(fd, buf, sizeof(buf))) > 0 || (n < 0 && errno == EINTR))
        if (n > 0)
            strbuf_add(out, buf, (size_t)n);
    close(fd);
    waitpid(pid, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return err_set(eb, ERR_INTERNAL, "'%s' ended with status %d", argv[0], status);
    return 0;
}

/* llama-bench prints an array with one object a test; ours has one test. */
static int rate_in(struct str text, double *ret, struct errbuf *eb) {
    CLEANUP(json_freep) struct json_t *doc = NULL;
    const int rv = json_parse(text, &doc, eb);
    if (rv < 0)
        return err_wrap(eb, rv, "output of llama-bench");
    const struct json_t *test = json_item(doc, json_count(doc) - (json_count(doc) > 0));
    const struct json_t *rate = json_member(test, "avg_ts");
    if (!json_is_num(rate) || json_num(rate) <= 0)
        return err_set(eb, ERR_INVALID, "output of llama-bench has no avg_ts");
    *ret = json_num(rate);
    return 0;
}

int bench_peer_run(const struct bench_peer *p, uint32_t n_prompt, uint32_t n_gen, uint32_t depth,
                   double *ret, struct errbuf *eb) {
    char threads[16], prompt[16], gen[16], at[16];
    snprintf(threads, sizeof(threads), "%u", p->threads);
    snprintf(prompt, sizeof(prompt), "%u", n_prompt);
    snprintf(gen, sizeof(gen), "%u", n_gen);
    snprintf(at, sizeof(at), "%u", depth);
    /* It takes a quantised V with flash attention only. */
    const char *flash = p->v_type[0] == 'q' ? "1" : "0";
    const char *argv[MAX_ARGS] = {p->program, "-m",  p->model, "-t",   threads,   "-p",
                                  prompt,     "-n",  gen,      "-d",   at,        "-r",
                                  "1",        "-o",  "json",   "-ctk", p->k_type, "-ctv",
                                  p->v_type,  "-fa", flash,    NULL};
    struct strbuf out;
    strbuf_init(&out);
    /* execvp() does not write through its argument; its type is older than const. */
    int rv = output_of((char *const *)(uintptr_t)argv, &out, eb);
    if (rv == 0)
        rv = rate_in((struct str){out.p, out.len}, ret, eb);
    strbuf_fini(&out);
    return rv;
}
