#!/usr/bin/env bash
# Runs the tests on real servers that depend on PostgreSQL's version. Their names end in _smoke.
set -euo pipefail
cd "$(dirname "$0")/.."

PG_CONFIG=${PG_CONFIG:-$(scripts/default-pg-config.sh)}
export PG_CONFIG
run() { cargo test -q -p idgen-cluster-tests -- _smoke "$@"; }

# A filter that matches no test is no error to cargo.
grep -q '_smoke: test$' <<<"$(run --list)" || { echo "smoke: no test ends in _smoke" >&2; exit 1; }
run
