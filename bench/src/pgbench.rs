//! Load from many sessions.

use crate::server::Server;
use hdrhistogram::Histogram;
use idgen_testkit::sql::{PATIENCE, value};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Longer than any measurement, in seconds: for a load that is stopped.
const FOREVER: u32 = 600;

/// A load that runs.
pub struct Load(Child);

impl Load {
    /// So many clients repeat a statement for so many seconds.
    pub fn start(server: &Server, statement: &str, clients: u32, seconds: u32) -> Self {
        Self::start_with(server, &[statement], clients, seconds, &[])
    }

    /// The same until it is stopped. Returns when all of the clients are there.
    pub fn start_endless(server: &Server, statement: &str, clients: u32) -> Self {
        let load = Self::start(server, statement, clients, FOREVER);
        wait_for_sessions(server, clients);
        load
    }

    /// Which of the statements comes next is left to chance.
    fn start_with(server: &Server, statements: &[&str], clients: u32, seconds: u32, options: &[String]) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32).min(clients);
        let script = |(index, statement): (usize, &&str)| {
            let name = format!("script-{index}");
            std::fs::write(server.dir().join(&name), format!("{statement};\n")).expect("the script can be written");
            format!("--file={name}")
        };
        let child = server
            .cluster
            .program("pgbench")
            .args(["--no-vacuum", "--protocol=prepared", "postgres"])
            .args(statements.iter().enumerate().map(script))
            .args([format!("--client={clients}"), format!("--jobs={threads}"), format!("--time={seconds}")])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("pgbench can be started");
        Self(child)
    }

    /// Ends it, and waits until its sessions have noticed, which is when they answer.
    pub fn stop(mut self, server: &Server) {
        self.0.kill().expect("a child can be killed");
        self.0.wait().expect("a child ends");
        wait_for_sessions(server, 0);
    }

    /// Waits for its end, and returns how many statements were done in a second.
    pub fn rate(self) -> f64 {
        self.end().rate
    }

    fn end(self) -> Ran {
        let output = self.0.wait_with_output().expect("pgbench ends");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "pgbench failed\n{}", String::from_utf8_lossy(&output.stderr));
        ran(&text).unwrap_or_else(|| panic!("pgbench says no rate\n{text}"))
    }
}

/// How a load went.
#[derive(Debug, PartialEq)]
pub struct Ran {
    /// How often the script was done in a second.
    pub rate: f64,
    /// How often in all.
    pub count: f64,
    /// How long each of the script's statements took, on the average.
    pub statements_ms: Vec<f64>,
}

/// So many clients repeat a script for so many seconds.
pub fn run(server: &Server, script: &str, clients: u32, seconds: u32) -> Ran {
    Load::start_with(server, &[script], clients, seconds, &["--report-per-command".to_owned()]).end()
}

fn ran(text: &str) -> Option<Ran> {
    let number = |line: &str| -> Option<f64> { line.split_whitespace().next()?.parse().ok() };
    let after = |start: &str| text.lines().find_map(|line| number(line.strip_prefix(start)?));
    let statements = text.lines().skip_while(|line| !line.starts_with("statement latencies")).skip(1);
    Some(Ran {
        rate: after("tps = ")?,
        count: after("number of transactions actually processed: ")?,
        statements_ms: statements.filter_map(number).collect(),
    })
}

fn wait_for_sessions(server: &Server, count: u32) {
    let mut client = server.client();
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'";
    let is_so = || value::<i64>(&mut client, sql) == i64::from(count);
    server.cluster.wait_for(PATIENCE, "the sessions of pgbench", is_so);
}

/// What the logs are named after.
const LOG: &str = "latency";
/// Sessions that have just begun look everything up for the first time.
const BEGINNING_US: u64 = 1_000_000;

/// How often each of so many clients gets a statement done in so many seconds.
pub fn ends_by_client(server: &Server, statement: &str, clients: u32, seconds: u32) -> Vec<f64> {
    let options = ["--log".to_owned(), format!("--log-prefix={LOG}")];
    Load::start_with(server, &[statement], clients, seconds, &options).rate();
    let mut ends = vec![0.0; clients as usize];
    read_logs(&server.dir()).iter().for_each(|done| ends[done.client] += 1.0);
    ends
}

/// How many microseconds each of the statements takes, when so many are due each second, from when it was due: one that is
/// late makes others late, and they count too.
pub fn latencies(server: &Server, statements: &[&str], clients: u32, rate: f64, time: Duration) -> Vec<Histogram<u64>> {
    let options = [format!("--rate={rate}"), "--log".to_owned(), format!("--log-prefix={LOG}")];
    Load::start_with(server, statements, clients, time.as_secs() as u32, &options).rate();
    let logged = read_logs(&server.dir());
    let first = logged.iter().map(|done| done.end_us).min().expect("pgbench logs each statement");
    let mut histograms = vec![Histogram::new(3).expect("three digits can be had"); statements.len()];
    for done in logged.iter().filter(|done| done.end_us >= first + BEGINNING_US) {
        histograms[done.statement].record(done.latency_us).expect("it grows with what is recorded");
    }
    histograms
}

/// A statement that was done.
#[derive(Debug, PartialEq)]
struct Done {
    client: usize,
    statement: usize,
    latency_us: u64,
    end_us: u64,
}

/// There is a log for each thread. They are removed.
fn read_logs(dir: &Path) -> Vec<Done> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).expect("the directory is readable") {
        let path = entry.expect("the directory is readable").path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(LOG)) {
            let text = std::fs::read_to_string(&path).expect("the log is readable");
            all.extend(text.lines().map(done));
            std::fs::remove_file(&path).expect("the log can be removed");
        }
    }
    all
}

/// A line: client, number, latency, statement, and the end in seconds and microseconds.
fn done(line: &str) -> Done {
    let number = |field: &str| -> u64 { field.parse().unwrap_or_else(|_| panic!("pgbench logs numbers: {line}")) };
    let fields: Vec<u64> = line.split(' ').map(number).collect();
    let [client, statement] = [fields[0], fields[3]].map(|number| number as usize);
    Done { client, statement, latency_us: fields[2], end_us: fields[4] * 1_000_000 + fields[5] }
}

#[cfg(test)]
mod tests {
    use super::{Done, Ran, done, ran};

    #[test]
    fn a_load_tells_its_rate_and_what_each_statement_took() {
        let text = "number of clients: 8\nnumber of transactions actually processed: 3120\nlatency average = 2.5 ms\n\
                    tps = 3119.5 (without initial connection time)\nstatement latencies in milliseconds and failures:\n\
                    \u{20}        1.500           0  SELECT 1\n         1.000           0  SELECT 2;\n";
        let expected = Ran { rate: 3119.5, count: 3120.0, statements_ms: vec![1.5, 1.0] };
        assert_eq!(ran(text), Some(expected));
        assert_eq!(ran(""), None);
    }

    #[test]
    fn a_line_of_the_log_says_what_was_done_and_when() {
        let expected = Done { client: 7, statement: 1, latency_us: 2241, end_us: 1_175_850_568_995_598 };
        assert_eq!(done("7 199 2241 1 1175850568 995598 14"), expected);
    }
}
