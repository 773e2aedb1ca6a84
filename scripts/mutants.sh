#!/usr/bin/env bash
# mutants.sh SEED: changes the core in one place after another, in a copy, at a fifth of all places that the seed selects.
# Fails if the core's tests notice fewer than nine of ten changes. Those that they miss are in target/mutants.
set -euo pipefail
cd "$(dirname "$0")/.."

share=5
out=target/mutants
rm -rf "$out"
mkdir -p "$out"
# A change can make a test allocate without an end.
ulimit -v $((6 << 20))
# Each change costs a build of the core and a run of its tests: a few seconds with these, and most of a minute without.
export CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=false TMPDIR
TMPDIR=$(scripts/test-dir.sh)
status=0
cargo mutants -p idgen-core --shard "$(($1 % share))/$share" --sharding round-robin --timeout 180 --output "$out" -- --lib ||
  status=$?
# 2 and 3: changes were missed, or a test never ended.
[ "$status" = 0 ] || [ "$status" = 2 ] || [ "$status" = 3 ] || exit "$status"

count() { wc -l <"$out/mutants.out/$1.txt"; }
# A test that never ends is one that fails.
caught=$(($(count caught) + $(count timeout)))
total=$((caught + $(count missed)))
echo "mutants.sh: $caught of $total changes were noticed"
if [ $((caught * 10)) -lt $((total * 9)) ]; then
  cat "$out/mutants.out/missed.txt" >&2
  exit 1
fi
