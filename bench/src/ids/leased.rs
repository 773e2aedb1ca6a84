//! What it costs an id that the server's number is leased: the hot path looks at one word, as with a number that is set.

use crate::calls::cpu_ns;
use crate::contender::{Contender, EMPTY};
use crate::report::{Figure, Row, Table};
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::{self, Server, seconds};
use idgen_testkit::Cluster;
use idgen_testkit::sql::{PATIENCE, backend_pid, value};
use postgres::Client;
use std::cell::RefCell;

/// The empty loop, where a number has no part, shows how unlike two servers are by themselves.
const CONTENDERS: [Contender; 3] = [
    Contender::call(EMPTY, "1"),
    Contender::call("`snowflake_next('seconds')`", "snowflake_next('seconds')"),
    Contender::call("`snowflake_next()`", "snowflake_next()"),
];

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    server.cluster.execute("SELECT lease_define('servers', slots => 2)");
    let leased = with_a_leased_number(server);
    let sessions = [server.client(), leased.client()].map(|mut client| {
        let pid = backend_pid(&mut client);
        RefCell::new((client, pid))
    });
    let setups: Vec<_> =
        CONTENDERS.iter().flat_map(|contender| sessions.each_ref().map(|one| (contender, one))).collect();
    // The first call of a session looks things up.
    for (contender, session) in &setups {
        seconds(&mut session.borrow_mut().0, &contender.looped(1000).0);
    }
    let cpu = rounds(3 * scale.rounds, &setups, |(contender, session)| {
        let (client, pid) = &mut *session.borrow_mut();
        cpu_of_a_call(client, *pid, contender, scale.calls)
    });

    let cpu: Vec<_> = cpu.into_iter().map(Samples::new).collect();
    let pairs = || CONTENDERS.iter().zip(cpu.chunks(sessions.len()));
    let ratio = |cpu: &[Samples]| cpu[1].over(&cpu[0]);
    let figure = |(contender, cpu): (&Contender, &[Samples])| {
        let what = format!("CPU time of {} with a leased number, to that with one that is set", contender.name);
        Figure::at_most(1.05, what, ratio(cpu))
    };
    let row = |(contender, cpu): (&Contender, &[Samples])| Row {
        name: contender.name.into(),
        cells: vec![cpu[0].clone(), cpu[1].clone(), ratio(cpu)],
    };
    let table = Table {
        title: "A leased number".into(),
        how: format!(
            "The loop above, of {} calls, on two servers in turn: one whose number is a setting, and one that leases its \
             number from a pool on the other. CPU time of the session's process.",
            scale.calls
        ),
        columns: ["CPU ns, set", "CPU ns, leased", "leased, to set"].map(str::to_owned).into(),
        rows: pairs().map(row).collect(),
    };
    (pairs().skip(1).map(figure).collect(), vec![table])
}

fn with_a_leased_number(coordinator: &Server) -> Cluster {
    let cluster = server::builder()
        .conf("idgen.worker_pool", "servers")
        .conf("idgen.coordinator", &coordinator.cluster.connect_string("postgres", "postgres"))
        .start_with_extension();
    let mut client = cluster.client();
    let state = "SELECT state FROM idgen.stat_worker";
    cluster.wait_for(PATIENCE, "a number", || value::<String>(&mut client, state) == "leased");
    cluster
}

/// In nanoseconds.
fn cpu_of_a_call(client: &mut Client, pid: i32, contender: &Contender, calls: u64) -> f64 {
    let (statement, ids) = contender.looped(calls);
    let before = cpu_ns(pid);
    seconds(client, &statement);
    (cpu_ns(pid) - before) / ids as f64
}
