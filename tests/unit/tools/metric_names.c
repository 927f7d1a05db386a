/* metric_names - prints the exported name and type of every metric of both daemons, one a line:
 * test_deploy.py checks rules, dashboard and runbook against it. */
#include "cachesvc/cachesvc_metrics.h"
#include "common/metrics.h"
#include "common/process.h"
#include "worker/worker_metrics.h"

static void print_table(const struct metric_table *t) {
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct metric_row *r = &t->rows[i];
        const char *type = r->type == METRIC_HISTO ? "histogram" : "plain";
        if (r->name)
            printf("%s %s\n", r->name, type);
        else
            printf("%s%s %s\n", t->prefix, r->field, type);
    }
}

int main(void) {
    print_table(process_metrics_table());
    print_table(worker_metrics_table());
    print_table(worker_vllm_table());
    print_table(cachesvc_metrics_table());
    print_table(store_metrics_table());
    return 0;
}
