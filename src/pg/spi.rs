//! Queries on the tables of an extension, with the rights of their owner, and with plans that the process keeps. Users have
//! no rights to the tables: the functions decide what a caller may do before a query runs.
//!
//! Queries must qualify every name, those of operators and types too: the user's search path applies, and before it the
//! temporary schema.

use super::datum::{self, Text};
use super::ereport::{self, errors};
use super::invalidation;
use super::session::Replaced;
use super::xact::{self, Durability};
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::ffi::{CStr, CString};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};

/// A table of the extension.
pub struct ExtensionTable {
    name: &'static CStr,
    /// The OID of the table that was found to be the extension's; 0 until one was.
    verified: AtomicU32,
    /// The last count of changes of names at which it had the name; 0 until it was found.
    named_at: AtomicU64,
}

impl ExtensionTable {
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, verified: AtomicU32::new(0), named_at: AtomicU64::new(0) }
    }

    /// A query on this table, and on others of the same owner.
    pub const fn query(&'static self, sql: &'static str) -> Query {
        Query { rights: Rights::OwnerOf(self), sql: Sql::Fixed(sql), plan: AtomicPtr::new(null_mut()) }
    }

    /// Changes the newest version of rows of the table, durably. Returns how many rows the query returns.
    pub fn write(&self, query: &Query, args: &[DatumWithOid]) -> usize {
        self.refuse_during_recovery();
        query.write_latest(args, |_| ()).len()
    }

    pub fn refuse_during_recovery(&self) {
        let command = CString::new(format!("a write to {}", self.full_name()));
        xact::refuse_during_recovery(&command.expect("made of C strings"));
    }

    /// The OID of the table that has the name now, if it is the extension's. After DROP EXTENSION, or when a superuser has
    /// renamed its schema, any role that may create schemas can create another table of that name.
    pub fn find(&self) -> Option<pg_sys::Oid> {
        let names = invalidation::changes_of_names();
        if self.named_at.load(Relaxed) == names {
            return Some(self.verified.load(Relaxed).into());
        }
        // SAFETY: C strings; looks into the system's caches.
        let table = unsafe {
            let schema = pg_sys::get_namespace_oid(ereport::EXTENSION.as_ptr(), true);
            if schema == pg_sys::InvalidOid {
                return None;
            }
            pg_sys::get_relname_relid(self.name.as_ptr(), schema)
        };
        if table == pg_sys::InvalidOid || !self.is_of_extension(table) {
            return None;
        }
        self.named_at.store(names, Relaxed);
        Some(table)
    }

    /// False also without the table. The SQL of an earlier release may lack the column.
    pub fn has_column(&self, column: &CStr) -> bool {
        // SAFETY: a C string; looks into the system's caches.
        self.find().is_some_and(|table| unsafe { pg_sys::get_attnum(table, column.as_ptr()) } > 0)
    }

    /// Reads `pg_depend`, which has no cache: once for each table and process. A superuser can have taken the table out
    /// of the extension since. An OID is used again after four billion others; a query on a table of another owner that got it would
    /// run with no more than that owner's rights.
    fn is_of_extension(&self, table: pg_sys::Oid) -> bool {
        if self.verified.load(Relaxed) == table.to_u32() {
            return true;
        }
        // SAFETY: a C string; reads catalogs.
        let is_member = unsafe {
            let extension = pg_sys::get_extension_oid(ereport::EXTENSION.as_ptr(), true);
            extension != pg_sys::InvalidOid
                && pg_sys::getExtensionOfObject(pg_sys::RelationRelationId, table) == extension
        };
        if is_member {
            self.verified.store(table.to_u32(), Relaxed);
        }
        is_member
    }

    /// Locks the table until the end of the transaction. The lock keeps DROP EXTENSION out, so the names in a query mean
    /// the extension's tables.
    pub fn lock(&self, mode: u32) -> pg_sys::Oid {
        xact::owning_locks(|| {
            loop {
                // Every query passes here, and with it every loop that reads rows until they are as it needs them.
                check_for_interrupts!();
                let table = self.require();
                // SAFETY: in a transaction. It waits for a lock as a query does.
                unsafe { pg_sys::LockRelationOid(table, mode as pg_sys::LOCKMODE) };
                if self.find() == Some(table) {
                    return table;
                }
                // SAFETY: locked above. The table was dropped during the wait.
                unsafe { pg_sys::UnlockRelationOid(table, mode as pg_sys::LOCKMODE) };
            }
        })
    }

    /// The OID of the table, for a caller that has locked another one of the extension, or is about to lock this one.
    pub fn require(&self) -> pg_sys::Oid {
        self.find().unwrap_or_else(|| {
            // SAFETY: a C string; looks into the system's caches.
            let extension = unsafe { pg_sys::get_extension_oid(ereport::EXTENSION.as_ptr(), true) };
            let missing = if extension == pg_sys::InvalidOid { missing_table } else { table_of_another_version };
            missing(&self.full_name()).raise()
        })
    }

    /// As [`ExtensionTable::lock`], without a wait. `None` if the lock is held, or there is no such table.
    pub fn try_lock(&self, mode: u32) -> Option<pg_sys::Oid> {
        // SAFETY: in a transaction.
        let lock = |table: &_| unsafe { pg_sys::ConditionalLockRelationOid(*table, mode as pg_sys::LOCKMODE) };
        let table = xact::owning_locks(|| self.find().filter(lock))?;
        // It may have been dropped before this process heard of it.
        let is_there = self.find() == Some(table);
        if !is_there {
            Self::unlock(table, mode);
        }
        is_there.then_some(table)
    }

    /// Releases one of these locks. Each query has a lock of its own until the end of the transaction.
    pub fn unlock(table: pg_sys::Oid, mode: u32) {
        // SAFETY: locked by this (sub)transaction.
        xact::owning_locks(|| unsafe { pg_sys::UnlockRelationOid(table, mode as pg_sys::LOCKMODE) });
    }

    /// Locks the table for reads until the end of the transaction, without a wait. False if a lock keeps readers out. True also
    /// without the table.
    pub fn lets_read(&self) -> bool {
        self.try_lock(pg_sys::AccessShareLock).is_some() || self.find().is_none()
    }

    /// With its schema.
    pub fn full_name(&self) -> String {
        format!("{}.{}", ereport::EXTENSION.to_string_lossy(), self.name.to_string_lossy())
    }
}

unsafe extern "C-unwind" {
    /// The current user. Linked without pgrx's guard, which costs more than the function: it returns a variable and cannot
    /// fail.
    #[link_name = "GetUserId"]
    pub safe fn user() -> pg_sys::Oid;
}

/// What the row of a relation in pg_class says; `None` without such a relation. It need not be locked.
pub fn class<R>(relation: pg_sys::Oid, read: impl FnOnce(&pg_sys::FormData_pg_class) -> R) -> Option<R> {
    // SAFETY: looks into the system's caches. A row of pg_class has this form, and is released after it is read.
    unsafe {
        let row = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::RELOID as i32, relation.into());
        if row.is_null() {
            return None;
        }
        let result = read(&*pg_sys::GETSTRUCT(row).cast());
        pg_sys::ReleaseSysCache(row);
        Some(result)
    }
}

/// The name of a role; its OID if it was dropped.
pub fn role_name(role: pg_sys::Oid) -> String {
    // SAFETY: null or a C string, copied at once.
    unsafe {
        let name = pg_sys::GetUserNameFromId(role, true);
        if name.is_null() { role.to_u32().to_string() } else { datum::name(CStr::from_ptr(name)) }
    }
}

/// Runs with the rights of a role, in a security context with these flags too. If `work` raises, the end of the
/// (sub)transaction restores the user.
pub fn as_role<R>(role: pg_sys::Oid, flags: u32, work: impl FnOnce() -> R) -> R {
    let mut user = pg_sys::InvalidOid;
    let mut context = 0;
    let flags = pg_sys::SECURITY_LOCAL_USERID_CHANGE | flags;
    // SAFETY: both point to locals.
    unsafe {
        pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
        pg_sys::SetUserIdAndSecContext(role, context | flags as i32);
    }
    let result = work();
    // SAFETY: restores what was read above.
    unsafe { pg_sys::SetUserIdAndSecContext(user, context) };
    result
}

/// Runs a query that can call functions of a role, with the rights of that role: in a security-restricted operation, as
/// PostgreSQL does for the functions of an index. Settings that it changes are restored. Returns the first column of the
/// first row as text.
pub fn run_restricted(role: pg_sys::Oid, query: &str) -> Option<String> {
    let flags = pg_sys::SECURITY_RESTRICTED_OPERATION | pg_sys::SECURITY_NOFORCE_RLS;
    let query = datum::c_string(query);
    // SAFETY: a C string; connected to SPI, which holds the row until `connect` ends. An error ends the level of settings
    // with the (sub)transaction.
    as_role(role, flags, || unsafe {
        let level = pg_sys::NewGUCNestLevel();
        let value = Spi::connect(|_| {
            Spi::check_status(pg_sys::SPI_execute(query.as_ptr(), false, 1)).unwrap_or_else(unexpected);
            let table = pg_sys::SPI_tuptable.as_ref().filter(|table| table.numvals > 0)?;
            let value = pg_sys::SPI_getvalue(*table.vals, table.tupdesc, 1);
            (!value.is_null()).then(|| datum::name(CStr::from_ptr(value)))
        });
        pg_sys::AtEOXact_GUC(false, level);
        value
    })
}

enum Rights {
    OwnerOf(&'static ExtensionTable),
    /// The owner of PostgreSQL's own views and functions: privileges on these can be revoked from all other roles.
    BootstrapSuperuser,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    None,
    Losable,
    Durable,
}

/// A query whose plan the process keeps from its first use.
pub struct Query {
    rights: Rights,
    sql: Sql,
    plan: AtomicPtr<pg_sys::_SPI_plan>,
}

enum Sql {
    Fixed(&'static str),
    /// Composed at the first use.
    Composed(fn() -> String),
    /// Of a query whose plan is not kept.
    Once(String),
}

impl Query {
    /// As [`ExtensionTable::query`], composed of parts that queries share.
    pub const fn new(table: &'static ExtensionTable, sql: fn() -> String) -> Self {
        Self { rights: Rights::OwnerOf(table), sql: Sql::Composed(sql), plan: AtomicPtr::new(null_mut()) }
    }

    /// A query that is rare: its plan is not kept.
    pub fn once(table: &'static ExtensionTable, sql: String) -> Self {
        Self { rights: Rights::OwnerOf(table), sql: Sql::Once(sql), plan: AtomicPtr::new(null_mut()) }
    }

    /// A query on the statistics of the server, which runs as the bootstrap superuser: what the caller may read does not
    /// matter. It must call no function of a user.
    pub const fn of_statistics(sql: &'static str) -> Self {
        Self { rights: Rights::BootstrapSuperuser, sql: Sql::Fixed(sql), plan: AtomicPtr::new(null_mut()) }
    }

    /// Reads what is committed now, even if the transaction's snapshot is older. Begins no new command, which the leader
    /// of a parallel plan must not.
    pub fn read_latest<R>(&self, args: &[DatumWithOid], read: impl Fn(&SpiHeapTupleData) -> R) -> Vec<R> {
        self.run(args, read, Effect::None)
    }

    /// Changes what is committed now, and returns the rows that the query returns. A crash after the commit does not undo it:
    /// clients and other processes use it at once. Where another transaction has changed a row, it waits for that one and
    /// goes on with the newest version, as READ COMMITTED does. A transaction with one snapshot fails with 40001 there, although
    /// this never uses that snapshot: it repeats the query instead.
    pub fn write_latest<R>(&self, args: &[DatumWithOid], read: impl Fn(&SpiHeapTupleData) -> R) -> Vec<R> {
        self.run(args, read, Effect::Durable)
    }

    /// The same for what a crash may undo: locks of rows, and ends of terms.
    pub fn write_losable<R>(&self, args: &[DatumWithOid], read: impl Fn(&SpiHeapTupleData) -> R) -> Vec<R> {
        self.run(args, read, Effect::Losable)
    }

    fn run<R>(&self, args: &[DatumWithOid], read: impl Fn(&SpiHeapTupleData) -> R, effect: Effect) -> Vec<R> {
        if effect == Effect::None || xact::is_read_committed() {
            return self.run_once(args, &read, effect);
        }
        // The query must not run under READ COMMITTED instead. In SERIALIZABLE, each write asks for the transaction's snapshot to
        // find conflicts, and under READ COMMITTED PostgreSQL would take a new one, which the transaction would then keep.
        // An error of a trigger is not repeated: its queries use the transaction's snapshot, and fail each time.
        loop {
            let run = || xact::in_subtransaction(|| Some(self.run_once(args, &read, effect)));
            match ereport::noting_triggers(run) {
                (Ok(rows), _) => return rows.expect("the query returns rows"),
                (Err(cause), is_of_trigger) if is_of_trigger || !xact::is_row_changed(&cause) => cause.rethrow(),
                (Err(_), _) => {}
            }
        }
    }

    fn run_once<R>(&self, args: &[DatumWithOid], read: &impl Fn(&SpiHeapTupleData) -> R, effect: Effect) -> Vec<R> {
        let read_only = effect == Effect::None;
        let args = datum::arguments(args);
        let mut values: Vec<_> =
            args.iter().map(|arg| arg.datum().map_or(pg_sys::Datum::null(), |datum| datum.sans_lifetime())).collect();
        // As SPI says it: a blank for a value, an n for NULL.
        let nulls: Vec<_> = args.iter().map(|arg| if arg.datum().is_some() { b' ' } else { b'n' } as _).collect();
        let (values, nulls) = (values.as_mut_ptr(), nulls.as_ptr());
        let run = || {
            let plan = self.plan(&args);
            let _by_index = by_index();
            // SAFETY: connected to SPI; both arrays have as many elements as the plan has parameters. SPI copies the snapshot, or
            // makes it the active one. The rows are read before SPI frees them.
            unsafe {
                // Each read gets a new snapshot, because no table has this OID.
                let snapshot = if read_only {
                    pg_sys::GetCatalogSnapshot(pg_sys::InvalidOid)
                } else {
                    pg_sys::GetLatestSnapshot()
                };
                let crosscheck = null_mut();
                let status =
                    pg_sys::SPI_execute_snapshot(plan, values, nulls, snapshot, crosscheck, read_only, true, 0);
                Spi::check_status(status).unwrap_or_else(unexpected);
                if effect == Effect::Durable && pg_sys::SPI_processed > 0 {
                    xact::require_durability(Durability::Crash);
                }
                if pg_sys::SPI_tuptable.is_null() {
                    return Vec::new();
                }
                let table = &*pg_sys::SPI_tuptable;
                let row =
                    |index| SpiHeapTupleData::new(table.tupdesc, *table.vals.add(index)).unwrap_or_else(unexpected);
                (0..table.numvals as usize).filter_map(row).map(|row| read(&row)).collect()
            }
        };
        let mode = if read_only { pg_sys::AccessShareLock } else { pg_sys::RowExclusiveLock };
        match self.rights {
            // As PostgreSQL's referential integrity does.
            Rights::OwnerOf(table) => xact::owning_locks(|| {
                let owner = class(table.lock(mode), |class| class.relowner).expect("the table is locked");
                as_role(owner, pg_sys::SECURITY_NOFORCE_RLS, || Spi::connect(|_| run()))
            }),
            Rights::BootstrapSuperuser => {
                let superuser = pg_sys::Oid::from_u32(pg_sys::BOOTSTRAP_SUPERUSERID);
                as_role(superuser, pg_sys::SECURITY_RESTRICTED_OPERATION, || Spi::connect(|_| run()))
            }
        }
    }

    fn plan(&self, args: &[DatumWithOid]) -> *mut pg_sys::_SPI_plan {
        let kept = self.plan.load(Relaxed);
        if !kept.is_null() {
            return kept;
        }
        let sql = match &self.sql {
            Sql::Fixed(sql) => CString::new(*sql),
            Sql::Composed(compose) => CString::new(compose()),
            Sql::Once(sql) => CString::new(sql.as_str()),
        };
        let sql = sql.expect("a query of ours has no NUL");
        let mut types: Vec<_> = args.iter().map(DatumWithOid::oid).collect();
        // SAFETY: connected to SPI; as many types as are said.
        unsafe {
            let plan = pg_sys::SPI_prepare(sql.as_ptr(), types.len() as i32, types.as_mut_ptr());
            if plan.is_null() {
                unexpected::<()>(Spi::check_status(pg_sys::SPI_result).expect_err("there is no plan"));
            }
            if !matches!(self.sql, Sql::Once(_)) {
                pg_sys::SPI_keepplan(plan);
                self.plan.store(plan, Relaxed);
            }
            plan
        }
    }
}

/// While the result lives, the planner prefers plain index scans. A plan is made when the table has a page or two, and kept
/// while updates and deletions bloat it: a sequential scan would cost more with each change. Bitmap scans do not mark dead
/// index entries. A disabled sequential scan that has no alternative inflates the cost and would trigger JIT.
fn by_index() -> [Replaced<bool>; 3] {
    let variables = [&raw mut pg_sys::enable_seqscan, &raw mut pg_sys::enable_bitmapscan, &raw mut pg_sys::jit_enabled];
    // SAFETY: variables of this process, which the planner reads.
    variables.map(|variable| unsafe { Replaced::new(variable, false) })
}

/// An interval as microseconds, but for NULL, for which this is no interval either: the greatest number. So is one that is too
/// long for a bigint.
pub fn micros(interval: &str) -> String {
    format!(
        "LEAST(pg_catalog.extract('epoch', {interval}) OPERATOR(pg_catalog.*) 1000000, 9223372036854775807)::bigint"
    )
}

/// A column that is never NULL.
pub fn value<T: FromDatum + IntoDatum>(row: &SpiHeapTupleData, column: usize) -> T {
    optional(row, column).unwrap_or_else(|| unexpected(pgrx::spi::SpiError::InvalidPosition))
}

/// A text column that is never NULL. A `String` could not be read unless the database has UTF-8.
pub fn text(row: &SpiHeapTupleData, column: usize) -> String {
    value::<Text>(row, column).into()
}

/// As [`text`], of a column that can be NULL.
pub fn optional_text(row: &SpiHeapTupleData, column: usize) -> Option<String> {
    optional::<Text>(row, column).map(String::from)
}

pub fn optional<T: FromDatum + IntoDatum>(row: &SpiHeapTupleData, column: usize) -> Option<T> {
    row.get(column).unwrap_or_else(unexpected)
}

/// PostgreSQL raises its own errors. This error means that the query does not fit the tables.
pub fn unexpected<T>(error: pgrx::spi::SpiError) -> T {
    unreadable(&error).raise()
}

errors! {
    fn missing_table(table: &str) {
        ERRCODE_UNDEFINED_TABLE: "table \"{table}\" of extension idgen does not exist";
        hint: "Run CREATE EXTENSION idgen.";
    }

    fn table_of_another_version(table: &str) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "table \"{table}\" is not among the SQL objects of this version";
        hint: "Run ALTER EXTENSION idgen UPDATE.";
    }

    fn unreadable(error: &pgrx::spi::SpiError) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "cannot read the tables of idgen: {error}";
        hint: "The library and the SQL objects may be of different versions: run ALTER EXTENSION idgen UPDATE.";
    }
}

/// The first value of the first row, with the rights of the user; `None` for NULL or no row. Takes no transaction id, so it
/// works on a standby and in a read-only transaction, which pgrx's short forms do not.
pub fn read_one<T: FromDatum + IntoDatum>(query: &str) -> Option<T> {
    Spi::connect(|client| client.select(query, Some(1), &[])?.first().get_one()).ok().flatten()
}
