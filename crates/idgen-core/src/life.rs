//! The file `idgen_place`: the life of the data in a directory, and how a start notices that WAL of this life is lost.
//!
//! PostgreSQL keeps no fact about its WAL outside of its control file, which `pg_resetwal` writes anew. So the file also
//! records which checkpoint the control file had at the last start or clean stop.

use crate::coordinator::life_number;
use std::fmt;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// Drawn when the life began.
    pub number: String,
    /// The system identifier. `None` if an earlier release wrote the file.
    pub system: Option<u64>,
    /// The position in WAL of the checkpoint in the control file. `None` if an earlier release wrote the file, or
    /// `pg_upgrade` is about to change the position.
    pub checkpoint: Option<u64>,
    /// The boot of the machine, if the server does not sync its files: the end of the boot can lose them.
    pub unsynced_boot: Option<String>,
    /// The data directory of the server that began the timeline, or `ANOTHER`. `None` if an earlier release wrote the file.
    pub directory: Option<String>,
}

/// A directory that is not known.
const ANOTHER: &str = "another";

/// The WAL that a start replays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    Own,
    /// A standby, or a recovery from an archive. It ends with a promotion, which begins a timeline.
    UntilPromotion,
    /// A backup, without a file that asks for more. It goes on in the timeline of the backup.
    Backup,
    /// A standby, or a recovery from an archive, that ends without a promotion. It goes on in a timeline of another server.
    Abandoned,
}

#[derive(Clone, Debug)]
pub struct Start<'a> {
    pub replay: Replay,
    /// The data directory, which a copy does not share.
    pub directory: &'a str,
    pub system: u64,
    /// The control file is that of a clean stop.
    pub is_shut_down: bool,
    pub checkpoint: u64,
    /// No record comes before the checkpoint: `pg_resetwal` has written it.
    pub is_first: bool,
    pub boot: &'a str,
    /// Else the end of the boot can lose what the server has written.
    pub syncs_files: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wal {
    /// All that this server has written.
    Continued,
    /// Another server's or a backup's. Or the server has become another one, as `pg_createsubscriber` makes it.
    Replaced,
    /// The server had written more than the data directory has.
    Lost,
}

impl Replay {
    /// Before recovery begins, which renames the files and overwrites the state in the control file.
    pub fn at_start(exists: impl Fn(&str) -> bool, control_file_is_in_recovery: bool) -> Self {
        match () {
            () if exists("standby.signal") || exists("recovery.signal") => Replay::UntilPromotion,
            () if control_file_is_in_recovery => Replay::Abandoned,
            () if exists("backup_label") => Replay::Backup,
            () => Replay::Own,
        }
    }
}

impl Life {
    pub fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let number = lines.next().unwrap_or_default().to_owned();
        let mut life = Life { number, ..Life::default() };
        for line in lines {
            match line.split_once(' ') {
                Some(("system", system)) => life.system = system.parse().ok(),
                Some(("checkpoint", position)) => life.checkpoint = u64::from_str_radix(position, 16).ok(),
                Some(("boot", boot)) => life.unsynced_boot = Some(boot.to_owned()),
                Some(("directory", directory)) => life.directory = Some(directory.to_owned()),
                _ => {}
            }
        }
        life
    }

    /// The life that a start continues or begins, and what it finds. `random` gives a new number.
    pub fn at_start(recorded: Option<&Life>, start: &Start, random: impl FnOnce() -> u64) -> (Life, Wal) {
        let unknown = Life::default();
        let wal = recorded.unwrap_or(&unknown).wal_at(start);
        let number = match recorded {
            Some(life) if wal == Wal::Continued => life.number.clone(),
            // After a loss as little is known as after a restore.
            _ => life_number(random(), wal != Wal::Continued),
        };
        let directory = match start.replay {
            Replay::UntilPromotion => start.directory,
            Replay::Own | Replay::Backup => {
                recorded.and_then(|life| life.directory.as_deref()).unwrap_or(start.directory)
            }
            Replay::Abandoned => ANOTHER,
        };
        let life = Life {
            number,
            system: Some(start.system),
            checkpoint: Some(start.checkpoint),
            unsynced_boot: (!start.syncs_files).then(|| start.boot.to_owned()),
            directory: Some(directory.to_owned()),
        };
        (life, wal)
    }

    /// True if a start may go on with this in the file in place of `next`: they differ in the checkpoint alone. An older
    /// checkpoint makes no later start find a loss in error. It can hide the loss of what was written up to the next one. A
    /// newer one, as before `pg_upgrade` resets WAL, would make the next start find a loss.
    pub fn can_stay_for(&self, next: &Life) -> bool {
        self.checkpoint <= next.checkpoint && Life { checkpoint: next.checkpoint, ..self.clone() } == *next
    }

    /// True if another server has written the data, or writes them too, in the timeline in which this directory goes on.
    pub fn is_copied_to(&self, directory: &str) -> bool {
        self.directory.as_ref().is_some_and(|began| began != directory)
    }

    fn wal_at(&self, start: &Start) -> Wal {
        if start.replay != Replay::Own || self.system.is_some_and(|system| system != start.system) {
            Wal::Replaced
        } else if self.checkpoint.is_some_and(|recorded| self.is_lost(recorded, start)) {
            Wal::Lost
        } else {
            Wal::Continued
        }
    }

    fn is_lost(&self, recorded: u64, start: &Start) -> bool {
        let is_reset = start.is_first && start.checkpoint != recorded;
        let is_older = start.checkpoint < recorded;
        let is_unsynced = self.unsynced_boot.as_ref().is_some_and(|boot| boot != start.boot);
        is_reset || is_older || (is_unsynced && !start.is_shut_down)
    }
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.number)?;
        self.system.iter().try_for_each(|system| writeln!(f, "system {system}"))?;
        self.checkpoint.iter().try_for_each(|position| writeln!(f, "checkpoint {position:X}"))?;
        self.unsynced_boot.iter().try_for_each(|boot| writeln!(f, "boot {boot}"))?;
        self.directory.iter().try_for_each(|directory| writeln!(f, "directory {directory}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDED: u64 = 4000;
    /// Where `pg_resetwal` begins.
    const FIRST: u64 = (16 << 20) + 40;

    fn life(checkpoint: u64) -> Life {
        let number = "0000000000000001r".to_owned();
        let directory = Some("here".to_owned());
        Life { number, system: Some(7), checkpoint: Some(checkpoint), unsynced_boot: None, directory }
    }

    fn start(is_shut_down: bool, checkpoint: u64) -> Start<'static> {
        let is_first = is_shut_down && checkpoint == FIRST;
        Start {
            replay: Replay::Own,
            directory: "here",
            system: 7,
            is_shut_down,
            checkpoint,
            is_first,
            boot: "this",
            syncs_files: true,
        }
    }

    fn wal(life: &Life, is_shut_down: bool, checkpoint: u64) -> Wal {
        life.wal_at(&start(is_shut_down, checkpoint))
    }

    #[test]
    fn life_reads_back_also_as_an_earlier_release_wrote_it() {
        let unsynced = Life { unsynced_boot: Some("this+0.0".to_owned()), ..life(u64::MAX) };
        for life in [life(0), Life { checkpoint: None, ..life(0) }, unsynced] {
            assert_eq!(Life::parse(&life.to_string()), life);
        }
        let earlier = Life { system: None, checkpoint: None, directory: None, ..life(0) };
        assert_eq!(Life::parse("0000000000000001r"), earlier);
        assert_eq!(wal(&earlier, true, FIRST), Wal::Continued);
    }

    #[test]
    fn restarts_crashes_and_switches_of_wal_lose_none() {
        for (is_shut_down, recorded, checkpoint, why) in [
            (true, RECORDED, RECORDED, "a clean stop"),
            (false, RECORDED, RECORDED, "a crash before the next checkpoint"),
            (false, RECORDED, RECORDED + 8, "a crash after it"),
            (false, RECORDED, FIRST, "a crash after a switch and a checkpoint"),
            (true, RECORDED, RECORDED + 8, "a clean stop that was not recorded, as without preload"),
            (true, FIRST, FIRST, "the next start after a reset"),
        ] {
            assert_eq!(wal(&life(recorded), is_shut_down, checkpoint), Wal::Continued, "{why}");
        }
    }

    #[test]
    fn reset_an_older_control_file_and_a_reboot_without_sync_lose_wal() {
        assert_eq!(wal(&life(RECORDED), true, FIRST), Wal::Lost, "pg_resetwal");
        for is_shut_down in [true, false] {
            assert_eq!(wal(&life(RECORDED), is_shut_down, RECORDED - 8), Wal::Lost, "an older control file");
        }
        let unsynced = |boot: &str| Life { unsynced_boot: Some(boot.to_owned()), ..life(RECORDED) };
        assert_eq!(wal(&unsynced("earlier"), false, RECORDED), Wal::Lost);
        assert_eq!(wal(&unsynced("earlier"), true, RECORDED), Wal::Continued, "a clean stop came first");
        assert_eq!(wal(&unsynced("this"), false, RECORDED), Wal::Continued);
    }

    #[test]
    fn life_goes_on_only_where_wal_does() {
        let number =
            |recorded: Option<&Life>, checkpoint| Life::at_start(recorded, &start(true, checkpoint), || 2).0.number;
        let recorded = life(RECORDED);
        assert_eq!(number(Some(&recorded), RECORDED), recorded.number);
        assert_eq!(number(Some(&recorded), RECORDED - 8), life_number(2, true), "lost");
        assert_eq!(number(None, RECORDED), life_number(2, false), "the first one");
    }

    #[test]
    fn start_needs_no_newer_checkpoint_in_the_file() {
        let recorded = life(RECORDED);
        assert!(recorded.can_stay_for(&life(RECORDED + 8)));
        assert!(Life { checkpoint: None, ..life(0) }.can_stay_for(&recorded));
        for next in [
            Life { number: "0000000000000002r".to_owned(), ..life(RECORDED) },
            Life { system: Some(8), ..life(RECORDED) },
            Life { directory: Some("there".to_owned()), ..life(RECORDED) },
            Life { unsynced_boot: Some("this".to_owned()), ..life(RECORDED) },
            // In pg_upgrade, which then resets WAL.
            Life { checkpoint: None, ..life(0) },
        ] {
            assert!(!recorded.can_stay_for(&next), "{next:?}");
        }
    }

    #[test]
    fn start_records_its_boot_only_where_files_are_not_synced() {
        let recorded = |syncs_files| Life::at_start(None, &Start { syncs_files, ..start(false, FIRST) }, || 5).0;
        assert_eq!(recorded(true).unsynced_boot, None);
        assert_eq!(recorded(false).unsynced_boot.as_deref(), Some("this"));
    }

    #[test]
    fn standby_and_a_server_with_another_system_identifier_have_replaced_their_wal_and_lost_none() {
        for checkpoint in [RECORDED, RECORDED - 8, FIRST] {
            let standby = Start { replay: Replay::UntilPromotion, ..start(true, checkpoint) };
            let subscriber = Start { system: 8, ..start(true, checkpoint) };
            for start in [standby, subscriber] {
                assert_eq!(life(RECORDED).wal_at(&start), Wal::Replaced);
            }
        }
    }

    #[test]
    fn server_is_a_copy_where_it_did_not_begin_its_timeline() {
        let is_copy = |recorded: Option<&Life>, replay, directory| {
            let start = Start { replay, directory, ..start(true, RECORDED) };
            let (next, _) = Life::at_start(recorded, &start, || 5);
            let restarted = Start { replay: Replay::Own, ..start };
            let (again, _) = Life::at_start(Some(&next), &restarted, || 6);
            assert_eq!(again, next);
            next.is_copied_to(directory)
        };
        let life = life(RECORDED);
        let earlier = Life { directory: None, ..life.clone() };
        for (recorded, replay, directory, expected, why) in [
            (None, Replay::Own, "here", false, "the first start"),
            (Some(&life), Replay::Own, "here", false, "a restart"),
            (Some(&life), Replay::Own, "there", true, "a copy of the files"),
            (Some(&life), Replay::Backup, "there", true, "a backup beside its origin"),
            (Some(&life), Replay::Backup, "here", false, "a crash in an exclusive backup"),
            (Some(&life), Replay::UntilPromotion, "there", false, "a standby"),
            (Some(&life), Replay::Abandoned, "here", true, "a standby without its signal file"),
            (Some(&earlier), Replay::Own, "here", false, "a file of an earlier release"),
        ] {
            assert_eq!(is_copy(recorded, replay, directory), expected, "{why}");
        }
    }

    #[test]
    fn signal_file_promises_a_promotion() {
        let replay = |names: &[&str], state| Replay::at_start(|name| names.contains(&name), state);
        assert_eq!(replay(&[], false), Replay::Own);
        assert_eq!(replay(&["backup_label"], false), Replay::Backup);
        assert_eq!(replay(&["backup_label"], true), Replay::Abandoned, "a backup of a standby");
        assert_eq!(replay(&[], true), Replay::Abandoned);
        for signal in ["standby.signal", "recovery.signal"] {
            assert_eq!(replay(&["backup_label", signal], true), Replay::UntilPromotion);
            assert_eq!(replay(&[signal], false), Replay::UntilPromotion);
        }
    }
}
