#!/usr/bin/env bash
# installcheck.sh [FILE]: runs the SQL tests: pg_regress, then the isolation tester, each on a private server that
# preloads the installed idgen. FILE has more settings for these servers.
# PostgreSQL refuses to run as root, and the user postgres may not read the checkout. So the tests run in a copy below
# /tmp, and their output is then copied to target/installcheck.
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

# run NAME INPUTS SUFFIX PROGRAM [OPTION...]: runs tests/NAME/INPUTS/*.SUFFIX in alphabetical order.
run() {
  local name=$1 inputs=$2 suffix=$3 program=$4 tests=() file rc=0
  shift 4
  for file in "tests/$name/$inputs"/*."$suffix"; do tests+=("$(basename "$file" ".$suffix")"); done
  echo "==> $name: ${#tests[@]} test files"

  cp -R "tests/$name" "$work/$name"
  # A new test has no expected output. Without the file pg_regress would stop there.
  mkdir -p "$work/$name/expected"
  for file in "${tests[@]}"; do touch "$work/$name/expected/$file.out"; done
  [ "$(id -u)" != 0 ] || chown -R postgres "$work"
  # pg_regress sets PGTZ and PGDATESTYLE for psql, and they override the server's settings. The launcher sets them back.
  (cd "$work/$name" && as_server_user "$program" --bindir="$bindir" --inputdir=. --outputdir=. \
    --temp-instance="$work/$name/instance" --temp-config="$work/postgresql.conf" --no-locale --encoding=UTF8 \
    --launcher='env PGTZ=UTC PGDATESTYLE=ISO,YMD' "$@" "${tests[@]}") || rc=$?

  mkdir -p "$output/$name"
  rm -rf "$work/$name/instance/data"
  cp -R "$work/$name/." "$output/$name"
  [ $rc = 0 ] && return
  cat "$output/$name/regression.diffs" 2>/dev/null || cat "$output/$name"/log/*.log
  echo "==> $name failed; the output is in $output/$name. To accept a result, copy it from its results/ to tests/$name/expected/" >&2
  return $rc
}

# pgrx would add a backtrace to the DETAIL of every error, which idgen prevents.
export RUST_BACKTRACE=1
export LC_ALL=C TMPDIR=/tmp
rm -rf "$output"
cat tests/pg_regress/postgresql.conf "$@" >"$work/postgresql.conf"
run pg_regress sql sql "$tools/regress/pg_regress"
run isolation specs spec "$tools/isolation/pg_isolation_regress" --load-extension=idgen
