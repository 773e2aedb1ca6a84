//! A security label that this server has granted worker ids. It outlives the extension and the database.

use crate::pg::shared_objects;
use std::ffi::CStr;

const PROVIDER: &CStr = c"idgen workers";
/// The part of the label's object that writers lock: another database may write the same label.
const PART: u16 = 1;

/// The text of the label, over all databases of the server.
pub struct Label {
    /// The end of the wait after the last interruption; `i64::MIN` if there was none.
    pub until_us: i64,
    /// As in `History`.
    pub longest_us: i64,
}

/// `None` if no database of this server has granted worker ids.
pub fn read() -> Option<Label> {
    let text = shared_objects::read_label(PROVIDER)?;
    let mut numbers = text.split(' ').map(|number| number.parse().ok());
    let mut next = |default| numbers.next().flatten().unwrap_or(default);
    Some(Label { until_us: next(i64::MIN), longest_us: next(0) })
}

/// Raises both values of the label to at least these.
pub fn raise(label: Label) {
    shared_objects::lock_part(PART);
    let known = read().unwrap_or(Label { until_us: i64::MIN, longest_us: 0 });
    let (until_us, longest_us) = (known.until_us.max(label.until_us), known.longest_us.max(label.longest_us));
    shared_objects::write_label(PROVIDER, Some(&format!("{until_us} {longest_us}")));
}

pub fn remove() {
    shared_objects::lock_part(PART);
    shared_objects::write_label(PROVIDER, None);
}
