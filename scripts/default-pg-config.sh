#!/usr/bin/env bash
# Prints the pg_config of the default PostgreSQL $PG: the system's, or the one that setup.sh builds in a cache.
# IDGEN_CACHE moves the cache.
set -euo pipefail

PG=${PG:-15}
system=/usr/lib/postgresql/$PG/bin
# As root, servers run as the user postgres, which cannot read root's home directory.
if [ "$(id -u)" = 0 ]; then cache=/var/cache/idgen; else cache=${XDG_CACHE_HOME:-$HOME/.cache}/idgen; fi

# Look for the server: Debian's client package has pg_config too.
if [ -x "$system/postgres" ]; then
  echo "$system/pg_config"
else
  echo "${IDGEN_CACHE:-$cache}/postgresql-$PG/bin/pg_config"
fi
