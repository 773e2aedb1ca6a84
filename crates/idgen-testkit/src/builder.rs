//! The options of a cluster.

use std::path::{Path, PathBuf};

use postgres::Client;
use tempfile::TempDir;

use crate::clock::FakeClock;
use crate::cluster::Cluster;
use crate::programs::{chown_to_server, program_in};
use crate::settings::Settings;
use crate::template;

/// Options of a cluster: see [`Cluster::builder`].
pub struct Builder {
    settings: Settings,
    fake_clock: bool,
    new_system_identifier: bool,
    bin_dir: PathBuf,
}

impl Builder {
    pub(crate) fn new() -> Builder {
        let builder = Builder {
            settings: Settings::new(),
            fake_clock: false,
            new_system_identifier: false,
            bin_dir: PathBuf::new(),
        };
        builder.preload(true)
    }

    /// Whether `shared_preload_libraries` has idgen. The default is true.
    pub fn preload(self, preload: bool) -> Builder {
        self.conf("shared_preload_libraries", if preload { "idgen" } else { "" })
    }

    /// A setting for postgresql.conf; a later one of the same name wins.
    pub fn conf(mut self, name: &str, value: &str) -> Builder {
        self.settings.set(name, value);
        self
    }

    /// Gives the server a wall clock that [`Cluster::clock`] can step.
    pub fn fake_clock(mut self) -> Builder {
        self.fake_clock = true;
        self
    }

    /// Gives the cluster a new system identifier. By default all clusters of a test process share one, as copies do.
    pub fn new_system_identifier(mut self) -> Builder {
        self.new_system_identifier = true;
        self
    }

    /// Runs the server programs of this directory, which can be of another version, instead of those of `$PG_CONFIG`. The
    /// cluster gets a new system identifier.
    pub fn bin_dir(mut self, bin_dir: PathBuf) -> Builder {
        self.bin_dir = bin_dir;
        self.new_system_identifier()
    }

    /// Starts the server and creates the extension in the database postgres.
    pub fn start_with_extension(self) -> Cluster {
        let cluster = self.start();
        cluster.execute("CREATE EXTENSION idgen");
        cluster
    }

    /// The same, with sessions of the superuser.
    pub fn start_with_clients<const COUNT: usize>(self) -> (Cluster, [Client; COUNT]) {
        let cluster = self.start_with_extension();
        let clients = std::array::from_fn(|_| cluster.client());
        (cluster, clients)
    }

    pub fn start(self) -> Cluster {
        let dir = private_dir();
        let data = dir.path().join("data");
        if self.new_system_identifier {
            template::initdb(program_in(&self.bin_dir, "initdb", dir.path()), &data);
        } else {
            template::copy(&data);
        }
        Settings::include_in(&data);
        let clock = self.fake_clock.then(|| FakeClock::new(dir.path()));
        Cluster::new(dir, self.bin_dir, self.settings, clock)
    }
}

/// The directory of one cluster: its data, log, clock and socket. Other users cannot enter it, so they cannot connect.
pub fn private_dir() -> TempDir {
    let dir = tempfile::Builder::new().prefix("idgen-").tempdir().expect("a temporary directory");
    chown_to_server(dir.path());
    assert_fits_socket(dir.path());
    dir
}

/// PostgreSQL's message for a long path does not mention TMPDIR.
fn assert_fits_socket(dir: &Path) {
    let socket = dir.join(".s.PGSQL.5432");
    let length = socket.as_os_str().len();
    assert!(length <= 107, "a socket path may have 107 bytes, {} has {length}: set TMPDIR", socket.display());
}

#[cfg(test)]
mod tests {
    use super::Builder;

    #[test]
    fn builder_preloads_idgen_by_default() {
        let preloaded = |builder: &Builder| builder.settings.get("shared_preload_libraries").map(str::to_owned);
        assert_eq!(preloaded(&Builder::new()).as_deref(), Some("idgen"));
        assert_eq!(preloaded(&Builder::new().preload(false)).as_deref(), Some(""));
    }
}
