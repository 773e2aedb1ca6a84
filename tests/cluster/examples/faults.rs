//! Every program under every fault: it goes on, or the next copy does, no wait is without an end, and its promise holds.

use std::rc::Rc;

use idgen_testkit::sql::{PATIENCE, execute};
use nix::sys::signal::Signal;

use crate::programs::{self, Program};
use crate::site::Site;

type Fault = fn(&mut Site);

const FAULTS: [(&str, Fault); 16] = [
    ("a kill", |site| site.end_all()),
    ("two copies", |site| {
        site.start();
    }),
    ("a pause that is longer than the ttl", paused),
    ("a connection that is cut", |site| execute(&mut site.client, &of_sessions("pg_terminate_backend(pid)"))),
    ("a network that is silent", |site| {
        site.proxy.stop_forwarding();
        site.gives_up_waiting();
        site.proxy.resume_forwarding();
    }),
    ("a server process that is frozen", |site| {
        let _frozen = site.freeze_sessions();
        site.gives_up_waiting();
    }),
    ("SIGTERM beside a server process that is frozen", |site| {
        let _frozen = site.freeze_sessions();
        terminated(site);
    }),
    ("a restart of the server", |site| site.restart_server()),
    ("a step of the server's clock", |site| site.cluster.clock().set_offset_ms(STEP_MS)),
    ("forks", forking),
    ("signals all the time", |site| {
        site.end_all();
        if !site.program.is_java() {
            site.start_under_signals("alarms");
        }
    }),
    ("missing grants", without_grants),
    ("REPEATABLE READ as the default", |site| defaults_to(site, "repeatable read")),
    ("SERIALIZABLE as the default", |site| defaults_to(site, "serializable")),
    ("a device that is full", |site| {
        site.end_all();
        site.start_with_full_device();
    }),
    // Last: another step of the clock so soon after it would keep worker ids waiting.
    ("a failover", |site| site.fail_over(STEP_MS)),
];

const STEP_MS: i64 = 3_600_000;

/// A copy is paused until another one has done something.
fn paused(site: &mut Site) {
    let _paused = site.last().pause();
    site.start();
    site.goes_on();
}

fn terminated(site: &mut Site) {
    site.last().signal(Signal::SIGTERM);
    let cluster = Rc::clone(&site.cluster);
    site.last().wait(&cluster);
}

fn forking(site: &mut Site) {
    if site.program.is_java() {
        return;
    }
    site.end_all();
    site.start_under_signals("forks");
    for _ in 0..5 {
        site.goes_on();
        assert!(!site.last().has_exited(), "it forks and goes on: {}", site.last().errors());
        site.last().signal(Signal::SIGUSR1);
    }
}

fn without_grants(site: &mut Site) {
    if !site.program.needs_grants() {
        return;
    }
    // They may hold the lease.
    site.end_all();
    let cluster = Rc::clone(&site.cluster);
    let stranger = site.start_as("stranger");
    stranger.send_if_it_reads("{\"id\": \"1\", \"account\": 7, \"amount\": 5}");
    cluster.wait_for(PATIENCE, "a refusal", || stranger.errors().contains("permission denied"));
    stranger.kill();
}

/// Two copies, so that their transactions meet.
fn defaults_to(site: &mut Site, isolation: &str) {
    execute(&mut site.client, &format!("ALTER ROLE app SET default_transaction_isolation = '{isolation}'"));
    site.end_all();
    for _ in 0..2 {
        site.start();
        site.goes_on();
    }
    execute(&mut site.client, "ALTER ROLE app RESET default_transaction_isolation");
}

/// A query that calls a function for each session of the program.
fn of_sessions(call: &str) -> String {
    format!("SELECT {call} FROM pg_stat_activity WHERE usename = 'app'")
}

fn survives(program: &'static Program) {
    let mut site = Site::new(program);
    for (name, fault) in FAULTS {
        eprintln!("{} under {name}", program.path);
        site.end_all();
        site.start();
        site.goes_on();
        fault(&mut site);
        site.goes_on();
        (program.check)(&mut site);
    }
}

macro_rules! programs {
    ($($test:ident: $program:ident,)*) => {
        const PROGRAMS: &[&Program] = &[$(&programs::$program),*];

        $(#[test]
        fn $test() {
            survives(&programs::$program);
        })*
    };
}

programs! {
    due_tasks_survive: DUE_TASKS,
    fenced_job_survives: FENCED_JOB,
    idempotent_consumer_survives: IDEMPOTENT_CONSUMER,
    pooled_job_survives: JOB,
    leader_survives: LEADER,
    observer_survives: OBSERVER,
    polling_consumer_survives: POLLING_CONSUMER,
    search_index_survives: SEARCH_INDEX,
    segment_blocks_survive: SEGMENT_BLOCKS,
    sharded_worker_survives: SHARDED_WORKER,
    tcc_manager_survives: TCC_MANAGER,
    worker_ids_survive: WORKER_IDS,
    worker_ids_in_java_survive: WORKER_IDS_IN_JAVA,
}

/// Programs that cannot run under these faults, with the reason.
const APART: [(&str, &str); 5] = [
    ("pgbouncer/Pooled.java", "draws ids of the server, and prints them"),
    ("sql/fence.sql", "a function: see fences.rs and fence_storm.rs"),
    ("sql/due_tasks.sql", "functions of due_tasks.py"),
    ("sql/tcc_manager.sql", "functions of tcc_manager.py"),
    ("sql/tcc.sql", "functions: see transactions.rs"),
];

#[test]
fn every_program_runs_under_the_faults() {
    for folder in ["java", "pgbouncer", "python", "sql"] {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(folder);
        for entry in std::fs::read_dir(&directory).expect("a directory") {
            let name = entry.expect("an entry").file_name().into_string().expect("ASCII");
            let path = format!("{folder}/{name}");
            let runs =
                PROGRAMS.iter().any(|program| program.path == path) || APART.iter().any(|(apart, _)| *apart == path);
            assert!(runs || name.ends_with(".ini"), "{path} is neither in programs.rs nor in APART");
        }
    }
}
