//! Leases bound, fences and guarded rows: many of them in one transaction.

use super::{Growth, SAME};
use crate::harness::comparison::Comparison;
use crate::harness::report::Section;
use crate::harness::samples::Samples;
use crate::harness::scale::Scale;
use crate::harness::server::Server;
use crate::harness::session::{Cost, Session, repeat};
use idgen_testkit::sql::execute;
use std::time::Duration;

/// An operation that a transaction repeats.
struct Operation {
    name: &'static str,
    /// A transaction with `$n` of them.
    transaction: &'static str,
    /// Afterwards, not measured.
    undo: &'static str,
}

const OPERATIONS: [Operation; 4] = [
    Operation {
        name: "a lease bound to the session",
        transaction: "SELECT count((lease_acquire('bound:' || n, bind_session => true)).token) \
                      FROM generate_series(1, $n) AS n",
        undo: "SELECT count(lease_release(name, token)) FROM idgen.lease WHERE name LIKE 'bound:%' AND depth > 0",
    },
    Operation {
        name: "lease_fence, one lease",
        transaction: "SELECT count(lease_fence(name, token)) FROM fenced, generate_series(1, $n) WHERE fenced.n = 1",
        undo: "",
    },
    Operation {
        name: "lease_fence, a lease each",
        transaction: "SELECT count(lease_fence(name, token)) FROM fenced WHERE n <= $n",
        undo: "",
    },
    Operation {
        name: "a guarded row",
        transaction: "BEGIN; SELECT lease_fence(name, token) FROM fenced WHERE n = 1; \
                      INSERT INTO guarded SELECT n FROM generate_series(1, $n) AS n; COMMIT",
        undo: "TRUNCATE guarded",
    },
];

pub fn units(server: &Server, scale: &Scale, section: &mut Section) {
    let mut session = Session::new(server.client());
    create(&mut session, scale.units);
    let contenders = OPERATIONS
        .iter()
        .flat_map(|operation| scale.units.iter().map(move |count| (name_of(operation, *count), (operation, *count))));
    let time = Duration::from_secs(scale.seconds.into());
    let measured = Comparison::measure(2 * scale.rounds, contenders, |(operation, count)| {
        let (mut cost, transaction) = (Cost::default(), operation.transaction.replace("$n", &count.to_string()));
        repeat(time, |_| {
            session.measure(&mut cost, u64::from(*count), |client| execute(client, &transaction));
            execute(session.client(), operation.undo);
        });
        cost.us_per_call()
    });
    // In a few, the cost of the transaction itself prevails.
    let reference = scale.units[scale.units.len() - 2];
    for operation in &OPERATIONS {
        let of = |count: &u32| -> (u32, [Samples; 2]) { (*count, measured.of(&name_of(operation, *count)).clone()) };
        let growth = Growth {
            operation: operation.name,
            size: "the number in a transaction",
            reference,
            target: SAME,
            how: format!(
                "`{}`, as a transaction of its own. The cost is that of the transaction, divided by their number.",
                operation.transaction
            ),
        };
        growth.report(&scale.units.iter().map(of).collect::<Vec<_>>(), section);
    }
    execute(session.client(), "SELECT count(lease_release(name, token)) FROM fenced; DROP TABLE fenced, guarded");
}

fn name_of(operation: &Operation, count: u32) -> String {
    format!("{}: {count}", operation.name)
}

/// Defines the leases, holds those that are fenced, and creates a table that is guarded.
fn create(session: &mut Session, units: &[u32]) {
    let most = units.iter().max().expect("there are sizes");
    let series = format!("generate_series(1, {most}) AS n");
    let define = "lease_define('bound:' || n), lease_define('fenced:' || n, ttl => '1 day')";
    execute(session.client(), &format!("SELECT {define} FROM {series}"));
    execute(
        session.client(),
        &format!(
            "CREATE TABLE fenced AS SELECT n, lease.name, lease.token FROM {series}, lease_acquire('fenced:' || n) AS lease"
        ),
    );
    execute(
        session.client(),
        "CREATE TABLE guarded (n int); CREATE TRIGGER guard BEFORE INSERT ON guarded \
         FOR EACH ROW EXECUTE FUNCTION lease_guard('fenced:1')",
    );
}
