#!/usr/bin/env bash
# release-check.sh TAG: fails unless the tag names the version of Cargo.toml, CHANGELOG.md has a section on it, the
# documents name it, no placeholder is left, META.json says whom and where users ask, and sql/released.sha256 has its
# upgrade script.
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
scripts/check-facts.sh
# What the checkout cannot know: the address of the repository, and of its maintainers.
! grep -rnE 'OWNER/REPOSITORY|\.invalid\b' Cargo.toml META.json README.md SECURITY.md book.toml docs packaging >&2 ||
  die "replace these placeholders"
cd sql
grep -qE -- "--${version//./\\.}\.sql\$" released.sha256 || die "sql/released.sha256 has no script to $version"
sha256sum --check --strict --quiet released.sha256
