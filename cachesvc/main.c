#include "cachesvc/cachesvc.h"

int main(int argc, char **argv) {
    return cachesvc_main(argc, argv);
}
