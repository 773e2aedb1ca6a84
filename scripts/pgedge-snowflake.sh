#!/usr/bin/env bash
# pgedge-snowflake.sh: prints the library of pgEdge's snowflake, a peer of the bench, for the PostgreSQL of PG_CONFIG. Builds
# it from one commit of its source, in the cache. Prints nothing if the source cannot be fetched.
set -euo pipefail
cd "$(dirname "$0")/.."

commit=ebbdae83a49bce65cd35049c8c6c018abd3185da
pg_config=${PG_CONFIG:-$(scripts/default-pg-config.sh)}
version=$("$pg_config" --version | sed 's/^PostgreSQL \([0-9.]*\).*/\1/')
built=$(scripts/cache-dir.sh)/pgedge-snowflake-${commit:0:12}-$version

if [ ! -f "$built/snowflake.so" ]; then
  rm -rf "$built"
  if ! git clone -q https://github.com/pgEdge/snowflake "$built" >&2 || ! git -C "$built" checkout -q "$commit" >&2; then
    rm -rf "$built"
    echo "pgedge-snowflake.sh: no source, so the bench leaves it out" >&2
    exit 0
  fi
  make -s -C "$built" USE_PGXS=1 with_llvm=no PG_CONFIG="$pg_config" snowflake.so >&2
fi
echo "$built/snowflake.so"
