#!/usr/bin/env bash
# clean-root.sh SUITE PACKAGES: prints a directory with a minimal Debian SUITE and these PACKAGES, separated by
# commas. Makes it once, in the cache. It uses this system's mirror, proxy and certificates.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=$1
packages=$2
root=$(scripts/cache-dir.sh)/roots/$suite-${packages//,/-}
work=$root.making

say() { echo "==> $*" >&2; }
die() { echo "clean-root: $*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || die "a test on a clean root needs chroot: run it as root, or with sudo"
mkdir -p "${root%/*}"
exec 9>"$root.lock"
flock 9 # another checkout may make the same root
if [ ! -d "$root" ]; then
  mirror=$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' |
    sed -n 's/^Debian //p' | head -n 1)
  [ -n "$mirror" ] || die "apt has no lists of a Debian mirror: run apt-get update"
  say "install Debian $suite with $packages in $root (takes minutes, once)"
  rm -rf --one-file-system "$work" # a killed run leaves it
  # debootstrap mounts /proc, and leaves it mounted if it is killed. In namespaces of its own both end with it.
  unshare --mount --pid --fork --kill-child debootstrap --variant=minbase --include="ca-certificates,$packages" \
    "$suite" "$work" "$mirror" >"$work.log" 2>&1 ||
    { tail -n 20 "$work.log" >&2; die "debootstrap failed"; }
  apt-config dump | grep '^Acquire::' >"$work/etc/apt/apt.conf.d/90caller" || true
  cp /etc/ssl/certs/ca-certificates.crt "$work/etc/ssl/certs/"
  chroot "$work" apt-get clean
  rm -f "$work.log"
  mv "$work" "$root" # atomic: an existing root is complete
fi
cp /etc/resolv.conf "$root/etc/"
echo "$root"
