#include "bench_util.h"

#define PEAK_ROUNDS 20000

#if defined(__x86_64__)

#define TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define FMA512(i) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #i "\n"
#define DOT512(i) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #i "\n"
#define FMA256(i) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #i "\n"
#define CLOBBER                                                                                    \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",       \
        "xmm11", "xmm14", "xmm15"

static void spin_fma512(void *arg) {
    (void)arg;
    for (int i = 0; i < PEAK_ROUNDS; i++)
        __asm__ volatile(TWELVE(FMA512) : : : CLOBBER);
}

static void spin_dot512(void *arg) {
    (void)arg;
    for (int i = 0; i < PEAK_ROUNDS; i++)
        __asm__ volatile(TWELVE(DOT512) : : : CLOBBER);
}

static void spin_fma256(void *arg) {
    (void)arg;
    for (int i = 0; i < PEAK_ROUNDS; i++)
        __asm__ volatile(TWELVE(FMA256) : : : CLOBBER);
}

double peak_fma(void) {
    if (kernels_pick("avx512", NULL))
        return PEAK_ROUNDS * 12 * 32.0 / best_s(spin_fma512, NULL, 0.1);
    if (kernels_pick("avx2", NULL))
        return PEAK_ROUNDS * 12 * 16.0 / best_s(spin_fma256, NULL, 0.1);
    return 0;
}

double peak_dot(void) {
    return kernels_pick("avx512", NULL) ? PEAK_ROUNDS * 12 * 128.0 / best_s(spin_dot512, NULL, 0.1)
                                        : 0;
}

#else

double peak_fma(void) {
    return 0;
}

double peak_dot(void) {
    return 0;
}

#endif
