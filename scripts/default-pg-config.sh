#!/usr/bin/env bash
# Prints the pg_config of the default PostgreSQL $PG: the system's, or the one that setup.sh builds in the cache.
set -euo pipefail

PG=${PG:-15}
system=/usr/lib/postgresql/$PG/bin

# Look for the server: Debian's client package has pg_config too.
if [ -x "$system/postgres" ]; then
  echo "$system/pg_config"
else
  echo "$("$(dirname "$0")"/cache-dir.sh)/postgresql-$PG/bin/pg_config"
fi
