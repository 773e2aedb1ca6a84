//! The errors of the clock and its file.

use super::file::{FileError, PATH};
use crate::pg::ereport::Report;
use pgrx::prelude::*;

/// The high-water file cannot be used. Generation waits until it can: the next call tries again.
pub fn high_water(error: FileError) -> Report {
    let way_out = "Bring the file back from where it was moved or copied; it must be this server's own and not older than \
                   its last id. If there is none, and the server's clock is past the time of every id issued here, remove \
                   the directory \"idgen\" from the data directory: ids then begin at the clock.";
    let damaged = |message: &str| {
        Report::new(PgSqlErrorCode::ERRCODE_DATA_CORRUPTED, format!("{message} \"{PATH}\"")).hint(way_out)
    };
    match error {
        FileError::Missing => {
            Report::new(PgSqlErrorCode::ERRCODE_UNDEFINED_FILE, format!("high-water file \"{PATH}\" is missing"))
                .detail("The directory is there, so ids were issued here, up to a time that only the file knows.")
                .hint(way_out)
        }
        FileError::Damaged => damaged("no record is whole in the high-water file")
            .detail("It says up to which time ids were issued here."),
        FileError::Foreign(other) => damaged("another server has written the high-water file")
            .detail(format!("Its system identifier is {other}.")),
        FileError::Io(error) => Report::new(
            PgSqlErrorCode::ERRCODE_IO_ERROR,
            format!("could not use the high-water file \"{PATH}\": {error}"),
        )
        .detail("No id is issued past the time that the file durably promises.")
        .hint(
            "Make the directory \"idgen\" in the data directory writable, with space left; the next call tries again.",
        ),
    }
}
