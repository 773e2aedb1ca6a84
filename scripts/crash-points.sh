#!/usr/bin/env bash
# Crashes servers at each crash point. Builds idgen with the points into a private copy of PostgreSQL: no other server loads
# that library. The SQL is that of `make install`.
set -euo pipefail
cd "$(dirname "$0")/.."

installed=${PG_CONFIG:-$(scripts/default-pg-config.sh)}
work=$(mktemp -d /tmp/idgen-crash-points.XXXXXX)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work" # the server's user enters it

version=$("$installed" --version | sed -n 's/^PostgreSQL \([0-9]*\).*/\1/p')
points=crash-points
if [[ $version -ge 18 && $("$installed" --configure) = *--enable-injection-points* ]]; then
  points=injection-points # PostgreSQL's own, too
fi
# shellcheck disable=SC2086 # flags
cargo build -p idgen --no-default-features --features "pg$version,$points" ${PGRX_BUILD_FLAGS:-}
PG_CONFIG=$(PG_CONFIG=$installed scripts/copy-server.sh "$work")
export PG_CONFIG
install -m 0644 "${CARGO_TARGET_DIR:-target}/debug/libidgen.so" "$("$PG_CONFIG" --pkglibdir)/idgen.so"
cp "$("$installed" --sharedir)"/extension/idgen{.control,--*.sql} "$("$PG_CONFIG" --sharedir)/extension/"

has_points() { grep -q idgen_crash_point "$("$1" --pkglibdir)/idgen.so"; }
has_points "$PG_CONFIG" || { echo "crash-points: the library of the test has no points" >&2; exit 1; }
if has_points "$installed"; then
  echo "crash-points: the installed library has points, which only tests may have" >&2
  exit 1
fi
cargo test -p idgen-cluster-tests --features "idgen-cluster-tests/$points" --test crash_points
