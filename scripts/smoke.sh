#!/usr/bin/env bash
# Runs the tests on real servers that depend on PostgreSQL's version. Their names end in _smoke.
set -euo pipefail
cd "$(dirname "$0")/.."

PG_CONFIG=${PG_CONFIG:-$(scripts/default-pg-config.sh)}
export PG_CONFIG
run() { cargo test -q -p idgen-cluster-tests -- "$@"; }

# A filter that matches no test is no error to cargo.
run_named() {
  grep -q "$1.*: test$" <<<"$(run --list "$@")" || { echo "smoke: no test has $1 in its name" >&2; exit 1; }
  run "$@"
}

run_named _smoke
[[ $("$PG_CONFIG" --version) =~ ^"PostgreSQL "([0-9]+) ]]
# Ignored otherwise: PostgreSQL has these programs since version 17.
if [ "${BASH_REMATCH[1]}" -ge 17 ]; then
  run_named since_17 --ignored
fi
