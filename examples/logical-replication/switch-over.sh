#!/usr/bin/env bash
# Moves a database that uses idgen to another server by logical replication.
#
#   switch-over.sh prepare OLD NEW         publishes the schema public of OLD, and subscribes NEW to it
#   switch-over.sh switch OLD NEW ROLE...  locks the applications' login roles out of OLD, and moves the rest to NEW
#
# OLD and NEW are connection strings of a superuser. NEW must be able to connect to OLD by the first one.
# Before `prepare`, OLD has wal_level = logical. NEW has the roles, an empty database, and idgen preloaded.
# Each wait ends after PATIENCE seconds, by default 60. After a failure, mend the cause and run the same command again.
#
# Guaranteed: NEW gets each row of a logged table that was committed on OLD, with synchronous_commit = off too, and
# repeats no id, no value of a segment and no worker id. Not guaranteed: that clients whose roles you do not name write
# nothing to OLD, and get no worker id there. Not moved, but listed: unlogged tables, large objects, rows of materialized
# views, and tables of other extensions that the publication lacks.
set -euo pipefail

patience=${PATIENCE:-60}
export PGCONNECT_TIMEOUT=10 PGOPTIONS="-c statement_timeout=${patience}s ${PGOPTIONS-}"

# statement_timeout ends a statement that waits, and `timeout` one whose server is silent.
sql() { timeout $((2 * patience)) psql -X -q -A -t -v ON_ERROR_STOP=1 -d "$@"; }
die() { echo "switch-over: $1" >&2; exit 1; }

# Ends the script with a message if the query returns rows, and prints these.
refuse() {
  local rows
  rows=$(sql "$1" "${@:4}" <<<"$3")
  [ -z "$rows" ] || die "$2"$'\n'"$rows"
}

# Repeats a query until it returns t.
wait_for() {
  local answer end=$((SECONDS + patience))
  while true; do
    answer=$(sql "$1" -c "$3")
    if [ "$answer" = t ]; then break; fi
    [ $SECONDS -lt $end ] || die "waited $patience s in vain for $2"
    sleep 0.2
  done
}

# What pg_dump copies: segments with the servers that are attached, definitions of leases, pools of worker ids with what
# was granted from them, and keys of public ids.
copied=(segment segment_server lease_definition worker_pool worker_id worker_history public_key)

tables="SELECT format('%I.%I', nspname, relname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
  WHERE relkind = 'r' AND relpersistence = 'p' AND nspname !~ '^pg_' AND nspname <> 'information_schema'
    AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = c.oid AND deptype = 'e')"
# If they have rows. CREATE EXTENSION creates them on NEW, and may insert rows.
tables_of_extensions="SELECT format('SELECT %L WHERE EXISTS (SELECT FROM %s)',
    format('table %s of the extension %s', c.oid::regclass, extname), c.oid::regclass)
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
    JOIN pg_depend ON classid = 'pg_class'::regclass AND objid = c.oid AND deptype = 'e'
    JOIN pg_extension AS e ON refclassid = 'pg_extension'::regclass AND refobjid = e.oid
  WHERE relkind = 'r' AND extname <> 'idgen' AND"
is_published="EXISTS (SELECT FROM pg_publication_tables
  WHERE pubname = 'app' AND schemaname = nspname AND tablename = relname)"
subscription="pg_subscription JOIN pg_database AS d ON d.oid = subdbid
  WHERE subname = 'app' AND datname = current_database()"
lock_of_move="DO 'BEGIN PERFORM pg_advisory_xact_lock(20260105); END'"
# Nothing if NEW has no subscription.
state_of_new="SELECT CASE WHEN subslotname IS NULL THEN 'switched' ELSE 'subscribed' END FROM $subscription"

prepare() {
  local schema state
  state=$(sql "$new" -c "$state_of_new")
  if [ -z "$state" ]; then
    refuse "$old" 'OLD has no idgen in the database:' \
      "SELECT current_database() WHERE NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'idgen')"
    refuse "$old" 'OLD cannot publish with wal_level =' \
      "SELECT setting FROM pg_settings WHERE name = 'wal_level' AND setting <> 'logical'"
    refuse "$old" 'CREATE EXTENSION may fill these tables on NEW. Create the publication app without them:' \
      "$tables_of_extensions CASE WHEN EXISTS (SELECT FROM pg_publication WHERE pubname = 'app') THEN $is_published
       ELSE nspname = 'public' END \gexec"
    refuse "$new" 'NEW must preload idgen, but shared_preload_libraries =' \
      "SELECT format('%L', setting) FROM pg_settings
       WHERE name = 'shared_preload_libraries' AND setting !~ '\midgen\M'"
    refuse "$new" 'NEW is not empty. If `prepare` has failed, create its database again. It has the tables:' "$tables"
    schema=$(pg_dump -d "$old" --lock-wait-timeout="${patience}s" --schema-only --no-publications --no-subscriptions)
    sql "$old" <<<"SELECT 'CREATE PUBLICATION app FOR TABLES IN SCHEMA public'
      WHERE NOT EXISTS (SELECT FROM pg_publication WHERE pubname = 'app') \gexec"
    sql "$new" -1 <<<"$schema" >/dev/null
    sql "$new" -v origin="$old" <<<"CREATE SUBSCRIPTION app CONNECTION :'origin' PUBLICATION app"
  fi
  wait_for "$new" 'NEW to copy the tables: it goes on, and the same command waits again' \
    "SELECT count(*) = 0 FROM pg_subscription_rel WHERE srsubstate <> 'r'"
}

# What would be lost: rows and changes that NEW does not get.
refuse_losses() {
  local subscribed
  refuse "$old" 'The publication of OLD omits changes, rows or columns of:' \
    "SELECT pubname FROM pg_publication AS p
     WHERE pubname = 'app' AND NOT (pubinsert AND pubupdate AND pubdelete AND pubtruncate)
     UNION ALL SELECT prrelid::regclass::text FROM pg_publication_rel JOIN pg_publication AS p ON p.oid = prpubid
     WHERE pubname = 'app' AND (prqual IS NOT NULL OR prattrs IS NOT NULL)"
  subscribed=$(sql "$new" -c "SELECT coalesce(array_agg(format('%I.%I', nspname, relname)), '{}')
    FROM pg_subscription_rel JOIN pg_class AS c ON c.oid = srrelid JOIN pg_namespace AS n ON n.oid = relnamespace")
  refuse "$old" 'NEW lacks tables. Publish and create them, then run ALTER SUBSCRIPTION app REFRESH PUBLICATION:' \
    "$tables EXCEPT SELECT unnest(:'subscribed'::text[])" -v subscribed="$subscribed"
  refuse "$old" 'OLD has prepared transactions. Commit them, or roll them back:' \
    'SELECT gid FROM pg_prepared_xacts WHERE database = current_database()'
}

# Nothing has changed yet if one of these fails.
check() {
  local role table now latest
  sql "$old" <<<"SELECT 'unlogged table ' || c.oid::regclass FROM pg_class AS c
    WHERE relkind = 'r' AND relpersistence = 'u'
    UNION ALL SELECT 'rows of materialized view ' || c.oid::regclass FROM pg_class AS c
    WHERE relkind = 'm' AND relispopulated
    UNION ALL SELECT count(*) || ' large objects' FROM pg_largeobject_metadata HAVING count(*) > 0;
    $tables_of_extensions NOT $is_published \gexec" | sed 's/^/switch-over: not moved: /' >&2
  # NEW reads the mark of OLD as an id.
  now=$(sql "$old" -c 'SELECT now()')
  latest=$(sql "$old" -c "SELECT snowflake_ceil('$now')")
  refuse "$new" 'NEW has another idgen.layout:' \
    "SELECT current_setting('idgen.layout') WHERE snowflake_ceil('$now') <> $latest"
  for role; do
    refuse "$old" 'OLD has no such role of an application:' \
      "SELECT :'role' WHERE :'role' = session_user OR NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'role')" \
      -v role="$role"
  done
  refuse "$old" 'OLD does not replicate. Are OLD and NEW swapped? No slot "app" is in use in its database:' \
    "SELECT current_database() WHERE NOT EXISTS (SELECT FROM pg_replication_slots
     WHERE slot_name = 'app' AND database = current_database() AND active)"
  refuse "$new" 'NEW has not copied these tables yet:' \
    "SELECT srrelid::regclass FROM pg_subscription_rel WHERE srsubstate <> 'r'"
  for table in "${copied[@]}"; do
    refuse "$new" 'NEW has segments, pools or prefixes of its own. Drop them first. It has rows in:' \
      "SELECT 'idgen.$table' WHERE EXISTS (SELECT FROM idgen.$table)"
  done
  refuse_losses
}

# The applications write to OLD no more, also if they connect again.
lock_out() {
  local role
  for role; do
    sql "$old" -v role="$role" <<<'ALTER ROLE :"role" NOLOGIN'
    # A session that begins may have been let in before that, and is in no view yet.
    wait_for "$old" 'sessions to begin' "SELECT count(*) = 0 FROM pg_locks AS l
      WHERE locktype = 'virtualxid' AND pid IS NOT NULL
        AND NOT EXISTS (SELECT FROM pg_stat_activity AS a WHERE a.pid = l.pid)"
    wait_for "$old" "the sessions of the role $role to end" "WITH ended AS (
      SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '${role//\'/\'\'}')
      SELECT count(*) = 0 FROM ended"
  done
}

# NEW gets the last rows. Those of an asynchronous commit may not be written yet: a synchronous one writes them.
catch_up() {
  local end
  end=$(sql "$old" <<'SQL'
SET synchronous_commit = local;
DO $$ BEGIN PERFORM pg_logical_emit_message(true, 'switch-over', ''); END $$;
SELECT pg_current_wal_flush_lsn();
SQL
  )
  wait_for "$old" 'NEW to confirm the last rows' \
    "SELECT confirmed_flush_lsn >= '$end' FROM pg_replication_slots WHERE slot_name = 'app'"
  wait_for "$new" 'NEW to have the last rows' \
    "SELECT latest_end_lsn >= '$end' FROM pg_stat_subscription WHERE subname = 'app' AND relid IS NULL"
}

# All of this happens in one transaction, or nothing. The lock is held while it may still commit.
move() {
  local sequences rows
  # Sequences are not replicated. The one of fencing tokens only rises. Snowflake ids begin after the mark of OLD.
  sequences=$(sql "$old" <<'SQL'
SELECT format($$SELECT format('SELECT setval(%%L, %%s, %%L);', %L, last_value, is_called) FROM %1$s$$,
  format('%I.%I', schemaname, sequencename)) FROM pg_sequences WHERE schemaname <> 'idgen'
\gexec
SELECT format('SELECT setval(''idgen.lease_token'', greatest(last_value, %s)) FROM idgen.lease_token;', last_value)
FROM idgen.lease_token;
SELECT format('SELECT snowflake_observe(%s);', snowflake_ceil(mark)) FROM idgen.stat_clock WHERE mark IS NOT NULL;
SQL
  )
  # Segments continue above the max_id of OLD. Leases keep their definitions, and lose their holders. Worker ids are
  # granted past all that OLD may have granted. Public ids stay valid.
  rows=$(pg_dump -d "$old" --lock-wait-timeout="${patience}s" --data-only "${copied[@]/#/--table=idgen.}")
  # A dump sets limits of its own.
  rows=$(sed -E '/^SET (statement|lock|idle_in_transaction_session)_timeout = 0;$/d' <<<"$rows")
  sql "$new" -1 >/dev/null <<SQL
$lock_of_move;
$sequences
-- New snowflake ids are above the replicated ones, whatever the clock of NEW says. A domain over bigint has the output
-- function of bigint.
SELECT format('SELECT snowflake_observe(max(%I)%s) FROM %s;', attname, ', ' || nullif(argument, ''), attrelid::regclass)
FROM pg_attribute JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum JOIN pg_type AS t ON t.oid = atttypid,
  substring(pg_get_expr(adbin, adrelid) FROM '^(?:[^(]*\.)?snowflake_next\((.*)\)$') AS argument
WHERE argument IS NOT NULL AND typoutput = 'int8out'::regproc
\gexec
$rows
-- A subscription without a slot shows that NEW has taken over.
ALTER SUBSCRIPTION app DISABLE;
ALTER SUBSCRIPTION app SET (slot_name = NONE);
SQL
}

clean_up() {
  wait_for "$old" 'OLD to stop replicating' "WITH dropped AS (
    SELECT active, CASE WHEN NOT active THEN pg_drop_replication_slot(slot_name) END
    FROM pg_replication_slots WHERE slot_name = 'app') SELECT count(*) FILTER (WHERE active) = 0 FROM dropped"
  sql "$new" -c 'DROP SUBSCRIPTION app'
}

# Says how to go back, if that is still possible.
explain_failure() {
  local role state
  # Not while the move may still commit.
  state=$(sql "$new" -1 <<<"$lock_of_move; $state_of_new") || state=unknown
  case $state in
  subscribed)
    echo 'switch-over: OLD has all rows. To go back, run there:'
    for role; do sql "$old" -v role="$role" <<<"SELECT format('  ALTER ROLE %I LOGIN;', :'role')"; done
    ;;
  switched) echo 'switch-over: NEW has taken over. Run the same command again to remove what replication has left.' ;;
  *) echo 'switch-over: NEW may have taken over. Do not go back before the same command has said how.' ;;
  esac >&2
}

switch() {
  local state
  state=$(sql "$new" -c "$state_of_new")
  [ -n "$state" ] || die 'NEW has no subscription "app". Run `prepare` first, unless NEW has taken over already.'
  if [ "$state" = subscribed ]; then
    check "$@"
    roles=("$@")
    trap 'explain_failure "${roles[@]}"' EXIT
    lock_out "$@"
    refuse_losses
    catch_up
    move
  fi
  clean_up
  trap - EXIT
}

if [[ ${1:-} == prepare && $# == 3 || ${1:-} == switch && $# -ge 4 ]]; then
  old=$2 new=$3
  "$1" "${@:4}"
else
  sed -n '4,5s/^#  *//p' "$0" >&2
  exit 2
fi
