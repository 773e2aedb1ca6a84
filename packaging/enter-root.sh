#!/usr/bin/env bash
# enter-root.sh copy|keep ROOT [OUTSIDE:INSIDE...] -- COMMAND...: runs a command as root in ROOT, where each directory
# OUTSIDE is mounted as INSIDE. `copy` discards what the command writes into ROOT, and `keep` keeps it.
# Mounts and processes are in namespaces of their own, so both end with the command.
set -euo pipefail

if [ "$1" != inside ]; then
  # The pid namespace ends the servers that a failed command leaves.
  exec unshare --mount --pid --fork --kill-child "$0" inside "$@"
fi
shift
mode=$1
root=$2
shift 2

if [ "$mode" = copy ]; then
  mount -t tmpfs idgen-root /mnt
  mkdir /mnt/upper /mnt/work /mnt/root
  mount -t overlay idgen-root -o "lowerdir=$root,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/root
  root=/mnt/root
fi
while [ "$1" != -- ]; do
  mkdir -p "$root${1#*:}"
  mount --bind "${1%%:*}" "$root${1#*:}"
  shift
done
shift
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs idgen-shm "$root/dev/shm"
# The variables of the caller, such as TMPDIR, name directories that are not in the root.
exec env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
  DEBIAN_FRONTEND=noninteractive chroot "$root" "$@"
