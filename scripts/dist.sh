#!/usr/bin/env bash
# Packs the last commit as an archive for PGXN: target/packages/idgen-VERSION.zip. Two archives of a commit are equal.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { echo "dist: $*" >&2; exit 1; }

[ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$PWD" ] || die "this is no checkout of the repository"
git diff --quiet HEAD || die "the archive is that of the last commit: commit or stash the changes"
version=$(scripts/version.sh)
archive=target/packages/idgen-$version.zip
mkdir -p "${archive%/*}"
git archive --format=zip --prefix="idgen-$version/" --output="$archive" HEAD
echo "==> $archive: $(stat -c %s "$archive") bytes"
