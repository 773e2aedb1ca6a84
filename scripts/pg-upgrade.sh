#!/usr/bin/env bash
# Runs the tests of pg_upgrade, from an old PostgreSQL to the one of PG_CONFIG. idgen is installed in the latter.
set -euo pipefail
cd "$(dirname "$0")/.."

old=15
PG_CONFIG=${PG_CONFIG:-$(scripts/default-pg-config.sh)}
export PG_CONFIG
prefix=$(scripts/cache-dir.sh)/postgresql-$old-old

die() { echo "pg-upgrade: $*" >&2; exit 1; }
run() { cargo test -q -p idgen-cluster-tests --test operations -- --ignored pg_upgrade "$@"; }

version=$("$PG_CONFIG" --version)
[[ ! $version =~ ^"PostgreSQL $old"[^0-9] ]] || die "upgrades go from PostgreSQL $old to a newer version: set PG=18"
scripts/old-postgresql.sh "$prefix"
make install PG=$old PG_CONFIG="$(PG=$old scripts/default-pg-config.sh)" DESTDIR="$prefix"
export IDGEN_OLD_PG_CONFIG=$prefix/usr/lib/postgresql/$old/bin/pg_config

# A filter that matches no test is no error to cargo.
grep -q ': test$' <<<"$(run --list)" || die "no test is ignored and has pg_upgrade in its name"
echo "==> real clusters: pg_upgrade from $("$IDGEN_OLD_PG_CONFIG" --version) to $version"
run
