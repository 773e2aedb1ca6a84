//! Cost against size: what a call costs with few and with many slots, names, tags, locks, or calls in a transaction.

mod leases;
mod locks;
mod segments;
mod transactions;
mod workers;

use crate::harness::Part;
use crate::harness::report::{Row, Section, Table};
use crate::harness::samples::Samples;
use crate::harness::server::Server;
use idgen_testkit::sql::execute;
use postgres::Client;

pub const PARTS: [Part; 5] = [
    ("worker ids of large pools", workers::pools),
    ("leases with many names", leases::names),
    ("leases in one transaction", transactions::units),
    ("segments with many tags", segments::tags),
    ("locks with many names", locks::names),
];

/// The target for a cost that does not grow: noise, and the caches of the processor.
const SAME: f64 = 1.2;

/// An operation and the size that its cost should not depend on.
struct Growth {
    operation: &'static str,
    size: &'static str,
    /// The size that the others are compared with.
    reference: u32,
    /// The target for the cost at the largest size, in multiples of that at the reference.
    target: f64,
    how: String,
}

impl Growth {
    /// Reports the costs by size: microseconds of a call as its client sees it, and of CPU time.
    fn report(self, costs: &[(u32, [Samples; 2])], section: &mut Section) {
        let Self { operation, size, reference, target, how } = self;
        let (_, [us_there, cpu_there]) = costs.iter().find(|(size, _)| *size == reference).expect("it is measured");
        let (largest, [us, cpu]) = costs.last().expect("there are sizes");
        let what = |measure| format!("{operation} ({measure}, {size}: {largest} / {reference})");
        section.at_most(target, what("time"), us / us_there);
        section.at_most(target, what("CPU time"), cpu / cpu_there);
        let cells = |[us, cpu]: &[Samples; 2]| vec![us.clone(), us / us_there, cpu.clone(), cpu / cpu_there];
        section.add(Table::new(
            format!("{operation} against {size}"),
            how,
            [
                "µs".to_owned(),
                format!("times that of {reference}"),
                CPU.to_owned(),
                format!("CPU, times that of {reference}"),
            ],
            costs.iter().map(|(size, costs)| Row::new(size.to_string(), cells(costs))).collect(),
        ));
    }
}

const CPU: &str = "CPU µs";

/// A new database with idgen, so that its rows slow down no other part.
fn database(server: &Server, name: &str) -> Client {
    server.cluster.execute(&format!("CREATE DATABASE {name}"));
    let mut client = server.cluster.client_in(name);
    execute(&mut client, "CREATE EXTENSION idgen");
    client
}

/// A statement that copies rows which idgen has written, with changes. `n` runs through `series`. Filling a table by
/// calls would take longer than the measurement.
fn copy_rows(table: &str, series: &str, template: &str, changes: &str) -> String {
    format!(
        "INSERT INTO {table} SELECT copy.* FROM {series} AS n JOIN {table} AS template ON {template}, \
         LATERAL jsonb_populate_record(template, jsonb_build_object({changes})) AS copy"
    )
}

#[cfg(test)]
mod tests {
    use super::Growth;
    use crate::harness::report::Section;
    use crate::harness::samples::Samples;

    #[test]
    fn largest_size_is_judged_against_the_reference() {
        let costs = [(10, 100.0), (100, 20.0), (1000, 30.0)];
        let costs = costs.map(|(size, us)| (size, [us, us / 2.0].map(|us| Samples::new([us]))));
        let mut section = Section::new("s");
        let growth = Growth { operation: "f", size: "n", reference: 100, target: 1.2, how: String::new() };
        growth.report(&costs, &mut section);
        let report = serde_json::to_value(&section).unwrap();
        let figures = report["figures"].as_array().unwrap();
        let judged: Vec<_> = figures.iter().map(|f| (f["measured"]["median"].as_f64(), f["holds"].as_bool())).collect();
        assert_eq!(judged, [(Some(1.5), Some(false)); 2]);
        let times: Vec<_> =
            report["tables"][0]["rows"].as_array().unwrap().iter().map(|row| &row["cells"][1]).collect();
        assert_eq!(times.iter().map(|cell| cell["median"].as_f64().unwrap()).collect::<Vec<_>>(), [5.0, 1.0, 1.5]);
    }
}
