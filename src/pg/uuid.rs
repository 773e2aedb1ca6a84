//! The type `uuid` of SQL.

use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::{Datum, Uuid as Bytes};
use pgrx::impl_sql_translatable;
use pgrx::prelude::*;
use std::ffi::c_void;
use std::fmt;

unsafe extern "C-unwind" {
    /// Linked without pgrx's guard, which costs more than the function: with these flags it raises nothing for a small size.
    #[link_name = "palloc_extended"]
    fn palloc_extended(size: pg_sys::Size, flags: i32) -> *mut c_void;
}

/// A `uuid` of SQL: an argument or a result. The number sorts as PostgreSQL sorts the 16 bytes.
pub struct Uuid(pub u128);

impl_sql_translatable!(Uuid, "uuid");

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Bytes::from_bytes(self.0.to_be_bytes()).fmt(f)
    }
}

// SAFETY: a uuid is passed as a pointer to 16 bytes, which pgrx copies.
unsafe impl<'fcx> ArgAbi<'fcx> for Uuid {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: by the caller, the argument is a uuid.
        Self(u128::from_be_bytes(*unsafe { Bytes::unbox_arg_unchecked(arg) }.as_bytes()))
    }
}

// SAFETY: the datum points to 16 bytes in memory of the call.
unsafe impl BoxRet for Uuid {
    #[inline]
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        let bytes = self.0.to_be_bytes();
        // SAFETY: the size is valid. The first function returns null if there is no memory, and the second one raises that.
        unsafe {
            let mut memory = palloc_extended(bytes.len(), pg_sys::MCXT_ALLOC_NO_OOM as i32).cast::<[u8; 16]>();
            if memory.is_null() {
                memory = pg_sys::palloc(bytes.len()).cast();
            }
            memory.write(bytes);
            fcinfo.return_raw_datum(pg_sys::Datum::from(memory))
        }
    }
}
