//! Names that `pg_stat_activity.wait_event` shows.

use pgrx::prelude::*;
use std::ffi::CStr;

/// A wait event of type Extension. Servers before PostgreSQL 17 show all of them as "Extension".
#[derive(Clone, Copy)]
pub struct WaitEvent(
    #[cfg_attr(any(feature = "pg15", feature = "pg16"), allow(dead_code, reason = "no names"))] Option<&'static CStr>,
);

impl WaitEvent {
    /// A wait that needs no name of its own.
    pub const EXTENSION: Self = Self(None);

    pub const fn named(name: &'static CStr) -> Self {
        Self(Some(name))
    }

    #[cfg(any(feature = "pg15", feature = "pg16"))]
    pub fn id(self) -> u32 {
        pg_sys::PG_WAIT_EXTENSION
    }

    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    pub fn id(self) -> u32 {
        // SAFETY: a C string. PostgreSQL returns the same id for the same name in every process.
        self.0.map_or(pg_sys::PG_WAIT_EXTENSION, |name| unsafe { pg_sys::WaitEventExtensionNew(name.as_ptr()) })
    }
}
