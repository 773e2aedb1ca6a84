//! The file `idgen_place`: the life of the data in a directory, and how a start notices that WAL of this life is lost.
//!
//! PostgreSQL keeps no fact about its WAL outside of its control file, which `pg_resetwal` writes anew. So the file also
//! records which checkpoint the control file had at the last start or clean stop.

use std::fmt;

/// The content of the file.
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
}

/// What a start finds.
#[derive(Clone, Debug)]
pub struct Start<'a> {
    /// It begins as a standby, from a backup or in a recovery.
    pub follows_other_wal: bool,
    pub system: u64,
    /// The control file is that of a clean stop.
    pub is_shut_down: bool,
    pub checkpoint: u64,
    /// No record comes before the checkpoint: `pg_resetwal` has written it.
    pub is_first: bool,
    pub boot: &'a str,
}

/// The WAL of the data at a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wal {
    /// All that this server has written.
    Continued,
    /// Another server's or a backup's. Or the server has become another one, as `pg_createsubscriber` makes it.
    Replaced,
    /// The server had written more than the data directory has.
    Lost,
}

/// True if a start begins with data that another server's WAL has made, or will make, newer than the files that PostgreSQL
/// does not log: a standby, a backup, a recovery from an archive, also one that ended without a promotion. Before recovery
/// begins, which renames the files and overwrites the state in the control file.
pub fn starts_from_other_wal(exists: impl Fn(&str) -> bool, control_file_is_in_recovery: bool) -> bool {
    ["standby.signal", "recovery.signal", "backup_label"].into_iter().any(exists) || control_file_is_in_recovery
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
                _ => {}
            }
        }
        life
    }

    pub fn wal_at(&self, start: &Start) -> Wal {
        if start.follows_other_wal || self.system.is_some_and(|system| system != start.system) {
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
        self.unsynced_boot.iter().try_for_each(|boot| writeln!(f, "boot {boot}"))
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
        Life { number, system: Some(7), checkpoint: Some(checkpoint), unsynced_boot: None }
    }

    fn start(is_shut_down: bool, checkpoint: u64) -> Start<'static> {
        let is_first = is_shut_down && checkpoint == FIRST;
        Start { follows_other_wal: false, system: 7, is_shut_down, checkpoint, is_first, boot: "this" }
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
        let earlier = Life { system: None, checkpoint: None, ..life(0) };
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
    fn standby_and_a_server_with_another_system_identifier_have_replaced_their_wal_and_lost_none() {
        for checkpoint in [RECORDED, RECORDED - 8, FIRST] {
            let standby = Start { follows_other_wal: true, ..start(true, checkpoint) };
            let subscriber = Start { system: 8, ..start(true, checkpoint) };
            for start in [standby, subscriber] {
                assert_eq!(life(RECORDED).wal_at(&start), Wal::Replaced);
            }
        }
    }
}
