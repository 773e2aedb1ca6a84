//! The cost of one call in a loop of one session.

use super::comparison::Comparison;
use super::report::{Row, Table};
use super::samples::Samples;
use super::scale::Scale;
use super::server::{Server, cpu_ns, seconds, wal_bytes};
use super::source::{Contender, EMPTY_LOOP, NOOP};
use idgen_testkit::sql::backend_pid;

/// What a call costs, by contender: nanoseconds, nanoseconds of CPU time, and bytes of WAL.
pub struct Loops {
    calls: u64,
    costs: Comparison<3>,
}

impl Loops {
    pub fn measure(server: &Server, scale: &Scale, contenders: Vec<Contender>) -> Self {
        let mut client = server.client();
        // The first call of a session fills its caches.
        for (_, source) in &contenders {
            seconds(&mut client, &source.looped(1000).0);
        }
        let pid = backend_pid(&mut client);
        // Loops are cheap to measure, and most figures depend on them.
        let costs = Comparison::measure(3 * scale.rounds, contenders, |source| {
            let (statement, calls) = source.looped(scale.calls);
            let ((time, cpu), wal) = wal_bytes(&mut client, |client| {
                let before = cpu_ns(pid);
                (seconds(client, &statement), cpu_ns(pid) - before)
            });
            [time * 1e9, cpu, wal].map(|total| total / calls as f64)
        });
        Self { calls: scale.calls, costs }
    }

    pub fn cpu(&self, contender: &str) -> &Samples {
        &self.costs.of(contender)[1]
    }

    pub fn wal(&self, contender: &str) -> &Samples {
        &self.costs.of(contender)[2]
    }

    /// `note` is what the subject adds to the description.
    pub fn table(&self, note: &str) -> Table {
        let (empty, noop) = (self.cpu(EMPTY_LOOP), self.cpu(NOOP));
        let rows: Vec<Row> =
            self.costs.rows(|[ns, cpu, wal]| vec![ns.clone(), cpu.clone(), cpu - empty, cpu / noop, wal.clone()]);
        Table::new(
            "A call in a loop",
            format!(
                "One session runs `SELECT count(f()) FROM generate_series(1, {})`, or `SELECT count(i) FROM f(n) AS \
                 i` for a set-returning function. CPU time is that of its backend, so other work on the machine does \
                 not add to it. {note}",
                self.calls
            ),
            ["ns", "CPU ns", "CPU ns above the empty loop", "times the no-op", "WAL bytes per id"],
            rows,
        )
    }
}
