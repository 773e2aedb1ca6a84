//! Load from many sessions.

use super::server::Server;
use hdrhistogram::Histogram;
use idgen_testkit::sql::{PATIENCE, value};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// The time limit of a background load, in seconds. It is longer than any measurement.
const BACKGROUND_S: u32 = 600;
/// The prefix of pgbench's log files.
const LOG: &str = "latency";
/// Sessions fill their caches in the first second.
const WARM_UP_US: u64 = 1_000_000;

/// A load that runs until it is stopped.
pub struct Background(Child);

impl Background {
    /// Returns once all clients are connected.
    pub fn start(server: &Server, statement: &str, clients: u32) -> Self {
        let child = spawn(server, &[statement], clients, BACKGROUND_S, &[]);
        wait_for_sessions(server, clients);
        Self(child)
    }

    /// Returns once the sessions have ended: a backend notices only when it sends its answer.
    pub fn stop(mut self, server: &Server) {
        self.0.kill().expect("cannot kill pgbench");
        self.0.wait().expect("cannot wait for pgbench");
        wait_for_sessions(server, 0);
    }
}

/// The summary of a load.
#[derive(Debug, PartialEq)]
pub struct Summary {
    /// Transactions per second.
    pub rate: f64,
    pub transactions: f64,
    /// The mean latency of each statement of the script, if pgbench was asked for it.
    pub statements_ms: Vec<f64>,
}

/// Clients repeat a script for some seconds.
pub fn run(server: &Server, script: &str, clients: u32, seconds: u32) -> Summary {
    wait(spawn(server, &[script], clients, seconds, &[]))
}

/// The same, with the latency of each statement.
pub fn run_by_statement(server: &Server, script: &str, clients: u32, seconds: u32) -> Summary {
    wait(spawn(server, &[script], clients, seconds, &["--report-per-command".to_owned()]))
}

/// How many transactions each client completes.
pub fn transactions_by_client(server: &Server, script: &str, clients: u32, seconds: u32) -> Vec<f64> {
    let mut counts = vec![0.0; clients as usize];
    run_logged(server, &[script], clients, seconds, &[]).iter().for_each(|entry| counts[entry.client] += 1.0);
    counts
}

/// The latencies of each statement in microseconds. `rate` statements per second are scheduled, each chosen at random.
/// A latency counts from the scheduled time, so it includes the delay by slow statements before it.
pub fn latencies(server: &Server, statements: &[&str], clients: u32, rate: f64, time: Duration) -> Vec<Histogram<u64>> {
    let entries = run_logged(server, statements, clients, time.as_secs() as u32, &[format!("--rate={rate}")]);
    let first = entries.iter().map(|entry| entry.end_us).min().expect("pgbench logs every transaction");
    let mut histograms = vec![Histogram::new(3).expect("3 digits are valid"); statements.len()];
    for entry in entries.iter().filter(|entry| entry.end_us >= first + WARM_UP_US) {
        histograms[entry.script].record(entry.latency_us).expect("the histogram resizes itself");
    }
    histograms
}

/// Starts pgbench, which picks one of the scripts at random for each transaction.
fn spawn(server: &Server, scripts: &[&str], clients: u32, seconds: u32, options: &[String]) -> Child {
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32).min(clients);
    let file = |(index, script): (usize, &&str)| {
        let name = format!("script-{index}");
        std::fs::write(server.dir().join(&name), format!("{script};\n")).expect("cannot write the script");
        format!("--file={name}")
    };
    server
        .cluster
        .program("pgbench")
        .args(["--no-vacuum", "--protocol=prepared", "postgres"])
        .args(scripts.iter().enumerate().map(file))
        .args([format!("--client={clients}"), format!("--jobs={threads}"), format!("--time={seconds}")])
        .args(options)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("cannot start pgbench")
}

fn wait(child: Child) -> Summary {
    let output = child.wait_with_output().expect("cannot wait for pgbench");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "pgbench failed\n{}", String::from_utf8_lossy(&output.stderr));
    parse_summary(&text).unwrap_or_else(|| panic!("pgbench reports no rate\n{text}"))
}

fn parse_summary(text: &str) -> Option<Summary> {
    let number = |line: &str| -> Option<f64> { line.split_whitespace().next()?.parse().ok() };
    let after = |start: &str| text.lines().find_map(|line| number(line.strip_prefix(start)?));
    let transactions = after("number of transactions actually processed: ")?;
    let statements = text.lines().skip_while(|line| !line.starts_with("statement latencies")).skip(1);
    Some(Summary {
        // pgbench reports no rate if a busy machine has not completed one transaction.
        rate: if transactions == 0.0 { 0.0 } else { after("tps = ")? },
        transactions,
        statements_ms: statements.filter_map(number).collect(),
    })
}

fn wait_for_sessions(server: &Server, count: u32) {
    let mut client = server.client();
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'";
    let reached = || value::<i64>(&mut client, sql) == i64::from(count);
    server.cluster.wait_for(PATIENCE, "the sessions of pgbench", reached);
}

/// A transaction in pgbench's log.
#[derive(Debug, PartialEq)]
struct LogEntry {
    client: usize,
    script: usize,
    latency_us: u64,
    end_us: u64,
}

/// Runs the scripts, then reads and removes the logs.
fn run_logged(server: &Server, scripts: &[&str], clients: u32, seconds: u32, options: &[String]) -> Vec<LogEntry> {
    let options = [options, &["--log".to_owned(), format!("--log-prefix={LOG}")]].concat();
    wait(spawn(server, scripts, clients, seconds, &options));
    read_logs(&server.dir())
}

/// pgbench writes a log for each of its threads.
fn read_logs(dir: &Path) -> Vec<LogEntry> {
    let mut entries = Vec::new();
    for file in std::fs::read_dir(dir).expect("cannot read the directory of the logs") {
        let path = file.expect("cannot read the directory of the logs").path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(LOG)) {
            let text = std::fs::read_to_string(&path).expect("cannot read the log");
            entries.extend(text.lines().map(parse_entry));
            std::fs::remove_file(&path).expect("cannot remove the log");
        }
    }
    entries
}

/// The fields are client, transaction, latency, script, and the end in seconds and microseconds.
fn parse_entry(line: &str) -> LogEntry {
    let number =
        |field: &str| -> u64 { field.parse().unwrap_or_else(|_| panic!("not a line of pgbench's log: {line}")) };
    let fields: Vec<u64> = line.split(' ').map(number).collect();
    let [client, script] = [fields[0], fields[3]].map(|index| index as usize);
    LogEntry { client, script, latency_us: fields[2], end_us: fields[4] * 1_000_000 + fields[5] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_has_the_rate_and_the_latency_of_each_statement() {
        let text = "number of clients: 8\nnumber of transactions actually processed: 3120\nlatency average = 2.5 ms\n\
                    tps = 3119.5 (without initial connection time)\nstatement latencies in milliseconds and failures:\n\
                    \u{20}        1.500           0  SELECT 1\n         1.000           0  SELECT 2;\n";
        let expected = Summary { rate: 3119.5, transactions: 3120.0, statements_ms: vec![1.5, 1.0] };
        assert_eq!(parse_summary(text), Some(expected));
        let none = Summary { rate: 0.0, transactions: 0.0, statements_ms: Vec::new() };
        assert_eq!(parse_summary("number of transactions actually processed: 0\n"), Some(none));
        assert_eq!(parse_summary(""), None);
    }

    #[test]
    fn log_entry_has_client_script_latency_and_end() {
        let expected = LogEntry { client: 7, script: 1, latency_us: 2241, end_us: 1_175_850_568_995_598 };
        assert_eq!(parse_entry("7 199 2241 1 1175850568 995598 14"), expected);
    }
}
