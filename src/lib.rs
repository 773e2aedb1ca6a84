//! idgen: ids that never repeat and locks that are correct, inside PostgreSQL.
//!
//! This crate is thin on purpose. It reads settings, the clock, shared memory and tables, asks `idgen-core`, and turns
//! the answer into a datum or an error. What decides, and what is worth a test without a server, lives there.

use pgrx::prelude::*;

mod admin;
mod args;
mod clock;
mod error;
mod lease;
mod lock;
mod pg;
mod retired;
mod segment;
mod settings;
mod shmem;
mod snowflake;
mod worker;

pgrx::pg_module_magic!();

// Tables first, as functions name their types. The rest when all functions exist, which it names.
extension_sql_file!("../sql/tables.sql", bootstrap);
extension_sql_file!("../sql/finalize.sql", finalize);

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
        clock::init();
        snowflake::init();
        segment::init();
        lock::init();
        lease::init();
        worker::init();
    }
}
