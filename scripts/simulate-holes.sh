#!/usr/bin/env bash
# simulate-holes.sh SECONDS: takes the fix of one known hole after another out of a copy of the core, and fails if the
# simulator does not find the hole within so many seconds, from a seed that nobody has chosen.
#
# Each file of crates/idgen-sim/holes is a patch, and says in its first line what the hole was.
set -euo pipefail

cd "$(dirname "$0")/.."
copy=$PWD/target/holes

count=0
missed=0
for hole in crates/idgen-sim/holes/*.patch; do
  scripts/core-copy.sh "$copy" idgen-core idgen-sim
  patch --quiet --no-backup-if-mismatch -d "$copy" -p1 <"$hole"
  # What only the fix has used is unused now.
  (cd "$copy" && RUSTFLAGS="--allow warnings" cargo build -q --release -p idgen-sim --bin simulate)
  count=$((count + 1))
  began=$SECONDS
  if (cd "$copy" && target/release/simulate "$1") >"$copy/log"; then
    echo "missed          $(head -1 "$hole")"
    missed=$((missed + 1))
  else
    # A simulator that cannot run has found nothing.
    grep -q '^simulate: .* 1 holes found$' "$copy/log" || { cat "$copy/log" >&2; exit 1; }
    printf 'found in %3d s  %s\n' $((SECONDS - began)) "$(head -1 "$hole")"
  fi
done
echo "simulate-holes.sh: $((count - missed)) of $count holes were found"
[ "$missed" = 0 ]
