//! Every error a user can meet: SQLSTATE, message, DETAIL and HINT, in one place.

pub mod lease;
pub mod lock;
pub mod segment;
pub mod worker;

use crate::clock::{FileError, PATH};
use crate::encoding::for_message;
use crate::settings;
use idgen_core::error::{IdError, LayoutError, NodeError, TextError};
use idgen_core::layout::{Layout, PRESETS, time_text};
use idgen_core::snowflake::IdSpace;
use idgen_core::text::FORMATS;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::ffi::CStr;

/// An error on its way to the user.
pub struct Failure {
    code: PgSqlErrorCode,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
}

impl Failure {
    fn new(code: PgSqlErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), detail: None, hint: None }
    }

    fn detail(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Ends the statement with this error.
    pub fn raise(self) -> ! {
        self.report(PgLogLevel::ERROR);
        unreachable!("an error report of level ERROR does not return")
    }

    /// Tells it without ending anything.
    pub fn warn(self) {
        self.report(PgLogLevel::WARNING);
    }

    /// Tells what is as it should be, and still worth knowing.
    pub fn notice(self) {
        self.report(PgLogLevel::NOTICE);
    }

    fn report(self, level: PgLogLevel) {
        let mut report = ErrorReport::new(self.code, for_message(self.message), "idgen");
        if let Some(detail) = self.detail {
            report = report.set_detail(for_message(detail));
        }
        if let Some(hint) = self.hint {
            report = report.set_hint(for_message(hint));
        }
        report.report(level);
    }
}

/// As a literal in SQL.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

pub fn null_argument(name: &str) -> Failure {
    Failure::new(PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED, format!("{name} must not be null"))
}

pub fn no_random() -> Failure {
    Failure::new(PgSqlErrorCode::ERRCODE_IO_ERROR, "could not read random numbers from the system")
}

/// There is no table of that name that is the extension's.
pub fn no_table(name: &CStr) -> Failure {
    Failure::new(
        PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE,
        format!("table \"idgen.{}\" of extension idgen does not exist", name.to_string_lossy()),
    )
    .hint("The extension was dropped, or is of an older version: run CREATE EXTENSION idgen or ALTER EXTENSION idgen UPDATE.")
}

/// A defect of idgen: its own query does not fit its own tables.
pub fn own_table(error: &pgrx::spi::SpiError) -> Failure {
    Failure::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("cannot read the tables of idgen: {error}"),
    )
    .hint("Library and SQL objects may be of different versions: run ALTER EXTENSION idgen UPDATE.")
}

pub fn negative_count(count: i32) -> Failure {
    Failure::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("count must not be negative: \"{count}\""))
}

pub fn layout(text: &str, error: &LayoutError) -> Failure {
    let presets: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
    Failure::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("invalid layout \"{text}\""))
        .detail(error.to_string())
        .hint(format!(
            "Use a preset ({}) or a spec such as \"time:41 worker:10 sequence:12 unit:1ms epoch:2020-01-01\".",
            presets.join(", ")
        ))
}

pub fn configured_wrongly(name: &str, text: &str) -> Failure {
    Failure::new(
        PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
        format!("invalid value for parameter \"{name}\": \"{text}\""),
    )
    .detail("Uniqueness rests on this setting, so the server does not start with its default instead.")
    .hint("Set a value that fits, or take the line out.")
}

pub fn not_preloaded() -> Failure {
    Failure::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        "idgen must be preloaded to generate ids",
    )
    .detail("All sessions issue ids from one place in shared memory, which is set up when the server starts.")
    .hint("Set shared_preload_libraries = 'idgen' in postgresql.conf (after others, separated by commas), and restart.")
}

pub fn standby() -> Failure {
    Failure::new(PgSqlErrorCode::ERRCODE_READ_ONLY_SQL_TRANSACTION, "cannot generate ids during recovery")
        .detail("This server is a standby: its primary issues the ids.")
        .hint("Connect to the primary, or promote this server.")
}

/// This server's number does not fit the layout it is to generate in.
pub fn server_number(layout: &Layout, error: NodeError) -> Failure {
    let NodeError { field, value, max } = error;
    let failure = Failure::new(
        PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
        format!("{field} id {value} of this server does not fit layout \"{layout}\""),
    )
    .detail(room(field, max));
    match settings::has_worker_pool() && field == "worker" {
        true => failure.hint("Use a layout with more bits for it, or a pool with fewer slots."),
        false => failure.hint(format!(
            "Set idgen.{field}_id to a number that fits and restart, or use a layout with more bits for it."
        )),
    }
}

fn room(field: &str, max: u64) -> String {
    match max {
        0 => format!("The layout has no field \"{field}\", so only number 0 can be in it."),
        _ => format!("The layout has room for {field} 0 to {max}."),
    }
}

/// The high-water file cannot be used. Generation waits until it can: the next call tries again.
pub fn high_water(error: FileError) -> Failure {
    let way_out = "Bring the file back from where it was moved or copied; it must be this server's own and not older than \
                   its last id. If there is none, and the server's clock is past the time of every id issued here, remove \
                   the directory \"idgen\" from the data directory: ids then begin at the clock.";
    let damaged = |message: &str| {
        Failure::new(PgSqlErrorCode::ERRCODE_DATA_CORRUPTED, format!("{message} \"{PATH}\"")).hint(way_out)
    };
    match error {
        FileError::Missing => {
            Failure::new(PgSqlErrorCode::ERRCODE_UNDEFINED_FILE, format!("high-water file \"{PATH}\" is missing"))
                .detail("The directory is there, so ids were issued here, up to a time that only the file knows.")
                .hint(way_out)
        }
        FileError::Damaged => damaged("no record is whole in the high-water file")
            .detail("It says up to which time ids were issued here."),
        FileError::Foreign(other) => damaged("another server has written the high-water file")
            .detail(format!("Its system identifier is {other}.")),
        FileError::Io(error) => Failure::new(
            PgSqlErrorCode::ERRCODE_IO_ERROR,
            format!("could not use the high-water file \"{PATH}\": {error}"),
        )
        .detail("No id is issued past the time that the file durably promises.")
        .hint(
            "Make the directory \"idgen\" in the data directory writable, with space left; the next call tries again.",
        ),
    }
}

pub fn observed_too_far_ahead(id: i64, time_ms: i64) -> Failure {
    Failure::new(
        PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
        format!("id \"{id}\" is more than a day ahead of the clock"),
    )
    .detail(format!("Its time is {}, and all ids of this server would begin there.", time_text(time_ms)))
    .hint("Check the id and its layout; if it is right, say force => true.")
}

pub fn before_epoch(space: &IdSpace, now_ms: i64) -> Failure {
    Failure::new(PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE, "the clock is before the epoch of the layout")
        .detail(format!("The server's clock says {}, the epoch is {}.", time_text(now_ms), time_text(space.epoch_ms())))
        .hint("Use an epoch in the past, or set the server's clock.")
}

pub fn exhausted(space: &IdSpace) -> Failure {
    Failure::new(
        PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
        "the time bits of the layout have come to their end",
    )
    .detail(format!("The layout has no ids from {} on.", time_text(space.ends_at_ms())))
    .hint("Use a layout with more time bits, a longer unit or a later epoch.")
}

/// An id that cannot be taken apart, or an argument of snowflake_make that does not fit.
pub fn id(error: IdError, value: i64, layout: &Layout) -> Failure {
    let failure = |message| Failure::new(PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE, message);
    match error {
        IdError::Negative => {
            failure(format!("\"{value}\" is no snowflake id")).detail("An id is never negative.".to_owned())
        }
        IdError::TooManyBits { bits } => failure(format!("\"{value}\" is no id of layout \"{layout}\""))
            .detail(format!("An id of the layout has {bits} bits at most.")),
        IdError::BeforeEpoch => failure("ts is before the epoch of the layout".to_owned())
            .detail(format!("The layout begins at {}.", time_text(layout.epoch_ms()))),
        IdError::AfterEnd => failure("ts is after the end of the layout".to_owned())
            .detail(format!("The layout has no ids from {} on.", time_text(layout.ends_at_ms()))),
        IdError::Sequence { max } => failure(format!("sequence \"{value}\" does not fit layout \"{layout}\""))
            .detail(format!("The layout has room for sequence 0 to {max}.")),
        IdError::Node(NodeError { field, value, max }) => {
            failure(format!("{field} \"{value}\" does not fit layout \"{layout}\"")).detail(room(field, max))
        }
    }
}

pub fn negative_part(name: &str, value: i64) -> Failure {
    Failure::new(
        PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
        format!("{name} must not be negative: \"{value}\""),
    )
}

pub fn time_out_of_range(value: i64) -> Failure {
    Failure::new(
        PgSqlErrorCode::ERRCODE_DATETIME_FIELD_OVERFLOW,
        format!("the time of id \"{value}\" is out of range for a timestamp"),
    )
}

pub fn ts_not_finite() -> Failure {
    Failure::new(PgSqlErrorCode::ERRCODE_DATETIME_FIELD_OVERFLOW, "ts must be finite")
}

pub fn unknown_format(format: &str) -> Failure {
    let formats: Vec<&str> = FORMATS.iter().map(|(name, _)| *name).collect();
    Failure::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("unknown text format \"{format}\""))
        .hint(format!("Use one of {}.", formats.join(", ")))
}

/// A text that is no id in this format, or a number that is no id.
pub fn text(value: &str, format: &str, error: TextError) -> Failure {
    let (code, what) = match error {
        TextError::Negative => (PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE, "is no snowflake id".to_owned()),
        TextError::Overflow => {
            (PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE, format!("is no id in {format}: it is too large"))
        }
        _ => (PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("is no id in {format}")),
    };
    Failure::new(code, format!("\"{value}\" {what}")).detail(error.to_string())
}
