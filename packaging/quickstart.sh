#!/usr/bin/env bash
# quickstart.sh: runs the blocks of the quickstart, which are in /blocks, on the server of the root where it runs. Each
# prints what the page shows.
set -euo pipefail

die() { echo "quickstart: $*" >&2; exit 1; }
as_postgres() { runuser -u postgres -- psql -Xq -v ON_ERROR_STOP=1 "$@"; }

printed=$(mktemp)
as_postgres -d postgres -c "CREATE DATABASE quickstart"
for block in /blocks/*.sql; do
  as_postgres -d quickstart -f "$block" >"$printed" 2>&1 || die "$(cat "$block" "$printed")"
  [ ! -e "${block%.sql}.out" ] ||
    difference=$(diff --ignore-trailing-space --ignore-blank-lines "${block%.sql}.out" "$printed") ||
    die "$(cat "$block"): $difference"
done
rm "$printed"
echo "==> quickstart: $(ls /blocks/*.sql | wc -l) blocks ran, $(ls /blocks/*.out | wc -l) outputs equal"
