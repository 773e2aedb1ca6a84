//! What a place in a query remembers between its calls, so that a call in a hot INSERT compares no text.

use crate::pg::encoding::decoded;
use pgrx::PgMemoryContexts;
use pgrx::prelude::*;
use std::borrow::Cow;

/// One call of a function, at its place in the query.
#[derive(Clone, Copy)]
pub struct CallSite {
    fcinfo: pg_sys::FunctionCallInfo,
    /// Which argument says what is to be remembered; without one it never changes.
    text_arg: Option<usize>,
}

impl CallSite {
    /// # Safety
    /// `fcinfo` is that of the running call, with `text_arg` among its arguments and of type text. The function keeps
    /// nothing in `fn_extra` but by `with`, and always the same type.
    pub unsafe fn new(fcinfo: pg_sys::FunctionCallInfo, text_arg: Option<usize>) -> Self {
        Self { fcinfo, text_arg }
    }

    /// Works with what this place remembers. Where the query gives the text as a constant, as a DEFAULT does, it is
    /// found at the first call only.
    #[inline]
    pub fn with<T: Copy, R>(self, find: impl FnOnce(&Self) -> T, work: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: `flinfo` belongs to the running call. `fn_extra` is null or was set below, in memory that lives as
        // long as `flinfo`; nobody else has a reference into it.
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

    /// The text of this call; `None` if it is NULL, or there is no such argument.
    pub fn text(&self) -> Option<Cow<'_, str>> {
        // SAFETY: the argument is there and is a text (see `new`).
        self.text_arg.and_then(|arg| unsafe { text_arg(self.fcinfo, arg) })
    }

    pub fn has_text_arg(&self) -> bool {
        self.text_arg.is_some()
    }

    /// Will every call from this place give the same text? Only a constant is sure to: PL/pgSQL keeps the place and
    /// changes the parameters.
    fn text_is_fixed(&self) -> bool {
        let Some(arg) = self.text_arg else {
            return true;
        };
        // SAFETY: `fn_expr` is null or the expression of this call; a FuncExpr has a list of its arguments, as many as the
        // function has. A query of one call comes here each time, so the list is read in place: `list_nth` is guarded.
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

/// A text argument of a call; `None` if it is NULL.
///
/// # Safety
/// `fcinfo` is that of the running call, and the argument is there and a text.
pub unsafe fn text_arg<'a>(fcinfo: pg_sys::FunctionCallInfo, arg: usize) -> Option<Cow<'a, str>> {
    // SAFETY: by the above. Its bytes are those of a bytea, and live as long as the call.
    unsafe { pgrx::fcinfo::pg_getarg::<&[u8]>(fcinfo, arg) }.map(decoded)
}
