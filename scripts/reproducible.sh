#!/usr/bin/env bash
# Builds the last commit twice, in two directories with nothing in common, and compares the library and the SQL byte by
# byte. Takes the time of two builds.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$PWD/target/reproducible
rm -rf "$work"
for copy in first the/second; do
  mkdir -p "$work/$copy"
  git archive HEAD | tar -x -C "$work/$copy"
  env -u CARGO_TARGET_DIR -u MAKEFLAGS make --no-print-directory -C "$work/$copy" build
done
diff -r "$work/first/target/package" "$work/the/second/target/package" ||
  { echo "reproducible: two builds of one commit differ; they are in $work" >&2; exit 1; }
(cd "$work/first/target/package" && find . -name '*.so' -exec sha256sum {} +)
echo "==> two builds of one commit are equal"
