//! Subtransactions: work that can fail and be undone while the transaction goes on, and lists that follow savepoints.

use pgrx::pg_sys::panic::CaughtError;
use pgrx::prelude::*;
use std::panic::AssertUnwindSafe;

/// Works in a subtransaction, so that an error can be caught and the transaction goes on. `None` undoes the work as an
/// error does. Session locks are in nobody's transaction: they stay as they are.
pub fn run<R>(work: impl FnOnce() -> Option<R>) -> Result<Option<R>, Box<CaughtError>> {
    // SAFETY: as PL/pgSQL does it for a block with an exception clause: memory context and resource owner are those of
    // before again, however it ends.
    unsafe {
        let (context, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        let work = AssertUnwindSafe(work);
        let outcome =
            PgTryBuilder::new(AssertUnwindSafe(|| Ok((work.0)()))).catch_others(|cause| Err(Box::new(cause))).execute();
        match outcome {
            Ok(Some(_)) => pg_sys::ReleaseCurrentSubTransaction(),
            Ok(None) | Err(_) => pg_sys::RollbackAndReleaseCurrentSubTransaction(),
        }
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        outcome
    }
}

/// Looks at something, and lets go of all locks that it takes.
pub fn undone<R>(look: impl FnOnce() -> R) -> R {
    let mut seen = None;
    let outcome = run(|| {
        seen = Some(look());
        None::<()>
    });
    if let Err(cause) = outcome {
        cause.rethrow();
    }
    seen.expect("it has looked")
}

/// What was done in the transaction that runs, with the subtransaction it belongs to.
pub struct Done<T>(Vec<(pg_sys::SubTransactionId, T)>);

impl<T> Done<T> {
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Done in the subtransaction that runs.
    pub fn push(&mut self, done: T) {
        // SAFETY: reads this process's own state.
        self.0.push((unsafe { pg_sys::GetCurrentSubTransactionId() }, done));
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.0.iter().map(|(_, done)| done)
    }

    /// A subtransaction has committed: what was done in it is its parent's.
    pub fn committed(&mut self, own: pg_sys::SubTransactionId, parent: pg_sys::SubTransactionId) {
        for (subtransaction, _) in self.0.iter_mut().filter(|(subtransaction, _)| *subtransaction == own) {
            *subtransaction = parent;
        }
    }

    /// A subtransaction was rolled back; returns what was done in it.
    pub fn undone(&mut self, own: pg_sys::SubTransactionId) -> Vec<T> {
        let (undone, kept) =
            std::mem::take(&mut self.0).into_iter().partition(|(subtransaction, _)| *subtransaction == own);
        self.0 = kept;
        Vec::into_iter(undone).map(|(_, done): (_, T)| done).collect()
    }

    /// The transaction has ended.
    pub fn take(&mut self) -> Vec<T> {
        std::mem::take(&mut self.0).into_iter().map(|(_, done)| done).collect()
    }
}
