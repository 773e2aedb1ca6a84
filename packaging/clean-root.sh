#!/usr/bin/env bash
# clean-root.sh SUITE PACKAGES: prints a directory with a minimal Debian SUITE and these PACKAGES, separated by
# commas. Makes it once, in the cache. It uses this system's mirror, proxy and certificates.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/make-once.sh

suite=$1
packages=$2
root=$(scripts/cache-dir.sh)/roots/$suite-${packages//,/-}

say() { echo "==> $*" >&2; }
die() { echo "clean-root: $*" >&2; exit 1; }

install_debian() {
  local mirror
  mirror=$(scripts/debian-mirror.sh)
  say "install Debian $suite with $packages in $root (takes minutes, once)"
  # debootstrap mounts /proc, and leaves it mounted if it is killed. In namespaces of its own both end with it.
  unshare --mount --pid --fork --kill-child debootstrap --variant=minbase --include="ca-certificates,$packages" \
    "$suite" "$work/result" "$mirror" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; die "debootstrap failed"; }
  apt-config dump | grep '^Acquire::' >"$work/result/etc/apt/apt.conf.d/90caller" || true
  cp /etc/ssl/certs/ca-certificates.crt "$work/result/etc/ssl/certs/"
  chroot "$work/result" apt-get clean
}

[ "$(id -u)" = 0 ] || die "a test on a clean root needs chroot: run it as root, or with sudo"
make_once "$root" install_debian
cp /etc/resolv.conf "$root/etc/"
echo "$root"
