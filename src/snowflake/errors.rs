//! The errors of snowflake ids.

use crate::pg::ereport::Report;
use crate::settings;
use idgen_core::clock::LATEST_MS;
use idgen_core::layout::{IdError, Layout, LayoutError, NodeError, PRESETS, time_text};
use idgen_core::text::{FORMATS, TextError};
use pgrx::prelude::*;

pub fn layout(text: &str, error: &LayoutError) -> Report {
    let presets: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
    Report::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("invalid layout \"{text}\""))
        .detail(error.to_string())
        .hint(format!(
            "Use a preset ({}) or a spec such as \"time:41 worker:10 sequence:12 unit:1ms epoch:2020-01-01\".",
            presets.join(", ")
        ))
}

/// The worker id or datacenter of this server does not fit the layout.
pub fn node_too_large(layout: &Layout, error: NodeError) -> Report {
    let NodeError { field, value, max } = error;
    let failure = Report::new(
        PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
        format!("{field} id \"{value}\" of this server does not fit layout \"{layout}\""),
    )
    .detail(valid_values(field, max));
    match settings::has_worker_pool() && field == "worker" {
        true => failure.hint("Use a layout with more worker bits, or a pool with fewer slots."),
        false => failure.hint(format!(
            "Set idgen.{field}_id to a valid value and restart the server, or use a layout with more {field} bits."
        )),
    }
}

fn valid_values(field: &str, max: u64) -> String {
    match max {
        0 => format!("The layout has no field \"{field}\", so the only valid value is 0."),
        _ => format!("Valid values are 0 to {max}."),
    }
}

pub fn observed_too_far_ahead(id: i64, time_ms: i64) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
        format!("id \"{id}\" is more than a day ahead of the clock"),
    )
    .detail(format!("Its time is {}. All later ids of this server would begin there.", time_text(time_ms)))
    .hint("Check the id and its layout. If both are right, pass force => true.")
}

/// Ids could never fall back to a clock that ends before them.
pub fn observed_beyond_clocks(id: i64, time_ms: i64) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
        format!("id \"{id}\" is later than any time of the server's clock"),
    )
    .detail(format!("Its time is {}. The clock ends at {}.", time_text(time_ms), time_text(LATEST_MS)))
    .hint("Check the id and its layout.")
}

pub fn before_epoch(layout: &Layout, now_ms: i64) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE, "the clock is before the epoch of the layout")
        .detail(format!(
            "The server's clock is at {}. The epoch is {}.",
            time_text(now_ms),
            time_text(layout.epoch_ms())
        ))
        .hint("Use a layout with an epoch in the past, or correct the server's clock.")
}

pub fn exhausted(layout: &Layout) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE, "the time bits of the layout are exhausted")
        .detail(format!("The layout has no ids from {} on.", time_text(layout.ends_at_ms())))
        .hint("Use a layout with more time bits, a longer unit or a later epoch.")
}

/// An id that is not of the layout, or an argument of `snowflake_make` that does not fit it.
pub fn id(error: IdError, value: i64, layout: &Layout) -> Report {
    let failure = |message| Report::new(PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE, message);
    match error {
        IdError::Negative => {
            failure(format!("\"{value}\" is not a snowflake id")).detail("An id is never negative.".to_owned())
        }
        IdError::TooManyBits { bits } => failure(format!("\"{value}\" is not an id of layout \"{layout}\""))
            .detail(format!("An id of the layout has at most {bits} bits.")),
        IdError::BeforeEpoch => failure("ts is before the epoch of the layout".to_owned())
            .detail(format!("The epoch is {}.", time_text(layout.epoch_ms()))),
        IdError::AfterEnd => failure("ts is after the end of the layout".to_owned())
            .detail(format!("The layout has no ids from {} on.", time_text(layout.ends_at_ms()))),
        IdError::Sequence { max } => failure(format!("sequence \"{value}\" does not fit layout \"{layout}\""))
            .detail(format!("Valid values are 0 to {max}.")),
        IdError::Node(NodeError { field, value, max }) => {
            failure(format!("{field} \"{value}\" does not fit layout \"{layout}\"")).detail(valid_values(field, max))
        }
    }
}

pub fn negative_part(name: &str, value: i64) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE, format!("{name} must not be negative: \"{value}\""))
}

pub fn time_out_of_range(value: i64) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_DATETIME_FIELD_OVERFLOW,
        format!("the time of id \"{value}\" is out of range for a timestamp"),
    )
}

pub fn ts_not_finite() -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_DATETIME_FIELD_OVERFLOW, "ts must be finite")
}

pub fn unknown_format(format: &str) -> Report {
    let formats: Vec<&str> = FORMATS.iter().map(|(name, _)| *name).collect();
    Report::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("unknown text format \"{format}\""))
        .hint(format!("Use one of {}.", formats.join(", ")))
}

/// A text that is not an id in this format, or a number that is not an id.
pub fn text(value: &str, format: &str, error: TextError) -> Report {
    let (code, what) = match error {
        TextError::Negative => (PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE, "is not a snowflake id".to_owned()),
        TextError::Overflow => {
            (PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE, format!("is too large for an id in {format}"))
        }
        _ => (PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("is not an id in {format}")),
    };
    Report::new(code, format!("\"{value}\" {what}")).detail(error.to_string())
}

pub fn settled_in_one_snapshot() -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_ACTIVE_SQL_TRANSACTION,
        "snowflake_settled() cannot be called in a REPEATABLE READ or SERIALIZABLE transaction",
    )
    .detail("The snapshot of the transaction may be older than rows that are settled now.")
    .hint("Use READ COMMITTED, and read the rows in a later statement.")
}

pub fn prepared_without_lock(xid: u32) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("prepared transaction {xid} may have drawn any id"),
    )
    .detail("It was prepared by a server that had not preloaded idgen 0.12.0 or later.")
    .hint(format!(
        "Run SELECT gid, database FROM pg_prepared_xacts WHERE transaction = '{xid}', and in that database COMMIT PREPARED \
         or ROLLBACK PREPARED with this gid."
    ))
}
