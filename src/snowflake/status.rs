//! The checks of snowflake ids: layouts that end, and transactions that hold back settled ids.

use super::earliest_draw::EARLIEST_DRAWS;
use super::{default_layout, errors, prepared, stats};
use crate::check::{Check, listed};
use crate::pg::{recovery, session, system_clock};
use idgen_core::layout::time_text;

/// A transaction that drew an id this long ago fails the check: consumers wait for it.
const LATE_MS: i64 = 300_000;

pub fn checks() -> Vec<Check> {
    vec![layouts(), settled()]
}

/// Fails if the default layout or another one in use has no ids yet, or ends within a year.
fn layouts() -> Check {
    const NAME: &str = "layouts";
    let now_ms = system_clock::wall_ms();
    if default_layout().epoch_ms() > now_ms {
        return Check::raising(NAME, errors::before_epoch(&default_layout(), now_ms)).affects("idgen.layout");
    }
    let in_use = stats::tenants().into_iter().map(|(_, tenant, _)| tenant.layout);
    let ending = in_use.chain([default_layout()]).filter(|layout| layout.ends_within_a_year(now_ms));
    let Some(layout) = ending.min_by_key(|layout| layout.ends_at_ms()) else {
        return Check::ok(NAME, "no layout in use ends within a year");
    };
    let ends_at = time_text(layout.ends_at_ms());
    let action =
        "Move its tables to a layout with more time bits, a longer unit or a later epoch, and observe their ids.";
    match layout.ends_at_ms() <= now_ms {
        true => Check::error(NAME, format!("draws in layout \"{layout}\" have failed since {ends_at}"), action)
            .since_ms(Some(layout.ends_at_ms())),
        false => Check::warning(NAME, format!("draws in layout \"{layout}\" fail from {ends_at} on"), action),
    }
    .affects(layout.to_string())
}

/// Fails if settled reads do, or if they lag.
fn settled() -> Check {
    const NAME: &str = "settled";
    let Some(draws) = EARLIEST_DRAWS.get().filter(|_| !recovery::is_in_progress()) else {
        return Check::ok(NAME, "no id is drawn here");
    };
    let late_ms = system_clock::wall_ms() - LATE_MS;
    let is_late = |time_ms: &i64| *time_ms < late_ms;
    let open = draws.iter().enumerate().filter_map(|(index, draw)| {
        Some((draw.get().filter(is_late)?, format!("process {}", session::process_at(index))))
    });
    let mut late: Vec<(i64, String)> = open.collect();
    match prepared::draws() {
        Err(unknown) => {
            return Check::raising(NAME, errors::prepared_without_lock(unknown)).affects("snowflake_settled()");
        }
        Ok(prepared) => late.extend(prepared.into_iter().filter_map(|draw| {
            Some((draw.earliest_ms.filter(is_late)?, format!("prepared transaction {}", draw.xid)))
        })),
    }
    late.sort_unstable();
    let Some(&(earliest_ms, _)) = late.first() else {
        return Check::ok(NAME, "no transaction holds settled ids back");
    };
    let holders: Vec<String> = late.into_iter().map(|(_, holder)| holder).collect();
    Check::warning(
        NAME,
        format!(
            "settled ids have stopped at {}: {} drew an id then, and has not ended",
            time_text(earliest_ms),
            holders[0]
        ),
        "End it: COMMIT or ROLLBACK PREPARED by its gid in pg_prepared_xacts, or SELECT pg_terminate_backend(pid).",
    )
    .since_ms(Some(earliest_ms))
    .affects(listed(&holders))
}
