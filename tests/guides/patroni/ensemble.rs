//! Three members of Patroni and one etcd, on addresses of the loopback network.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use idgen_testkit::{chown_to_server, private_dir, program, run};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use postgres::{Client, NoTls};
use tempfile::TempDir;

use crate::repository;

/// A failover takes the ttl of the leader's key, 20 s, and a member that rejoins may need to be rewound.
const PATIENCE: Duration = Duration::from_secs(120);

pub const MEMBERS: [usize; 3] = [0, 1, 2];

pub struct Ensemble {
    members: Vec<Member>,
    etcd: Child,
    reaper: Option<JoinHandle<()>>,
    ended: Arc<AtomicBool>,
    port: u16,
    rest_port: u16,
    dir: TempDir,
}

struct Member {
    home: PathBuf,
    patroni: Option<Child>,
}

/// The address of a member. `patroni.yml` has 10.0.0.11 and so on.
pub fn address(member: usize) -> String {
    format!("127.0.0.{}", member + 11)
}

pub fn name(member: usize) -> String {
    format!("db{}", member + 1)
}

impl Ensemble {
    /// Starts the members with the configuration of the guide. `adapt` changes the text for one member.
    pub fn start(adapt: impl Fn(usize, String) -> String) -> Ensemble {
        // Patroni leaves its postmaster to init, which may not reap it in a container. Patroni waits for that.
        set_child_subreaper(true).expect("Linux lets a process adopt orphans");
        let dir = private_dir();
        let [port, rest_port, etcd_port, peer_port] = free_ports();
        let etcd = start_etcd(dir.path(), etcd_port, peer_port);
        let homes = MEMBERS.map(|member| dir.path().join(name(member)));
        let ended = Arc::new(AtomicBool::new(false));
        let reaper = reap_postmasters(homes.clone().map(|home| home.join("data")), Arc::clone(&ended));
        let members = homes.into_iter().map(|home| Member { home, patroni: None }).collect();
        let mut ensemble = Ensemble { members, etcd, reaper: Some(reaper), ended, port, rest_port, dir };
        for member in MEMBERS {
            let text = ensemble.configuration(member, etcd_port);
            ensemble.prepare(member, &adapt(member, text));
        }
        MEMBERS.into_iter().for_each(|member| ensemble.start_member(member));
        ensemble
    }

    /// `patroni.yml` of the guide with the directories, addresses and the shortest times that Patroni accepts.
    fn configuration(&self, member: usize, etcd_port: u16) -> String {
        let home = &self.members[member].home;
        let shown = |path: PathBuf| path.display().to_string();
        let bin_dir = Path::new(program("postgres", home).get_program()).parent().expect("a directory").to_owned();
        let mut text =
            std::fs::read_to_string(repository("examples/patroni/patroni.yml")).expect("patroni.yml is readable");
        for (from, to) in [
            ("name: db1", format!("name: {}", name(member))),
            ("10.0.0.11:8008", format!("{}:{}", address(member), self.rest_port)),
            ("10.0.0.11:5432", format!("{}:{}", address(member), self.port)),
            ("10.0.0.21:2379", format!("127.0.0.1:{etcd_port}")),
            ("10.0.0.0/24", "127.0.0.0/24".to_owned()),
            ("/var/lib/postgresql/15/shop", shown(home.join("data"))),
            ("/usr/lib/postgresql/15/bin", shown(bin_dir)),
            ("/etc/patroni/pg_rewind.sh", shown(home.join("pg_rewind.sh"))),
            ("ttl: 30", "ttl: 20".to_owned()),
            ("loop_wait: 10", "loop_wait: 1".to_owned()),
            ("retry_timeout: 10", "retry_timeout: 3".to_owned()),
            ("idgen.worker_id: 1", format!("idgen.worker_id: {}", member + 1)),
            (
                "  parameters:\n    idgen",
                format!("  parameters:\n    unix_socket_directories: {}\n    fsync: off\n    idgen", home.display()),
            ),
            ("authentication:", format!("pgpass: {}\n  authentication:", shown(home.join("pgpass")))),
        ] {
            assert!(text.contains(from), "patroni.yml has {from}");
            text = text.replace(from, &to);
        }
        text
    }

    fn prepare(&self, member: usize, configuration: &str) {
        let home = &self.members[member].home;
        std::fs::create_dir(home).expect("a new directory");
        let rewind =
            std::fs::read_to_string(repository("examples/patroni/pg_rewind.sh")).expect("the script is readable");
        let real = program("pg_rewind", home).get_program().to_string_lossy().into_owned();
        let rewind = rewind.replace("/usr/lib/postgresql/15/bin/pg_rewind", &real);
        for (file, text, mode) in [("patroni.yml", configuration, 0o600), ("pg_rewind.sh", &rewind, 0o700)] {
            write_for_server(&home.join(file), text, mode);
        }
        chown_to_server(home);
    }

    /// Starts Patroni of a member, which starts its server.
    pub fn start_member(&mut self, member: usize) {
        let log = File::options().create(true).append(true).open(self.log_file(member)).expect("the log is writable");
        let Member { home, patroni } = &mut self.members[member];
        let mut command = program(&tool("patroni"), home);
        command.arg("patroni.yml").stdout(log.try_clone().expect("a file can be shared")).stderr(log);
        *patroni = Some(command.stdin(Stdio::null()).spawn().expect("make guide-deps installs Patroni"));
    }

    /// Kills Patroni and the postmaster of a member.
    pub fn kill_member(&mut self, member: usize) {
        let mut patroni = self.members[member].patroni.take().expect("Patroni runs");
        let postmaster = self.postmaster(member).expect("the server runs");
        patroni.kill().expect("a child can be killed");
        kill(postmaster, Signal::SIGKILL).expect("a postmaster of ours");
        patroni.wait().expect("a child can be waited for");
    }

    /// The process id of a member's Patroni.
    pub fn patroni(&self, member: usize) -> i32 {
        let patroni = self.members[member].patroni.as_ref().expect("Patroni runs");
        i32::try_from(patroni.id()).expect("a process id is an i32")
    }

    fn postmaster(&self, member: usize) -> Option<Pid> {
        pid_in(&self.members[member].home.join("data"))
    }

    /// Runs patronictl.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let mut command = program(&tool("patronictl"), &self.members[0].home);
        run(command.args(["-c", "patroni.yml"]).args(arguments))
    }

    /// The path of a file that `text` is written to, for the members' server processes only.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        write_for_server(&path, text, 0o600);
        path.display().to_string()
    }

    /// Whether a member's health check, such as `primary`, answers 200. A paused Patroni does not answer.
    fn is(&self, member: usize, check: &str) -> bool {
        let address: SocketAddr = format!("{}:{}", address(member), self.rest_port).parse().expect("an address");
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
            stream.set_read_timeout(Some(Duration::from_secs(1)))?;
            stream.write_all(format!("GET /{check} HTTP/1.0\r\n\r\n").as_bytes())?;
            let mut status = String::new();
            BufReader::new(stream).read_line(&mut status)?;
            Ok(status)
        };
        ask().is_ok_and(|status| status.contains(" 200 "))
    }

    pub fn leader(&self) -> Option<usize> {
        MEMBERS.into_iter().find(|&member| self.is(member, "primary"))
    }

    /// Waits until a member other than `old` leads.
    pub fn wait_for_leader_after(&self, old: usize) -> usize {
        let mut new = None;
        self.wait_for("a new leader", || {
            new = self.leader().filter(|&leader| leader != old);
            new.is_some()
        });
        new.expect("waited for")
    }

    /// Waits until one member leads, the others of `members` follow, and one of them is synchronous.
    pub fn wait_until_healthy(&self, members: &[usize]) -> usize {
        let mut leader = None;
        self.wait_for("a leader with synchronous standbys", || {
            leader = self.leader();
            let is = |check| members.iter().filter(|&&member| self.is(member, check)).count();
            // A member that has to be rewound is a replica for a moment, and not ready.
            leader.is_some()
                && is("replica") == members.len() - 1
                && is("readiness") == members.len()
                && is("synchronous") == 1
        });
        leader.expect("waited for")
    }

    pub fn wait_for(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !condition() {
            assert!(Instant::now() < end, "waited {PATIENCE:?} for {what}");
            // Between two probes.
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn log(&self, member: usize) -> String {
        std::fs::read_to_string(self.log_file(member)).unwrap_or_default()
    }

    fn log_file(&self, member: usize) -> PathBuf {
        self.members[member].home.join("log")
    }

    /// The connection string of an application: it finds the leader. Its connections are spread over two of them.
    pub fn conninfo(&self) -> String {
        let hosts = MEMBERS.map(address).join(",");
        let port = self.port;
        format!(
            "host={hosts} port={port} dbname=shop user=postgres password=change-me connect_timeout=2 \
             target_session_attrs=read-write load_balance_hosts=random"
        )
    }

    /// A session on one member.
    pub fn client(&self, member: usize, database: &str) -> Client {
        let (host, port) = (address(member), self.port);
        let conninfo = format!("host={host} port={port} dbname={database} user=postgres password=change-me");
        Client::connect(&conninfo, NoTls).unwrap_or_else(|error| panic!("cannot connect to {host}: {error:?}"))
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Ensemble {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.dir.disable_cleanup(true);
            for member in MEMBERS {
                let log = self.log(member);
                let lines: Vec<&str> = log.lines().collect();
                let tail = &lines[lines.len().saturating_sub(25)..];
                eprintln!("end of {}:\n{}", self.log_file(member).display(), tail.join("\n"));
            }
        }
        for child in self.members.iter_mut().filter_map(|member| member.patroni.as_mut()).chain([&mut self.etcd]) {
            // SIGKILL ends a paused process too.
            let _ = child.kill();
            let _ = child.wait();
        }
        let postmasters: Vec<Pid> = MEMBERS.into_iter().filter_map(|member| self.postmaster(member)).collect();
        let signal_all = |signal| postmasters.iter().filter(|&&pid| kill(pid, signal).is_ok()).count();
        signal_all(Signal::SIGQUIT);
        let end = Instant::now() + Duration::from_secs(10);
        while signal_all(Signal::SIGCONT) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        signal_all(Signal::SIGKILL);
        self.ended.store(true, Ordering::Relaxed);
        if let Some(reaper) = self.reaper.take() {
            let _ = reaper.join();
        }
    }
}

fn tool(name: &str) -> String {
    crate::tools().join("python/bin").join(name).display().to_string()
}

fn write_for_server(path: &Path, text: &str, mode: u32) {
    std::fs::write(path, text).expect("the directory is writable");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a file of ours");
    chown_to_server(path);
}

/// Ports that are free on all addresses, below the range from which the system takes ports of clients.
fn free_ports<const N: usize>() -> [u16; N] {
    static NEXT: std::sync::Mutex<Option<u16>> = std::sync::Mutex::new(None);
    let mut next = NEXT.lock().expect("no thread panics with the lock");
    let addresses: Vec<String> = MEMBERS.map(address).into_iter().chain(["127.0.0.1".to_owned()]).collect();
    let first = 20_000 + u16::try_from(std::process::id() % 10_000).expect("below 10000");
    std::array::from_fn(|_| {
        let free = |port: &u16| addresses.iter().all(|host| TcpListener::bind((host.as_str(), *port)).is_ok());
        let port = (next.unwrap_or(first)..32_000).find(free).expect("a free port");
        *next = Some(port + 1);
        port
    })
}

fn start_etcd(dir: &Path, port: u16, peer_port: u16) -> Child {
    let [url, peer_url] = [port, peer_port].map(|port| format!("http://127.0.0.1:{port}"));
    let log = File::create(dir.join("etcd.log")).expect("a new file");
    let mut command: Command = program("/usr/bin/etcd", dir);
    command.args(["--name", "etcd", "--data-dir", "etcd", "--initial-cluster", &format!("etcd={peer_url}")]);
    command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
    command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
    command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file can be shared")).stderr(log);
    command.spawn().expect("make guide-deps installs etcd")
}

fn pid_in(data: &Path) -> Option<Pid> {
    let text = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
    text.lines().next()?.trim().parse().ok().map(Pid::from_raw)
}

/// Reaps the postmasters that have exited, which are orphans of Patroni.
fn reap_postmasters(directories: [PathBuf; 3], ended: Arc<AtomicBool>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut known: HashSet<Pid> = HashSet::new();
        while !ended.load(Ordering::Relaxed) {
            known.extend(directories.iter().filter_map(|data| pid_in(data)));
            for &pid in &known {
                let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    })
}
