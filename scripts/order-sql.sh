#!/usr/bin/env bash
# order-sql.sh FILE: gives the SQL that cargo-pgrx writes one order. cargo-pgrx puts the objects that require functions,
# views and a trigger, into a random order. They follow all functions then, in the order of their files.
set -euo pipefail

ordered=$(mktemp "$1.XXXXXX")
trap 'rm -f "$ordered"' EXIT
awk -v RS='/\\* <begin connected objects> \\*/\n' -v ORS= '
  NR == 1 { printf "%s", $0; next }
  { block = "/* <begin connected objects> */\n" $0 }
  # The worker views read those of the leases, whose file is earlier in the alphabet.
  /^-- [^\n]*\n-- requires:\n/ {
    for (at = ++count; at > 1 && dependents[at - 1] > block; at--) dependents[at] = dependents[at - 1]
    dependents[at] = block
    next
  }
  # The last block is sql/finalize.sql, which comments all objects.
  { printf "%s", last; last = block }
  END { for (at = 1; at <= count; at++) printf "%s", dependents[at]; printf "%s", last }
' "$1" >"$ordered"
cat "$ordered" >"$1"
