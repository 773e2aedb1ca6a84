//! A server, a program of `examples/` in any number of copies, and a supervisor that starts another when the newest has ended.

use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;

use idgen_testkit::sql::{PATIENCE, column, execute};
use idgen_testkit::{Cluster, Example, Paused, Proxy, Stop, pause_in_a_wait};
use postgres::Client;

use crate::impatient;
use crate::programs::Program;

/// Runs a program with handlers of signals. SIGUSR1 forks a child, which collects its garbage and ends. SIGALRM comes a hundred
/// times a second if the first argument is "alarms".
const UNDER_SIGNALS: &str = "
import gc, os, runpy, signal, sys

def fork(*_):
    if os.fork() == 0:
        gc.collect()
        os._exit(0)

mode, *sys.argv = sys.argv[1:]
signal.signal(signal.SIGUSR1, fork)
signal.signal(signal.SIGALRM, lambda *_: None)
if mode == 'alarms':
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name='__main__')
";

pub struct Site {
    pub program: &'static Program,
    pub cluster: Rc<Cluster>,
    /// The servers before it. The files of the programs are beside their data.
    failed: Vec<Rc<Cluster>>,
    pub client: Client,
    pub proxy: Proxy,
    /// All that were started, also those that have ended.
    pub copies: Vec<Example>,
    /// How often work was added.
    pub turns: i64,
}

impl Site {
    pub fn new(program: &'static Program) -> Site {
        let cluster = Rc::new(Cluster::builder().conf("fsync", "off").fake_clock().start_with_extension());
        let mut client = cluster.client();
        execute(&mut client, "CREATE ROLE stranger LOGIN; CREATE ROLE app LOGIN");
        execute(&mut client, &program.header_sql());
        execute(&mut client, program.prepare);
        let proxy = Proxy::on_tcp(&cluster);
        Site { program, cluster, failed: Vec::new(), client, proxy, copies: Vec::new(), turns: 0 }
    }

    /// Where the programs may write.
    pub fn directory(&self) -> PathBuf {
        self.failed.first().unwrap_or(&self.cluster).data_dir().with_file_name("")
    }

    /// The program with its arguments, without an interpreter, for a role.
    fn arguments(&self, role: &str) -> Vec<String> {
        let (host, port) = (self.proxy.host(), self.proxy.port());
        let address = match self.program.is_java() {
            true => format!("jdbc:postgresql://{host}:{port}/postgres?user={role}"),
            false => self.proxy.conninfo().replace("user='postgres'", &format!("user='{role}'")),
        };
        let owner = format!("copy-{}", self.copies.len());
        let file = self.directory().join(format!("{owner}.db"));
        self.program
            .arguments
            .iter()
            .map(|argument| argument.replace("ADDRESS", &address).replace("OWNER", &owner))
            .map(|argument| argument.replace("FILE", file.to_str().expect("a path of ours")))
            .collect()
    }

    /// A copy of the program that is impatient.
    fn file(&self) -> PathBuf {
        let file = impatient(&self.cluster, self.program.path);
        self.program.wrapper.map_or(file.clone(), |wrapper| {
            let path = file.with_file_name("wrapper.py");
            std::fs::write(&path, wrapper).expect("a writable directory");
            path
        })
    }

    /// The interpreter and its arguments up to the program's own.
    fn command(&self, file: PathBuf) -> Command {
        let java = ["-cp", "/usr/share/java/postgresql.jar"];
        let (interpreter, options) =
            if self.program.is_java() { ("/usr/bin/java", &java[..]) } else { ("/usr/bin/python3", &["-u"][..]) };
        let mut command = self.cluster.program(interpreter);
        command.env("PYTHONDONTWRITEBYTECODE", "1").args(options).arg(file);
        command
    }

    pub fn start(&mut self) -> &mut Example {
        self.start_as("app")
    }

    pub fn start_as(&mut self, role: &str) -> &mut Example {
        let mut command = self.command(self.file());
        command.args(self.arguments(role));
        self.add(command)
    }

    /// As [`UNDER_SIGNALS`] has it. Only for programs in Python.
    pub fn start_under_signals(&mut self, mode: &str) -> &mut Example {
        let runner = self.cluster.data_dir().with_file_name("under_signals.py");
        std::fs::write(&runner, UNDER_SIGNALS).expect("a writable directory");
        let mut command = self.command(runner);
        command.arg(mode).arg(self.file()).args(self.arguments("app"));
        self.add(command)
    }

    /// Its output and errors go to a device that is full.
    pub fn start_with_full_device(&mut self) -> &mut Example {
        let inner = self.command(self.file());
        let mut command = self.cluster.program("/bin/sh");
        command.args(["-c", "exec \"$0\" \"$@\" >/dev/full 2>/dev/full"]);
        command.arg(inner.get_program()).args(inner.get_args()).args(self.arguments("app"));
        self.add(command)
    }

    fn add(&mut self, mut command: Command) -> &mut Example {
        self.copies.push(Example::start(&self.cluster, &mut command));
        self.last()
    }

    pub fn last(&mut self) -> &mut Example {
        self.copies.last_mut().expect("a copy was started")
    }

    pub fn restart_server(&mut self) {
        self.cluster.stop(Stop::Immediate);
        self.cluster.start_again();
        self.client = self.cluster.client();
    }

    /// A standby takes over the address. It has all commits, and a clock with this offset.
    pub fn fail_over(&mut self, offset_ms: i64) {
        let standby = self.cluster.standby_builder().synchronous().fake_clock().start();
        standby.clock().set_offset_ms(offset_ms);
        self.goes_on();
        self.cluster.stop(Stop::Immediate);
        standby.promote();
        self.proxy.forward_to(&standby);
        self.client = standby.client();
        self.failed.push(std::mem::replace(&mut self.cluster, Rc::new(standby)));
    }

    pub fn end_all(&mut self) {
        self.copies.iter_mut().for_each(Example::kill);
    }

    /// Waits until more is done than now. Adds work, and starts a copy whenever the newest has ended: an older one may be paused.
    pub fn goes_on(&mut self) {
        let before = (self.program.done)(self);
        let cluster = Rc::clone(&self.cluster);
        cluster.wait_for(PATIENCE, &format!("{} to go on", self.program.path), || {
            if self.copies.last_mut().is_none_or(Example::has_exited) {
                self.start();
            }
            (self.program.work)(self);
            self.turns += 1;
            (self.program.done)(self) > before
        });
    }

    /// Pauses the server's processes of the program's sessions.
    pub fn freeze_sessions(&mut self) -> Vec<Paused> {
        let pids: Vec<i32> = column(&mut self.client, "SELECT pid FROM pg_stat_activity WHERE usename = 'app'");
        pids.into_iter().filter_map(pause_in_a_wait).collect()
    }

    /// Waits until the last copy has ended, or has connected again.
    pub fn gives_up_waiting(&mut self) {
        let accepted = self.proxy.accepted();
        let cluster = Rc::clone(&self.cluster);
        cluster.wait_for(PATIENCE, "the program to give up waiting", || {
            (self.program.work)(self);
            self.turns += 1;
            self.proxy.accepted() > accepted || self.last().has_exited()
        });
    }
}
