/* worker.h - the whole worker process.
 *
 * Thread: the loop thread, which is the one that calls it. */
#pragma once

/* Serves until told to stop; returns the exit code (common/svc_main.h). */
int worker_main(int argc, char **argv);
