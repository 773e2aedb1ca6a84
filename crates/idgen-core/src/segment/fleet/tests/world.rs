//! A coordinator that forgets, its servers, and what they may never get twice.

use super::super::*;
use proptest::prelude::*;

/// A server, and what it has received.
#[derive(Debug, Default)]
struct Server {
    received: i64,
    runs: Vec<ValueRun>,
    /// Granted, and not yet received.
    on_the_way: Option<ValueRun>,
    has_left: bool,
    /// The state of the coordinator that has its row first; `None` if that was lost.
    known_since: Option<usize>,
}

/// A coordinator that loses its last states now and then, and its fleet.
struct World {
    tag: SharedTag,
    histories: u32,
    /// The tag after each change, up to now.
    states: Vec<SharedTag>,
    servers: Vec<Server>,
    /// Values of the coordinator's own sessions, with the state that has them.
    own: Vec<(usize, ValueRun)>,
}

#[derive(Clone, Debug)]
enum Step {
    Attach,
    Request { server: usize, want: u64, answer_is_lost: bool },
    Receive { server: usize },
    Report { server: usize },
    DrawOwn { want: u64 },
    FallBack { states: usize },
    Leave { server: usize },
    Resume { above: i64 },
    Recreate,
}

fn step() -> impl Strategy<Value = Step> {
    let server = || 0..8usize;
    prop_oneof![
        1 => Just(Step::Attach),
        10 => (server(), 1..20u64, prop::bool::weighted(0.1))
            .prop_map(|(server, want, answer_is_lost)| Step::Request { server, want, answer_is_lost }),
        4 => server().prop_map(|server| Step::Receive { server }),
        6 => server().prop_map(|server| Step::Report { server }),
        2 => (1..20u64).prop_map(|want| Step::DrawOwn { want }),
        2 => (0..15usize).prop_map(|states| Step::FallBack { states }),
        1 => server().prop_map(|server| Step::Leave { server }),
        1 => (0..5i64).prop_map(|above| Step::Resume { above }),
        1 => Just(Step::Recreate),
    ]
}

impl World {
    fn new(stride: i64) -> Self {
        let allocation = Allocation { max_id: 0, stride, residue: stride - 1, upper_bound: i64::MAX };
        let tag = SharedTag { history: None, allocation, servers: Vec::new() };
        let (states, servers, own) = (vec![tag.clone()], Vec::new(), Vec::new());
        Self { tag, histories: 0, states, servers, own }
    }

    fn history(&self) -> String {
        self.histories.to_string()
    }

    fn commit(&mut self) {
        self.states.push(self.tag.clone());
    }

    fn attached(&self, server: usize) -> Option<usize> {
        let attached: Vec<usize> = (0..self.servers.len()).filter(|index| !self.servers[*index].has_left).collect();
        attached.get(server % attached.len().max(1)).copied()
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Attach => {
                self.servers.push(Server::default());
                self.report(self.servers.len() - 1);
            }
            Step::Request { server, want, answer_is_lost } => {
                let Some(server) = self.attached(server) else { return };
                self.report(server);
                let history = self.history();
                if let Reply::Granted(run) = self.with_rows_of(server, |tag| tag.grant(want, &history)) {
                    self.servers[server].on_the_way = Some(run).filter(|_| !answer_is_lost);
                }
                self.commit();
            }
            Step::Receive { server } => self.attached(server).into_iter().for_each(|server| self.receive(server)),
            Step::Report { server } => self.attached(server).into_iter().for_each(|server| self.report(server)),
            Step::DrawOwn { want } => {
                if let Reply::Granted(run) = self.tag.grant(want, &self.history()) {
                    self.assert_new(run);
                    self.commit();
                    self.own.push((self.states.len() - 1, run));
                }
            }
            Step::FallBack { states } => self.fall_back(self.states.len().saturating_sub(1 + states)),
            Step::Leave { server } => {
                let Some(server) = self.attached(server) else { return };
                self.report(server);
                self.with_rows_of(server, |tag| tag.leave(server as i64));
                self.servers[server].has_left = true;
                self.commit();
            }
            Step::Resume { above } => self.resume(above),
            Step::Recreate => self.recreate(),
        }
    }

    /// Decides as a caller that reads the rows of other servers only if the tag may wait for them.
    fn with_rows_of<R>(&mut self, server: usize, decide: impl FnOnce(&mut SharedTag) -> R) -> R {
        let is_usual = self.tag.history == Some(self.history());
        let (others, read) = self.tag.servers.drain(..).partition(|report| is_usual && report.server != server as i64);
        self.tag.servers = read;
        let decision = decide(&mut self.tag);
        self.tag.servers.extend::<Vec<_>>(others);
        decision
    }

    /// One after the other: a server has dealt with the last answer before it sends the next request.
    fn receive(&mut self, server: usize) {
        if let Some(run) = self.servers[server].on_the_way.take() {
            self.assert_new(run);
            let server = &mut self.servers[server];
            server.received = run.last();
            server.runs.push(run);
        }
    }

    fn report(&mut self, server: usize) {
        self.receive(server);
        let (history, received) = (self.history(), self.servers[server].received);
        let row = self.with_rows_of(server, |tag| tag.report(server as i64, received, &history));
        assert!(self.tag.servers.contains(&row));
        self.commit();
        self.servers[server].known_since.get_or_insert(self.states.len() - 1);
    }

    /// The changes after a state are lost, and with them what the coordinator's own sessions have drawn.
    fn fall_back(&mut self, state: usize) {
        self.histories += 1;
        self.states.truncate(state + 1);
        self.tag = self.states[state].clone();
        self.own.retain(|(since, _)| *since <= state);
        for server in &mut self.servers {
            server.known_since = server.known_since.filter(|since| *since <= state);
        }
        // Nothing waits for a server that is unknown, so the operator has to know of it.
        if self.servers.iter().any(|server| server.known_since.is_none()) {
            self.resume(0);
        }
    }

    /// The operator knows what the servers have received or will receive.
    fn resume(&mut self, above: i64) {
        let granted = |server: &Server| server.on_the_way.map_or(server.received, |run| run.last());
        let highest = self.servers.iter().map(granted).max().unwrap_or(0);
        self.tag.resume(highest + above, &self.history());
        self.commit();
    }

    /// The tag is dropped, and created again from its first value. Of a tag without servers, that repeats values.
    fn recreate(&mut self) {
        let last = std::mem::replace(&mut self.tag.allocation.max_id, 0);
        if self.tag.servers.is_empty() {
            self.tag.allocation.max_id = last;
            return;
        }
        for report in &mut self.tag.servers {
            report.max_id = report.max_id.max(last);
        }
        self.tag.history = Some(String::new());
        self.commit();
    }

    /// No server has received one of these values, and no session of the coordinator has drawn one.
    fn assert_new(&self, run: ValueRun) {
        let received = self.servers.iter().flat_map(|server| &server.runs);
        for other in received.chain(self.own.iter().map(|(_, run)| run)) {
            assert!(run.last() < other.first || other.last() < run.first, "{run:?} was granted twice: {other:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// G4.
    #[test]
    fn no_value_is_granted_twice(steps in prop::collection::vec(step(), 1..150), stride in 1..4i64) {
        let mut world = World::new(stride);
        for _ in 0..3 {
            world.step(Step::Attach);
        }
        for step in steps {
            world.step(step);
        }
    }

    /// After any past: once every attached server has reported, and the operator has decided on those that have left.
    #[test]
    fn fleet_whose_servers_have_reported_is_granted_values(steps in prop::collection::vec(step(), 1..150)) {
        let mut world = World::new(1);
        for step in steps {
            world.step(step);
        }
        for server in 0..world.servers.len() {
            if !world.servers[server].has_left {
                world.report(server);
            }
        }
        if let Reply::Waits { unreported } = world.tag.grant(1, &world.history()) {
            prop_assert!(unreported.iter().all(|server| world.servers[*server as usize].has_left));
        }
    }
}
