//! REASSIGN OWNED and DROP OWNED, for what a role owns in idgen's tables.
//!
//! The roles in these rows are no dependencies that PostgreSQL knows, and REASSIGN OWNED fires no event trigger. So a hook
//! looks at every utility command. PostgreSQL runs the command first, and with it checks the caller's privileges.

use crate::{lease, segment};
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::ffi::c_char;

/// The hook that was there before this one.
static PREVIOUS: Mutex<pg_sys::ProcessUtility_hook_type> = Mutex::new(None);

unsafe extern "C-unwind" {
    /// PostgreSQL's own. Declared here, because pgrx's wrapper of it would take names of constraints and positions in the
    /// query text from the errors of all commands.
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

/// Called while the postmaster preloads libraries.
pub fn install_hook() {
    // SAFETY: in the postmaster, which has one thread, and before anything calls the hook.
    unsafe {
        *PREVIOUS.lock() = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(process_utility);
    }
}

/// Not guarded: errors of PostgreSQL pass this frame on their way, which has nothing to drop.
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
    // SAFETY: PostgreSQL passes a statement whose command is a node. After any other command it may be gone.
    unsafe {
        let command = (*statement).utilityStmt;
        let tag = (*command).type_;
        run(statement, query, is_read_only_tree, context, params, environment, receiver, completion);
        if matches!(tag, pg_sys::NodeTag::T_ReassignOwnedStmt | pg_sys::NodeTag::T_DropOwnedStmt) {
            follow(command);
        }
    }
}

/// Does the same as the command, which has succeeded, to the rows of this database.
///
/// # Safety
/// The command is a `ReassignOwnedStmt` or a `DropOwnedStmt`.
#[pg_guard]
unsafe extern "C-unwind" fn follow(command: *mut pg_sys::Node) {
    // The tables are not there without the extension, with its SQL of an old release, or if the command has dropped them.
    let (has_segments, has_leases) = (segment::SEGMENT.find().is_some(), lease::row::LEASE.find().is_some());
    // SAFETY: by the above.
    let (owners, heir) = unsafe {
        if (*command).type_ == pg_sys::NodeTag::T_ReassignOwnedStmt {
            let command = &*command.cast::<pg_sys::ReassignOwnedStmt>();
            (roles(command.roles), Some(pg_sys::get_rolespec_oid(command.newrole, false)))
        } else {
            (roles((*command.cast::<pg_sys::DropOwnedStmt>()).roles), None)
        }
    };
    match heir {
        Some(heir) => {
            if has_segments {
                segment::reassign(&owners, heir);
            }
            if has_leases {
                lease::define::reassign(&owners, heir);
            }
        }
        None => {
            if has_segments {
                segment::drop_owned(&owners);
            }
            if has_leases {
                lease::define::drop_owned(&owners);
            }
        }
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
