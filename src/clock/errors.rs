//! The errors of the clock and its file.

use super::file::{FileError, PATH};
use crate::pg::ereport::Report;
use pgrx::prelude::*;

/// The high-water file cannot be used. Generation waits until it can: the next call tries again.
pub fn high_water(error: FileError) -> Report {
    let repair = "Restore the file from where it was moved or copied to. It must be this server's own. If there is none, \
                  remove the directory \"idgen\" from the data directory: ids then begin past the label in WAL, seconds \
                  ahead of the last one. If no label could be written, the server's clock must be past the time of every \
                  id issued here.";
    let damaged = |message: &str| {
        Report::new(PgSqlErrorCode::ERRCODE_DATA_CORRUPTED, format!("high-water file \"{PATH}\" {message}"))
            .hint(repair)
    };
    match error {
        FileError::Missing => {
            Report::new(PgSqlErrorCode::ERRCODE_UNDEFINED_FILE, format!("high-water file \"{PATH}\" is missing"))
                .detail("Its directory exists, so ids were issued here. Only the file records up to which time.")
                .hint(repair)
        }
        FileError::Damaged => {
            damaged("has no intact record").detail("The file records the time up to which ids were issued here.")
        }
        FileError::Foreign(other) => {
            damaged("was written by another server").detail(format!("The file has system identifier {other}."))
        }
        FileError::Io(error) => Report::new(
            PgSqlErrorCode::ERRCODE_IO_ERROR,
            format!("could not access high-water file \"{PATH}\": {error}"),
        )
        .detail("No id is issued past the time that the file durably promises.")
        .hint(
            "Make the directory \"idgen\" in the data directory writable, with free space. The next call tries again.",
        ),
    }
}
