#!/usr/bin/env bash
# compose.sh - the container images and the compose stack, for real: builds every image, starts the stack with
# a real Docker engine, and runs the quickstart's checks (and a few of the stack's own) through it.
#
#   tests/e2e/compose.sh [--model FILE] [--port P] [--keep]
#
# Where no Docker engine runs, it is installed (Debian's docker.io) and started for the run; where no image
# registry is reached, the base image is made with debootstrap and Debian's Redis and HAProxy stand in for the
# public images. Needs root, and some 5 GB of disk; about five minutes the first time.
#
#   --keep   leave the stack (and an engine that was started here) running
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD

model= port=18080 keep=
while [ $# -gt 0 ]; do
    case $1 in
    --model) model=$2 && shift ;;
    --port) port=$2 && shift ;;
    --keep) keep=1 ;;
    *)
        sed -n '2,12s/^# \{0,1\}//p' "$0"
        exit 2
        ;;
    esac
    shift
done
say() { echo "[compose] $*"; }
die() {
    echo "compose.sh: $*" >&2
    exit 1
}

# --- engine -----------------------------------------------------------------------------------------
need=()
command -v docker >/dev/null || need+=(docker.io)
command -v dockerd >/dev/null || docker info >/dev/null 2>&1 || need+=(docker.io iptables)
docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null || need+=(docker-compose)
if [ ${#need[@]} -gt 0 ]; then
    [ "$(id -u)" = 0 ] || die "missing: ${need[*]}; run as root, or install them"
    say "installing ${need[*]}"
    apt-get update -q >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${need[@]}" >/dev/null
fi
tmp=$(mktemp -d)
engine=
cleanup() {
    status=$?
    if [ -z "$keep" ]; then
        if [ -f "$tmp/env" ]; then
            if [ $status != 0 ]; then
                compose ps || true
                compose logs --tail 15 || true
            fi
            compose down -v --remove-orphans >/dev/null 2>&1 || true
        fi
        if [ -n "$engine" ]; then
            kill "$engine" && wait "$engine" 2>/dev/null || true
        fi
    fi
    rm -rf "$tmp"
    exit $status
}
trap cleanup EXIT
if ! docker info >/dev/null 2>&1; then
    [ "$(id -u)" = 0 ] || die "no Docker engine answers, and only root may start one"
    say "starting dockerd"
    dockerd >"${TMPDIR:-/tmp}/incipit-dockerd.log" 2>&1 &
    engine=$!
    for _ in $(seq 120); do
        docker info >/dev/null 2>&1 && break
        kill -0 "$engine" 2>/dev/null || die "dockerd ended: ${TMPDIR:-/tmp}/incipit-dockerd.log"
        sleep 0.5
    done
    docker info >/dev/null 2>&1 || die "dockerd does not answer"
fi

# --- base image -------------------------------------------------------------------------------------
base=debian:12-slim stand_in=
if ! docker image inspect $base >/dev/null 2>&1 && ! timeout 60 docker pull -q $base >/dev/null 2>&1; then
    base=incipit-base:bookworm stand_in=1
    if ! docker image inspect $base >/dev/null 2>&1; then
        say "no registry: making the base image with debootstrap"
        command -v debootstrap >/dev/null ||
            DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends debootstrap >/dev/null
        debootstrap --variant=minbase bookworm "$tmp/base" >"$tmp/debootstrap.log" ||
            die "debootstrap failed: $(tail -n 3 "$tmp/debootstrap.log")"
        tar -C "$tmp/base" -c . | docker import -c 'CMD ["/bin/bash"]' - $base >/dev/null
        rm -rf "$tmp/base"
    fi
fi

# --- images -----------------------------------------------------------------------------------------
targets=(cachesvc worker tools)
redis=redis:7-bookworm haproxy=haproxy:2.8-bookworm
if [ -n "$stand_in" ] || ! { docker pull -q $redis && docker pull -q $haproxy; } >/dev/null 2>&1; then
    targets+=(redis haproxy)
    redis=incipit-redis:latest haproxy=incipit-haproxy:latest
fi
for t in "${targets[@]}"; do
    say "image incipit-$t"
    docker build --build-arg "BASE=$base" -f deploy/container/Containerfile --target "$t" -t "incipit-$t:latest" . \
        >"$tmp/build.log" 2>&1 || {
        tail -n 25 "$tmp/build.log" >&2
        die "the image $t does not build"
    }
done

# --- stack ------------------------------------------------------------------------------------------
[ -n "$model" ] || model=$(tools/dev/get-model)
model=$(readlink -f "$model")
deploy/compose/make-tokens "$tmp/secrets"
cat >"$tmp/env" <<ENV
INCIPIT_MODEL_DIR=$(dirname "$model")
INCIPIT_MODEL_FILE=$(basename "$model")
INCIPIT_SECRETS_DIR=$tmp/secrets
INCIPIT_PORT=$port
INCIPIT_FETCH=always
INCIPIT_DEBUG_LOGITS=on
INCIPIT_WORKER_THREADS=1
INCIPIT_RAM_BYTES=512m
INCIPIT_DISK_BYTES=1g
INCIPIT_BASE_IMAGE=$base
INCIPIT_REDIS_IMAGE=$redis
INCIPIT_HAPROXY_IMAGE=$haproxy
ENV
compose() {
    local cmd=(docker-compose)
    docker compose version >/dev/null 2>&1 && cmd=(docker compose)
    "${cmd[@]}" -p incipit-e2e --env-file "$tmp/env" -f "$root/deploy/compose/compose.yaml" "$@"
}
say "compose up"
compose up -d >"$tmp/up.log" 2>&1 || {
    cat "$tmp/up.log" >&2
    die "compose up failed"
}
python3 tests/e2e/compose.py --project incipit-e2e --port "$port" --secrets "$tmp/secrets"
say "all checks passed"
if [ -n "$keep" ]; then
    trap - EXIT
    echo "The stack runs: http://127.0.0.1:$port/v1/models; end it with:"
    echo "  docker ps -q --filter label=com.docker.compose.project=incipit-e2e | xargs docker rm -f"
fi
