//! idgen: unique ids and correct locks inside PostgreSQL.
//!
//! This crate is thin. It reads settings, clocks, shared memory and tables, asks `idgen-core` for a decision, and turns the
//! answer into a datum or an error. The core can be tested without a server.

use pgrx::prelude::*;

mod admin;
mod args;
mod clock;
mod coordinator;
mod draws;
mod error;
mod lease;
mod lock;
mod pg;
mod place;
mod public_id;
mod retired;
mod segment;
mod settings;
mod shmem;
mod snowflake;
mod uuid;
mod worker;

pgrx::pg_module_magic!();

// The install script: these files in this order. They name the functions of this library by their symbols.
extension_sql_file!("../sql/base.sql", name = "base", bootstrap);
extension_sql_file!("../sql/clock.sql", name = "clock", requires = ["base"]);
extension_sql_file!("../sql/snowflake.sql", name = "snowflake", requires = ["clock"]);
extension_sql_file!("../sql/snowflake_adopt.sql", name = "snowflake_adopt", requires = ["snowflake"]);
extension_sql_file!("../sql/uuid.sql", name = "uuid", requires = ["snowflake_adopt"]);
extension_sql_file!("../sql/public_id.sql", name = "public_id", requires = ["uuid"]);
extension_sql_file!("../sql/segment.sql", name = "segment", requires = ["public_id"]);
extension_sql_file!("../sql/lock.sql", name = "lock", requires = ["segment"]);
extension_sql_file!("../sql/lease.sql", name = "lease", requires = ["lock"]);
extension_sql_file!("../sql/worker.sql", name = "worker", requires = ["lease"]);
extension_sql_file!("../sql/admin.sql", name = "admin", requires = ["worker"]);

/// The postmaster calls this when it preloads the library. Otherwise a backend does, at its first call of a function. Then
/// decoding works and generation raises an error. An error here would break `pg_upgrade --check` and every restore.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    // SAFETY: a flag of this process, which has one thread.
    let preloading = unsafe { pg_sys::process_shared_preload_libraries_in_progress };
    pg::ereport::disable_backtraces();
    settings::define(preloading);
    if preloading {
        shmem::install_hooks();
        #[cfg(feature = "injection-points")]
        shmem::at_startup(pg::attach_injection_points);
        shmem::at_startup(place::begin);
        clock::init();
        snowflake::init();
        public_id::init();
        segment::init();
        lock::init();
        lease::init();
        worker::init();
    }
}
