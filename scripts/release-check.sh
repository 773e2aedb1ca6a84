#!/usr/bin/env bash
# release-check.sh TAG: fails unless the tag names the version of Cargo.toml, CHANGELOG.md has a section on it,
# sql/released.sha256 has its upgrade script, and META.json says whom and where users ask.
set -euo pipefail
cd "$(dirname "$0")/.."

tag=$1
die() { echo "release-check: $*" >&2; exit 1; }

version=$(scripts/version.sh)
[ "$tag" = "v$version" ] || die "the tag $tag is not v$version, the version in Cargo.toml"
scripts/release-notes.sh "$version" >/dev/null
# A domain below .invalid stands for one that is not known yet.
maintainer=$(scripts/meta.sh maintainer)
homepage=$(scripts/meta.sh homepage)
[[ $maintainer == *" <"*@*">" && $maintainer != *.invalid* ]] ||
  die "META.json names no maintainer: set \"maintainer\" to \"NAME <ADDRESS>\""
[[ $homepage == https://* && $homepage != *.invalid* ]] ||
  die "META.json names no homepage: set \"resources\" to { \"homepage\": \"https://...\" }"
cd sql
grep -qE -- "--${version//./\\.}\.sql\$" released.sha256 || die "sql/released.sha256 has no script to $version"
sha256sum --check --strict --quiet released.sha256
