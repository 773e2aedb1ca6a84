#!/usr/bin/env bash
# Shows idgen at work on a throw-away server: ids of both kinds under pgbench's load and over kill -9, every claim checked
# by a query. The server stays up afterwards, so that you can try things; "demo.sh stop" stops and removes it.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

pg_config=${PG_CONFIG:-$(scripts/default-pg-config.sh)}
seconds=${DEMO_SECONDS:-15}
recent=$((seconds / 3))
note=target/demo.dir # holds the path of the demo's directory

say() { printf '\n==> %s\n' "$*"; }
as_user=()
[ "$(id -u)" != 0 ] || as_user=(runuser -u postgres --)
as_server_user() { "${as_user[@]}" "$@"; }
sql() { as_server_user "$bindir/psql" -XqAt -v ON_ERROR_STOP=1 "$@"; }
show() { as_server_user "$bindir/psql" -Xq -P footer=off -v ON_ERROR_STOP=1 "$@"; }
bench() { as_server_user "$bindir/pgbench" --no-vacuum --client=8 --jobs=2 "$@" 2>"$dir/pgbench.log"; }

# check WHAT EXPECTED QUERY: the demo fails when a query does not answer what was claimed.
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
  echo "==> stop and remove the demo's server in $dir"
  pid=$(head -n 1 "$dir/data/postmaster.pid" 2>/dev/null || true)
  # The number may be another process's by now, so look where it runs.
  runs() { [ -n "$pid" ] && [ "$(readlink "/proc/$pid/cwd")" = "$dir/data" ]; }
  ! runs || kill -QUIT "$pid"
  while runs; do sleep 0.1; done
  rm -rf "$dir" "$note"
}

# In target/, unless the server's user cannot get there or the path is too long for a socket (107 bytes).
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

# The server is our own child, not pg_ctl's: when it is killed its number is free at once, and it can be started again.
serve() {
  setsid "${as_user[@]}" "$bindir/postgres" -D data >>server.log 2>&1 &
  until as_server_user "$bindir/pg_isready" --quiet; do
    kill -0 $! 2>/dev/null || { cat server.log >&2; exit 1; }
    sleep 0.1
  done
}

start() {
  say "a new server in $dir, with shared_preload_libraries = 'idgen'"
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
  say "pgbench's bank gets a snowflake key, then 8 clients for $seconds s"
  as_server_user "$bindir/pgbench" --initialize --quiet --scale=10 2>pgbench.log
  show -e -c "CREATE EXTENSION idgen" \
    -c "ALTER TABLE pgbench_history ADD COLUMN id bigint PRIMARY KEY DEFAULT snowflake_next()"
  bench --time="$seconds" | tee bank.log | grep -E '^(number of transactions actually|latency|tps)'

  local done
  done=$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' bank.log)
  check "every transaction has its row" "$done" "SELECT count(*) FROM pgbench_history"
  check "and every row an id of its own" "$done" "SELECT count(DISTINCT id) FROM pgbench_history"
}

by_time() {
  say "the id is the time: one range of the primary key answers \"the last $recent seconds\""
  sql -c "VACUUM (ANALYZE) pgbench_history"
  show -e -c "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF)
SELECT count(*) FROM pgbench_history WHERE id >= snowflake_floor(now() - interval '$recent seconds')" | tee explain.log
  check "the plan uses the primary key" 1 "SELECT ($(grep -cE 'Index (Only )?Scan using pgbench_history_pkey' explain.log || true))"
  check "rows wrongly in or out of such a range" 0 \
    "WITH cut AS MATERIALIZED (SELECT max(mtime) - interval '$recent seconds' AS t FROM pgbench_history)
     SELECT count(*) FROM pgbench_history, cut
     WHERE (id >= snowflake_floor(t)) <> (snowflake_time(id) >= date_trunc('milliseconds', t))"

  say "one id taken apart, beside the time its row was written"
  show -e -c "SELECT id, mtime FROM pgbench_history ORDER BY id DESC LIMIT 1" \
    -c "SELECT * FROM snowflake_parts((SELECT max(id) FROM pgbench_history))"
}

ordered() {
  say "order: 8 clients insert 100 rows at a time for 3 s and number them"
  sql -c "CREATE TABLE demo_order (id bigint PRIMARY KEY DEFAULT snowflake_next(), client int, n int)"
  as_server_user tee order.sql >/dev/null <<'EOF'
INSERT INTO demo_order (client, n) SELECT :client_id, :n + g FROM generate_series(1, 100) g;
\set n :n + 100
EOF
  bench --time=3 --define=n=0 --file=order.sql >order.log
  sql -c "SELECT '  ' || count(*) || ' rows' FROM demo_order"
  check "ids not above the one before of the same client" 0 \
    "SELECT count(*) FROM (SELECT id <= lag(id) OVER (PARTITION BY client ORDER BY n) AS wrong FROM demo_order) s WHERE wrong"
  check "ids that two tables share" 0 "SELECT count(*) FROM pgbench_history JOIN demo_order USING (id)"
}

# Does any process of the server still run?
alive() {
  local process
  for process in /proc/[0-9]*; do
    [ "$(readlink "$process/cwd" 2>/dev/null)" != "$dir/data" ] || return 0
  done
  return 1
}

# kill_under_load QUERY TABLE [OPTION...]: pgbench runs with the options; a client reads the query's ids in a transaction,
# and kills the server before it ends. Started again, the server has what the client read in a new table.
kill_under_load() {
  local query=$1 table=$2 load killed
  shift 2
  bench --time=600 "$@" >/dev/null &
  load=$!
  killed=$(head -n 1 data/postmaster.pid)
  as_server_user "$bindir/psql" -XqAt -c "BEGIN" -c "$query" -c "\\! kill -9 $killed" >seen.txt || true
  wait "$load" || true
  while alive; do sleep 0.1; done # a server does not start beside the remains of another

  say "start again, and load again"
  serve
  sql -c "CREATE TABLE $table (id bigint)" -c "\\copy $table FROM $dir/seen.txt"
  bench --time=3 "$@" >/dev/null
}

crash() {
  say "kill -9 under load, by a client that has read 500,000 ids in a transaction which is still open"
  kill_under_load "SELECT snowflake_next() FROM generate_series(1, 500000)" demo_seen
  sql -c "CREATE TABLE demo_again AS SELECT snowflake_next() AS id FROM generate_series(1, 1000000)"
  check "ids that the client had read" 500000 "SELECT count(*) FROM demo_seen"
  check "of these, issued again" 0 \
    "SELECT count(*) FROM demo_seen JOIN (SELECT id FROM demo_again UNION ALL SELECT id FROM pgbench_history) n USING (id)"
  check "new ids not above all that was read before" 0 \
    "SELECT count(*) FROM demo_again WHERE id <= (SELECT max(id) FROM demo_seen)"
  check "rows without an id of their own" 0 "SELECT count(*) - count(DISTINCT id) FROM pgbench_history"
}

segments() {
  say "segment ids: small numbers from shared memory, 8 clients for 3 s"
  show -e -c "SELECT segment_create('ticket')" \
    -c "CREATE TABLE demo_ticket (id bigint PRIMARY KEY DEFAULT segment_next('ticket'), client int)"
  echo 'INSERT INTO demo_ticket (client) VALUES (:client_id);' | as_server_user tee ticket.sql >/dev/null
  bench --time=3 --file=ticket.sql >ticket.log
  check "numbers that are missing between 1 and the greatest" 0 "SELECT max(id) - count(*) FROM demo_ticket"

  say "kill -9 under load, by a client that has read 10,000 numbers in a transaction which is still open"
  kill_under_load "SELECT segment_next_many('ticket', 10000)" demo_ticket_seen --file=ticket.sql
  sql -c "CREATE TABLE demo_ticket_again AS SELECT segment_next_many('ticket', 100000) AS id"
  check "numbers that the client had read" 10000 "SELECT count(*) FROM demo_ticket_seen"
  check "of these, handed out again" 0 \
    "SELECT count(*) FROM demo_ticket_seen JOIN (SELECT id FROM demo_ticket_again UNION ALL SELECT id FROM demo_ticket) n USING (id)"
  check "new numbers not above all that was read before" 0 \
    "SELECT count(*) FROM demo_ticket_again WHERE id <= (SELECT max(id) FROM demo_ticket_seen)"
  show -e -c "SELECT * FROM idgen.stat_segment" -x
}

leases() {
  say "a lease: the holder is late, another takes it over, and the database refuses what the first one writes then"
  show -e -c "CREATE TABLE demo_report (line text)" \
    -c "CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON demo_report
FOR EACH ROW EXECUTE FUNCTION lease_guard('report')"
  local first second
  first=$(sql -c "SELECT token FROM lease_acquire('report', ttl => '1 s', owner => 'first')")
  # Waits for the end of the first one's time.
  second=$(sql -c "SELECT token FROM lease_acquire('report', owner => 'second')")
  show -e -c "SELECT name, state, owner, expires_at FROM idgen.leases"
  write() { sql -c "BEGIN" -c "SELECT lease_fence('report', $2)" -c "INSERT INTO demo_report VALUES ('$1')" -c "COMMIT"; }
  write "of the second" "$second" >report.log
  ! write "of the first, too late" "$first" >report.log 2>&1
  sed 's/^/  /' report.log
  ! sql -c "INSERT INTO demo_report VALUES ('without a fence')" 2>report.log
  check "lines of the report" "of the second" "SELECT string_agg(line, ', ') FROM demo_report"
  check "the second token is the greater one" t "SELECT $second > $first"
}

fast() {
  say "speed: 8 clients only draw, 1000 ids a call, for 3 s"
  echo 'SELECT max(snowflake_next()) FROM generate_series(1, 1000);' | as_server_user tee draw.sql >/dev/null
  bench --time=3 --file=draw.sql | awk '/^tps/ { printf "  %.2f million ids per second\n", $3 / 1000 }'
}

# Whoever starts PostgreSQL with RUST_BACKTRACE set gets a backtrace in the DETAIL of every error.
unset RUST_BACKTRACE PGOPTIONS PGSERVICE
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
say "what the server says about its generators"
show -x -e -c "SELECT * FROM idgen.stat_snowflake" -c "SELECT * FROM idgen.stat_clock"

[ $failed = 0 ] || { echo "demo: a check failed" >&2; exit 1; }
say "all checks passed. The server is yours until you stop it:"
echo "  ${as_user[*]:+${as_user[*]} }psql -h $dir -p $PGPORT -U postgres demo"
echo "  make demo-stop"
