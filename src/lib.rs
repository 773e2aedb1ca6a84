//! idgen: ids that never repeat and locks that are correct, inside PostgreSQL.
//!
//! This crate is thin on purpose. It reads settings, the clock, shared memory and tables, asks `idgen-core`, and turns
//! the answer into a datum or an error. What decides, and what is worth a test without a server, lives there.

use pgrx::prelude::*;

mod bell;
mod call_site;
mod clock;
mod durable;
mod encoding;
mod error;
mod fixed_text;
mod lease;
mod lock;
mod owner;
mod ownership;
mod pg_compat;
mod query;
mod random;
mod read_only;
mod record;
mod retired;
mod segment;
mod set;
mod settings;
mod shmem;
mod snowflake;
mod stats;
mod status;
mod subtransaction;
mod timestamp;
mod trigger;
mod worker;

pgrx::pg_module_magic!();

extension_sql_file!("../sql/tables.sql", bootstrap);
extension_sql_file!(
    "../sql/views.sql",
    name = "views",
    requires = [
        stats::stat_get_snowflake,
        clock::stats::stat_get_clock,
        segment::stats::stat_get_segment,
        lock::registry::lock_get_names,
        lock::registry::lock_get_holds,
        lease::view::lease_get_states,
        lease::stats::stat_get_lease,
        worker::stats::stat_get_worker,
    ]
);
extension_sql_file!("../sql/triggers.sql", name = "triggers", requires = [segment::trigger::segment_row]);
extension_sql_file!(
    "../sql/comments.sql",
    requires = [
        "views",
        "triggers",
        snowflake::snowflake_next,
        snowflake::snowflake_next_in,
        snowflake::many::snowflake_next_many,
        snowflake::many::snowflake_next_many_in,
        snowflake::observe::snowflake_observe,
        snowflake::observe::snowflake_observe_in,
        snowflake::text::snowflake_encode,
        snowflake::text::snowflake_decode,
        snowflake::decode::snowflake_parts,
        snowflake::decode::snowflake_parts_in,
        snowflake::decode::snowflake_time,
        snowflake::decode::snowflake_time_in,
        snowflake::decode::snowflake_floor,
        snowflake::decode::snowflake_floor_in,
        snowflake::decode::snowflake_ceil,
        snowflake::decode::snowflake_ceil_in,
        snowflake::decode::snowflake_make,
        snowflake::decode::snowflake_make_in,
        snowflake::decode::snowflake_make_with_datacenter_in,
        snowflake::decode::snowflake_layout,
        snowflake::decode::snowflake_layout_in,
        segment::segment_next,
        segment::segment_reserve,
        segment::many::segment_next_many,
        segment::define::segment_create,
        segment::define::segment_alter,
        segment::define::segment_drop,
        segment::define::segment_grant,
        segment::define::segment_revoke,
        lock::lock_key,
        lock::lock_acquire,
        lock::lock_acquire_xact,
        lock::lock_try_acquire,
        lock::lock_try_acquire_xact,
        lock::lock_release,
        lock::lock_acquire_many,
        lock::lock_acquire_many_xact,
        lock::lock_try_acquire_many,
        lock::lock_try_acquire_many_xact,
        lock::lock_release_many,
        lock::row_version::row_version,
        lease::lease_acquire,
        lease::lease_try_acquire,
        lease::lease_renew,
        lease::lease_renew_many,
        lease::lease_release,
        lease::lease_fence,
        lease::guard::lease_guard,
        lease::define::lease_define_range,
        lease::define::lease_drop,
        lease::define::lease_revoke,
        worker::acquire::worker_acquire,
        worker::renew::worker_renew_compared,
        worker::renew::worker_renew,
        worker::confirm::worker_confirm,
        worker::history::worker_begin_history,
        worker::release::worker_release_compared,
        worker::moving::worker_move,
        worker::correct::worker_correct,
        stats::reset_stats,
        status::status,
    ]
);
extension_sql_file!("../sql/grants.sql", finalize);

/// Runs when the library is loaded: by the postmaster if it is preloaded, else by a backend at its first call. The
/// second is no error: decoding works then, and generation says what is missing when it is called. An error here
/// would break `pg_upgrade --check` and every restore.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    // SAFETY: a flag that PostgreSQL sets before it loads libraries and clears after; there is one thread.
    let preloading = unsafe { pg_sys::process_shared_preload_libraries_in_progress };
    settings::define(preloading);
    if preloading {
        shmem::install_hooks();
        clock::recovery::register_worker();
        worker::keeper::register();
        ownership::install_hook();
    }
}
