#!/usr/bin/env bash
# core-copy.sh DIRECTORY CRATE...: copies these crates of crates/ below DIRECTORY, as a workspace of their own that can be
# changed. What was built there before is kept.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
copy=$1
shift
rm -rf "$copy/crates"
mkdir -p "$copy/crates"
cp "$root"/{Cargo.lock,rust-toolchain.toml} "$copy"
printf '[workspace]\nresolver = "3"\nmembers = ["crates/*"]\n' >"$copy/Cargo.toml"
for crate in "$@"; do
  cp -a "$root/crates/$crate" "$copy/crates"
done
# Cargo compiles what is newer than its last build; the copy keeps the times of the sources.
find "$copy/crates" -name '*.rs' -exec touch {} +
