#!/usr/bin/env bash
# Moves a database that uses idgen to another server by logical replication.
#
#   switch-over.sh prepare OLD NEW         publishes the schema public of OLD, and subscribes NEW to it
#   switch-over.sh switch OLD NEW ROLE...  locks the applications' login roles out of OLD, and moves the rest to NEW
#
# OLD and NEW are connection strings of a superuser. NEW must be able to connect to OLD by the first one.
# Before `prepare`, OLD has wal_level = logical. NEW has the roles, an empty database, and idgen preloaded.
set -euo pipefail

sql() { psql -X -q -A -t -v ON_ERROR_STOP=1 -d "$@"; }

# Repeats a query until it returns t.
wait_for() {
  local answer
  while true; do
    answer=$(sql "$1" -c "$2")
    if [ "$answer" = t ]; then break; fi
    sleep 0.2
  done
}

prepare() {
  sql "$old" -c 'CREATE PUBLICATION app FOR TABLES IN SCHEMA public'
  pg_dump -d "$old" --schema-only --no-publications --no-subscriptions | sql "$new" -1 >/dev/null
  sql "$new" -v origin="$old" <<<"CREATE SUBSCRIPTION app CONNECTION :'origin' PUBLICATION app"
  wait_for "$new" "SELECT count(*) = 0 FROM pg_subscription_rel WHERE srsubstate <> 'r'"
}

switch() {
  local role end

  # 1. Applications write to the old server no more, also if they connect again.
  for role; do
    sql "$old" -v role="$role" >/dev/null <<'SQL'
ALTER ROLE :"role" NOLOGIN;
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = :'role';
SQL
  done

  # 2. The new server gets the last rows.
  end=$(sql "$old" -c 'SELECT pg_current_wal_lsn()')
  wait_for "$old" "SELECT confirmed_flush_lsn >= '$end' FROM pg_replication_slots WHERE slot_name = 'app'"

  # 3. Segments continue above the old server's max_id. Leases keep their definitions, and lose their holders.
  # Public ids stay valid.
  pg_dump -d "$old" --data-only -t idgen.segment -t idgen.segment_server \
    -t idgen.lease_definition -t idgen.public_key |
    sql "$new" -1 >/dev/null

  # 4. The new server replicates no longer.
  sql "$new" -c 'DROP SUBSCRIPTION app'

  # 5. Sequences continue. They are not replicated.
  sql "$old" <<'SQL' | sql "$new" >/dev/null
SELECT format('SELECT setval(%L, %s);', format('%I.%I', schemaname, sequencename), last_value)
FROM pg_sequences WHERE last_value IS NOT NULL;
SQL

  # 6. New snowflake ids are above the replicated ones, whatever the new server's clock says.
  sql "$new" <<'SQL' | sql "$new" >/dev/null
SELECT format('SELECT snowflake_observe(max(%I)%s) FROM %s;', attname, ', ' || nullif(argument, ''), attrelid::regclass)
FROM pg_attribute JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum,
  substring(pg_get_expr(adbin, adrelid) FROM 'snowflake_next\(([^,)]*)') AS argument
WHERE argument IS NOT NULL;
SQL
}

if [[ ${1:-} == prepare && $# == 3 || ${1:-} == switch && $# -ge 4 ]]; then
  old=$2 new=$3
  "$1" "${@:4}"
else
  sed -n '4,5s/^#  *//p' "$0" >&2
  exit 2
fi
