//! Transactions: callbacks at their end, durability of the commit, subtransactions, and waiting for the end of one that has
//! locked a row. That wait is in the lock manager, which detects deadlocks.

use super::ereport::{self, Caught};
use super::session::{self, Replaced};
use parking_lot::Mutex;
use pgrx::PgList;
use pgrx::prelude::*;
use std::ffi::{CStr, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Runs the function at each later event of a transaction of this process. Register once.
pub fn on_xact_event(callback: fn(pg_sys::XactEvent::Type)) {
    // PostgreSQL runs what was registered last first: all other functions may still require durability.
    FOLLOWS_DURABILITY.call_once(|| register(durability_event));
    register(callback);
}

static FOLLOWS_DURABILITY: Once = Once::new();

fn register(callback: fn(pg_sys::XactEvent::Type)) {
    // SAFETY: the trampoline has the signature of a callback, and gets the function that it casts back.
    unsafe { pg_sys::RegisterXactCallback(Some(xact_event), callback as *mut c_void) };
}

#[pg_guard]
unsafe extern "C-unwind" fn xact_event(event: pg_sys::XactEvent::Type, callback: *mut c_void) {
    // SAFETY: registered by `on_xact_event`, with a function of this type.
    let callback = unsafe { std::mem::transmute::<*mut c_void, fn(pg_sys::XactEvent::Type)>(callback) };
    callback(event);
}

/// Runs the function each time that a savepoint or a subtransaction of this process is rolled back, whatever it has done: the
/// lists of [effects](super::effects) follow what they have. Register once.
pub fn on_savepoint_rollback(callback: fn()) {
    // SAFETY: as in `register`.
    unsafe { pg_sys::RegisterSubXactCallback(Some(subxact_event), callback as *mut c_void) };
}

#[pg_guard]
unsafe extern "C-unwind" fn subxact_event(
    event: pg_sys::SubXactEvent::Type,
    _own: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    callback: *mut c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        // SAFETY: registered by `on_savepoint_rollback`, with a function of this type.
        let callback = unsafe { std::mem::transmute::<*mut c_void, fn()>(callback) };
        callback();
    }
}

/// Runs queries in `XACT_EVENT_PRE_COMMIT` or `XACT_EVENT_PRE_PREPARE`, which may write although the transaction has become
/// read-only since.
pub fn write_before_commit(work: impl FnOnce()) {
    // SAFETY: the transaction still runs, but its last statement has ended, and its snapshot with it.
    unsafe {
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        pg_sys::XactReadOnly = false;
    }
    work();
    // SAFETY: pushed above. After an error, the end of the transaction pops it.
    unsafe { pg_sys::PopActiveSnapshot() };
}

/// Runs the function when this process exits in order. PostgreSQL runs what was registered last first: after [a
/// connection](super::bgworker::connect), that is while the process still has its transaction.
pub fn before_exit(callback: fn(code: i32)) {
    // SAFETY: as in `on_xact_event`.
    unsafe { pg_sys::before_shmem_exit(Some(exit), pg_sys::Datum::from(callback as usize)) };
}

/// Runs the function when this process gives up shared memory. PostgreSQL has released its locks by then.
pub fn at_exit(callback: fn(code: i32)) {
    // SAFETY: as in `on_xact_event`.
    unsafe { pg_sys::on_shmem_exit(Some(exit), pg_sys::Datum::from(callback as usize)) };
}

#[pg_guard]
unsafe extern "C-unwind" fn exit(code: i32, callback: pg_sys::Datum) {
    // SAFETY: registered above, with a function of this type.
    let callback = unsafe { std::mem::transmute::<usize, fn(i32)>(callback.value()) };
    callback(code);
}

/// The transaction's id, which it gets now if it has none.
pub fn id() -> i64 {
    // SAFETY: in a transaction.
    unsafe { pg_sys::GetTopFullTransactionId() }.value as i64
}

pub fn id_if_any() -> Option<i64> {
    // SAFETY: reads this process's own state.
    let id = unsafe { pg_sys::GetTopFullTransactionIdIfAny() }.value as i64;
    (id != 0).then_some(id)
}

/// True for the ids of the running transaction and its subtransactions, but for those that were rolled back.
pub fn is_current(id: pg_sys::TransactionId) -> bool {
    // SAFETY: reads this process's own state.
    unsafe { pg_sys::TransactionIdIsCurrentTransactionId(id) }
}

/// True for the id of a transaction that has committed, with all above it. False for those of the running one.
pub fn is_committed(id: pg_sys::TransactionId) -> bool {
    // SAFETY: in a transaction.
    unsafe { pg_sys::TransactionIdDidCommit(id) }
}

/// True while [`in_subtransaction`] rolls back.
static ROLLS_BACK: AtomicBool = AtomicBool::new(false);

/// True if this transaction or subtransaction aborts because the client's message has failed, and not by a ROLLBACK, or for
/// an exception that a function catches. For a callback at that event.
pub fn message_failed() -> bool {
    // SAFETY: reads variables of this process. Before PostgreSQL aborts for a message that has failed, it forgets the text of
    // the query and the contexts of the error. The message Sync, at which deferred triggers run, has no text either; but
    // each language has a context.
    let has_failed = unsafe { pg_sys::debug_query_string.is_null() && pg_sys::error_context_stack.is_null() };
    has_failed && !ROLLS_BACK.load(Relaxed)
}

/// Works in a subtransaction, so that an error can be caught and the transaction goes on. `None` rolls back, as an error
/// does. Session locks stay: they belong to no transaction.
pub fn in_subtransaction<R>(work: impl FnOnce() -> Option<R>) -> Result<Option<R>, Caught> {
    // SAFETY: as PL/pgSQL runs a block with an exception clause: memory context and resource owner are restored.
    unsafe {
        let (context, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        let outcome = ereport::catching(work);
        match outcome {
            Ok(Some(_)) => pg_sys::ReleaseCurrentSubTransaction(),
            Ok(None) | Err(_) => {
                ROLLS_BACK.store(true, Relaxed);
                pg_sys::RollbackAndReleaseCurrentSubTransaction();
                ROLLS_BACK.store(false, Relaxed);
            }
        }
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        outcome
    }
}

/// True if a statement failed because a row has changed since its snapshot: with a new snapshot it can succeed. Conflicts
/// between SERIALIZABLE transactions have the same SQLSTATE, and stay.
pub fn is_row_changed(cause: &Caught) -> bool {
    let is_of_a_row = cause.file().is_some_and(|file| file != c"predicate.c");
    cause.code() == PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE && is_of_a_row
}

/// Reads in a subtransaction and rolls it back, which releases the locks that the read took.
pub fn rolled_back<R>(read: impl FnOnce() -> R) -> R {
    let mut result = None;
    let work = || {
        result = Some(read());
        None::<()>
    };
    in_subtransaction(work).unwrap_or_else(|cause| cause.rethrow());
    result.expect("the read has returned")
}

/// Works so that the (sub)transaction owns the locks that the work takes, as it owns the rows that the work changes.
///
/// In a cursor, the owner is otherwise that of the cursor's query. It gives its locks up when the query fails, although an
/// earlier savepoint keeps the rows; and it keeps them when a savepoint is rolled back, although the rows are gone.
#[inline]
pub fn owning_locks<R>(work: impl FnOnce() -> R) -> R {
    let current = &raw mut pg_sys::CurrentResourceOwner;
    // SAFETY: variables of this process, in a transaction; the owners outlive the call.
    let _owner = unsafe { Replaced::new(current, pg_sys::CurTransactionResourceOwner) };
    work()
}

/// Raises 25006 during recovery and in a read-only transaction, under the name of a function that writes.
pub fn require_read_write(function: &CStr) {
    refuse_during_recovery(function);
    // SAFETY: a C string.
    unsafe { pg_sys::PreventCommandIfReadOnly(function.as_ptr()) };
}

/// Raises 25006 during recovery, under the name of a command. Otherwise PostgreSQL's error would be about the
/// transaction id.
pub fn refuse_during_recovery(command: &CStr) {
    // SAFETY: a C string.
    unsafe { pg_sys::PreventCommandDuringRecovery(command.as_ptr()) };
}

/// True if the call is part of a query that the client has sent by itself, and that is the whole of its transaction so far.
/// False in a transaction block, in a pipeline behind another statement, in the arguments of CALL and EXECUTE, and in what a
/// statement runs in turn: a function in any language, a procedure, DO.
///
/// # Safety
/// `fcinfo` is that of the running call.
pub unsafe fn is_own_statement(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: reads this process's own state, and `flinfo` of the call by the above. The executor keeps it in the context of
    // the query. For a query of a portal, that is directly below the portal's; for that of an SQL function, below another.
    unsafe {
        let call = (*fcinfo).flinfo.as_ref();
        let is_of_portal =
            call.is_some_and(|call| pg_sys::MemoryContextGetParent(call.fn_mcxt) == pg_sys::PortalContext);
        let is_query = |statement: &pg_sys::PlannedStmt| statement.commandType != pg_sys::CmdType::CMD_UTILITY;
        let is_top = is_of_portal && session::running_statement().is_some_and(is_query) && !is_in_language();
        !pg_sys::IsInTransactionBlock(is_top)
    }
}

/// True in a procedural language, which runs its queries by SPI, those of cursors and loops in portals too.
fn is_in_language() -> bool {
    // SAFETY: a C string. Looks for a relation that nobody has registered, and finds out whether SPI is connected.
    unsafe { pg_sys::SPI_unregister_relation(c"".as_ptr()) != pg_sys::SPI_ERROR_UNCONNECTED }
}

/// True if the running statement reads no relation, and calls no functions but this one and PostgreSQL's own.
///
/// # Safety
/// `fcinfo` is that of the running call, and [`is_own_statement`].
pub unsafe fn is_alone_in_statement(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    let Some(statement) = session::running_statement() else { return false };
    // SAFETY: by the above. The planner has listed the relations of the statement, and its functions by the hashes of their
    // keys in the cache of functions.
    unsafe {
        let function = pg_sys::Datum::from((*(*fcinfo).flinfo).fn_oid);
        let (cache, none) = (pg_sys::SysCacheIdentifier::PROCOID as i32, pg_sys::Datum::null());
        let hash = pg_sys::GetSysCacheHashValue(cache, function, none, none, none);
        let called = PgList::<pg_sys::PlanInvalItem>::from_pg(statement.invalItems);
        let is_this = |item: *mut pg_sys::PlanInvalItem| ((*item).cacheId, (*item).hashValue) == (cache, hash);
        statement.relationOids.is_null() && called.iter_ptr().all(is_this)
    }
}

/// Commits at the end of the statement, also if others follow it in a pipeline, as PostgreSQL does for its own commands that
/// must be alone in their transaction.
pub fn commit_with_statement() {
    // SAFETY: a variable of this process.
    unsafe { pg_sys::MyXactFlags |= pg_sys::XACT_FLAGS_NEEDIMMEDIATECOMMIT as i32 };
}

unsafe extern "C-unwind" {
    /// pgrx has no binding of it.
    fn ReleasePredicateLocks(is_commit: bool, is_read_only_safe: bool);
}

/// Takes a SERIALIZABLE transaction out of the search for dependencies, as PostgreSQL does at its end: what it has read is
/// forgotten, and what it reads and writes from now on is not compared with others. Only for a transaction whose rows are
/// locked and compared one by one.
pub fn leave_serializable() {
    // SAFETY: in a transaction that is no parallel worker's. Without the search, this does nothing.
    unsafe { ReleasePredicateLocks(false, false) };
}

/// True if each statement sees what was committed before it.
pub fn is_read_committed() -> bool {
    // SAFETY: reads this process's own state.
    unsafe { pg_sys::XactIsoLevel < pg_sys::XACT_REPEATABLE_READ as i32 }
}

/// How much of the transaction's changes the log has: 0 if nothing. Any later change makes it greater.
pub fn log_position() -> u64 {
    // SAFETY: a variable of this process, which PostgreSQL sets to 0 at the end of a transaction.
    unsafe { pg_sys::XactLastRecEnd }
}

/// Lets the commit return before the disk has it, for a callback right before it, unless something else in the transaction
/// requires more. A crash right after it can lose the whole transaction.
pub fn commit_asynchronously() {
    FOLLOWS_DURABILITY.call_once(|| register(durability_event));
    MAY_BE_LOST.store(true, Relaxed);
}

static MAY_BE_LOST: AtomicBool = AtomicBool::new(false);

/// The failures that a commit must survive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    Any,
    /// A crash. Under `synchronous_commit = local` the commit does not wait for standbys.
    Crash,
    /// A failover to a synchronous standby, if there is one.
    Failover,
}

/// The most that the running transaction requires. Rolling back to a savepoint keeps it.
static REQUIRED: Mutex<Durability> = Mutex::new(Durability::Any);

/// Makes the commit of this transaction as durable as needed, whatever is set for the session, the role or the database.
/// Takes effect at the commit: the end of a function with a SET clause, and a later SET LOCAL, would undo it before.
pub fn require_durability(durability: Durability) {
    FOLLOWS_DURABILITY.call_once(|| register(durability_event));
    let mut required = REQUIRED.lock();
    *required = durability.max(*required);
}

fn durability_event(event: pg_sys::XactEvent::Type) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT | pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE => {
            let (required, may_be_lost) = (*REQUIRED.lock(), MAY_BE_LOST.swap(false, Relaxed));
            match may_be_lost && required == Durability::Any {
                true => commit_without_wait(),
                false => raise_synchronous_commit(required),
            }
            crate::pg::crash_point!("durable transaction: before the commit");
        }
        pg_sys::XactEvent::XACT_EVENT_COMMIT
        | pg_sys::XactEvent::XACT_EVENT_PREPARE
        | pg_sys::XactEvent::XACT_EVENT_ABORT => {
            crate::pg::crash_point!("durable transaction: ended");
            *REQUIRED.lock() = Durability::Any;
            MAY_BE_LOST.store(false, Relaxed);
            if let Some(before) = LEVEL_BEFORE.lock().take() {
                // SAFETY: as in `commit_without_wait`.
                unsafe { pg_sys::synchronous_commit = before };
            }
        }
        _ => {}
    }
}

fn raise_synchronous_commit(durability: Durability) {
    use pg_sys::SyncCommitLevel::*;
    // SAFETY: reads a variable of this process.
    let level = unsafe { pg_sys::synchronous_commit } as u32;
    let is_durable = match durability {
        Durability::Any => true,
        Durability::Crash if level == SYNCHRONOUS_COMMIT_LOCAL_FLUSH => true,
        Durability::Crash | Durability::Failover => level >= SYNCHRONOUS_COMMIT_REMOTE_FLUSH,
    };
    if !is_durable {
        let (name, value) = (c"synchronous_commit".as_ptr(), c"on".as_ptr());
        let (context, source) = (pg_sys::GucContext::PGC_USERSET, pg_sys::GucSource::PGC_S_SESSION);
        let action = pg_sys::GucAction::GUC_ACTION_LOCAL;
        // SAFETY: C strings. Sets a variable of this process, as SET LOCAL does.
        unsafe { pg_sys::set_config_option(name, value, context, source, action, true, 0, false) };
    }
}

/// Does not change the setting, which costs more than the commit. Only a wait for standbys depends on that.
fn commit_without_wait() {
    let off = pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_OFF as i32;
    // SAFETY: a variable of this process, which PostgreSQL reads at the commit, and which is restored after that.
    let before = unsafe { (&raw mut pg_sys::synchronous_commit).replace(off) };
    LEVEL_BEFORE.lock().get_or_insert(before);
}

/// The setting, while a commit is asynchronous.
static LEVEL_BEFORE: Mutex<Option<i32>> = Mutex::new(None);

/// The transactions of other sessions that have changed or locked a row, so that no process can update it. `None` if this
/// transaction has, or keeps others from updating the table. The index is unique, on this bigint column.
///
/// # Safety
/// The caller holds a lock on the table, which is a heap.
pub unsafe fn holders_of_row(
    table: pg_sys::Oid,
    index: &CStr,
    column: &CStr,
    key: i64,
) -> Option<Vec<pg_sys::TransactionId>> {
    let mut holders = Vec::new();
    // SAFETY: by the above. `scan_key` outlives the scan, and its type is that of the column. The scan keeps the page of its
    // slot's tuple pinned. The lock of the page keeps the two fields together; nothing is called that could raise under it.
    unsafe {
        let table = pg_sys::table_open(table, pg_sys::NoLock as i32);
        // Or a stronger one. The one below it lets others update.
        let has_table = pg_sys::CheckRelationLockedByMe(table, pg_sys::ShareLock as i32, true);
        let index = pg_sys::get_relname_relid(index.as_ptr(), (*(*table).rd_rel).relnamespace);
        let (column, equal) = (pg_sys::SPI_fnumber((*table).rd_att, column.as_ptr()), pg_sys::BTEqualStrategyNumber);
        let mut scan_key = pg_sys::ScanKeyData::default();
        pg_sys::ScanKeyInit(&mut scan_key, column as i16, equal as u16, pg_sys::F_INT8EQ.into(), key.into());
        let (is_indexed, all) = (index != pg_sys::InvalidOid, &raw mut pg_sys::SnapshotAnyData);
        let scan = pg_sys::systable_beginscan(table, index, is_indexed, all, 1, &mut scan_key);
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            let buffer = (*(*scan).slot.cast::<pg_sys::BufferHeapTupleTableSlot>()).buffer;
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as _);
            let header = &*(*tuple).t_data;
            let (mask, xmax) = (u32::from(header.t_infomask), header.t_choice.t_heap.t_xmax);
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as _);
            holders.extend(members(mask, xmax));
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(table, pg_sys::NoLock as i32);
        if has_table || holders.iter().any(|xid| pg_sys::TransactionIdIsCurrentTransactionId(*xid)) {
            return None;
        }
        holders.retain(|xid| pg_sys::TransactionIdIsInProgress(*xid));
    }
    Some(holders)
}

/// The transactions that a version of a row names as having changed or locked it. Not those with a key share: a foreign key
/// takes that, and it keeps no update out.
fn members(mask: u32, xmax: pg_sys::TransactionId) -> Vec<pg_sys::TransactionId> {
    let has = |bits: u32| mask & bits == bits;
    if has(pg_sys::HEAP_XMAX_INVALID) {
        return Vec::new();
    }
    let is_lock = has(pg_sys::HEAP_XMAX_LOCK_ONLY);
    if !has(pg_sys::HEAP_XMAX_IS_MULTI) {
        let is_key_share = is_lock && has(pg_sys::HEAP_XMAX_KEYSHR_LOCK) && !has(pg_sys::HEAP_XMAX_EXCL_LOCK);
        return if is_key_share { Vec::new() } else { vec![xmax] };
    }
    let mut members = std::ptr::null_mut();
    // SAFETY: a multixact of a row that was just read. PostgreSQL returns as many members as it says, or none and a count of
    // -1; they stay until the end of the statement.
    let members = unsafe {
        match pg_sys::GetMultiXactIdMembers(xmax, &mut members, false, is_lock) {
            count @ 1.. => std::slice::from_raw_parts(members, count as usize),
            _ => &[],
        }
    };
    let is_obstacle =
        |member: &&pg_sys::MultiXactMember| member.status != pg_sys::MultiXactStatus::MultiXactStatusForKeyShare;
    members.iter().filter(is_obstacle).map(|member| member.xid).collect()
}

/// Waits for the end of a transaction, or of a subtransaction that is rolled back.
pub fn wait_for_end_of(xid: pg_sys::TransactionId) {
    // SAFETY: the id of a transaction of another session, and no tuple for the message.
    unsafe {
        let no_tuple = std::ptr::null_mut();
        pg_sys::XactLockTableWait(xid, std::ptr::null_mut(), no_tuple, pg_sys::XLTW_Oper::XLTW_None);
    }
}
