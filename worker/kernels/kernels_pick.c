#include "worker/kernels/kern_impl.h"

#if defined(KERN_HAVE_AVX2) || defined(KERN_HAVE_AVX512)
#include <cpuid.h>

/* clang 14 does not know this one by name. */
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

struct candidate {
    const struct kern_ops *ops;
    bool (*cpu_has)(void);
};

static bool always(void) {
    return true;
}

#ifdef KERN_HAVE_AVX2
/* __builtin_cpu_supports also asks the system whether it saves the wide registers. */
static bool has_avx2(void) {
    return has_f16c() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

#ifdef KERN_HAVE_AVX512
static bool has_avx512(void) {
    return has_f16c() && __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}
#endif

/* Best first. */
static const struct candidate candidates[] = {
#ifdef KERN_HAVE_AVX512
    {&kern_ops_avx512, has_avx512},
#endif
#ifdef KERN_HAVE_AVX2
    {&kern_ops_avx2, has_avx2},
#endif
    {&kern_ops_ref, always},
};

const struct kern_ops *kernels_pick(const char *isa, struct errbuf *eb) {
    for (size_t i = 0; i < ARRAY_LEN(candidates); i++) {
        const struct candidate *c = &candidates[i];
        if (isa && strcmp(isa, c->ops->name) != 0)
            continue;
        if (c->cpu_has())
            return c->ops;
        if (isa) {
            err_set(eb, ERR_UNSUPPORTED, "this CPU has no %s", isa);
            return NULL;
        }
    }
    err_set(eb, ERR_INVALID, "no kernels named '%s' in this build", isa ? isa : "");
    return NULL;
}
