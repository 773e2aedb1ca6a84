#!/usr/bin/env bash
# Prints the path of pg_config in the PostgreSQL $PG that is used unless PG_CONFIG names another: the system's own, or the
# one that setup builds in a cache. IDGEN_CACHE moves the cache.
set -euo pipefail

PG=${PG:-15}
system=/usr/lib/postgresql/$PG/bin
# Root's servers run as the user postgres, who cannot look into root's home.
if [ "$(id -u)" = 0 ]; then cache=/var/cache/idgen; else cache=${XDG_CACHE_HOME:-$HOME/.cache}/idgen; fi

# The server and not pg_config, which the client's package has too.
if [ -x "$system/postgres" ]; then
  echo "$system/pg_config"
else
  echo "${IDGEN_CACHE:-$cache}/postgresql-$PG/bin/pg_config"
fi
