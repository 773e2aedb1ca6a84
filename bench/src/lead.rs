//! Ids while they are ahead of the clock, as after a crash, a promotion or a step of the clock back.

use crate::generators::{BATCH, MAX_CLIENTS};
use crate::harness::comparison::{Comparison, rows_of_all};
use crate::harness::pgbench;
use crate::harness::report::{Section, Table};
use crate::harness::scale::Scale;
use crate::harness::server::{Server, cpu_ns, seconds};
use crate::harness::source::{Contender, NOOP, Source};
use idgen_testkit::sql::{backend_pid, execute};

const NEXT: &str = "snowflake_next, `seconds`";
/// The layout is judged in which no call waits.
const CONTENDERS: [Contender; 2] =
    [(NOOP, Source::Expression("noop()")), (NEXT, Source::Expression("snowflake_next('seconds')"))];

/// Room for many layouts, so that a cost of the empty places would show.
const GENERATORS: &str = "65536";

/// Two servers that differ in the lead of their ids only, in turn.
pub fn ahead(server: &Server, scale: &Scale, section: &mut Section) {
    let servers = [(); 2].map(|()| server.start_another("idgen.max_generators", GENERATORS));
    const OBSERVE: &str = "SELECT snowflake_observe(snowflake_floor(clock_timestamp() + interval '10 min'))";
    execute(&mut servers[1].client(), OBSERVE);
    calls(&servers, scale, section);
    loads(&servers, scale, section);
}

fn calls(servers: &[Server; 2], scale: &Scale, section: &mut Section) {
    let mut sessions = servers.each_ref().map(Server::client).map(|mut client| (backend_pid(&mut client), client));
    // The first call of a session fills its caches.
    for (_, client) in &mut sessions {
        CONTENDERS.iter().for_each(|(_, source)| _ = seconds(client, &source.looped(1000).0));
    }
    let cpu = Comparison::measure(3 * scale.rounds, CONTENDERS, |source| {
        let (statement, calls) = source.looped(scale.calls);
        sessions.each_mut().map(|(pid, client)| {
            let before = cpu_ns(*pid);
            seconds(client, &statement);
            (cpu_ns(*pid) - before) / calls as f64
        })
    });
    let ([_, noop], [not_ahead, ahead]) = (cpu.of(NOOP), cpu.of(NEXT));
    section.at_most(1.3, format!("{NEXT}, 10 minutes ahead / {NOOP} (CPU time in a loop)"), ahead / noop);
    section.at_most(1.1, format!("{NEXT}, 10 minutes ahead / not ahead (CPU time in a loop)"), ahead / not_ahead);
    section.add(Table::new(
        "Ids ahead of the clock",
        format!(
            "The loop above, with {} calls, on two servers in turn, both with `idgen.max_generators = {GENERATORS}`. On \
             one of them `snowflake_observe` has set ids 10 minutes ahead of the clock. CPU time is that of the backend.",
            scale.calls
        ),
        ["CPU ns, not ahead", "CPU ns, 10 minutes ahead", "ahead / not ahead"],
        cpu.rows(|[not_ahead, ahead]| vec![not_ahead.clone(), ahead.clone(), ahead / not_ahead]),
    ));
}

fn loads(servers: &[Server; 2], scale: &Scale, section: &mut Section) {
    let [not_ahead, ahead] = servers;
    let [(_, noop), (_, next)] =
        CONTENDERS.map(|(name, source)| (name, source.batch(BATCH).expect("an expression has one")));
    const AHEAD: &str = "snowflake_next, `seconds`, 10 minutes ahead";
    let statements = [(NOOP, (not_ahead, noop)), (NEXT, (not_ahead, next.clone())), (AHEAD, (ahead, next))];
    let rates: Vec<_> = scale
        .clients
        .iter()
        .map(|&clients| {
            let rates = Comparison::measure(scale.rounds, statements.clone(), |(server, statement)| {
                [pgbench::run(server, statement, clients, scale.seconds).rate * BATCH as f64 / 1e6]
            });
            (clients, rates)
        })
        .collect();
    for (clients, rates) in rates.iter().filter(|(clients, _)| *clients <= MAX_CLIENTS) {
        let [[not_ahead], [ahead]] = [NEXT, AHEAD].map(|name| rates.of(name));
        section.at_least(0.9, format!("ids ahead of the clock / not ahead (clients: {clients})"), ahead / not_ahead);
    }
    section.add(Table::new(
        format!("Million ids per second ahead of the clock, {BATCH} per statement"),
        format!("pgbench, prepared statements, {} s each, on the same two servers.", scale.seconds),
        scale.clients.iter().map(|clients| format!("clients: {clients}")),
        rows_of_all(rates.iter().map(|(_, rates)| rates)),
    ));
}
