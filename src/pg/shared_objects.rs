//! Objects that the databases of a server share: following REASSIGN OWNED and DROP OWNED, for what roles own in tables of an
//! extension, and DROP DATABASE, for what shared memory has of a database; the databases in use; and security labels on a
//! database that does not exist.
//!
//! PostgreSQL knows no dependency on the roles in rows of tables, and REASSIGN OWNED fires no event trigger. So a hook
//! looks at every utility command. PostgreSQL runs the command first, and checks the caller's privileges with it.

use super::xact;
use parking_lot::Mutex;
use pgrx::bgworkers::BackgroundWorker;
use pgrx::prelude::*;
use std::ffi::{CStr, CString, c_char};
use std::panic::AssertUnwindSafe;
use std::sync::{Once, OnceLock};

/// Does to the rows of this database what a command does to objects of these roles.
#[derive(Clone, Copy)]
pub struct OwnedRows {
    /// False if the tables do not exist here: no extension, an older one, or the command has dropped them.
    pub exist: fn() -> bool,
    /// Both are false if they have changed no row.
    pub reassign: fn(owners: &[pg_sys::Oid], heir: pg_sys::Oid) -> bool,
    pub drop: fn(owners: &[pg_sys::Oid]) -> bool,
}

static OWNED_ROWS: Mutex<Vec<OwnedRows>> = Mutex::new(Vec::new());

/// Called with the OID of a database, before its DROP and after it.
static DATABASE_FOLLOWER: OnceLock<[fn(u32); 2]> = OnceLock::new();

/// The hook that another library installed before.
static PREVIOUS: Mutex<pg_sys::ProcessUtility_hook_type> = Mutex::new(None);

unsafe extern "C-unwind" {
    /// Declared here, because pgrx's wrapper would strip names of constraints and positions in the query text from the
    /// errors of all commands.
    fn standard_ProcessUtility(
        statement: *mut pg_sys::PlannedStmt,
        query: *const c_char,
        is_read_only_tree: bool,
        context: pg_sys::ProcessUtilityContext::Type,
        params: pg_sys::ParamListInfo,
        environment: *mut pg_sys::QueryEnvironment,
        receiver: *mut pg_sys::DestReceiver,
        completion: *mut pg_sys::QueryCompletion,
    );
}

/// While the postmaster preloads libraries.
pub fn follow_owners_of(rows: OwnedRows) {
    install();
    OWNED_ROWS.lock().push(rows);
}

/// While the postmaster preloads libraries. The functions get the OID of each database that is dropped. The first one is
/// called before PostgreSQL checks privileges and refuses to drop a database in use; the command may fail after it. When
/// the second one is called, no session of the database is left, and none begins.
pub fn follow_dropped_databases(before_drop: fn(u32), after_drop: fn(u32)) {
    install();
    let is_first = DATABASE_FOLLOWER.set([before_drop, after_drop]).is_ok();
    assert!(is_first, "one room follows dropped databases");
}

fn install() {
    static INSTALLED: Once = Once::new();
    // SAFETY: in the postmaster, which has one thread, and before anything calls the hook.
    INSTALLED.call_once(|| unsafe {
        *PREVIOUS.lock() = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(process_utility);
    });
}

/// Not guarded: errors of PostgreSQL pass through this frame, which has nothing to drop.
unsafe extern "C-unwind" fn process_utility(
    statement: *mut pg_sys::PlannedStmt,
    query: *const c_char,
    is_read_only_tree: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    params: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    receiver: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    let previous = *PREVIOUS.lock();
    let run = previous.unwrap_or(standard_ProcessUtility);
    // SAFETY: PostgreSQL passes a statement whose command is a node. Other commands may free it.
    unsafe {
        let command = (*statement).utilityStmt;
        let tag = (*command).type_;
        let database = if tag == pg_sys::NodeTag::T_DropdbStmt { database_of(command) } else { pg_sys::InvalidOid };
        if database != pg_sys::InvalidOid {
            follow_drop(database, false);
        }
        run(statement, query, is_read_only_tree, context, params, environment, receiver, completion);
        if matches!(tag, pg_sys::NodeTag::T_ReassignOwnedStmt | pg_sys::NodeTag::T_DropOwnedStmt) {
            follow(command);
        }
        if database != pg_sys::InvalidOid {
            follow_drop(database, true);
        }
    }
}

/// # Safety
/// The command is a `DropdbStmt`.
#[pg_guard]
unsafe extern "C-unwind" fn database_of(command: *mut pg_sys::Node) -> pg_sys::Oid {
    // SAFETY: by the above. Without a database of that name, the command fails or does nothing.
    unsafe { pg_sys::get_database_oid((*command.cast::<pg_sys::DropdbStmt>()).dbname, true) }
}

#[pg_guard]
unsafe extern "C-unwind" fn follow_drop(database: pg_sys::Oid, is_over: bool) {
    if let Some(followers) = DATABASE_FOLLOWER.get() {
        followers[usize::from(is_over)](database.to_u32());
    }
}

/// # Safety
/// The command is a `ReassignOwnedStmt` or a `DropOwnedStmt`, and has succeeded.
#[pg_guard]
unsafe extern "C-unwind" fn follow(command: *mut pg_sys::Node) {
    // SAFETY: by the above.
    let (owners, heir) = unsafe {
        if (*command).type_ == pg_sys::NodeTag::T_ReassignOwnedStmt {
            let command = &*command.cast::<pg_sys::ReassignOwnedStmt>();
            (roles(command.roles), Some(pg_sys::get_rolespec_oid(command.newrole, false)))
        } else {
            (roles((*command.cast::<pg_sys::DropOwnedStmt>()).roles), None)
        }
    };
    // A copy: a trigger on these rows may run such a command, too.
    let all = OWNED_ROWS.lock().clone();
    for rows in all.into_iter().filter(|rows| (rows.exist)()) {
        let change = || match heir {
            Some(heir) => (rows.reassign)(&owners, heir),
            None => (rows.drop)(&owners),
        };
        // Every role may run these commands. Without rows, none of the tables stays locked.
        xact::in_subtransaction(|| change().then_some(())).unwrap_or_else(|cause| cause.rethrow());
    }
}

/// # Safety
/// A list of `RoleSpec`.
unsafe fn roles(list: *mut pg_sys::List) -> Vec<pg_sys::Oid> {
    // SAFETY: by the above. The command has found all of these roles.
    unsafe {
        let specs = pgrx::PgList::<pg_sys::RoleSpec>::from_pg(list);
        specs.iter_ptr().map(|spec| pg_sys::get_rolespec_oid(spec, false)).collect()
    }
}

/// The OIDs of the databases that have sessions or had some. A template that allows no connections has none.
/// For a background worker that is connected to no database: without one there is no SPI, so this scans the shared
/// catalog, as PostgreSQL's own launchers do.
pub fn databases_in_use() -> Vec<u32> {
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

/// A database with an OID that no database has. Its labels outlive every database, no dump contains them, and a replica needs
/// no code to follow them.
const OBJECT: pg_sys::ObjectAddress =
    pg_sys::ObjectAddress { classId: pg_sys::DatabaseRelationId, objectId: pg_sys::InvalidOid, objectSubId: 0 };

/// The provider's label; `None` if it has none. In a transaction.
pub fn read_label(provider: &CStr) -> Option<String> {
    // SAFETY: the object is a constant; the result is null or a C string in this transaction's memory, copied at once.
    unsafe {
        let text = pg_sys::GetSecurityLabel(&OBJECT, provider.as_ptr());
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    }
}

/// Writes the provider's label; `None` removes it. Later reads of the same transaction see it.
pub fn write_label(provider: &CStr, text: Option<&str>) {
    let text = text.map(|text| CString::new(text).expect("a label has no NUL"));
    let text = text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    // SAFETY: the object is a constant, and the texts are C strings; null removes the label. Writing here needs no
    // registered provider.
    unsafe {
        pg_sys::SetSecurityLabel(&OBJECT, provider.as_ptr(), text);
        pg_sys::CommandCounterIncrement();
    }
}

/// Locks one part of the object, which nothing but the provider of that part locks, until the end of the transaction.
pub fn lock_part(part: u16) {
    // SAFETY: a lock that the end of the transaction releases.
    unsafe {
        let mode = pg_sys::ExclusiveLock as pg_sys::LOCKMODE;
        pg_sys::LockSharedObject(OBJECT.classId, OBJECT.objectId, part, mode);
    }
}
