#include "worker/kernels/kern_threads.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "common/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define cpu_relax() _mm_pause()
#elif defined(__aarch64__)
#define cpu_relax() __asm__ volatile("yield")
#else
#define cpu_relax() ((void)0)
#endif

/* Spins before sleeping: about 50 microseconds, longer than the serial pieces between two calls of a
 * forward pass and short enough not to burn a core that is idle. */
#define SPIN_MAX 2000
#define NEXT_BITS 32

/* A call is a "round". ticket packs the round (upper half) and the next piece (lower half), so that
 * taking a piece proves that its round is still running: the caller cannot leave while a piece of it
 * is not done, hence fn, arg and n are stable for whoever holds a piece. */
struct kern_team {
    _Atomic uint64_t ticket;
    _Atomic uint32_t n_pieces, done;
    _Atomic bool stop;
    /* Of the running round; written before ticket is published. */
    _Atomic(kern_fn) fn;
    _Atomic(void *) arg;
    _Atomic size_t n, grain;

    pthread_mutex_t lock; /* only for going to sleep and waking */
    pthread_cond_t wake, finished;
    _Atomic unsigned sleepers;
    _Atomic bool caller_waits;

    unsigned size;
    struct kern_member {
        struct kern_team *team;
        pthread_t thread;
        unsigned number;
    } members[];
};

void kern_fp_init(void) {
#if defined(__x86_64__)
    if ((_mm_getcsr() & ~0x3fu) != 0x1f80u) /* all but the sticky exception flags */
        _mm_setcsr(0x1f80u);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, xzr");
#endif
}

/* Takes pieces of the given round until none is left. */
static void work(struct kern_team *t, uint32_t round, unsigned thread) {
    for (;;) {
        uint64_t tk = atomic_load(&t->ticket);
        uint32_t piece = (uint32_t)tk;
        if (tk >> NEXT_BITS != round || piece >= atomic_load(&t->n_pieces))
            return;
        if (!atomic_compare_exchange_weak(&t->ticket, &tk, tk + 1))
            continue;
        size_t n = atomic_load(&t->n), grain = atomic_load(&t->grain);
        size_t begin = (size_t)piece * grain;
        atomic_load (&t->fn)(atomic_load(&t->arg), begin, MIN(n, begin + grain), thread);
        uint32_t n_pieces = atomic_load(&t->n_pieces);
        if (atomic_fetch_add(&t->done, 1) + 1 == n_pieces && atomic_load(&t->caller_waits)) {
            pthread_mutex_lock(&t->lock);
            pthread_cond_signal(&t->finished);
            pthread_mutex_unlock(&t->lock);
        }
    }
}

static uint32_t round_of(struct kern_team *t) {
    return (uint32_t)(atomic_load(&t->ticket) >> NEXT_BITS);
}

/* Waits for another round than seen, first spinning, then asleep. */
static uint32_t wait_round(struct kern_team *t, uint32_t seen) {
    for (unsigned i = 0; i < SPIN_MAX; i++) {
        if (round_of(t) != seen || atomic_load(&t->stop))
            return round_of(t);
        cpu_relax();
    }
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->sleepers, 1);
    while (round_of(t) == seen && !atomic_load(&t->stop))
        pthread_cond_wait(&t->wake, &t->lock);
    atomic_fetch_sub(&t->sleepers, 1);
    pthread_mutex_unlock(&t->lock);
    return round_of(t);
}

static void *member_main(void *arg) {
    struct kern_member *m = arg;
    kern_fp_init();
    uint32_t seen = 0;
    while (!atomic_load(&m->team->stop)) {
        seen = wait_round(m->team, seen);
        work(m->team, seen, m->number);
    }
    return NULL;
}

static void wake_sleepers(struct kern_team *t) {
    if (atomic_load(&t->sleepers) == 0)
        return;
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

/* Signals belong to the loop thread: members start with all of them blocked. */
static int start_member(struct kern_member *m) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rv = pthread_create(&m->thread, NULL, member_main, m);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rv;
}

int kern_team_new(struct kern_team **ret, unsigned n_threads, struct errbuf *eb) {
    if (n_threads < 1 || n_threads > KERN_TEAM_MAX)
        return err_set(eb, ERR_INVALID, "kernel team of %u threads", n_threads);
    struct kern_team *t = calloc(1, sizeof *t + n_threads * sizeof t->members[0]);
    if (!t)
        return err_set(eb, ERR_NOMEM, "kernel team");
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    pthread_cond_init(&t->finished, NULL);
    for (t->size = 1; t->size < n_threads; t->size++) {
        struct kern_member *m = &t->members[t->size];
        m->team = t;
        m->number = t->size;
        int rv = start_member(m);
        if (rv != 0) {
            kern_team_free(t);
            return err_set(eb, -rv, "start kernel thread");
        }
    }
    *ret = t;
    return 0;
}

void kern_team_free(struct kern_team *t) {
    if (!t)
        return;
    atomic_store(&t->stop, true);
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
    for (unsigned i = 1; i < t->size; i++)
        pthread_join(t->members[i].thread, NULL);
    pthread_cond_destroy(&t->finished);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

unsigned kern_team_size(const struct kern_team *t) {
    return t ? t->size : 1;
}

/* Pieces taken by others may still run. Spin as a piece is short; sleep if a member was descheduled. */
static void wait_done(struct kern_team *t, uint32_t n_pieces) {
    for (unsigned i = 0; i < SPIN_MAX; i++) {
        if (atomic_load(&t->done) == n_pieces)
            return;
        cpu_relax();
    }
    atomic_store(&t->caller_waits, true);
    pthread_mutex_lock(&t->lock);
    while (atomic_load(&t->done) != n_pieces)
        pthread_cond_wait(&t->finished, &t->lock);
    pthread_mutex_unlock(&t->lock);
    atomic_store(&t->caller_waits, false);
}

void kern_team_for(struct kern_team *t, size_t n, size_t grain, kern_fn fn, void *arg) {
    kern_fp_init();
    if (n == 0)
        return;
    if (!t || t->size == 1 || n <= grain) { /* one piece: nothing is gained by cutting it */
        fn(arg, 0, n, 0);
        return;
    }
    size_t n_pieces = (n + grain - 1) / grain;
    CHECK(grain > 0 && n_pieces < UINT32_MAX);
    /* No member holds a piece here: the last round is done. A late one may still look at its ticket,
     * which is closed (no piece number is that high) before the fields change. */
    uint32_t round = round_of(t);
    atomic_store(&t->ticket, (uint64_t)round << NEXT_BITS | UINT32_MAX);
    round++;
    atomic_store(&t->fn, fn);
    atomic_store(&t->arg, arg);
    atomic_store(&t->n, n);
    atomic_store(&t->grain, grain);
    atomic_store(&t->done, 0);
    atomic_store(&t->n_pieces, (uint32_t)n_pieces);
    atomic_store(&t->ticket, (uint64_t)round << NEXT_BITS);
    wake_sleepers(t);
    work(t, round, 0);
    wait_done(t, (uint32_t)n_pieces);
}
