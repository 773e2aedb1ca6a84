//! Where the server's programs are, and as whom they run.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use nix::unistd::{User, geteuid};

/// A server program that runs in `home`, as a user PostgreSQL accepts.
pub(crate) fn program(name: &str, home: &Path) -> Command {
    let mut command = Command::new(bin_dir().join(name));
    for (variable, _) in std::env::vars_os() {
        // PGPORT, PGDATA and their like would send the program to some other server.
        if variable.to_string_lossy().starts_with("PG") {
            command.env_remove(variable);
        }
    }
    // pgrx would put a Rust backtrace in the DETAIL of every error.
    command.env_remove("RUST_BACKTRACE").env_remove("RUST_LIB_BACKTRACE");
    command.env("LC_ALL", "C").env("HOME", home).current_dir(home);
    if let Some(user) = server_user() {
        // Changing the uid as root also clears the supplementary groups: std does that.
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    command
}

/// Gives a file or directory to the user the programs run as.
pub(crate) fn give_to_server(path: &Path) {
    if let Some(user) = server_user() {
        chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
            .unwrap_or_else(|error| panic!("cannot give {} to {}: {error}", path.display(), user.name));
    }
}

/// Runs a program to its end; what it printed is in the panic when it fails.
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

fn bin_dir() -> &'static Path {
    static BIN_DIR: OnceLock<PathBuf> = OnceLock::new();
    BIN_DIR.get_or_init(|| {
        let pg_config = std::env::var_os("PG_CONFIG").unwrap_or_else(|| "pg_config".into());
        PathBuf::from(run(Command::new(pg_config).arg("--bindir")).trim_end())
    })
}

/// PostgreSQL refuses to run as root, so root hands over to the user `postgres`; everyone else runs it as themselves.
fn server_user() -> Option<&'static User> {
    static SERVER_USER: OnceLock<Option<User>> = OnceLock::new();
    SERVER_USER
        .get_or_init(|| {
            let found = || User::from_name("postgres").expect("the user database is readable");
            geteuid().is_root().then(|| found().expect("as root, a user named postgres is needed to run servers"))
        })
        .as_ref()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::path::Path;

    use super::program;

    #[test]
    fn a_server_is_told_not_to_print_backtraces() {
        let command = program("postgres", Path::new("/"));
        for variable in ["RUST_BACKTRACE", "RUST_LIB_BACKTRACE"] {
            assert!(command.get_envs().any(|setting| setting == (OsStr::new(variable), None)), "{variable}");
        }
    }
}
