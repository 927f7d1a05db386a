#!/usr/bin/env bash
# fresh_debian.sh [bookworm|trixie] [COMMAND ...] - the README's first command on a Debian that has nothing.
#
# Makes a minimal system with debootstrap (root, about half a minute), clones this repository's HEAD into it and
# runs COMMAND there (default: tools/quickstart --json /tmp/figures.json, then shows the figures). The host's CA bundle
# is passed on for pip, since a registry may be reached through a host that only this machine trusts.
set -euo pipefail
cd "$(dirname "$0")/../.."

suite=${1:-bookworm}
shift || true
[ "$(id -u)" = 0 ] || {
    echo "fresh_debian: debootstrap and chroot need root" >&2
    exit 1
}
command -v debootstrap >/dev/null || tools/dev/packages run >/dev/null
command -v debootstrap >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq debootstrap >/dev/null

dir=$(mktemp -d /tmp/incipit-fresh.XXXXXX)
cleanup() {
    for m in proc sys dev/pts dev/shm dev; do mountpoint -q "$dir/$m" && umount -l "$dir/$m"; done
    rm -rf --one-file-system "$dir"
}
trap cleanup EXIT
echo "fresh_debian: debootstrap $suite"
debootstrap --variant=minbase "$suite" "$dir" >"/tmp/incipit-debootstrap.$$" 2>&1 || {
    tail -n 10 "/tmp/incipit-debootstrap.$$" >&2
    exit 1
}
mount --rbind /dev "$dir/dev"
mount --make-rslave "$dir/dev"
mount -t proc proc "$dir/proc"
mount -t sysfs sysfs "$dir/sys"
cp /etc/resolv.conf /etc/hosts "$dir/etc/" 2>/dev/null || true
env=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8)
if [ -r /etc/ssl/certs/ca-certificates.crt ]; then
    cp /etc/ssl/certs/ca-certificates.crt "$dir/root/host-ca.crt"
    env+=(PIP_CERT=/root/host-ca.crt NODE_EXTRA_CA_CERTS=/root/host-ca.crt)
fi
git clone -q . "$dir/root/incipit"
if [ $# -eq 0 ]; then
    set -- bash -c 'tools/quickstart --json /tmp/figures.json && cat /tmp/figures.json'
fi
echo "fresh_debian: $*"
chroot "$dir" /usr/bin/env -i "${env[@]}" sh -c 'cd /root/incipit && exec "$@"' sh "$@"
