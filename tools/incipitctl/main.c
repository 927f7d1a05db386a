/* incipitctl: the operator's hand on cache nodes. */
#include "tools/incipitctl/ctl.h"

int main(int argc, char **argv) {
    return ctl_main(argc, argv, stdout, stderr);
}
