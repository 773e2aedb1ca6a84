#!/usr/bin/env bash
# Demonstrates idgen on a temporary server: ids and leases under pgbench load and after kill -9. Queries verify each
# claim. The server keeps running afterwards; "demo.sh stop" stops and removes it.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

pg_config=${PG_CONFIG:-$(scripts/default-pg-config.sh)}
seconds=${DEMO_SECONDS:-15}
recent=$((seconds / 3))
note=target/demo.dir # holds the path of the demo directory

say() { printf '\n==> %s\n' "$*"; }
as_user=()
[ "$(id -u)" != 0 ] || as_user=(runuser -u postgres --)
as_server_user() { "${as_user[@]}" "$@"; }
sql() { as_server_user "$bindir/psql" -XqAt -v ON_ERROR_STOP=1 "$@"; }
show() { as_server_user "$bindir/psql" -Xq -P footer=off -v ON_ERROR_STOP=1 "$@"; }
bench() { as_server_user "$bindir/pgbench" --no-vacuum --client=8 --jobs=2 "$@" 2>"$dir/pgbench.log"; }

# check CLAIM EXPECTED QUERY: the demo fails if the query returns anything else.
failed=0
check() {
  local answer
  answer=$(sql -c "$3")
  if [ "$answer" = "$2" ]; then
    printf '  ok      %s: %s\n' "$1" "$answer"
  else
    printf '  FAILED  %s: %s, expected %s\n' "$1" "$answer" "$2"
    failed=1
  fi
}

stop() {
  [ -e "$note" ] || return 0
  local dir pid
  dir=$(cat "$note")
  echo "==> stop and remove the demo server in $dir"
  pid=$(head -n 1 "$dir/data/postmaster.pid" 2>/dev/null || true)
  # Another process may have reused the pid. The working directory identifies the server.
  runs() { [ -n "$pid" ] && [ "$(readlink "/proc/$pid/cwd")" = "$dir/data" ]; }
  ! runs || kill -QUIT "$pid"
  while runs; do sleep 0.1; done
  rm -rf "$dir" "$note"
}

# In target/, unless the server's user cannot enter it or the path is too long for a socket (107 bytes).
make_directory() {
  mkdir -p target
  dir=$PWD/target/demo
  if [ ${#dir} -gt 80 ] || ! as_server_user test -x "$PWD/target"; then
    dir=$(mktemp -d /tmp/idgen-demo.XXXXXX)
  fi
  echo "$dir" >"$note"
  mkdir -p "$dir"
  chmod 700 "$dir"
  [ "$(id -u)" != 0 ] || chown postgres "$dir"
}

# A child of this script, not of pg_ctl. After kill -9 the script reaps it, so a new server finds no process of that pid.
serve() {
  setsid "${as_user[@]}" "$bindir/postgres" -D data >>server.log 2>&1 &
  until as_server_user "$bindir/pg_isready" --quiet; do
    kill -0 $! 2>/dev/null || { cat server.log >&2; exit 1; }
    sleep 0.1
  done
}

start() {
  say "start a new server in $dir, with shared_preload_libraries = 'idgen'"
  as_server_user "$bindir/initdb" -D data -U postgres -A trust -E UTF8 --no-locale --no-sync >initdb.log
  as_server_user tee -a data/postgresql.conf >/dev/null <<EOF
shared_preload_libraries = 'idgen'
listen_addresses = ''
unix_socket_directories = '$dir'
port = $PGPORT
EOF
  serve
  sql -d postgres -c "CREATE DATABASE demo"
}

bank() {
  say "pgbench's history table gets a snowflake key, then 8 clients run for $seconds s"
  as_server_user "$bindir/pgbench" --initialize --quiet --scale=10 2>pgbench.log
  show -e -c "CREATE EXTENSION idgen" \
    -c "ALTER TABLE pgbench_history ADD COLUMN id bigint PRIMARY KEY DEFAULT snowflake_next()"
  bench --time="$seconds" | tee bank.log | grep -E '^(number of transactions actually|latency|tps)'

  local done
  done=$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' bank.log)
  check "rows, one for each transaction" "$done" "SELECT count(*) FROM pgbench_history"
  check "distinct ids, one for each row" "$done" "SELECT count(DISTINCT id) FROM pgbench_history"
}

by_time() {
  say "an id contains its time: a range of the primary key selects the last $recent seconds"
  sql -c "VACUUM (ANALYZE) pgbench_history"
  show -e -c "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF)
SELECT count(*) FROM pgbench_history WHERE id >= snowflake_floor(now() - interval '$recent seconds')" | tee explain.log
  check "index scans of the primary key in the plan" 1 "SELECT ($(grep -cE 'Index (Only )?Scan using pgbench_history_pkey' explain.log || true))"
  check "rows that such a range wrongly contains or omits" 0 \
    "WITH cut AS MATERIALIZED (SELECT max(mtime) - interval '$recent seconds' AS t FROM pgbench_history)
     SELECT count(*) FROM pgbench_history, cut
     WHERE (id >= snowflake_floor(t)) <> (snowflake_time(id) >= date_trunc('milliseconds', t))"

  say "the parts of one id, and the time its row was written"
  show -e -c "SELECT id, mtime FROM pgbench_history ORDER BY id DESC LIMIT 1" \
    -c "SELECT * FROM snowflake_parts((SELECT max(id) FROM pgbench_history))"
}

ordered() {
  say "order: 8 clients insert 100 numbered rows at a time for 3 s"
  sql -c "CREATE TABLE demo_order (id bigint PRIMARY KEY DEFAULT snowflake_next(), client int, n int)"
  as_server_user tee order.sql >/dev/null <<'EOF'
INSERT INTO demo_order (client, n) SELECT :client_id, :n + g FROM generate_series(1, 100) g;
\set n :n + 100
EOF
  bench --time=3 --define=n=0 --file=order.sql >order.log
  sql -c "SELECT '  ' || count(*) || ' rows' FROM demo_order"
  check "ids not greater than the client's previous id" 0 \
    "SELECT count(*) FROM (SELECT id <= lag(id) OVER (PARTITION BY client ORDER BY n) AS wrong FROM demo_order) s WHERE wrong"
  check "ids in both tables" 0 "SELECT count(*) FROM pgbench_history JOIN demo_order USING (id)"
}

# True while any process of the server runs.
alive() {
  local process
  for process in /proc/[0-9]*; do
    [ "$(readlink "$process/cwd" 2>/dev/null)" != "$dir/data" ] || return 0
  done
  return 1
}

# kill_under_load QUERY TABLE [OPTION...]: runs pgbench with the options. Beside it a client reads the query's ids in a
# transaction and kills the server before the commit. The restarted server gets the ids that the client read as TABLE.
kill_under_load() {
  local query=$1 table=$2 load killed
  shift 2
  bench --time=600 "$@" >/dev/null &
  load=$!
  killed=$(head -n 1 data/postmaster.pid)
  as_server_user "$bindir/psql" -XqAt -c "BEGIN" -c "$query" -c "\\! kill -9 $killed" >seen.txt || true
  wait "$load" || true
  while alive; do sleep 0.1; done # a new postmaster refuses to start while old backends run

  say "restart, then the same load again"
  serve
  sql -c "CREATE TABLE $table (id bigint)" -c "\\copy $table FROM $dir/seen.txt"
  bench --time=3 "$@" >/dev/null
}

crash() {
  say "kill -9 under load: a client reads 500,000 ids in a transaction and kills the server before the commit"
  kill_under_load "SELECT snowflake_next() FROM generate_series(1, 500000)" demo_seen
  sql -c "CREATE TABLE demo_again AS SELECT snowflake_next() AS id FROM generate_series(1, 1000000)"
  check "ids that the client read" 500000 "SELECT count(*) FROM demo_seen"
  check "of these, ids issued again" 0 \
    "SELECT count(*) FROM demo_seen JOIN (SELECT id FROM demo_again UNION ALL SELECT id FROM pgbench_history) n USING (id)"
  check "new ids not greater than all ids that the client read" 0 \
    "SELECT count(*) FROM demo_again WHERE id <= (SELECT max(id) FROM demo_seen)"
  check "duplicate ids in pgbench_history" 0 "SELECT count(*) - count(DISTINCT id) FROM pgbench_history"
}

segments() {
  say "segment ids: small values from shared memory, 8 clients for 3 s"
  show -e -c "SELECT segment_create('ticket')" \
    -c "CREATE TABLE demo_ticket (id bigint PRIMARY KEY DEFAULT segment_next('ticket'), client int)"
  echo 'INSERT INTO demo_ticket (client) VALUES (:client_id);' | as_server_user tee ticket.sql >/dev/null
  bench --time=3 --file=ticket.sql >ticket.log
  check "missing values between 1 and the greatest" 0 "SELECT max(id) - count(*) FROM demo_ticket"

  say "kill -9 under load: a client reads 10,000 values in a transaction and kills the server before the commit"
  kill_under_load "SELECT segment_next_many('ticket', 10000)" demo_ticket_seen --file=ticket.sql
  sql -c "CREATE TABLE demo_ticket_again AS SELECT segment_next_many('ticket', 100000) AS id"
  check "values that the client read" 10000 "SELECT count(*) FROM demo_ticket_seen"
  check "of these, values issued again" 0 \
    "SELECT count(*) FROM demo_ticket_seen
     JOIN (SELECT id FROM demo_ticket_again UNION ALL SELECT id FROM demo_ticket) n USING (id)"
  check "new values not greater than all values that the client read" 0 \
    "SELECT count(*) FROM demo_ticket_again WHERE id <= (SELECT max(id) FROM demo_ticket_seen)"
  show -e -c "SELECT * FROM idgen.stat_segment" -x
}

leases() {
  say "a lease: it expires, a second owner acquires it, and the database refuses the first owner's late write"
  show -e -c "CREATE TABLE demo_report (line text)" \
    -c "CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON demo_report
FOR EACH ROW EXECUTE FUNCTION lease_guard('report')"
  local first second
  first=$(sql -c "SELECT token FROM lease_acquire('report', ttl => '1 s', owner => 'first')")
  # Waits until the first lease expires.
  second=$(sql -c "SELECT token FROM lease_acquire('report', owner => 'second')")
  show -e -c "SELECT name, state, owner, expires_at FROM idgen.leases"
  write() { sql -c "BEGIN" -c "SELECT lease_fence('report', $2)" -c "INSERT INTO demo_report VALUES ('$1')" -c "COMMIT"; }
  write "by the second owner" "$second" >report.log
  ! write "by the first owner, too late" "$first" >report.log 2>&1
  sed 's/^/  /' report.log
  ! sql -c "INSERT INTO demo_report VALUES ('without a fence')" 2>report.log
  check "lines of the report" "by the second owner" "SELECT string_agg(line, ', ') FROM demo_report"
  check "the second token is greater than the first" t "SELECT $second > $first"
}

fast() {
  say "speed: 8 clients draw 1000 ids a call for 3 s"
  echo 'SELECT max(snowflake_next()) FROM generate_series(1, 1000);' | as_server_user tee draw.sql >/dev/null
  bench --time=3 --file=draw.sql | awk '/^tps/ { printf "  %.2f million ids per second\n", $3 / 1000 }'
}

unset PGOPTIONS PGSERVICE
stop
[ "${1:-}" != stop ] || exit 0

bindir=$("$pg_config" --bindir)
make_directory
export PGHOST=$dir PGPORT=54329 PGUSER=postgres PGDATABASE=demo LC_ALL=C
trap 'echo "demo: failed; the logs are in $dir" >&2' ERR
cd "$dir"
start
bank
by_time
ordered
fast
segments
leases
crash
say "statistics of the generators"
show -x -e -c "SELECT * FROM idgen.stat_snowflake" -c "SELECT * FROM idgen.stat_clock"

[ $failed = 0 ] || { echo "demo: a check failed" >&2; exit 1; }
say "all checks passed. The server keeps running; connect to it, or stop it:"
echo "  ${as_user[*]:+${as_user[*]} }psql -h $dir -p $PGPORT -U postgres demo"
echo "  make demo-stop"
