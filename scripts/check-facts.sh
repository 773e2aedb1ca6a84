#!/usr/bin/env bash
# Fails unless the documents name the version of Cargo.toml where they name the current one, and elsewhere only versions
# that CHANGELOG.md has a section on.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(scripts/version.sh)
wrong=0
complain() { echo "check-facts: $*" >&2; wrong=1; }
# Fails unless the file has exactly the given line where it has one of that form.
expect() {
  local file=$1 form=$2 line=$3
  [ "$(grep -xE -- "$form" "$file" || true)" = "$line" ] || complain "$file does not say: $line"
}

number='[0-9]+\.[0-9]+'
minor=${version%.*}
expect README.md "The current version is .*\." "The current version is $version."
expect SECURITY.md "\| $number\.x \| yes \|" "| $minor.x | yes |"
expect SECURITY.md "\| before $number \| no \|" "| before $minor | no |"
[ "$(scripts/version.sh crates/idgen-core)" = "$version" ] || complain "crates/idgen-core/Cargo.toml is not of $version"

while IFS=: read -r file line named; do
  grep -qxF -- "## ${named##* }" CHANGELOG.md || complain "$file:$line: CHANGELOG.md has no version ${named##* }"
done < <(grep -rnoE --include='*.md' "(idgen|before) $number\.[0-9]+" README.md SECURITY.md docs)
exit $wrong
