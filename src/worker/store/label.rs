//! A label that this server has granted worker ids: a security label on a database with OID 0, like the label of the
//! clock. It outlives the extension and the database, and no dump includes it.

use pgrx::prelude::*;
use std::ffi::{CStr, CString};

const PROVIDER: &CStr = c"idgen workers";

fn object() -> pg_sys::ObjectAddress {
    pg_sys::ObjectAddress { classId: pg_sys::DatabaseRelationId, objectId: pg_sys::InvalidOid, objectSubId: 0 }
}

/// The text of the label, over all databases of the server.
pub struct Label {
    /// The end of the wait after the last interruption; `i64::MIN` if there was none.
    pub until_us: i64,
    /// As in `History`.
    pub longest_us: i64,
}

/// `None` if no database of this server has granted worker ids.
pub fn read() -> Option<Label> {
    // SAFETY: the object is a local; the result is null or a C string in this transaction's memory, copied at once.
    let text = unsafe {
        let text = pg_sys::GetSecurityLabel(&object(), PROVIDER.as_ptr());
        if text.is_null() {
            return None;
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    };
    let mut numbers = text.split(' ').map(|number| number.parse().ok());
    let mut next = |default| numbers.next().flatten().unwrap_or(default);
    Some(Label { until_us: next(i64::MIN), longest_us: next(0) })
}

/// Raises both values of the label to at least these.
pub fn raise(label: Label) {
    lock();
    let known = read().unwrap_or(Label { until_us: i64::MIN, longest_us: 0 });
    let (until_us, longest_us) = (known.until_us.max(label.until_us), known.longest_us.max(label.longest_us));
    set(Some(&format!("{until_us} {longest_us}")));
}

pub fn remove() {
    lock();
    set(None);
}

/// Until the end of the transaction: another database may write the same label.
fn lock() {
    /// Nothing else locks this part of a database that does not exist.
    const PART: u16 = 1;
    // SAFETY: a lock that the end of the transaction releases.
    unsafe {
        let mode = pg_sys::ExclusiveLock as pg_sys::LOCKMODE;
        pg_sys::LockSharedObject(pg_sys::DatabaseRelationId, pg_sys::InvalidOid, PART, mode);
    }
}

fn set(text: Option<&str>) {
    let text = text.map(|text| CString::new(text).expect("numbers have no NUL"));
    let text = text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    // SAFETY: the object is a local, and the texts are C strings; null removes the label.
    unsafe {
        pg_sys::SetSecurityLabel(&object(), PROVIDER.as_ptr(), text);
        // The next read is in the same transaction.
        pg_sys::CommandCounterIncrement();
    }
}
