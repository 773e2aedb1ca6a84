#!/usr/bin/env bash
# old-postgresql.sh DIRECTORY: unpacks PostgreSQL 15 for the tests of pg_upgrade in DIRECTORY, unless it exists. It is the
# oldest minor release that apt offers: pg_upgrade of 18.6 cannot read the catalogs of 15.20, whose columns have an option
# that 18.6 does not know.
set -euo pipefail
. "$(dirname "$0")/make-once.sh"

old=15

die() { echo "old-postgresql: $*" >&2; exit 1; }

unpack() {
  local version package
  version=$(apt-cache madison "postgresql-$old" | awk '$NF == "Packages" { print $3 }' | sort -V | head -n 1)
  [ -n "$version" ] || die "apt has no package postgresql-$old to upgrade from: run apt-get update"
  echo "==> unpack PostgreSQL $version, to upgrade from"
  (cd "$work" && apt-get download -q "postgresql-$old=$version" "postgresql-client-$old=$version") >"$work/log" 2>&1 ||
    die "cannot download postgresql-$old $version: $(tail -n 1 "$work/log")"
  mkdir "$work/result"
  for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/result"; done
}

make_once "$1" unpack
