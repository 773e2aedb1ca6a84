//! A cache at each call site of a query, so that a call in a hot INSERT compares no text.

use super::datum::text_arg;
use pgrx::PgMemoryContexts;
use pgrx::prelude::*;
use std::borrow::Cow;

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
    /// through `with`, always with the same type.
    pub unsafe fn new(fcinfo: pg_sys::FunctionCallInfo, text_arg: Option<usize>) -> Self {
        Self { fcinfo, text_arg }
    }

    /// Calls `work` with the cached value. If the text is a constant in the query, as in a DEFAULT, `find` runs at the first
    /// call only.
    #[inline]
    pub fn with<T: Copy, R>(self, find: impl FnOnce(&Self) -> T, work: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: `flinfo` belongs to the running call. `fn_extra` is null or was set below, in memory that lives as
        // long as `flinfo`. There is no other reference into it.
        match unsafe { (*(*self.fcinfo).flinfo).fn_extra.cast::<T>().as_mut() } {
            Some(kept) => work(kept),
            None => self.find(find, work),
        }
    }

    #[cold]
    fn find<T: Copy, R>(self, find: impl FnOnce(&Self) -> T, work: impl FnOnce(&mut T) -> R) -> R {
        let mut found = find(&self);
        if !self.text_is_fixed() {
            return work(&mut found);
        }
        // SAFETY: see `with`. The value is plain data, which needs no drop.
        let kept = unsafe {
            let flinfo = (*self.fcinfo).flinfo;
            let kept = PgMemoryContexts::For((*flinfo).fn_mcxt).palloc_struct::<T>();
            kept.write(found);
            (*flinfo).fn_extra = kept.cast();
            &mut *kept
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
