#!/usr/bin/env bash
# run.sh BUILD [NAME ...] - whole pools on loopback with the real Redis and HAProxy; pieces of them are killed (e2e.py); the
# runbook's faults (faults.py). With names: those of e2e.py alone.
# Prints a line a test ("ok NAME", "FAILED NAME: why", "skip NAME: why") and "# e2e complete" at the end.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
rc=0
[ $# -gt 1 ] || python3 tests/e2e/faults.py "$@" || rc=1
python3 tests/e2e/e2e.py "$@" || rc=1
exit $rc
