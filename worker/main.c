/* main.c - incipit-worker: tokens in, tokens out. */
#include "worker/worker.h"

int main(int argc, char **argv) {
    return worker_main(argc, argv);
}
