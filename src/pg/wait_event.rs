//! Names that `pg_stat_activity.wait_event` shows.

use pgrx::prelude::*;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A wait event of type Extension. Servers before PostgreSQL 17 show all of them as "Extension".
pub struct WaitEvent {
    #[cfg_attr(any(feature = "pg15", feature = "pg16"), allow(dead_code, reason = "has no names"))]
    name: &'static CStr,
    /// 0 until the first wait: PostgreSQL finds the id of a name under a lock.
    id: AtomicU32,
}

impl WaitEvent {
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, id: AtomicU32::new(0) }
    }

    pub fn id(&self) -> u32 {
        match self.id.load(Relaxed) {
            0 => {
                let id = self.find_id();
                self.id.store(id, Relaxed);
                id
            }
            id => id,
        }
    }

    #[cfg(any(feature = "pg15", feature = "pg16"))]
    fn find_id(&self) -> u32 {
        pg_sys::PG_WAIT_EXTENSION
    }

    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    fn find_id(&self) -> u32 {
        // SAFETY: a C string. PostgreSQL returns the same id for the same name in every process.
        unsafe { pg_sys::WaitEventExtensionNew(self.name.as_ptr()) }
    }
}
