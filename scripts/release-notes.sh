#!/usr/bin/env bash
# release-notes.sh VERSION [BASE]: prints the section of CHANGELOG.md on that version, without its title. Links to files
# of the repository begin with BASE: a page of release notes is no file beside them.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$1
base=${2:+${2%/}/}

die() { echo "release-notes: $*" >&2; exit 1; }

# The text between this title and the next one, without empty lines around it.
notes=$(awk -v title="## $version" '/^## / { inside = $0 == title; next } inside' CHANGELOG.md | sed '/./,$!d')
[ -n "$notes" ] || die "CHANGELOG.md has nothing on version $version"
sed -E "s,\]\(([^):]*)\),](${base}\1),g" <<<"$notes"
