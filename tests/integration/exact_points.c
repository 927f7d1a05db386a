#include "tests/integration/exact_points.h"

#include "common/check.h"

#define MAX_VALUES 32
#define CANDIDATES 30

uint64_t exact_random(uint64_t *rng) {
    uint64_t z = (*rng += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

struct exact_point exact_point_random(const uint8_t n_values[N_FACTORS], uint64_t *rng) {
    struct exact_point p;
    for (int f = 0; f < N_FACTORS; f++)
        p.v[f] = (uint8_t)(exact_random(rng) % n_values[f]);
    return p;
}

/* seen[a][b][va][vb] for a < b. */
struct coverage {
    bool seen[N_FACTORS][N_FACTORS][MAX_VALUES][MAX_VALUES];
    size_t left;
};

static size_t gain(const struct coverage *c, const struct exact_point *p) {
    size_t n = 0;
    for (int a = 0; a < N_FACTORS; a++)
        for (int b = a + 1; b < N_FACTORS; b++)
            n += !c->seen[a][b][p->v[a]][p->v[b]];
    return n;
}

static void cover(struct coverage *c, const struct exact_point *p) {
    c->left -= gain(c, p);
    for (int a = 0; a < N_FACTORS; a++)
        for (int b = a + 1; b < N_FACTORS; b++)
            c->seen[a][b][p->v[a]][p->v[b]] = true;
}

/* Some pair not yet covered, the search starting anywhere: so the loop always ends. */
static void plant_uncovered(const struct coverage *c, const uint8_t *n_values, uint64_t *rng,
                            struct exact_point *p) {
    int start = (int)(exact_random(rng) % (N_FACTORS * N_FACTORS));
    for (int i = 0; i < N_FACTORS * N_FACTORS; i++) {
        int at = (start + i) % (N_FACTORS * N_FACTORS), a = at / N_FACTORS, b = at % N_FACTORS;
        for (int va = 0; a < b && va < n_values[a]; va++)
            for (int vb = 0; vb < n_values[b]; vb++)
                if (!c->seen[a][b][va][vb]) {
                    p->v[a] = (uint8_t)va;
                    p->v[b] = (uint8_t)vb;
                    return;
                }
    }
}

static struct exact_point next_point(const struct coverage *c, const uint8_t *n_values,
                                     uint64_t *rng) {
    struct exact_point best = {{0}};
    size_t best_gain = 0;
    for (int i = 0; i < CANDIDATES; i++) {
        struct exact_point p = exact_point_random(n_values, rng);
        plant_uncovered(c, n_values, rng, &p);
        size_t g = gain(c, &p);
        if (g > best_gain) {
            best = p;
            best_gain = g;
        }
    }
    return best;
}

size_t exact_points_pairs(const uint8_t n_values[N_FACTORS], uint64_t seed,
                          struct exact_point **ret) {
    struct coverage *c = calloc(1, sizeof(*c));
    size_t n = 0, cap = 4096;
    struct exact_point *out = alloc_array(cap, sizeof(*out));
    CHECK(c && out);
    for (int a = 0; a < N_FACTORS; a++) {
        CHECK(n_values[a] <= MAX_VALUES);
        for (int b = a + 1; b < N_FACTORS; b++)
            c->left += (size_t)n_values[a] * n_values[b];
    }
    while (c->left) {
        CHECK(n < cap);
        out[n] = next_point(c, n_values, &seed);
        cover(c, &out[n++]);
    }
    free(c);
    *ret = out;
    return n;
}
