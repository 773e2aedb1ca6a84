//! initdb once per test process: a copy takes a tenth of the time.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::programs::{chown_to_server, program, run};

/// Creates the data directory `data` with a new system identifier, by the program initdb.
pub(crate) fn initdb(mut initdb: Command, data: &Path) {
    run(initdb
        // pg_upgrade requires the same in both clusters, and PostgreSQL 18 has them by default.
        .arg("--data-checksums")
        .args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"])
        // The directory need not survive a crash of the machine. The servers themselves do fsync.
        .args([OsStr::new("--no-sync"), OsStr::new("-D"), data.as_os_str()]));
}

/// Creates the data directory `data` with the system identifier that all copies in this process have.
pub(crate) fn copy(data: &Path) {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    let template = TEMPLATE.get_or_init(|| {
        let data = dir().join("data");
        initdb(program("initdb", dir()), &data);
        data
    });
    run(Command::new("cp").arg("-a").arg(template).arg(data));
}

/// The directory for what all servers of this process share. Removed when the process exits.
pub(crate) fn dir() -> &'static Path {
    static DIR: OnceLock<(PathBuf, Child)> = OnceLock::new();
    let (dir, _janitor) = DIR.get_or_init(|| {
        let dir = tempfile::Builder::new().prefix("idgen-template-").tempdir().expect("a temporary directory");
        chown_to_server(dir.path());
        // A static is never dropped, so the TempDir would never remove the directory.
        let dir = dir.keep();
        let janitor = janitor(&dir);
        (dir, janitor)
    });
    dir
}

/// A shell that removes `dir` when its standard input is closed, as it is when this process exits in any way. Ctrl-C does
/// not reach its separate process group.
fn janitor(dir: &Path) -> Child {
    Command::new("sh")
        .args(["-c", "read -r _; rm -rf -- \"$1\"", "janitor"])
        .arg(dir)
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("sh can be started")
}
