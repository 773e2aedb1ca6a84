#!/usr/bin/env bash
# old-postgresql.sh DIRECTORY: unpacks PostgreSQL 15 for the tests of pg_upgrade in DIRECTORY, unless it exists. It is the
# oldest minor release that apt offers: pg_upgrade of 18.6 cannot read the catalogs of 15.20, whose columns have an option
# that 18.6 does not know.
set -euo pipefail

old=15
prefix=$1
work=$prefix.unpacking

die() { echo "old-postgresql: $*" >&2; exit 1; }

[ ! -d "$prefix" ] || exit 0
mkdir -p "${prefix%/*}"
exec 9>"$prefix.lock"
flock 9 # another checkout may unpack it too
[ ! -d "$prefix" ] || exit 0
rm -rf "$work" # a killed run leaves it
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/root"

version=$(apt-cache madison "postgresql-$old" | awk '$NF == "Packages" { print $3 }' | sort -V | head -n 1)
[ -n "$version" ] || die "apt offers no package postgresql-$old to upgrade from"
echo "==> unpack PostgreSQL $version, to upgrade from"
(cd "$work" && apt-get download -q "postgresql-$old=$version" "postgresql-client-$old=$version") >"$work/log" 2>&1 ||
  die "cannot download postgresql-$old $version: $(tail -n 1 "$work/log")"
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/root"; done
mv "$work/root" "$prefix" # atomic: an existing directory is complete
