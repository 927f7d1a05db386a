/* incipitctl: the operator's hand on cache nodes. */
#include "common/process.h"
#include "tools/incipitctl/ctl.h"

int main(int argc, char **argv) {
    process_stdio();
    return ctl_main(argc, argv, stdout, stderr);
}
