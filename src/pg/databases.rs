//! The databases of this server, for a background worker that is connected to none of them.

use pgrx::bgworkers::BackgroundWorker;
use pgrx::pg_sys;
use std::panic::AssertUnwindSafe;

/// The OIDs of the databases that have sessions or had some. A template that allows no connections has none. Without a database there is no SPI, so this scans the shared catalog,
/// as PostgreSQL's own launchers do.
pub fn in_use() -> Vec<u32> {
    let mut found = Vec::new();
    let list = AssertUnwindSafe(&mut found);
    BackgroundWorker::transaction(move || {
        let AssertUnwindSafe(list) = { list };
        // SAFETY: in a transaction with a snapshot. Each tuple is one of pg_database, read before the next one.
        unsafe {
            pg_sys::GetTransactionSnapshot();
            let catalog = pg_sys::table_open(pg_sys::DatabaseRelationId, pg_sys::AccessShareLock as _);
            let scan = pg_sys::table_beginscan_catalog(catalog, 0, std::ptr::null_mut());
            loop {
                let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
                if tuple.is_null() {
                    break;
                }
                let database = &*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_database>();
                // A limit of -2 marks a database whose DROP was interrupted.
                if (database.datallowconn || !database.datistemplate) && database.datconnlimit != -2 {
                    list.push(database.oid.to_u32());
                }
            }
            pg_sys::heap_endscan(scan);
            pg_sys::table_close(catalog, pg_sys::AccessShareLock as _);
        }
    });
    found
}
