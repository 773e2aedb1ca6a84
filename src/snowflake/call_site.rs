//! What a place in a query remembers between its calls, so that a call in a hot INSERT compares no text.

use super::layouts;
use super::space::Attached;
use crate::{error, settings};
use pgrx::PgMemoryContexts;
use pgrx::prelude::*;

/// One call of a function that generates, at its place in the query.
pub struct CallSite {
    fcinfo: pg_sys::FunctionCallInfo,
    /// Which argument names the layout; without one it is `idgen.layout`.
    layout_arg: Option<usize>,
}

impl CallSite {
    /// # Safety
    /// `fcinfo` is that of the running call, with `layout_arg` among its arguments and of type text. The function
    /// keeps nothing else in `fn_extra`.
    pub unsafe fn new(fcinfo: pg_sys::FunctionCallInfo, layout_arg: Option<usize>) -> Self {
        Self { fcinfo, layout_arg }
    }

    /// Works with the space that this place draws from. Where the query names the layout by a constant, as a DEFAULT
    /// does, the space is looked up at the first call only.
    #[inline]
    pub fn with_space<R>(self, work: impl FnOnce(&mut Attached) -> R) -> R {
        // SAFETY: `flinfo` belongs to the running call. `fn_extra` is null or was set below, in memory that lives as
        // long as `flinfo`; nobody else has a reference into it.
        match unsafe { (*(*self.fcinfo).flinfo).fn_extra.cast::<Attached>().as_mut() } {
            Some(attached) => work(attached),
            None => self.look_up(work),
        }
    }

    #[cold]
    fn look_up<R>(self, work: impl FnOnce(&mut Attached) -> R) -> R {
        let mut attached = self.attach();
        if !self.layout_is_fixed() {
            return work(&mut attached);
        }
        // SAFETY: see `with_space`. The value is plain data, which needs no drop.
        let kept = unsafe {
            let flinfo = (*self.fcinfo).flinfo;
            let kept = PgMemoryContexts::For((*flinfo).fn_mcxt).palloc_struct::<Attached>();
            kept.write(attached);
            (*flinfo).fn_extra = kept.cast();
            &mut *kept
        };
        work(kept)
    }

    /// The space of this call, by the layout's text.
    pub fn attach(&self) -> Attached {
        match self.layout_arg {
            None => layouts::attached(&settings::layout()),
            // SAFETY: the argument is there and is a text (see `new`).
            Some(arg) => match unsafe { pgrx::fcinfo::pg_getarg::<&str>(self.fcinfo, arg) } {
                Some(text) => layouts::attached(text),
                None => error::null_argument("layout").raise(),
            },
        }
    }

    /// Will every call from this place name the same layout? Only a constant is sure to: PL/pgSQL keeps the place and
    /// changes the parameters.
    fn layout_is_fixed(&self) -> bool {
        let Some(arg) = self.layout_arg else {
            return true;
        };
        // SAFETY: `fn_expr` is null or the expression of this call; a FuncExpr has a list of its arguments.
        unsafe {
            let expr = (*(*self.fcinfo).flinfo).fn_expr;
            if expr.is_null() || (*expr).type_ != pg_sys::NodeTag::T_FuncExpr {
                return false;
            }
            let args = (*expr.cast::<pg_sys::FuncExpr>()).args;
            let arg = pg_sys::list_nth(args, arg as i32).cast::<pg_sys::Node>();
            (*arg).type_ == pg_sys::NodeTag::T_Const
        }
    }
}
