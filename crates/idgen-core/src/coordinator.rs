//! The coordinator: the database that several servers ask for what they must not share.

use sha2::{Digest, Sha256};
use std::fmt;
use std::time::Duration;

/// Identifies a coordinator's database among all servers: a token means nothing to another one, or names another lease
/// there. Copies of a database have the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoordinatorId {
    pub system_identifier: u64,
    pub database: u32,
}

/// Where a coordinator grants from: its data directory, and the base backup that the directory was restored from.
///
/// A restore in place can leave the files that have not changed, and recovery can end on the same timeline. But each restore
/// leaves the label of its backup. Rows written after it are only in later backups, which have other labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// A file of the directory, as its file system identifies it.
    directory: String,
    /// `None` in a row of 0.14.0, which does not say.
    backup: Option<Backup>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Backup {
    /// There is no label. Somebody may have removed it.
    Unlabelled,
    /// A digest of the label.
    Labelled(String),
}

const UNLABELLED: &str = "-";

impl Place {
    pub fn new(directory: String, label: Option<&[u8]>) -> Self {
        let digest = |label| Sha256::digest(label)[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        Self { directory, backup: Some(label.map_or(Backup::Unlabelled, |label| Backup::Labelled(digest(label)))) }
    }

    /// The place of a row.
    pub fn parse(text: &str) -> Self {
        let (directory, backup) =
            text.split_once(' ').map_or((text, None), |(directory, backup)| (directory, Some(backup)));
        let backup = backup.map(|backup| match backup {
            UNLABELLED => Backup::Unlabelled,
            digest => Backup::Labelled(digest.to_owned()),
        });
        Self { directory: directory.to_owned(), backup }
    }

    pub fn is_directory_of(&self, other: &Place) -> bool {
        self.directory == other.directory
    }

    /// True if no backup was restored here since a row was written that has the recorded place.
    pub fn continues(&self, recorded: &Place) -> bool {
        let is_restored = match (&recorded.backup, &self.backup) {
            (Some(before), Some(now @ Backup::Labelled(_))) => before != now,
            _ => false,
        };
        self.is_directory_of(recorded) && !is_restored
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.backup {
            None => f.write_str(&self.directory),
            Some(Backup::Unlabelled) => write!(f, "{} {UNLABELLED}", self.directory),
            Some(Backup::Labelled(digest)) => write!(f, "{} {digest}", self.directory),
        }
    }
}

/// The pause after the first failure of requests that sessions may wait for.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Short enough that a session which waits for some seconds finds a coordinator that has returned.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// The pause after a failed request that sessions may wait for. It doubles with each failure in a row. A random part of
/// it, at least half, so that servers do not return together; `jitter` is random in [0, 1).
pub fn retry_pause(failures_before: u32, jitter: f64) -> Duration {
    let doubled = FIRST_PAUSE * 2u32.pow(failures_before.min(10));
    doubled.min(LONGEST_PAUSE).mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_reads_back_and_ends_with_the_restore_of_another_backup() {
        let place = |label: Option<&str>| Place::new("4-5".to_owned(), label.map(str::as_bytes));
        let (none, one, two) = (place(None), place(Some("one")), place(Some("two")));
        let of_0_14 = Place::parse("4-5");
        assert_eq!([&none, &of_0_14].map(Place::to_string), ["4-5 -", "4-5"]);
        for recorded in [&none, &one, &of_0_14] {
            assert_eq!(Place::parse(&recorded.to_string()), *recorded);
            assert!(recorded.continues(recorded));
            assert!(!recorded.continues(&Place::new("6-7".to_owned(), None)));
        }
        assert!(!one.continues(&none), "a backup was restored");
        assert!(!two.continues(&one), "another backup was restored");
        assert!(none.continues(&one), "the label was removed");
        assert!(one.continues(&of_0_14), "the row does not say");
    }

    #[test]
    fn pause_grows_up_to_a_limit_and_is_half_random() {
        let pauses = |jitter| [0, 1, 4, 5, u32::MAX].map(|failures| retry_pause(failures, jitter).as_millis());
        assert_eq!(pauses(1.0), [100, 200, 1_600, 3_000, 3_000]);
        assert_eq!(pauses(0.0), [50, 100, 800, 1_500, 1_500]);
    }
}
