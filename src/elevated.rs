//! Queries on idgen's own tables, to which users have no rights: what they may do is decided before.

use pgrx::prelude::*;

/// Works as the owner of the database system. Every name in its queries must be qualified, also of an operator or a type,
/// because the user's search path holds, and before all of it his temporary schema. If `work` raises, the end of the
/// (sub)transaction brings the user back.
pub fn run<R>(work: impl FnOnce() -> R) -> R {
    let mut user = pg_sys::InvalidOid;
    let mut context = 0;
    // SAFETY: both point to locals. The bootstrap superuser is there in every cluster.
    unsafe {
        pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
        let elevated = context | pg_sys::SECURITY_LOCAL_USERID_CHANGE as i32;
        pg_sys::SetUserIdAndSecContext(pg_sys::Oid::from(pg_sys::BOOTSTRAP_SUPERUSERID), elevated);
    }
    let result = work();
    // SAFETY: what was read above.
    unsafe { pg_sys::SetUserIdAndSecContext(user, context) };
    result
}
