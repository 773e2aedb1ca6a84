#!/usr/bin/env bash
# test-dir.sh: prints the directory for the servers of tests. In memory if there is room: a disk can take seconds to copy a
# data directory.
set -euo pipefail

memory=/dev/shm
if [ -n "${TMPDIR:-}" ]; then
  echo "$TMPDIR"
# Tests preload libraries that they compile there.
elif [ "$(df -k --output=avail $memory 2>/dev/null | tail -n 1)" -ge 8388608 ] 2>/dev/null &&
  ! findmnt -n -o OPTIONS $memory | grep -qw noexec; then
  echo $memory
else
  echo /tmp
fi
