#!/usr/bin/env bash
# test-in-root.sh PG PREVIOUS CURRENT: tests two Debian packages, of the released version and of this one, on the clean
# root where it runs. /blocks has the blocks of the quickstart. /usr/pgsql-PG has what the RPM installs there.
set -euo pipefail

pg=$1
previous=$2
current=$3
package=postgresql-$pg-idgen
library=/usr/lib/postgresql/$pg/lib/idgen.so

say() { echo "==> $*"; }
die() { echo "test-packages: $*" >&2; exit 1; }
is() { [ "$2" = "$3" ] || die "$1: $2, expected $3"; }
sql() { runuser -u postgres -- psql -XqAt -v ON_ERROR_STOP=1 -d postgres "$@"; }
quietly() { "$@" >/tmp/log 2>&1 || { cat /tmp/log >&2; die "failed: $*"; }; }
install() { quietly apt-get install -y "$1"; }
server() { quietly pg_ctlcluster "$pg" test "$1"; }

# Every file that a package can leave, but not what apt and the cluster write by themselves.
files() {
  find / -xdev \( -path /proc -o -path /dev -o -path /tmp -o -path /var/cache -o -path '/var/lib/postgresql/*' \
    -o -path '/var/log/*' -o -path '/run/*' -o -path '/var/lib/apt/*' -o -path /packages -o -path /blocks \
    -o -path '/usr/pgsql-*' \) -prune -o -printf '%y %m %p\n' | grep -v -e ' /var/lib/dpkg/.*-old$' | sort
}

# leaves_nothing remove|purge
leaves_nothing() {
  quietly apt-get "$1" -y "$package"
  files >/tmp/after
  diff /tmp/before /tmp/after || die "after $1, these files are left or missing"
}

new_server() {
  quietly pg_createcluster --port=5432 --encoding=UTF8 "$pg" test
  cat >>"/etc/postgresql/$pg/test/postgresql.conf" <<END
shared_preload_libraries = 'idgen'
idgen.worker_id = 0
wal_level = logical
timezone = UTC
END
  server start
}

drop_server() {
  server stop
  quietly pg_dropcluster "$pg" test
}

# Debian's server finds the RPM's files through links. Everything else is as on a system of RPMs.
rpm_works() {
  local file
  ln -s "/usr/pgsql-$pg/lib/idgen.so" "$library"
  for file in "/usr/pgsql-$pg/share/extension"/*; do ln -s "$file" "/usr/share/postgresql/$pg/extension/"; done
  new_server
  /packages/quickstart.sh
  drop_server
}

# dpkg renames the new file over the old one. A server that has loaded the old one keeps it.
upgrade_under_a_running_server() {
  local pid first second old
  old=$(extension_version)
  pid=$(head -n 1 "/var/lib/postgresql/$pg/test/postmaster.pid")
  first=$(sql -c "SELECT snowflake_next()")
  coproc session { sql 2>&1; }
  echo "SELECT pg_backend_pid();" >&"${session[1]}"
  read -r backend <&"${session[0]}"

  install "$current"
  is "libraries in the old server's memory that are deleted" \
    "$(grep -c "$library (deleted)" "/proc/$pid/maps" | sed 's/[1-9][0-9]*/some/')" some
  echo "SELECT snowflake_next(), pg_backend_pid();" >&"${session[1]}"
  IFS='|' read -r second same <&"${session[0]}"
  is "backend of the open session" "$same" "$backend"
  [ "$second" -gt "$first" ] || die "id $second is not above $first"
  [ "$(sql -c "SELECT snowflake_next()")" -gt "$second" ] || die "a new session's id is not above $second"
  is "postmaster" "$(head -n 1 "/var/lib/postgresql/$pg/test/postmaster.pid")" "$pid"
  is "version of the library in memory" "$(sql -c "SELECT idgen.status()->'version'->>'library'")" "$old"
  echo '\q' >&"${session[1]}"
  say "the server of $old survives the upgrade of the package"

  server restart
  versions "f"
  [ "$(sql -c "SELECT snowflake_next()")" -gt "$second" ] || die "an id after the restart is not above $second"
  sql -c "ALTER EXTENSION idgen UPDATE"
  versions "t"
  [ "$(sql -c "SELECT snowflake_next()")" -gt "$second" ] || die "an id after the UPDATE is not above $second"
  say "$old runs under the new library, and is now $(extension_version)"
}

# The check "versions" says whether the library and the SQL objects have the same version.
versions() {
  is "check of the versions" "$(sql -c "SELECT ok FROM jsonb_to_recordset(idgen.status()->'checks')
    AS c(\"check\" text, ok bool) WHERE \"check\" = 'versions'")" "$1"
}

extension_version() { sql -c "SELECT extversion FROM pg_extension WHERE extname = 'idgen'"; }

quietly apt-get update
files >/tmp/before
say "install $current"
install "$current"
new_server
/packages/quickstart.sh
drop_server
leaves_nothing purge

say "install $previous, then upgrade to $current"
install "$previous"
new_server
sql -c "CREATE EXTENSION idgen"
upgrade_under_a_running_server
drop_server
leaves_nothing remove
say "removed and purged without a trace"

say "the files of the RPM"
rpm_works
