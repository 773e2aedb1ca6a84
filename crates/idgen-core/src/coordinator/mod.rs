//! The coordinator: the database that several servers ask for what they must not share.

use std::fmt;

pub mod link;

/// Identifies a coordinator's database among all servers: a token means nothing to another one, or names another lease
/// there. Copies of a database have the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoordinatorId {
    pub system_identifier: u64,
    pub database: u32,
}

/// Where a coordinator grants from: its data directory, and the life of the data in it.
///
/// A standby that is switched back, and a restore in place, can leave the directory and its timeline as they were. But the
/// control file is another one after most restores, and a server draws a number before it follows other WAL than its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// A file that a restore in place can leave, as its file system identifies it.
    directory: String,
    /// The control file, as its file system identifies it, and the number. `None` in a row of 0.14.1 or earlier.
    life: Option<String>,
}

/// Ends a number that was drawn to follow other WAL.
const REPLAYED: char = 'r';

/// The text of a number that was drawn when the server started. Never two servers or starts draw the same one.
pub fn life_number(random: u64, follows_other_wal: bool) -> String {
    let mut text = format!("{random:016x}");
    text.extend(follows_other_wal.then_some(REPLAYED));
    text
}

/// True if one server has written all the data. An empty number is not known.
pub fn has_one_writer(life_number: &str) -> bool {
    !life_number.is_empty() && !life_number.ends_with(REPLAYED)
}

impl Place {
    pub fn new(directory: &str, control_file: &str, life_number: &str) -> Self {
        Self { directory: directory.to_owned(), life: Some(format!("{control_file}/{life_number}")) }
    }

    /// The place of a row.
    pub fn parse(text: &str) -> Self {
        let (directory, life) = text.split_once(' ').unwrap_or((text, ""));
        // Before 0.14.2, a row has the digest of a backup's label there, or nothing.
        Self { directory: directory.to_owned(), life: Some(life.to_owned()).filter(|life| life.contains('/')) }
    }

    pub fn directory(&self) -> &str {
        &self.directory
    }

    /// What a restore in place changes.
    pub fn life(&self) -> &str {
        self.life.as_deref().unwrap_or_default()
    }

    pub fn is_directory_of(&self, other: &Place) -> bool {
        self.directory == other.directory
    }

    /// True if the data here were another server's, or a backup, since the server has such numbers.
    pub fn has_followed_other_wal(&self) -> bool {
        self.life.as_deref().is_some_and(|life| life.ends_with(REPLAYED))
    }

    /// True if this server has written its data alone since it wrote a row that has the recorded place.
    pub fn continues(&self, recorded: &Place) -> bool {
        let is_same_life = match &recorded.life {
            Some(_) => self.life == recorded.life,
            None => !self.has_followed_other_wal(),
        };
        self.is_directory_of(recorded) && is_same_life
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.directory)?;
        self.life.iter().try_for_each(|life| write!(f, " {life}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_reads_back_and_ends_with_another_control_file_or_number() {
        let place = |control: &str, number: &str| Place::new("4-5", control, number);
        let [own, later] = [1, 2].map(|random| life_number(random, false));
        let [replayed, replayed_again] = [3, 4].map(|random| life_number(random, true));
        let first = place("6-7", &own);
        assert_eq!(first.to_string(), "4-5 6-7/0000000000000001");
        assert_eq!((first.directory(), first.life()), ("4-5", "6-7/0000000000000001"));
        for here in [&first, &place("6-7", &replayed)] {
            assert_eq!(Place::parse(&here.to_string()), *here);
            assert!(here.continues(here));
            assert!(!here.continues(&Place::new("8-9", "6-7", &own)), "another directory");
            assert!(!place("8-9", &own).continues(here), "a backup was restored without WAL of its own");
            assert!(!place("6-7", &later).continues(here), "the number is lost");
            assert!(!place("6-7", &replayed_again).continues(here), "it has followed other WAL since");
        }
        for row_of_0_14_1 in ["4-5", "4-5 -", "4-5 0123456789abcdef"].map(Place::parse) {
            assert!(first.continues(&row_of_0_14_1));
            assert!(!place("6-7", &replayed).continues(&row_of_0_14_1), "the row can be another server's");
            assert!(!Place::new("8-9", "6-7", &own).continues(&row_of_0_14_1));
        }
    }
}
