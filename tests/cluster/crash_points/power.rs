//! The loss of power: what idgen has written into files of its own and not synced is gone. PostgreSQL keeps its own files as
//! well as by `kill -9`: it syncs WAL in one step with the write.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use idgen_testkit::{Cluster, chown_to_server, compile_shim};

/// What `power.c` keeps for one server.
pub struct Power {
    data: PathBuf,
    kept: PathBuf,
}

impl Power {
    /// For the next start of a stopped server with a fake clock. What is there has survived.
    pub fn install(cluster: &Cluster) -> Power {
        let data = cluster.data_dir();
        let dir = data.parent().expect("the data directory is in the cluster's");
        let (library, kept) = (dir.join("power.so"), dir.join("power"));
        compile_shim("crash_points/power.c", &library);
        fs::create_dir(&kept).expect("the cluster's directory is writable");
        chown_to_server(&kept);
        // The library of the clock stays.
        let mut clock = Command::new("");
        cluster.clock().apply_to(&mut clock);
        let preloaded = clock.get_envs().find(|(name, _)| *name == "LD_PRELOAD").and_then(|(_, value)| value);
        let mut libraries = preloaded.expect("the clock is a library").to_owned();
        libraries.push(":");
        libraries.push(&library);
        cluster.set_env("LD_PRELOAD", libraries);
        cluster.set_env("IDGEN_POWER", &kept);
        let power = Power { data, kept };
        power.keep(&power.data, true);
        power
    }

    /// Keeps a directory of a stopped server as it is.
    fn keep(&self, directory: &Path, is_data: bool) {
        let mut names = String::new();
        for entry in fs::read_dir(directory).expect("readable").map(Result::unwrap) {
            let (name, metadata) = (entry.file_name().into_string().unwrap(), entry.metadata().unwrap());
            if is_data && !is_own(&name) {
                continue;
            }
            names += &format!("{} {} {name}\n", u8::from(metadata.is_dir()), metadata.ino());
            match metadata.is_dir() {
                true => self.keep(&entry.path(), false),
                false => drop(fs::copy(entry.path(), self.content(metadata.ino())).expect("a copy")),
            }
        }
        fs::write(self.names(fs::metadata(directory).unwrap().ino()), names).expect("a writable directory");
    }

    /// Makes the files of a killed server those that were synced.
    pub fn lose(&self) {
        let root = self.names(fs::metadata(&self.data).unwrap().ino());
        for entry in fs::read_dir(&self.data).expect("readable").map(Result::unwrap) {
            if is_own(entry.file_name().to_str().unwrap()) {
                let path = entry.path();
                if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.expect("it goes");
            }
        }
        self.restore(&root, &self.data);
    }

    fn restore(&self, names: &Path, directory: &Path) {
        // The names of a directory that was never synced are lost.
        for line in fs::read_to_string(names).unwrap_or_default().lines() {
            let [is_directory, inode, name] = line.splitn(3, ' ').collect::<Vec<_>>().try_into().expect("three words");
            let (path, inode) = (directory.join(name), inode.parse().expect("a number"));
            if !is_own(name) && directory == self.data {
                continue;
            }
            if is_directory == "1" {
                fs::DirBuilder::new().mode(0o700).create(&path).expect("a new directory");
                self.restore(&self.names(inode), &path);
            } else {
                fs::write(&path, fs::read(self.content(inode)).unwrap_or_default()).expect("a new file");
            }
            chown_to_server(&path);
        }
    }

    fn names(&self, inode: u64) -> PathBuf {
        self.kept.join(format!("names.{inode}"))
    }

    fn content(&self, inode: u64) -> PathBuf {
        self.kept.join(format!("content.{inode}"))
    }
}

fn is_own(name: &str) -> bool {
    name.starts_with("idgen") && !name.starts_with("idgen_crash_point")
}
