//! Effects of the running transaction, in lists that follow savepoints; what the client's message has done outside of its
//! transaction, to be undone if the message itself ends in an error; and NOTIFY.
//!
//! A cancel or a timeout can strike after a function has returned, in a check for interrupts of the executor or of the
//! commit. Then the client has no result of it. A later ROLLBACK, or an exception that PL/pgSQL catches, is no such end.

use super::{datum, xact};
use parking_lot::Mutex;
use pgrx::PgMemoryContexts;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use pgrx::prelude::*;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Once;

/// Effects of the running transaction, each with the subtransaction that it belongs to.
pub struct SubxactList<T: 'static> {
    effects: Mutex<Vec<(pg_sys::SubTransactionId, T)>>,
    /// Runs for each effect of a subtransaction that is rolled back, the newest first.
    undo: fn(T),
    /// False if effects that no savepoint can undo are not listed.
    keeps_top: bool,
}

impl<T: Send> SubxactList<T> {
    pub const fn new(undo: fn(T)) -> Self {
        Self { effects: Mutex::new(Vec::new()), undo, keeps_top: true }
    }

    /// A list of the effects that a savepoint can still undo.
    pub const fn of_savepoints(undo: fn(T)) -> Self {
        Self { effects: Mutex::new(Vec::new()), undo, keeps_top: false }
    }

    /// Makes the list follow savepoints. Call once, before the first `push`.
    pub fn follow(&'static self) {
        // SAFETY: the trampoline has the signature of a callback, and gets the list that it casts back.
        unsafe { pg_sys::RegisterSubXactCallback(Some(savepoint_event::<T>), (&raw const *self).cast_mut().cast()) };
    }

    /// Adds an effect of the running subtransaction.
    pub fn push(&self, effect: T) {
        // SAFETY: reads this process's own state.
        let subxact = unsafe { pg_sys::GetCurrentSubTransactionId() };
        if self.keeps_top || subxact != TOP {
            self.effects.lock().push((subxact, effect));
        }
    }

    /// Empties the list, at the end of the transaction.
    pub fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.effects.lock()).into_iter().map(|(_, effect)| effect).collect()
    }

    fn subxact_event(&self, event: pg_sys::SubXactEvent::Type, own: u32, parent: u32) {
        let mut effects = self.effects.lock();
        // Those of the innermost subtransaction are the last ones.
        let first = effects.iter().rposition(|(subxact, _)| *subxact != own).map_or(0, |other| other + 1);
        match event {
            pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB if parent == TOP && !self.keeps_top => {
                effects.truncate(first)
            }
            // The effects become the parent's.
            pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => {
                effects[first..].iter_mut().for_each(|(subxact, _)| *subxact = parent);
            }
            pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => {
                let undone = effects.split_off(first);
                drop(effects);
                undone.into_iter().rev().for_each(|(_, effect)| (self.undo)(effect));
            }
            _ => {}
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn savepoint_event<T: Send + 'static>(
    event: pg_sys::SubXactEvent::Type,
    own: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    list: *mut c_void,
) {
    // SAFETY: registered by `follow`, with a static list of this type.
    unsafe { &*list.cast::<SubxactList<T>>() }.subxact_event(event, own, parent);
}

/// The transaction itself, among its subtransactions: a macro of PostgreSQL.
const TOP: pg_sys::SubTransactionId = 1;

/// Effects of the running message, the newest last.
pub struct MessageEffects<T: 'static> {
    message: Mutex<Message<T>>,
    undo: fn(T),
    following: Once,
}

struct Message<T> {
    effects: Vec<T>,
    /// When it began.
    began: pg_sys::TimestampTz,
    /// PostgreSQL tells when it ends.
    is_followed: bool,
    /// It has ended, but its transaction commits with the message Sync, which does not begin a statement.
    awaits_sync: bool,
}

fn statement_began() -> pg_sys::TimestampTz {
    // SAFETY: reads a variable of this process.
    unsafe { pg_sys::GetCurrentStatementStartTimestamp() }
}

impl<T: Send> MessageEffects<T> {
    /// `undo` runs for each effect of a message that fails, the newest first, while its transaction aborts.
    pub const fn new(undo: fn(T)) -> Self {
        let message = Message { effects: Vec::new(), began: 0, is_followed: false, awaits_sync: false };
        Self { message: Mutex::new(message), undo, following: Once::new() }
    }

    /// Adds an effect of the running message. A background worker has no message: an error ends its process.
    pub fn push(&'static self, effect: T) {
        // SAFETY: reads a variable of this process.
        if unsafe { pg_sys::MessageContext }.is_null() {
            return;
        }
        let arg = (&raw const *self).cast_mut().cast();
        // SAFETY: the trampolines have the signatures of callbacks, and get the list that they cast back.
        self.following.call_once(|| unsafe {
            pg_sys::RegisterXactCallback(Some(xact_event::<T>), arg);
            pg_sys::RegisterSubXactCallback(Some(subxact_event::<T>), arg);
        });
        let mut message = self.message.lock();
        // A deferred trigger runs with Sync, and is part of the statement.
        if message.awaits_sync && message.began != statement_began() {
            message.awaits_sync = false;
            message.effects.clear();
        }
        if !message.is_followed {
            // SAFETY: PostgreSQL resets this context before it reads the next message, and calls what it has of callbacks.
            // The callback lives there.
            unsafe {
                let mut context = PgMemoryContexts::For(pg_sys::MessageContext);
                let callback = context.palloc0_struct::<pg_sys::MemoryContextCallback>();
                (*callback).func = Some(message_ended::<T>);
                (*callback).arg = arg;
                pg_sys::MemoryContextRegisterResetCallback(pg_sys::MessageContext, callback);
            }
            message.is_followed = true;
        }
        message.began = statement_began();
        message.effects.push(effect);
    }

    /// Removes the newest such effect: the message has undone it itself.
    pub fn forget(&self, is_undone: impl Fn(&T) -> bool) {
        let effects = &mut self.message.lock().effects;
        if let Some(index) = effects.iter().rposition(is_undone) {
            effects.remove(index);
        }
    }

    fn message_ended(&self) {
        let mut message = self.message.lock();
        message.is_followed = false;
        // SAFETY: reads this process's own state.
        message.awaits_sync = unsafe { pg_sys::IsTransactionState() && !pg_sys::IsTransactionBlock() };
        if !message.awaits_sync {
            message.effects.clear();
        }
    }

    fn aborted(&self) {
        let effects = {
            let mut message = self.message.lock();
            let is_running = !message.awaits_sync || message.began == statement_began();
            if is_running && xact::message_failed() { std::mem::take(&mut message.effects) } else { Vec::new() }
        };
        effects.into_iter().rev().for_each(self.undo);
    }

    fn transaction_ended(&self) {
        let mut message = self.message.lock();
        if std::mem::take(&mut message.awaits_sync) {
            message.effects.clear();
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn message_ended<T: Send + 'static>(list: *mut c_void) {
    // SAFETY: registered by `push`, with a list of this type.
    unsafe { &*list.cast::<MessageEffects<T>>() }.message_ended();
}

#[pg_guard]
unsafe extern "C-unwind" fn xact_event<T: Send + 'static>(event: pg_sys::XactEvent::Type, list: *mut c_void) {
    use pg_sys::XactEvent::*;
    // SAFETY: as above.
    let list = unsafe { &*list.cast::<MessageEffects<T>>() };
    if event == XACT_EVENT_ABORT {
        list.aborted();
    }
    if matches!(event, XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE) {
        list.transaction_ended();
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn subxact_event<T: Send + 'static>(
    event: pg_sys::SubXactEvent::Type,
    _own: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    list: *mut c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        // SAFETY: as above.
        unsafe { &*list.cast::<MessageEffects<T>>() }.aborted();
    }
}

unsafe extern "C-unwind" {
    /// In no header that pgrx binds.
    fn Async_Notify(channel: *const c_char, payload: *const c_char);
}

/// Sends a notification when the transaction commits, unless the savepoint is rolled back. PostgreSQL omits it if the
/// transaction has sent an equal one.
pub fn notify(channel: &CStr, payload: &str) {
    let payload = datum::c_string(payload);
    // SAFETY: C strings, which PostgreSQL copies. In a transaction.
    unsafe { pg_guard_ffi_boundary(|| Async_Notify(channel.as_ptr(), payload.as_ptr())) };
}
