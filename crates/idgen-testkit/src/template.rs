//! initdb once per test process: a copy takes a tenth of the time.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::programs::{give_to_server, program, run};

/// Makes `data` a fresh data directory with a system identifier of its own.
pub(crate) fn initdb(data: &Path) {
    let home = data.parent().expect("a data directory has a parent");
    run(program("initdb", home)
        .args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"])
        // Nothing here outlives a crash of the machine; servers themselves do fsync.
        .args([OsStr::new("--no-sync"), OsStr::new("-D"), data.as_os_str()]));
}

/// Makes `data` a fresh data directory, with the system identifier of all others of this process.
pub(crate) fn copy(data: &Path) {
    static TEMPLATE: OnceLock<Template> = OnceLock::new();
    let template = TEMPLATE.get_or_init(Template::new);
    run(Command::new("cp").arg("-a").arg(&template.data).arg(data));
}

struct Template {
    data: PathBuf,
    _janitor: Child,
}

impl Template {
    fn new() -> Template {
        let dir = tempfile::Builder::new().prefix("idgen-template-").tempdir().expect("a temporary directory");
        give_to_server(dir.path());
        // A static is never dropped, so the directory's own clean-up would not run.
        let dir = dir.keep();
        let janitor = janitor(&dir);
        let data = dir.join("data");
        initdb(&data);
        Template { data, _janitor: janitor }
    }
}

/// A shell that removes `dir` as soon as this process has ended, however it ended: its standard input is closed then.
/// It is a process group of its own, so that Ctrl-C leaves it to do its work.
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
