//! The checks of the clock and the high-water mark.

use super::state::STATE;
use super::{errors, file, stats};
use crate::check::Check;
use crate::pg::recovery;
use idgen_core::layout::time_text;
use std::sync::atomic::Ordering::Acquire;

const IDS: &str = "snowflake ids and UUIDs";

/// Ids that are this far ahead of the clock fail the check.
const BEHIND_MS: i64 = 1000;

pub fn checks() -> Vec<Check> {
    vec![layout(), clock(), mark()]
}

fn layout() -> Check {
    const NAME: &str = "idgen.layout";
    if !stats::is_layout_changed() {
        return Check::ok(NAME, "idgen.layout is the same as when ids were last issued");
    }
    Check::warning(
        NAME,
        "idgen.layout was changed before this start: old and new ids of one table can be equal, and decode differently",
        "Name the layout in the defaults of tables that have ids of the old one, or set idgen.layout back. \
         The next start ends this check.",
    )
    .affects("tables whose default names no layout")
}

fn clock() -> Check {
    const NAME: &str = "clock";
    if let Some((steps, days)) = stats::far_forward() {
        let steps = if steps == 1 { "1 step".to_owned() } else { format!("{steps} steps") };
        return Check::warning(
            NAME,
            format!("the wall clock was set forward by {days} days, in {steps}"),
            "If it is wrong, correct it before more ids are generated, because they keep its time. \
             If it is right, run SELECT idgen.reset_stats().",
        )
        .affects(IDS);
    }
    match stats::behind_ms() {
        behind_ms if behind_ms >= BEHIND_MS => Check::warning(
            NAME,
            format!(
                "the wall clock is {behind_ms} ms behind the times of ids: it was set back, or ids began ahead of it after a crash, a promotion or snowflake_observe"
            ),
            "Ids go on, and the lead shrinks while fewer ids are drawn than the layout allows. If it does not, compare the \
             server's clock with that of other machines.",
        )
        .affects(IDS),
        _ => Check::ok(NAME, "ids follow the wall clock"),
    }
}

fn mark() -> Check {
    const NAME: &str = "mark";
    if let Some((path, error)) = stats::write_error() {
        return Check::error(
            NAME,
            format!("high-water file \"{path}\" could not be written: {error}"),
            "Free disk space, or repair the file system. Draws fail as soon as ids reach the mark; see idgen.stat_clock.",
        )
        .affects(IDS);
    }
    if let Some(error) = unusable() {
        return Check::raising(NAME, errors::high_water(error)).affects(IDS);
    }
    if stats::is_label_passed() {
        return Check::error(
            NAME,
            "standbys were not told the high-water mark, so a standby that is promoted now may issue ids again",
            "Promote no standby. If no background worker could be started, raise max_worker_processes; otherwise read the \
             server's log.",
        )
        .affects(IDS);
    }
    let message = stats::mark_ms().map_or_else(
        || "no id was issued since the server started".to_owned(),
        |mark_ms| format!("ids are durably promised up to {}", time_text(mark_ms)),
    );
    Check::ok(NAME, message)
}

/// What is wrong with the file, before the first draw has read and written it.
fn unusable() -> Option<file::FileError> {
    STATE.get().filter(|state| !state.is_ready.load(Acquire) && !recovery::is_in_progress())?;
    file::read(recovery::system_identifier()).err().or_else(|| file::access_error().map(file::FileError::Io))
}
