#!/usr/bin/env bash
# Prints the directory of what setup.sh builds or installs outside of the system. IDGEN_CACHE moves it.
set -euo pipefail

# As root, servers run as the user postgres, which cannot read root's home directory.
if [ "$(id -u)" = 0 ]; then cache=/var/cache/idgen; else cache=${XDG_CACHE_HOME:-$HOME/.cache}/idgen; fi
echo "${IDGEN_CACHE:-$cache}"
