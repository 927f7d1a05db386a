#!/bin/sh
# test_memory_limit.sh CACHESVC WORKER - what a control group allows is what the machine has. Skipped where no group
# can be made (no root, or no memory controller in reach).
set -eu
cachesvc=$1
worker=$2

try() { # ARGS...: exit code in $rc, what was said in $text
    rc=0
    text=$("$@" 2>&1) || rc=$?
}
fail() {
    echo "$1: exit $rc: $text" >&2
    exit 1
}

# G7: what is within the option's bounds works, with a disk tier and its reserve too.
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for ram in 8m 16m 17m; do
    try timeout -s TERM 2 "$cachesvc" --ram-bytes $ram --listen 127.0.0.1:0 --http-listen ""
    echo "$text" | grep -q '^ready ' || fail "$ram"
    try timeout -s TERM 2 "$cachesvc" --ram-bytes $ram --listen 127.0.0.1:0 --http-listen "" --disk-dir "$dir" \
        --disk-bytes 64m
    echo "$text" | grep -q '^ready ' || fail "$ram with a disk"
done

# F13: 512 MiB asked for where 256 are allowed was "ready", then killed for memory without a word.
v1=$(awk '$0 ~ / - cgroup / && $NF ~ /(^|,)memory(,|$)/ { print $5; exit }' /proc/self/mountinfo)
v2=$(awk '$0 ~ / - cgroup2 / { print $5; exit }' /proc/self/mountinfo)
if [ -n "$v1" ] && group=$v1/incipit-test-$$ && mkdir "$group" 2>/dev/null; then
    limit=$group/memory.limit_in_bytes
elif [ -n "$v2" ] && group=$v2/incipit-test-$$ && mkdir "$group" 2>/dev/null; then
    limit=$group/memory.max
else
    echo "no control group can be made here"
    exit 77
fi
trap 'rm -rf "$dir"; rmdir "$group"' EXIT
if [ ! -e "$limit" ] || ! echo 268435456 >"$limit"; then
    echo "no limit of memory can be set here"
    exit 77
fi
try sh -c 'echo $$ >"$1/cgroup.procs" && exec "$2" --ram-bytes 512m --listen 127.0.0.1:0 --http-listen ""' \
    sh "$group" "$cachesvc"
[ "$rc" = 3 ] || fail "over the limit"
echo "$text" | grep -q '512m\|536870912' && echo "$text" | grep -q 268435456 || fail "both numbers"

# F13: the worker the same, before it reads a model.
try sh -c 'echo $$ >"$1/cgroup.procs" && exec "$2" --model x --kv-bytes 512m --listen 127.0.0.1:0' sh "$group" "$worker"
[ "$rc" = 3 ] || fail "worker over the limit"
echo "$text" | grep -q 'kv-bytes 536870912' && echo "$text" | grep -q 268435456 || fail "both numbers of the worker"
