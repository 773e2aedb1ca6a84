//! The errors of the clock and its file.

use super::file::{FileError, PATH};
use crate::pg::ereport::{Report, errors};

errors! {
    fn file_missing() {
        ERRCODE_UNDEFINED_FILE: "high-water file \"{PATH}\" is missing";
        detail: "Its directory exists, so ids were issued here. Only the file records up to which time.";
        hint: "{REPAIR}";
    }

    fn file_damaged() {
        ERRCODE_DATA_CORRUPTED: "high-water file \"{PATH}\" has no intact record";
        detail: "The file records the time up to which ids were issued here.";
        hint: "{REPAIR}";
    }

    fn file_of_another_server(system_identifier: u64) {
        ERRCODE_DATA_CORRUPTED: "high-water file \"{PATH}\" was written by another server";
        detail: "The file has system identifier {system_identifier}.";
        hint: "{REPAIR}";
    }

    fn file_inaccessible(error: &std::io::Error) {
        ERRCODE_IO_ERROR: "could not access high-water file \"{PATH}\": {error}";
        detail: "No id is issued past the time that the file durably promises.";
        hint: "Make the directory \"idgen\" in the data directory writable, with free space. The next call tries again.";
    }
}

const REPAIR: &str = "Restore the file from where it was moved or copied to. It must be this server's own. If there is \
                      none, remove the directory \"idgen\" from the data directory: ids then begin past the label in WAL, \
                      seconds ahead of the last one. If no label could be written, the server's clock must be past the \
                      time of every id issued here.";

/// The high-water file cannot be used. Generation waits until it can: the next call tries again.
pub fn high_water(error: FileError) -> Report {
    match error {
        FileError::Missing => file_missing(),
        FileError::Damaged => file_damaged(),
        FileError::Foreign(other) => file_of_another_server(other),
        FileError::Io(error) => file_inaccessible(&error),
    }
}
