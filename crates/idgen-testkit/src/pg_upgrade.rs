//! Upgrades to another major version of PostgreSQL by pg_upgrade.

use std::path::PathBuf;

use crate::builder::private_dir;
use crate::cluster::Cluster;
use crate::programs::{program, run};
use crate::settings::Settings;
use crate::template;

impl Cluster {
    /// Upgrades this stopped server, built with [`Builder::bin_dir`](crate::Builder::bin_dir), to the version of
    /// `$PG_CONFIG`. The new server starts with the settings of this one, from a data directory of its own.
    pub fn upgrade(&self, options: &[&str]) -> Cluster {
        let dir = private_dir();
        let new = dir.path().join("data");
        template::initdb(program("initdb", dir.path()), &new);
        Settings::include_in(&new);
        // pg_upgrade starts both servers, with their settings.
        self.settings().write(&new);
        let old_bin = PathBuf::from(self.program("postgres").get_program());
        let new_bin = PathBuf::from(program("postgres", dir.path()).get_program());
        let bin_dirs = [&old_bin, &new_bin].map(|postgres| postgres.parent().expect("a program has a directory"));
        let mut command = program("pg_upgrade", dir.path());
        command
            .arg("-b")
            .arg(bin_dirs[0])
            .arg("-B")
            .arg(bin_dirs[1])
            .arg("-d")
            .arg(self.data_dir())
            .arg("-D")
            .arg(&new);
        run(command.arg("-s").arg(dir.path()).args(["-U", "postgres", "--no-sync"]).args(options));
        Cluster::new(dir, PathBuf::new(), self.settings(), None)
    }
}
