//! `(f(x)).*`: PostgreSQL's parser expands it to a call of `f` for each column, and nothing says afterwards that they were one.

use super::datum;
use pgrx::prelude::*;
use std::ffi::{CStr, c_void};

/// In the planner: the name of the function, if the statement reads several columns of one call of it by a call for each.
///
/// Equal calls are taken for one call only if different columns are read. Where a function in SQL is inlined twice, equal
/// calls are two. Their places in the text do not help: a stored view has lost them.
///
/// # Safety
/// `request` is the argument of a running call of a planner support function.
pub unsafe fn expanded_function(request: *mut pg_sys::Node) -> Option<String> {
    // SAFETY: by the above, a request of this tag is a SupportRequestSimplify, whose function exists. Without a planner,
    // there is no statement. A subquery has a planner of its own.
    unsafe {
        if (*request).type_ != pg_sys::NodeTag::T_SupportRequestSimplify {
            return None;
        }
        let pg_sys::SupportRequestSimplify { root, fcall, .. } = *request.cast();
        let statement = root.as_ref()?.parse;
        let mut calls = Calls { function: (*fcall).funcid, columns: Vec::new() };
        let flags = pg_sys::QTW_IGNORE_RT_SUBQUERIES | pg_sys::QTW_IGNORE_CTE_SUBQUERIES;
        let is_expanded = pg_sys::query_tree_walker(statement, Some(find_copy), (&raw mut calls).cast(), flags as i32);
        is_expanded.then(|| datum::name(CStr::from_ptr(pg_sys::get_func_name(calls.function))))
    }
}

/// The columns that a statement reads of calls of a function.
struct Calls {
    function: pg_sys::Oid,
    columns: Vec<*const pg_sys::FieldSelect>,
}

/// True if a column is of the same call as one that was found before.
#[pg_guard]
unsafe extern "C-unwind" fn find_copy(node: *mut pg_sys::Node, calls: *mut c_void) -> bool {
    // SAFETY: PostgreSQL passes a node or null, and the context that is passed on here. The argument of a FieldSelect is an
    // expression.
    unsafe {
        if node.is_null() || (*node).type_ == pg_sys::NodeTag::T_Query {
            return false;
        }
        if (*node).type_ == pg_sys::NodeTag::T_FieldSelect {
            let (calls, column) = (&mut *calls.cast::<Calls>(), &*node.cast::<pg_sys::FieldSelect>());
            if (*column.arg).type_ == pg_sys::NodeTag::T_FuncExpr
                && (*column.arg.cast::<pg_sys::FuncExpr>()).funcid == calls.function
            {
                let is_copy = |other: &*const pg_sys::FieldSelect| {
                    (**other).fieldnum != column.fieldnum && pg_sys::equal((**other).arg.cast(), column.arg.cast())
                };
                if calls.columns.iter().any(is_copy) {
                    return true;
                }
                calls.columns.push(column);
            }
        }
        pg_sys::expression_tree_walker(node, Some(find_copy), calls)
    }
}
