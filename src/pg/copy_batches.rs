//! COPY FROM in batches, although a default is a volatile function.
//!
//! COPY FROM writes rows in batches only if no default is volatile: such a function could read the table. Its one exception
//! is `nextval`. It asks for the default as the planner has simplified it. So the support function here replaces the call of
//! its function, in the defaults of COPY FROM and nowhere else, by a call of a STABLE function that calls the replaced one.
//! PostgreSQL calls a STABLE function in advance only to estimate, and COPY FROM estimates nothing.
//!
//! The support function itself is that STABLE function. So neither can exist without the other one. SQL can call neither,
//! because it cannot make an argument of type internal.

use super::session;
use pgrx::prelude::*;
use std::ffi::CStr;

/// # Safety
/// PostgreSQL calls it. The last argument is a request of the planner or, in an expression, the OID of the replaced function.
///
/// Not guarded: errors of the replaced function pass through this frame, which has nothing to drop. A guard would cost as
/// much as an id, and change the texts of errors.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn allow_copy_batches(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: by the above. The planner calls it outside of expressions. A node of `stable` is an expression.
    unsafe {
        let last = (*(*fcinfo).args.as_ptr().add((*fcinfo).nargs as usize - 1)).value;
        if (*(*fcinfo).flinfo).fn_expr.is_null() {
            return simplified(last.cast_mut_ptr(), (*(*fcinfo).flinfo).fn_oid);
        }
        let replaced = pg_sys::Oid::from_u32(last.value() as u32);
        if (*(*fcinfo).flinfo).fn_oid != replaced {
            begin_calls(fcinfo, replaced);
        }
        (*(*fcinfo).flinfo).fn_addr.map_or(pg_sys::Datum::null(), |call| call(fcinfo))
    }
}

/// What PostgreSQL asks a library for before it calls the function above.
#[unsafe(no_mangle)]
extern "C" fn pg_finfo_allow_copy_batches() -> &'static pg_sys::Pg_finfo_record {
    &pg_sys::Pg_finfo_record { api_version: 1 }
}

/// The expression that replaces a call in COPY FROM; null for the call itself.
///
/// # Safety
/// The request is one of the planner.
#[pg_guard]
unsafe extern "C-unwind" fn simplified(request: *mut pg_sys::Node, this: pg_sys::Oid) -> pg_sys::Datum {
    // SAFETY: by the above, a request of this tag is a SupportRequestSimplify, whose call exists.
    unsafe {
        if (*request).type_ != pg_sys::NodeTag::T_SupportRequestSimplify {
            return pg_sys::Datum::null();
        }
        let pg_sys::SupportRequestSimplify { root, fcall, .. } = *request.cast();
        // A role without the privilege gets the error that it gets without this function.
        let is_replaced = root.is_null() && is_in_copy_from() && [(*fcall).funcid, this].into_iter().all(may_execute);
        match is_replaced {
            true => pg_sys::Datum::from(stable(&*fcall, this)),
            false => pg_sys::Datum::null(),
        }
    }
}

/// True while COPY FROM prepares the defaults of its columns. It does that in a memory context of this name, before it reads the
/// first row. If a later version of PostgreSQL does not, no call is replaced.
///
/// A planner without a root is no sign: extensions simplify queries without one, and send the result to other servers.
fn is_in_copy_from() -> bool {
    // SAFETY: a context of memory has a name.
    let is_in_copy = unsafe { CStr::from_ptr((*pg_sys::CurrentMemoryContext).name) } == c"COPY";
    is_in_copy && !session::running_statement().is_some_and(is_copy_to)
}

/// COPY TO plans a query in a context of the same name. To estimate, the planner would call a STABLE function there.
fn is_copy_to(statement: &pg_sys::PlannedStmt) -> bool {
    // SAFETY: null or a node, of the type that its tag names.
    unsafe {
        statement.utilityStmt.as_ref().is_some_and(|utility| utility.type_ == pg_sys::NodeTag::T_CopyStmt)
            && !(*statement.utilityStmt.cast::<pg_sys::CopyStmt>()).is_from
    }
}

/// The call, as one of this STABLE function. The second arm of COALESCE never runs, because no draw returns NULL. It is what
/// PostgreSQL makes of an identity column, so COPY FROM excepts it, and all other code takes the expression for volatile: a
/// function that reads it twice is not inlined.
unsafe fn stable(call: &pg_sys::FuncExpr, this: pg_sys::Oid) -> *mut pg_sys::CoalesceExpr {
    // SAFETY: the nodes are complete, and in memory of the planner.
    unsafe {
        let replaced = pg_sys::makeNullConst(pg_sys::INTERNALOID, -1, pg_sys::InvalidOid);
        ((*replaced).constvalue, (*replaced).constisnull) = (call.funcid.into(), false);
        let args = pg_sys::lappend(pg_sys::list_copy(call.args), replaced.cast());
        let this = node(pg_sys::FuncExpr { funcid: this, args, ..*call });
        let never = node(pg_sys::NextValueExpr {
            xpr: pg_sys::Expr { type_: pg_sys::NodeTag::T_NextValueExpr },
            seqid: pg_sys::InvalidOid,
            typeId: call.funcresulttype,
        });
        node(pg_sys::CoalesceExpr {
            xpr: pg_sys::Expr { type_: pg_sys::NodeTag::T_CoalesceExpr },
            coalescetype: call.funcresulttype,
            coalescecollid: call.funccollid,
            args: pg_sys::lappend(pg_sys::lappend(std::ptr::null_mut(), this.cast()), never.cast()),
            location: -1,
        })
    }
}

unsafe fn node<T>(node: T) -> *mut T {
    // SAFETY: new memory of this size.
    unsafe {
        let memory = pg_sys::palloc(size_of::<T>()).cast::<T>();
        memory.write(node);
        memory
    }
}

/// Makes this call and all later ones at its place those of the replaced function, which then has its own state there, and
/// what its definition sets. The privilege was checked before the call was replaced, for the same COPY.
///
/// # Safety
/// `fcinfo` is that of a running call in an expression, which calls this function instead of the replaced one.
#[pg_guard]
unsafe extern "C-unwind" fn begin_calls(fcinfo: pg_sys::FunctionCallInfo, replaced: pg_sys::Oid) {
    // SAFETY: by the above. The new FmgrInfo lives as long as that of this function.
    unsafe {
        let this = (*fcinfo).flinfo;
        let flinfo = pg_sys::MemoryContextAllocZero((*this).fn_mcxt, size_of::<pg_sys::FmgrInfo>()).cast();
        pg_sys::fmgr_info_cxt(replaced, flinfo, (*this).fn_mcxt);
        (*flinfo).fn_expr = (*this).fn_expr;
        (*fcinfo).flinfo = flinfo;
    }
}

fn may_execute(function: pg_sys::Oid) -> bool {
    // SAFETY: reads system caches.
    unsafe {
        let user = pg_sys::GetUserId();
        #[cfg(feature = "pg15")]
        let result = pg_sys::pg_proc_aclcheck(function, user, pg_sys::ACL_EXECUTE);
        #[cfg(not(feature = "pg15"))]
        let result = pg_sys::object_aclcheck(pg_sys::ProcedureRelationId, function, user, pg_sys::ACL_EXECUTE.into());
        result == pg_sys::AclResult::ACLCHECK_OK
    }
}
