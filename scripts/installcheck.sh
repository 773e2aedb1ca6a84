#!/usr/bin/env bash
# The SQL tests: pg_regress, then the isolation tester, each on a private server that preloads the installed idgen.
# Both run in a directory of their own under /tmp: PostgreSQL refuses to run as root, and the user it runs as instead
# may not be able to read the checkout. What they wrote ends up in target/installcheck.
set -euo pipefail
cd "$(dirname "$0")/.."

pg_config=${PG_CONFIG:-$(scripts/default-pg-config.sh)}
bindir=$("$pg_config" --bindir)
tools=$(dirname "$("$pg_config" --pgxs)")/../test
output=target/installcheck
work=$(mktemp -d /tmp/idgen-check.XXXXXX)
trap 'rm -rf "$work"' EXIT

as_server_user() {
  if [ "$(id -u)" = 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi
}

# run NAME INPUTS ENDING PROGRAM [OPTION...]: runs INPUTS/*.ENDING of tests/NAME in alphabetical order.
run() {
  local name=$1 inputs=$2 ending=$3 program=$4 tests=() file rc=0
  shift 4
  for file in "tests/$name/$inputs"/*."$ending"; do
    [ ! -e "$file" ] || tests+=("$(basename "$file" ".$ending")")
  done
  if [ ${#tests[@]} = 0 ]; then
    echo "==> $name: no tests yet"
    return
  fi
  echo "==> $name: ${#tests[@]} test files"

  cp -R "tests/$name" "$work/$name"
  # A new test differs from nothing; without the file the whole run would end there.
  mkdir -p "$work/$name/expected"
  for file in "${tests[@]}"; do touch "$work/$name/expected/$file.out"; done
  [ "$(id -u)" != 0 ] || chown -R postgres "$work"
  # The launcher is how a test gets UTC and ISO dates: pg_regress sets California's time zone in the environment of
  # psql, and that beats every setting of the server.
  (cd "$work/$name" && as_server_user "$program" --bindir="$bindir" --inputdir=. --outputdir=. \
    --temp-instance="$work/$name/instance" --temp-config="$work/postgresql.conf" --no-locale --encoding=UTF8 \
    --launcher='env PGTZ=UTC PGDATESTYLE=ISO,YMD' "$@" "${tests[@]}") || rc=$?

  mkdir -p "$output/$name"
  rm -rf "$work/$name/instance/data"
  cp -R "$work/$name/." "$output/$name"
  [ $rc = 0 ] && return
  cat "$output/$name/regression.diffs" 2>/dev/null || cat "$output/$name"/log/*.log
  echo "==> $name failed. All output is in $output/$name; to accept a new result, copy it from results/ there to tests/$name/expected/" >&2
  return $rc
}

# pgrx would put a backtrace into the DETAIL of every error.
unset RUST_BACKTRACE
export LC_ALL=C TMPDIR=/tmp
rm -rf "$output"
cp tests/pg_regress/postgresql.conf "$work"
run pg_regress sql sql "$tools/regress/pg_regress"
run isolation specs spec "$tools/isolation/pg_isolation_regress" --load-extension=idgen
