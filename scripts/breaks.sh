#!/usr/bin/env bash
# breaks.sh: breaks the core in one place after another, in a copy, and fails if its tests do not notice.
set -euo pipefail

cd "$(dirname "$0")/.."
copy=$PWD/target/breaks

# The tests of the core, then those of every interleaving.
tests() {
  (
    cd "$copy"
    CARGO_TARGET_DIR=$copy/target cargo test -q -p idgen-core "$@" &&
      RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$copy/target/loom cargo test -q -p idgen-core --test loom --release "$@"
  ) >"$copy/log" 2>&1
}

copy_core() {
  scripts/core-copy.sh "$copy" idgen-core
}

# Otherwise each break would seem to be found.
copy_core
if ! tests; then
  cat "$copy/log" >&2
  echo "breaks.sh: the tests fail without a break" >&2
  exit 1
fi

count=0
missed=0

# The promise and how it is broken, the file, what is there once, and what replaces it.
broken() {
  local name=$1 file=$copy/crates/idgen-core/src/$2 old=$3 new=$4
  copy_core
  if [ "$(OLD=$old perl -0ne 'print scalar(() = /\Q$ENV{OLD}\E/g)' "$file")" != 1 ]; then
    echo "breaks.sh: '$old' is not once in $2" >&2
    exit 1
  fi
  OLD=$old NEW=$new perl -0pi -e 's/\Q$ENV{OLD}\E/$ENV{NEW}/' "$file"
  if ! tests --no-run; then
    cat "$copy/log" >&2
    exit 1
  fi
  count=$((count + 1))
  if tests; then
    echo "missed  $name"
    missed=$((missed + 1))
  else
    echo "found   $name"
  fi
}

broken 'S1: a tenancy does not end' generator/mod.rs \
  'self.tenancy.store(handle.tenancy.wrapping_add(1),' 'self.tenancy.store(handle.tenancy,'
broken 'S1: an eviction leaves no floor' generator/table.rs \
  'self.floors[floor_of(&tenant.space)].leave(tenant.space, progress);' 'let _ = progress;'
broken 'S1: the mark moves back' clock/mark.rs \
  'self.mark_ms.fetch_max(target.mark_ms,' 'self.mark_ms.store(target.mark_ms,'
broken 'S1: two worker ids number one pair' layout/mod.rs \
  'node.worker >> field.bits' 'node.worker >> (field.bits + 1)'
broken 'S3: ticks ahead of the limit open at once' generator/mod.rs \
  'if boot_us < next_us {' 'if boot_us < opened_us {'
broken 'S4: the label does not show that the file is old' clock/start.rs \
  'is_replayed || self.label_ms > Some(found.record.latest_label_ms);' 'is_replayed;'
broken 'S4: the label of the old primary was its last' clock/start.rs \
  'self.label_ms.map(|ms| MarkLabel::reach_ms(ms, self.drift_ms, self.window_ms))' 'self.label_ms'
broken 'S4: a label that is replaced is the limit' clock/label.rs \
  'if self.count == label.number {' 'if self.count > 0 {'
broken 'S5: ticks go on after the end of the layout' snowflake/mod.rs \
  'if first_tick > self.time.max() {' 'if first_tick == u64::MAX {'
broken 'G1: a report lowers what the server has received' segment/fleet.rs \
  'report.max_id.max(received)' 'report.max_id.min(received)'
broken 'G1: a server accepts a value that it has received' segment/fleet.rs \
  'first > received' 'first >= received'
broken 'G3: an older row brings its values back' segment/table.rs \
  'tenant.version >= version' 'tenant.version == version'
broken 'G1: values are used that no standby may have' segment/supply/supplier.rs \
  'if port.was_cancelled() {' 'if false && port.was_cancelled() {'
broken 'G1: a server receives values under a former number' segment/tag.rs \
  'link.received.is_none() && link.server == Some(server);' 'link.received.is_none() && server > 0;'
broken 'G3: a ring takes values of another version' segment/table.rs \
  'tenant.key == key && tenant.version == new.version' 'tenant.key == key'
broken 'L2: one more holder than slots' lease/attempt.rs \
  '(holders + 1).saturating_sub(' 'holders.saturating_sub('
broken 'L2: a shared term begins beside a slot' lease/attempt.rs \
  'filter(|term| term.is_shared() != wants_shared)' 'filter(|term| term.is_shared() && !wants_shared)'
broken 'L2: another clock ends a term' lease/mod.rs \
  'Session::None | Session::EndedWithServer => Some(from_the_beginning)' \
  'Session::None | Session::EndedWithServer => Some(self.ends_us)'
broken 'W1: a renewal moves the end back' worker/mod.rs \
  'not_after_us: self.not_after_us.max(end_us),' 'not_after_us: end_us,'
broken 'W1: a rectangle begins in one that may be forgotten' worker/mod.rs \
  '|floor_us| floor_us.max(unused_from_us))' '|_| unused_from_us)'
broken 'W1: a lease is used before it is remembered' worker/attempt.rs \
  'self.lease.pending = Some(lease);
        server.store(&self.lease);
        // Before the lease is used: a server that starts again ends it.
        remember(server, self.pool_name(), &lease)?;' 'self.lease.pending = Some(lease);'
broken 'W1: an end that another process was told is used' worker/attempt.rs \
  'confirmed_us.min(lease.last_not_after_us)' 'confirmed_us'
broken 'W1: an interruption goes unnoticed by renewals' worker/holding.rs \
  'recording::is_own(rows, history).map(|is_own| !is_own))' 'recording::is_own(rows, history).map(|_| false))'
broken 'P1: a later draw hides an earlier one' draws.rs \
  'self.since.fetch_min(since,' 'self.since.store(since,'
broken 'P1: the tick of an open draw is settled' generator/settled.rs \
  'layout.floor(time_ms) - 1)' 'layout.floor(time_ms))'

if [ $missed -gt 0 ]; then
  echo "breaks.sh: $missed of $count breaks were missed" >&2
  exit 1
fi
