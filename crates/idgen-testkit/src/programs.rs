//! The server's programs and the user that runs them.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use nix::unistd::{User, geteuid};

/// A server program, or the program with an absolute path, that runs in `home` as a user that PostgreSQL accepts.
pub fn program(name: &str, home: &Path) -> Command {
    program_in(Path::new(""), name, home)
}

/// As [`program`], from another directory than that of `$PG_CONFIG`, unless that is empty.
pub(crate) fn program_in(bin_dir: &Path, name: &str, home: &Path) -> Command {
    let mut command = Command::new(default_bin_dir().join(bin_dir).join(name));
    for (variable, _) in std::env::vars_os() {
        // PGPORT, PGDATA and similar variables would direct the program to another server.
        if variable.to_string_lossy().starts_with("PG") {
            command.env_remove(variable);
        }
    }
    command.env("LC_ALL", "C").env("HOME", home).current_dir(home);
    if let Some(user) = server_user() {
        // std also clears the supplementary groups when root changes the uid.
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    command
}

/// Makes the user of the server's programs the owner of a file or directory.
pub fn chown_to_server(path: &Path) {
    if let Some(user) = server_user() {
        chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
            .unwrap_or_else(|error| panic!("cannot change the owner of {} to {}: {error}", path.display(), user.name));
    }
}

/// Runs a program and returns its output. Panics with the output if the program fails.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?} failed with {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn default_bin_dir() -> &'static Path {
    static BIN_DIR: OnceLock<PathBuf> = OnceLock::new();
    BIN_DIR.get_or_init(|| {
        let pg_config = std::env::var_os("PG_CONFIG").unwrap_or_else(|| "pg_config".into());
        PathBuf::from(run(Command::new(pg_config).arg("--bindir")).trim_end())
    })
}

/// The user `postgres` if the test runs as root, because PostgreSQL refuses to run as root. Otherwise none.
fn server_user() -> Option<&'static User> {
    static SERVER_USER: OnceLock<Option<User>> = OnceLock::new();
    SERVER_USER
        .get_or_init(|| {
            let found = || User::from_name("postgres").expect("the user database is readable");
            geteuid().is_root().then(|| found().expect("root needs a user named postgres to run servers"))
        })
        .as_ref()
}
