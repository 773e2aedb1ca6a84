//! Public ids: what it costs to make a text of an id under a key, and to read it back.

use crate::harness::comparison::Comparison;
use crate::harness::report::{Section, Table};
use crate::harness::scale::Scale;
use crate::harness::server::{Server, cpu_ns, seconds};
use crate::harness::source::{Contender, EMPTY_LOOP, NOOP, Source};
use idgen_testkit::sql::{backend_pid, execute};

const SHORT: &str = "public_id, short";
const LONG: &str = "public_id, long";

/// `generate_series` is the number of the row.
const CONTENDERS: [Contender; 7] = [
    (EMPTY_LOOP, Source::Expression("1")),
    (NOOP, Source::Expression("noop()")),
    ("snowflake_encode, `base58`", Source::Expression("snowflake_encode(generate_series, 'base58')")),
    (SHORT, Source::Expression("public_id('short', generate_series)")),
    (LONG, Source::Expression("public_id('long', generate_series)")),
    ("id_mask", Source::Expression("id_mask('short', generate_series)")),
    (
        "public_id_decode(public_id), long",
        Source::Expression("public_id_decode('long', public_id('long', generate_series))"),
    ),
];

/// Texts in a loop of one session.
pub fn texts(server: &Server, scale: &Scale, section: &mut Section) {
    let mut client = server.client();
    execute(&mut client, "SELECT public_id_define('short'), public_id_define('long', 'long')");
    // The first call of a session sets up its keys.
    CONTENDERS.iter().for_each(|(_, source)| _ = seconds(&mut client, &source.looped(1000).0));
    let pid = backend_pid(&mut client);
    let costs = Comparison::measure(3 * scale.rounds, CONTENDERS, |source| {
        let (statement, calls) = source.looped(scale.calls);
        let before = cpu_ns(pid);
        seconds(&mut client, &statement);
        [(cpu_ns(pid) - before) / calls as f64]
    });
    for name in [SHORT, LONG] {
        let [ns] = costs.of(name);
        section.at_least(0.5, format!("{name} (million a second of CPU time)"), ns.map(|ns| 1e3 / ns));
    }
    let [noop] = costs.of(NOOP);
    section.add(Table::new(
        "Public ids",
        format!(
            "One session runs `SELECT count(f()) FROM generate_series(1, {})`. CPU time is that of its backend.",
            scale.calls
        ),
        ["CPU ns", "times the no-op", "million a second"],
        costs.rows(|[ns]| vec![ns.clone(), ns / noop, ns.map(|ns| 1e3 / ns)]),
    ));
    execute(&mut client, "SELECT public_id_drop('short'), public_id_drop('long')");
}
