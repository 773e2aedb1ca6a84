//! Random and extreme calls of the SQL surface: every function of the extension, by every way in which SQL can call it, and
//! direct statements on its relations. Arguments come from a seed: `IDGEN_SURFACE_SEED` repeats a failed run.

mod call;
mod catalog;
mod context;
mod faults;
mod lifetimes;
mod promises;
mod relations;
mod session;
mod values;

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use idgen_testkit::sql::value;
use idgen_testkit::{Cluster, rounds};

use crate::call::Call;
use crate::catalog::{Function, Relation};
use crate::context::{CONTEXTS, Context};
use crate::promises::Observer;
use crate::relations::{VERBS, Verb};
use crate::session::Session;
use crate::values::Known;

/// The seed of the first run, by default the same in every test.
fn first_seed() -> u64 {
    let Ok(text) = std::env::var("IDGEN_SURFACE_SEED") else { return 1 };
    text.parse().unwrap_or_else(|_| panic!("IDGEN_SURFACE_SEED is not a number: \"{text}\""))
}

/// Half a minute. A soak takes a seed after the other.
#[test]
fn random_calls_raise_documented_errors_and_break_no_promise_smoke() {
    let first = first_seed();
    for seed in first..first + rounds(1, 20) as u64 {
        run(seed);
    }
}

/// The SQLSTATEs in the tables of the errors page.
fn documented() -> BTreeSet<String> {
    let page = std::fs::read_to_string("../../docs/errors.md").expect("the page of errors");
    let cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let codes =
        cells.filter(|cell| cell.len() == 5 && cell.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase()));
    codes.map(str::to_owned).collect()
}

const ROLES: &str = "
    CREATE ROLE ordinary LOGIN;
    CREATE ROLE nobody;
    GRANT CREATE ON SCHEMA public TO ordinary;
    GRANT EXECUTE ON FUNCTION segment_create, lease_define, worker_pool_define, public_id_define TO ordinary;";

const OBJECTS: &str = "
    SELECT segment_create('kept'), segment_grant('kept', 'ordinary'),
           segment_grant('kept', 'ordinary', server => true), segment_create('live', step => 5);
    SELECT public_id_define('kept'), public_id_grant('kept', 'ordinary'), public_id_define('live', 'long');
    CREATE TABLE adopted (id bigserial PRIMARY KEY); ALTER TABLE adopted OWNER TO ordinary;
    SELECT worker_pool_define('pool', 0, 4), worker_pool_define('pool 2', 10, 4), lease_define('lease', 2);";

fn start() -> Cluster {
    let cluster = Cluster::builder()
        .conf("idgen.worker_id", "7")
        .conf("idgen.segment_timeout", "1s")
        .conf("log_error_verbosity", "verbose")
        .conf("max_prepared_transactions", "5")
        .start_with_extension();
    for setup in [ROLES, context::SETUP, relations::SETUP, OBJECTS] {
        cluster.execute(setup);
    }
    cluster
}

/// The places of the roles in [`Run::sessions`].
const SUPERUSER: usize = 0;
const ORDINARY: usize = 1;

struct Run {
    rng: Rng,
    sessions: [Session; 2],
    observer: Observer,
    known: Known,
    /// How often a call of each function has succeeded.
    succeeded: BTreeMap<String, usize>,
}

fn run(seed: u64) {
    let cluster = start();
    let mut client = cluster.client();
    let (functions, relations) = (catalog::functions(&mut client), catalog::relations(&mut client));
    let infinite_intervals = value::<i32>(&mut client, "SELECT current_setting('server_version_num')::int") >= 170_000;
    let session = |role| Session::new(&cluster, role, seed, &documented());
    let mut run = Run {
        rng: Rng::with_seed(seed),
        sessions: [session("postgres"), session("ordinary")],
        observer: Observer::new(&cluster),
        known: Known { infinite_intervals, ..Known::default() },
        succeeded: BTreeMap::new(),
    };
    let with_assertions = value::<bool>(&mut client, "SELECT current_setting('debug_assertions')::bool");
    run.calls(&functions, &CONTEXTS[..CONTEXTS.len() - usize::from(with_assertions)]);
    run.relations(&relations, &functions);
    run.triggers(&relations::triggered(&mut client));
    let answers = run.sessions.each_ref().map(|session| &session.answers);
    println!("seed {seed}: {:?}, errors {answers:?}", run.succeeded);
    run.assert_succeeded(&functions);
    drop(run.sessions);
    run.observer.finish(&cluster);
}

/// It returns no row: there is no coordinator that segments could be attached to.
const NOT_COUNTED: [&str; 1] = ["idgen.stat_get_segment_supply()"];

/// Their functions succeed only with a tag, a name, a prefix or a token that exists.
const ROOMS_WITH_STATE: [&str; 5] = ["segment", "lease", "worker", "public_id", "id_"];

impl Run {
    /// A function that never succeeds is not tried beyond the check of its arguments.
    fn assert_succeeded(&self, functions: &[Function]) {
        for function in functions {
            let succeeded = self.succeeded.contains_key(&function.signature);
            let needs_state = ROOMS_WITH_STATE.iter().any(|room| function.signature.starts_with(room));
            if !NOT_COUNTED.contains(&function.signature.as_str()) {
                assert!(succeeded != function.is_trigger || needs_state, "{}: {succeeded}", function.signature);
            }
        }
        for room in ROOMS_WITH_STATE {
            let calls: usize = self.succeeded.iter().filter(|(name, _)| name.starts_with(room)).map(|(_, n)| n).sum();
            assert!(calls >= 5, "{calls} calls of {room} succeeded");
        }
    }

    /// Each function in each context, in a random order, as either role.
    fn calls(&mut self, functions: &[Function], contexts: &[Context]) {
        let contexts = |function: &Function| if function.is_trigger { &contexts[..1] } else { contexts };
        let pairs = functions.iter().flat_map(|function| contexts(function).iter().map(move |way| (function, way)));
        let mut pairs: Vec<_> = pairs.collect();
        self.rng.shuffle(&mut pairs);
        for (function, context) in pairs {
            let call = Call::random(function, &self.known, &mut self.rng);
            let role = self.rng.usize(..2);
            let rows = context.run(&mut self.sessions[role], &call, &mut self.rng);
            if !rows.is_empty() {
                *self.succeeded.entry(function.signature.clone()).or_default() += 1;
            }
            if let Some(series) = call.draws {
                self.observer.drawn(series, &rows);
            }
            self.next_works(role);
        }
    }

    /// Direct statements on relations, rolled back. After those of a superuser, functions meet what they wrote.
    fn relations(&mut self, relations: &[Relation], functions: &[Function]) {
        for relation in relations {
            for verb in VERBS {
                let sql = verb.statement(relation, &self.known, &mut self.rng);
                let ordinary = &mut self.sessions[ORDINARY];
                ordinary.frame("BEGIN");
                let changed = relations::attempt(ordinary, &sql) && verb != Verb::Select;
                assert!(!changed, "an ordinary role may write to {}", relation.qualified);
                ordinary.frame("ROLLBACK");
                let superuser = &mut self.sessions[SUPERUSER];
                superuser.frame("BEGIN");
                relations::attempt(superuser, &sql);
                for _ in 0..3 {
                    let function = &functions[self.rng.usize(..functions.len())];
                    let call = Call::random(function, &self.known, &mut self.rng);
                    relations::attempt_call(superuser, &call);
                }
                superuser.frame("ROLLBACK");
                self.next_works(ORDINARY);
                self.next_works(SUPERUSER);
            }
        }
    }

    /// Writes to tables with triggers of the extension.
    fn triggers(&mut self, tables: &[Relation]) {
        for table in tables.iter().cycle().take(tables.len() * 5) {
            let role = self.rng.usize(..2);
            let session = &mut self.sessions[role];
            session.frame("BEGIN");
            for verb in VERBS {
                let sql = verb.statement(table, &self.known, &mut self.rng);
                relations::attempt(session, &sql);
            }
            session.frame(if self.rng.bool() { "COMMIT" } else { "ROLLBACK" });
            self.next_works(role);
        }
    }

    /// The session and the observer can draw, and hold nothing that stops others.
    fn next_works(&mut self, role: usize) {
        let session = &mut self.sessions[role];
        session.clean(self.rng.u8(..8) == 0);
        self.observer.draw_in(&mut session.client);
        self.observer.observe(&mut self.known);
    }
}
