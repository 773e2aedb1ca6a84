#!/usr/bin/env bash
# Those of the tests on real servers that meet what differs between versions of PostgreSQL: shared memory and parallel
# workers, sets, a wait that is ended, crashes, shutdown, the workers, transactions that end in all their ways, promotion,
# libpq in the server, and the SQL of upgrades.
set -euo pipefail
cd "$(dirname "$0")/.."

PG_CONFIG=${PG_CONFIG:-$(scripts/default-pg-config.sh)}
export PG_CONFIG
tests=(
  unique::sixteen_sessions_over_two_databases_never_repeat_an_id
  unique::parallel_workers_share_with_the_sessions
  sets::a_cursor_that_is_closed_early
  modes::without_preload_ids_are_read_and_not_made
  waits::a_wait_is_ended_at_once_and_the_next_call_works
  crash::the_generator_works_after_a_backend_was_killed_under_load
  crash::the_same_instants_bring_no_id_back
  failover::a_crash_before_the_first_mark_of_a_promoted_server_brings_no_id_back
  marks::a_clean_shutdown_leaves_the_exact_mark_and_any_other_the_promised_one
  exact::sixteen_sessions_get_every_value_once
  waits::a_wait_is_ended_by_whatever_ends_a_statement
  failover::a_worker_terminated_in_its_wait_for_the_standby_wastes_its_range
  private::prepared_transactions
  private::parallel_plans
  access::a_revoke_reaches_a_transaction_that_runs
  worker::there_is_one_on_demand_and_none_when_idle
  last_instant::granted_as_the_time_ends_is_yes
  scopes::subtransactions_take_their_own_locks_along
  wake::whatever_frees_a_lease_wakes_the_head
  session_ends::it_is_free_at_once_when_its_client_is_killed
  guard::every_write_without_a_fence_is_refused
  crash::no_token_that_was_seen_comes_again
  snapshots::a_fence_goes_by_what_is_there_now
  start::after_a_crash_bound_terms_begin_anew
  connection::the_coordinator_is_found_by_service_password_file_and_several_hosts
  connection::a_silent_coordinator_holds_up_neither_a_cancel_nor_a_stop
  life::a_keeper_that_is_ended_is_followed_by_one_that_goes_on_with_its_lease
  life::a_promoted_standby_leases_a_number_of_its_own
  stop::a_server_that_is_stopped_in_the_middle_of_a_renewal_gives_its_worker_id_back
  network::the_second_host_is_used_while_the_name_of_the_first_hangs
  confirm::a_grant_that_no_standby_has_is_not_confirmed_whatever_the_role_hears
  interrupted::a_lagging_standby_that_is_promoted_grants_no_id_time_again
  an_upgraded_database_equals_a_fresh_one
  a_planted_table_is_not_written_to
  the_refill_worker_takes_nothing_from_a_planted_table
  leases_work_in_every_encoding
  triggers_work_in_every_encoding
  replica::two_promotions_in_a_row_repeat_no_id
  label::the_mark_waits_for_the_label
  snapshots::a_holder_that_came_and_left_since_the_snapshot_is_refused
  stale::a_running_statement_draws_nothing_of_a_dropped_segment
  dump::a_dropped_role_leaves_its_segments_to_no_stranger
)
targets=(snowflake clock file segment segment_life lock lease lease_life server_number keeper rectangle history upgrade impostor
  encodings)
run() { cargo test -q -p idgen-cluster-tests "${targets[@]/#/--test=}" -- "$@"; }

# A name that no test has is no error to cargo.
there=$(run --list)
for test in "${tests[@]}"; do
  grep -qxF "$test: test" <<<"$there" || { echo "smoke: there is no test $test" >&2; exit 1; }
done
run --exact "${tests[@]}"
