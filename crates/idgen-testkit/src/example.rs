//! The programs of `examples/`, run against a cluster.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::signal::{Paused, pause};
use crate::sql::PATIENCE;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

/// A running program. Killed when dropped.
pub struct Example {
    process: Child,
    dir: TempDir,
}

impl Example {
    /// The command that runs `path`, such as `python/worker_ids.py`, as the user of the server.
    pub fn command(cluster: &Cluster, path: &str) -> Command {
        let copy = Example::copy(cluster, path);
        let mut command = match copy.extension().and_then(|extension| extension.to_str()) {
            Some("py") => {
                let mut command = cluster.program("/usr/bin/python3");
                command.arg("-u");
                command
            }
            Some("java") => {
                let mut command = cluster.program("/usr/bin/java");
                command.args(["-cp", "/usr/share/java/postgresql.jar"]);
                command
            }
            _ => panic!("no interpreter for {path}"),
        };
        command.arg(copy);
        command
    }

    /// Copies a program to a directory of the cluster, because the user of the server may not be allowed to read the
    /// source tree. Copies the programs beside it too, because it may import them. Returns the path of the copy.
    pub fn copy(cluster: &Cluster, path: &str) -> PathBuf {
        let copy = cluster.dir().join("examples").join(path);
        // An instance that starts may be reading it.
        if copy.exists() {
            return copy;
        }
        let source = Path::new(EXAMPLES).join(path);
        let [from, to] = [&source, &copy].map(|file| file.parent().expect("a file is in a directory"));
        std::fs::create_dir_all(to).expect("a writable directory");
        for entry in std::fs::read_dir(from).expect("a folder of programs") {
            let program = entry.expect("an entry").path();
            if program.extension() == source.extension() {
                let name = program.file_name().expect("a file has a name");
                std::fs::copy(&program, to.join(name))
                    .unwrap_or_else(|error| panic!("cannot copy {}: {error}", program.display()));
            }
        }
        assert!(copy.exists(), "there is no program {path}");
        copy
    }

    /// Starts a command, with pipes for its input and files for its output.
    pub fn start(cluster: &Cluster, command: &mut Command) -> Example {
        let dir = tempfile::Builder::new().prefix("example-").tempdir_in(cluster.dir()).expect("a writable directory");
        let file = |name| File::create(dir.path().join(name)).expect("a new directory");
        command.stdin(Stdio::piped()).stdout(file("printed")).stderr(file("errors"));
        let process = command.spawn().unwrap_or_else(|error| panic!("make dev-deps installs {command:?}: {error}"));
        let input = process.stdin.as_ref().expect("a pipe");
        fcntl(input, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("a pipe of ours");
        Example { process, dir }
    }

    pub fn pid(&self) -> i32 {
        self.process.id().try_into().expect("a process id is an i32")
    }

    pub fn pause(&self) -> Paused {
        pause(self.pid())
    }

    /// Writes a line to its standard input.
    pub fn send(&mut self, line: &str) {
        self.try_send(line).expect("the program reads");
    }

    /// Writes a line to its standard input, unless it does not read: it has ended, or is paused and the pipe is full.
    pub fn send_if_it_reads(&mut self, line: &str) {
        let _ = self.try_send(line);
    }

    /// A pipe takes a line of up to 4,096 bytes whole, or not at all.
    fn try_send(&mut self, line: &str) -> std::io::Result<()> {
        let input = self.process.stdin.as_mut().ok_or(ErrorKind::BrokenPipe)?;
        input.write_all(format!("{line}\n").as_bytes())
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("a child that was not waited for");
    }

    /// Ends its standard input.
    pub fn end_input(&mut self) {
        self.process.stdin = None;
    }

    /// Kills it with SIGKILL, if it has not exited, and waits until it has exited.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    pub fn has_exited(&mut self) -> bool {
        self.process.try_wait().expect("a child can be waited for").is_some()
    }

    /// Waits until it exits. Returns its status and standard error.
    pub fn wait(&mut self, cluster: &Cluster) -> (ExitStatus, String) {
        cluster.wait_for(PATIENCE, "the program to exit", || self.has_exited());
        let status = self.process.wait().expect("a child can be waited for");
        (status, self.errors())
    }

    /// Its standard error so far.
    pub fn errors(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("errors")).expect("UTF-8")
    }

    /// The file of its standard output.
    pub fn printed(&self) -> PathBuf {
        self.dir.path().join("printed")
    }

    /// The complete lines printed so far.
    pub fn lines(&self) -> Vec<String> {
        let printed = std::fs::read_to_string(self.printed()).expect("UTF-8");
        printed.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned).collect()
    }

    pub fn wait_for_line(&self, cluster: &Cluster, line: &str) {
        cluster
            .wait_for(PATIENCE, &format!("the program to print {line:?}"), || self.lines().iter().any(|l| l == line));
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(self.dir.path().join("errors")).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::EXAMPLES;

    /// Folders of programs that are a single file. Every other folder belongs to a guide.
    const PROGRAMS: [&str; 3] = ["java", "python", "sql"];

    fn entries(folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(Path::new(EXAMPLES).join(folder)).expect("a directory");
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("ASCII")).collect()
    }

    #[test]
    fn readme_of_the_examples_lists_each_program_and_folder() {
        let readme = std::fs::read_to_string(Path::new(EXAMPLES).join("README.md")).expect("UTF-8");
        let mut missing = Vec::new();
        for folder in entries("").into_iter().filter(|entry| entry != "README.md") {
            if !PROGRAMS.contains(&&*folder) {
                missing.extend((!readme.contains(&format!("`{folder}`"))).then_some(folder));
                continue;
            }
            let paths = entries(&folder).into_iter().map(|file| format!("{folder}/{file}"));
            missing.extend(paths.filter(|path| !readme.contains(&format!("\n| [`{path}`]({path}) |"))));
        }
        assert!(missing.is_empty(), "examples/README.md does not list {missing:?}");
    }
}
