//! How long a client waits for an id while the machine does half of what it can.

use super::contender::NEXT;
use crate::contender::NOOP;
use crate::loads::MOST_CLIENTS;
use crate::pgbench::{Load, latencies};
use crate::report::{Figure, Row, Table};
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::Server;
use hdrhistogram::Histogram;
use idgen_testkit::sql::value;

const SQL: [&str; 2] = ["SELECT noop()", "SELECT segment_next('bench')"];
/// Each alone, and then both at once, so that they meet the same machine.
const LOADS: [&[&str]; 3] = [&[SQL[0]], &[SQL[1]], &SQL];
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("greatest", 1.0)];
/// One slowest answer says more about the machine than about what was asked.
const JUDGED: usize = 3;
/// What counts as the same.
const SAME: f64 = 1.1;

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let capacities = (0..scale.rounds).map(|_| Load::start(server, SQL[0], MOST_CLIENTS, scale.seconds).rate());
    let rate = Samples::new(capacities).median() / 2.0;
    let waits =
        || -> f64 { value(&mut server.client(), "SELECT waits::float8 FROM idgen.stat_segment WHERE tag = 'bench'") };
    let waits_before = waits();
    let measured =
        rounds(scale.histograms, &LOADS, |statements| latencies(server, statements, MOST_CLIENTS, rate, scale.ranges));
    let waits = waits() - waits_before;
    let of = |load: usize, statement: usize| quantiles(measured[load].iter().map(|histograms| &histograms[statement]));
    let (noop, next, noop_mixed, next_mixed) = (of(0, 0), of(1, 0), of(2, 0), of(2, 1));

    let mut figures = figures("alone", &noop, &next);
    figures.extend(self::figures("at once", &noop_mixed, &next_mixed));
    let row = |name: String, own: &[Samples], noop: &[Samples]| {
        let ratios = own.iter().zip(noop).map(|(own, noop)| own.over(noop));
        Row { name, cells: own.iter().cloned().chain(ratios).collect() }
    };
    let absolute = QUANTILES.iter().map(|(name, _)| format!("{name}, µs"));
    let ratios = QUANTILES.iter().map(|(name, _)| format!("{name}, times the no-op"));
    let table = Table {
        title: "Latency at half of the machine's capacity".into(),
        how: format!(
            "One id a statement, {MOST_CLIENTS} clients of pgbench, {rate:.0} statements a second: half of what the no-op \
             had without a limit. They are due by a schedule, whether or not those before have ended, and the latency \
             counts from when a statement was due. {:?} each, without the first second; quantiles of each time. Each \
             alone, and both at once, one or the other by chance. {waits} statements waited for a refill.",
            scale.ranges
        ),
        columns: absolute.chain(ratios).collect(),
        rows: vec![
            row(format!("{NOOP}, alone"), &noop, &noop),
            row(format!("{NEXT}, alone"), &next, &noop),
            row(format!("{NOOP}, both at once"), &noop_mixed, &noop_mixed),
            row(format!("{NEXT}, both at once"), &next_mixed, &noop_mixed),
        ],
    };
    (figures, vec![table])
}

fn quantiles<'a>(histograms: impl Iterator<Item = &'a Histogram<u64>> + Clone) -> Vec<Samples> {
    let of = |(_, quantile)| Samples::new(histograms.clone().map(|all| all.value_at_quantile(quantile) as f64));
    QUANTILES.into_iter().map(of).collect()
}

fn figures(how: &str, noop: &[Samples], next: &[Samples]) -> Vec<Figure> {
    let of = |(index, (name, _)): (usize, (&str, f64))| {
        let what = format!("{name} of the latency of {NEXT}, to the {NOOP}'s, {how}");
        Figure::at_most(SAME, what, next[index].over(&noop[index]))
    };
    QUANTILES.into_iter().enumerate().take(JUDGED).map(of).collect()
}
