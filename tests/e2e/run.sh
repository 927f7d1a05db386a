#!/usr/bin/env bash
# run.sh BUILD - whole pools on loopback with the real Redis and HAProxy; pieces of them are killed.
# Prints a line a test ("ok NAME", "FAILED NAME: why", "skip NAME: why") and "# e2e complete" at the end.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
exec python3 tests/e2e/e2e.py "$@"
