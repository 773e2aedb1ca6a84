//! The programs: exporters and Prometheus, each an HTTP server, and what they answer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::text;

/// An HTTP server on a port of its own. Killed when dropped.
pub struct Daemon {
    process: Child,
    pub address: String,
    log: PathBuf,
}

impl Daemon {
    pub fn start(program: &str, dir: &Path, configure: impl Fn(&mut Command, &str)) -> Daemon {
        // Free now. If another process takes it first, the daemon exits, and the test fails with its log.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("an address").to_string();
        drop(listener);
        let log = dir.join(format!("{program}.log"));
        let file = File::create(&log).expect("the directory is writable");
        let mut command = Command::new(program);
        configure(&mut command, &address);
        command.stdin(Stdio::null()).stdout(file.try_clone().expect("a file")).stderr(file);
        let process = command.spawn().unwrap_or_else(|error| panic!("make guide-deps installs {program}: {error}"));
        Daemon { process, address, log }
    }

    pub fn get(&self, path: &str) -> String {
        self.try_get(path).unwrap_or_else(|| panic!("no answer to {path}\n{}", self.log()))
    }

    /// The body of a successful answer.
    pub fn try_get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        // Version 1.0: the answer ends with the connection.
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.starts_with("HTTP/1.0 200").then(|| body.to_owned())
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Of Prometheus: the data of an answer.
    pub fn api(&self, path: &str) -> Value {
        let answer: Value = serde_json::from_str(&self.get(&format!("/api/v1/{path}"))).expect("JSON");
        answer["data"].clone()
    }

    /// Of Prometheus: the result of a query now.
    pub fn query(&self, query: &str) -> Vec<Value> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        self.api(&format!("query?query={encoded}"))["result"].as_array().expect("a result").clone()
    }

    /// Of Prometheus: the metrics of idgen that an exporter shows, without labels that say where they come from.
    pub fn series_of(&self, job: &str) -> BTreeMap<String, f64> {
        let found = self.query(&format!("{{__name__=~'idgen_.+',job='{job}'}}"));
        let origin = ["job", "instance", "server", "driver", "host", "database", "user", "sql_job"];
        let series = found.iter().map(|series| {
            let labels = series["metric"].as_object().expect("labels");
            let own = labels.iter().filter(|(name, _)| !origin.contains(&name.as_str()));
            let own: Vec<String> = own.map(|(name, value)| format!("{name}={value}")).collect();
            (own.join(" "), text(&series["value"][1]).parse().expect("a number"))
        });
        series.collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// One series of an exporter's answer.
pub struct Sample {
    pub name: String,
    pub value: f64,
}

/// The series of idgen in an answer of postgres_exporter.
pub fn samples(answer: &str) -> Vec<Sample> {
    let lines = answer.lines().filter(|line| line.starts_with("idgen_"));
    let parsed = lines.map(|line| {
        let (series, value) = line.rsplit_once(' ').expect("a value");
        let name = series.split('{').next().expect("a name").to_owned();
        Sample { name, value: value.parse().expect("a number") }
    });
    parsed.collect()
}

/// The names of all metrics of both exporters, as Prometheus has them.
pub fn metrics(postgres_exporter: &Daemon, sql_exporter: &Daemon) -> BTreeSet<String> {
    let answers = [postgres_exporter.get("/metrics"), sql_exporter.get("/metrics")];
    let lines = answers.iter().flat_map(|answer| answer.lines()).filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(['{', ' ']).next().expect("a name").to_owned()).collect()
}
