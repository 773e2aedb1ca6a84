//! What one call costs, in a loop on the server.

use crate::contender::{Contender, EMPTY, NOOP, of};
use crate::report::{Row, Table};
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::{Server, seconds, wal_bytes};
use idgen_testkit::sql::backend_pid;

/// What an id costs in a loop, by contender.
pub struct Calls {
    names: Vec<&'static str>,
    calls: u64,
    ns: Vec<Samples>,
    cpu: Vec<Samples>,
    wal: Vec<Samples>,
}

impl Calls {
    pub fn measure(server: &Server, scale: &Scale, contenders: &[Contender]) -> Self {
        let mut client = server.client();
        // The first call of a session looks things up.
        for contender in contenders {
            seconds(&mut client, &contender.looped(1000).0);
        }
        let pid = backend_pid(&mut client);
        // The loop is the cheapest thing to measure, and everything else is compared with it.
        let measured = rounds(3 * scale.rounds, contenders, |contender| {
            let (statement, ids) = contender.looped(scale.calls);
            let (mut time, mut cpu) = (0.0, 0.0);
            let wal = wal_bytes(&mut client, |client| {
                let before = cpu_ns(pid);
                time = seconds(client, &statement);
                cpu = cpu_ns(pid) - before;
            });
            [time * 1e9, cpu, wal].map(|total| total / ids as f64)
        });
        let part = |index: usize| -> Vec<Samples> {
            measured.iter().map(|rounds| Samples::new(rounds.iter().map(|parts| parts[index]))).collect()
        };
        let (ns, cpu, wal) = (part(0), part(1), part(2));
        let names = contenders.iter().map(|contender| contender.name).collect();
        Self { names, calls: scale.calls, ns, cpu, wal }
    }

    pub fn cpu_of(&self, name: &str) -> &Samples {
        of(&self.names, &self.cpu, name)
    }

    pub fn wal_of(&self, name: &str) -> &Samples {
        of(&self.names, &self.wal, name)
    }

    /// `how` adds what is particular to a subject.
    pub fn table(&self, how: &str) -> Table {
        let (empty, noop) = (self.cpu_of(EMPTY), self.cpu_of(NOOP));
        let row = |(index, name): (usize, &&str)| {
            let (ns, cpu, wal) = (&self.ns[index], &self.cpu[index], &self.wal[index]);
            let net = cpu.with(empty, |ns, empty| ns - empty);
            Row { name: (*name).into(), cells: vec![ns.clone(), cpu.clone(), net, cpu.over(noop), wal.clone()] }
        };
        Table {
            title: "A call in a loop".into(),
            how: format!(
                "One session, `SELECT count(f()) FROM generate_series(1, {})`, for a set `SELECT count(i) FROM f(n) AS i`. \
                 CPU time is that of the session's process, which other work on the machine does not lengthen. {how}",
                self.calls
            ),
            columns: ["ns", "CPU ns", "above the empty loop", "times the no-op", "WAL bytes an id"]
                .map(str::to_owned)
                .into(),
            rows: self.names.iter().enumerate().map(row).collect(),
        }
    }
}

/// The time for which a process had a processor, in nanoseconds.
pub fn cpu_ns(pid: i32) -> f64 {
    let path = format!("/proc/{pid}/schedstat");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let first = text.split(' ').next().and_then(|number| number.parse().ok());
    first.unwrap_or_else(|| panic!("{path} begins with a number"))
}
