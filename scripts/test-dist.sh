#!/usr/bin/env bash
# Installs the archive of `make dist` into a private copy of PostgreSQL, tests it, loads it, unloads it and uninstalls
# it, each step by pgxn.
set -euo pipefail
cd "$(dirname "$0")/.."

archive=$PWD/target/packages/idgen-$(scripts/version.sh).zip
work=$(mktemp -d /tmp/idgen-dist.XXXXXX)
server=$work/server

say() { echo "==> $*"; }
die() { echo "test-dist: $*" >&2; exit 1; }
as_server_user() { if [ "$(id -u)" = 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi; }
pg_ctl() { as_server_user "$bindir/pg_ctl" -D "$work/run/data" -l "$work/run/log" -s -w "$@"; }
clean_up() {
  [ ! -e "$work/run/data/postmaster.pid" ] || pg_ctl stop -m immediate
  rm -rf "$work"
}
trap clean_up EXIT

# Fails unless the query returns one row that is true.
assert() {
  [ "$("$bindir/psql" -X -h "$work/run" -U postgres -d postgres -Atc "$1")" = t ] || die "not true: $1"
}

say "META.json"
pgxn_meta META.json
chmod 755 "$work" # the server's user enters it
pg_config=$(scripts/copy-server.sh "$server")
bindir=$("$pg_config" --bindir)
sharedir=$("$pg_config" --sharedir)
# pgxn calls make with PG_CONFIG alone.
unset PG PG_CONFIG MAKEFLAGS MAKELEVEL MFLAGS
# pgxn unpacks the archive for each command. Outside of it, Cargo compiles the dependencies once.
export CARGO_TARGET_DIR=$PWD/target/dist

say "pgxn install"
pgxn install --pg_config "$pg_config" "$archive"
say "pgxn check"
(cd "$work" && pgxn check --pg_config "$pg_config" "$archive")

say "pgxn load"
mkdir "$work/run"
[ "$(id -u)" != 0 ] || chown postgres "$work/run"
as_server_user "$bindir/initdb" -D "$work/run/data" -U postgres -A trust --no-sync >/dev/null
cat >>"$work/run/data/postgresql.conf" <<END
listen_addresses = ''
unix_socket_directories = '$work/run'
shared_preload_libraries = 'idgen'
idgen.worker_id = 0
END
pg_ctl start
database=(--pg_config "$pg_config" --host "$work/run" --username postgres --dbname postgres)
pgxn load "${database[@]}" "$archive"
assert 'SELECT snowflake_next() > 0'
assert "SELECT bool_and(ok) FROM jsonb_to_recordset(idgen.status() -> 'checks') AS c(ok boolean)"
pgxn unload "${database[@]}" "$archive"
assert "SELECT NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'idgen')"
pg_ctl stop

say "pgxn uninstall"
pgxn uninstall --pg_config "$pg_config" "$archive"
left=$(find "$("$pg_config" --pkglibdir)" "$sharedir" -name '*idgen*')
[ -z "$left" ] || die "left behind: $left"
