//! Functions of SQL in C: a cache at each call site of a query, so that a call in a hot INSERT compares no text; sets that
//! return one value per call; triggers; and calls that PostgreSQL's parser has copied for `(f(x)).*`.

use super::datum::{self, text_arg};
use super::ereport::errors;
use super::spi::ExtensionTable;
use pgrx::AllocatedByRust;
use pgrx::PgMemoryContexts;
use pgrx::PgTrigger;
use pgrx::callconv::{BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::heap_tuple::PgHeapTuple;
use pgrx::impl_sql_translatable;
use pgrx::prelude::*;
use std::any::TypeId;
use std::borrow::Cow;
use std::ffi::{CStr, c_void};

/// A running call of a function, at its call site in the query.
#[derive(Clone, Copy)]
pub struct CallSite {
    fcinfo: pg_sys::FunctionCallInfo,
    /// The argument that the cached value depends on, if there is one.
    text_arg: Option<usize>,
}

impl CallSite {
    /// # Safety
    /// `fcinfo` is that of the running call, and its argument `text_arg` is a text. The function uses `fn_extra` only
    /// through `with`.
    pub unsafe fn new(fcinfo: pg_sys::FunctionCallInfo, text_arg: Option<usize>) -> Self {
        Self { fcinfo, text_arg }
    }

    /// Calls `work` with the cached value. If the text is a constant in the query, as in a DEFAULT, `find` runs at the first
    /// call only.
    #[inline]
    pub fn with<T: Copy + 'static, R>(self, find: impl FnOnce(&Self) -> T, work: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: `flinfo` belongs to the running call. `fn_extra` is null or was set below, in memory that lives as
        // long as `flinfo`. There is no other reference into it.
        match unsafe { Kept::of((*(*self.fcinfo).flinfo).fn_extra) } {
            Some(kept) => work(kept),
            None => self.find(find, work),
        }
    }

    #[cold]
    fn find<T: Copy + 'static, R>(self, find: impl FnOnce(&Self) -> T, work: impl FnOnce(&mut T) -> R) -> R {
        let mut found = find(&self);
        if !self.text_is_fixed() {
            return work(&mut found);
        }
        // SAFETY: see `with`. The value is plain data, which needs no drop.
        let kept = unsafe {
            let flinfo = (*self.fcinfo).flinfo;
            let kept = Kept::new((*flinfo).fn_mcxt, found);
            (*flinfo).fn_extra = kept.cast();
            &mut (*kept).value
        };
        work(kept)
    }

    /// The text of this call; `None` if it is NULL or there is no such argument.
    pub fn text(&self) -> Option<Cow<'_, str>> {
        // SAFETY: the argument exists and is a text: see `new`.
        self.text_arg.and_then(|arg| unsafe { text_arg(self.fcinfo, arg) })
    }

    pub fn has_text_arg(&self) -> bool {
        self.text_arg.is_some()
    }

    /// True if every call from this site passes the same text. Only a constant ensures that: PL/pgSQL keeps the call site
    /// and changes parameters.
    fn text_is_fixed(&self) -> bool {
        let Some(arg) = self.text_arg else {
            return true;
        };
        // SAFETY: `fn_expr` is null or the expression of this call, and a FuncExpr lists all arguments of the function. The
        // list is read in place, because each simple query comes here and pgrx's guard of `list_nth` costs time.
        unsafe {
            let expr = (*(*self.fcinfo).flinfo).fn_expr;
            if expr.is_null() || (*expr).type_ != pg_sys::NodeTag::T_FuncExpr {
                return false;
            }
            let args = (*expr.cast::<pg_sys::FuncExpr>()).args;
            let arg = (*(*args).elements.add(arg)).ptr_value.cast::<pg_sys::Node>();
            (*arg).type_ == pg_sys::NodeTag::T_Const
        }
    }
}

/// A value in memory that PostgreSQL keeps as a pointer without a type. It begins with the type.
#[repr(C)]
struct Kept<T> {
    kind: TypeId,
    value: T,
}

impl<T: 'static> Kept<T> {
    /// # Safety
    /// The context exists.
    unsafe fn new(context: pg_sys::MemoryContext, value: T) -> *mut Self {
        // PostgreSQL frees its memory, and calls no destructor.
        const { assert!(!std::mem::needs_drop::<T>()) };
        // SAFETY: the context exists, and the memory is new.
        unsafe {
            let kept = PgMemoryContexts::For(context).palloc_struct::<Self>();
            kept.write(Self { kind: TypeId::of::<T>(), value });
            kept
        }
    }

    /// `None` for null.
    ///
    /// # Safety
    /// Null or a pointer to a value that is kept, of any type, with no other reference to it.
    #[inline]
    unsafe fn of<'a>(kept: *mut c_void) -> Option<&'a mut T> {
        // SAFETY: every kept value begins with its type, by which the pointer is one to a value of this type.
        unsafe {
            let kind = kept.cast::<TypeId>().as_ref()?;
            assert!(*kind == TypeId::of::<T>(), "another function has kept this value");
            Some(&mut (*kept.cast::<Self>()).value)
        }
    }
}

/// The next row of a set, in PostgreSQL's value-per-call mode; `None` ends the set. PostgreSQL's helper functions that only
/// read `fn_extra` are not called: pgrx's guard would cost more than the row.
///
/// # Safety
/// `fcinfo` is that of a running call of a set-returning function that uses `fn_extra` for nothing else.
#[inline]
pub unsafe fn next_row<T: 'static, R>(
    fcinfo: pg_sys::FunctionCallInfo,
    begin: impl FnOnce() -> T,
    next: impl FnOnce(&mut T) -> Option<R>,
) -> Option<R> {
    // SAFETY: `fn_extra` is null or the context that `init_MultiFuncCall` stored. PostgreSQL sets it back to null when the
    // set ends or is abandoned. `user_fctx` is set right after the context is created.
    unsafe {
        let flinfo = (*fcinfo).flinfo;
        if (*flinfo).fn_extra.is_null() {
            let begun = begin();
            let context = pg_sys::init_MultiFuncCall(fcinfo);
            (*context).user_fctx = Kept::new((*context).multi_call_memory_ctx, begun).cast();
        }
        let context = (*flinfo).fn_extra.cast::<pg_sys::FuncCallContext>();
        let result = (*fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
        let row = Kept::of((*context).user_fctx).and_then(next);
        if row.is_some() {
            (*result).isDone = pg_sys::ExprDoneCond::ExprMultipleResult;
        } else {
            pg_sys::end_MultiFuncCall(fcinfo, context);
            (*result).isDone = pg_sys::ExprDoneCond::ExprEndResult;
        }
        row
    }
}

pub type Tuple<'a> = PgHeapTuple<'a, AllocatedByRust>;

/// The result of a trigger: the row to write, or none to skip it.
pub struct TriggerRow(Option<pg_sys::Datum>);

impl_sql_translatable!(TriggerRow, "trigger");

impl From<Option<Tuple<'_>>> for TriggerRow {
    fn from(tuple: Option<Tuple>) -> Self {
        Self(tuple.and_then(PgHeapTuple::into_trigger_datum))
    }
}

impl From<pg_sys::HeapTuple> for TriggerRow {
    fn from(tuple: pg_sys::HeapTuple) -> Self {
        Self(Some(tuple.into()))
    }
}

// SAFETY: a trigger must return a tuple in the memory of the call, or a null pointer.
unsafe impl BoxRet for TriggerRow {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: as above. For no row, a trigger returns a null pointer, not NULL.
        unsafe { fcinfo.return_raw_datum(self.0.unwrap_or(pg_sys::Datum::null())) }
    }
}

/// The trigger of the running call; `None` if the call is not a trigger's, for which pgrx's own support raises an internal
/// error.
///
/// # Safety
/// `fcinfo` is that of the running call.
pub unsafe fn trigger_of<'a>(fcinfo: pg_sys::FunctionCallInfo) -> Option<PgTrigger<'a>> {
    // SAFETY: by the above. pgrx tests first that a trigger made the call.
    unsafe { PgTrigger::from_fcinfo(&*fcinfo) }.ok()
}

/// The trigger of the running call of this function, which only triggers of this table may call, with the table's OID.
/// Raises 39P01 otherwise.
///
/// # Safety
/// `fcinfo` is that of the running call.
pub unsafe fn trigger_of_table<'a>(
    fcinfo: pg_sys::FunctionCallInfo,
    function: &str,
    table: &ExtensionTable,
) -> (pg_sys::Oid, PgTrigger<'a>) {
    // SAFETY: by the above.
    unsafe { trigger_of(fcinfo) }
        .map(|trigger| (trigger.relid().unwrap_or(pg_sys::InvalidOid), trigger))
        .filter(|(relation, _)| table.find() == Some(*relation))
        .unwrap_or_else(|| not_its_trigger(function, &table.full_name()).raise())
}

errors! {
    fn not_its_trigger(function: &str, table: &str) {
        ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED: "{function}() must be called by the trigger of {table}";
        hint: "Do not call it, and do not create a trigger with it.";
    }
}

/// The arguments in a trigger's definition, in the encoding of the database.
pub fn trigger_arguments(definition: &pg_sys::Trigger) -> Vec<&CStr> {
    // SAFETY: `tgargs` has `tgnargs` C strings, which live as long as the trigger.
    (0..definition.tgnargs as usize).map(|index| unsafe { CStr::from_ptr(*definition.tgargs.add(index)) }).collect()
}

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
