use super::*;
use proptest::prelude::*;

fn tag() -> SharedTag {
    let allocation = Allocation { max_id: 0, stride: 1, residue: 0, upper_bound: 1000 };
    SharedTag { history: None, allocation, servers: Vec::new() }
}

/// Two servers, 1 and 2, have reported 10 and 20 under the history `a`; then 100 was granted.
fn fleet() -> SharedTag {
    let mut tag = tag();
    tag.report(1, 10, "a");
    tag.report(2, 20, "a");
    tag.grant(80, "a");
    assert_eq!(tag.allocation.max_id, 100);
    tag
}

fn waits(unreported: &[i64]) -> Standing {
    Standing::Waits { unreported: unreported.to_vec() }
}

fn run(first: i64, count: u64) -> Grant {
    Grant::Granted(ValueRun { first, count, stride: 1 })
}

#[test]
fn tag_without_servers_grants_under_any_history() {
    let mut tag = tag();
    assert_eq!(tag.grant(3, "a"), run(1, 3));
    assert_eq!(tag.grant(3, "b"), run(4, 3));
    assert_eq!(tag.history, None);
}

#[test]
fn first_report_gives_the_tag_the_current_history() {
    let mut tag = tag();
    assert_eq!(tag.report(1, 10, "a"), ServerReport { server: 1, max_id: 10, history: "a".to_owned(), newest: None });
    assert_eq!(tag.history.as_deref(), Some("a"));
    assert_eq!(tag.grant(2, "a"), run(11, 2));
}

#[test]
fn report_never_lowers_the_highest_value_of_a_server() {
    let mut tag = fleet();
    assert_eq!(tag.report(2, 5, "b").max_id, 20);
    assert_eq!(tag.servers.len(), 2);
}

#[test]
fn other_history_grants_nothing_until_every_server_has_reported() {
    let mut tag = fleet();
    assert_eq!(tag.standing("b"), waits(&[1, 2]));
    tag.report(2, 300, "b");
    assert_eq!(tag.standing("b"), waits(&[1]));
    assert_eq!(tag.grant(1, "b"), Grant::Waits { unreported: vec![1] });
    assert_eq!(tag.allocation.max_id, 100);
    assert_eq!(tag.history.as_deref(), Some("a"));
    tag.report(1, 200, "b");
    assert_eq!(tag.standing("b"), Standing::Grants);
    assert_eq!(tag.history.as_deref(), Some("b"));
    assert_eq!(tag.grant(1, "b"), run(301, 1));
}

#[test]
fn new_server_counts_while_the_tag_waits_for_the_others() {
    let mut tag = fleet();
    tag.report(3, 500, "b");
    assert_eq!(tag.standing("b"), waits(&[1, 2]));
    tag.report(1, 10, "b");
    tag.report(2, 10, "b");
    assert_eq!(tag.grant(1, "b"), run(501, 1));
}

#[test]
fn report_raises_a_tag_that_grants_too() {
    let mut tag = fleet();
    tag.report(3, 500, "a");
    assert_eq!(tag.grant(1, "a"), run(501, 1));
}

#[test]
fn server_that_leaves_still_counts() {
    let mut tag = fleet();
    assert_eq!(tag.leave(2, "b"), Err(Unreported), "its values in the lost part are unknown");
    tag.report(2, 300, "b");
    assert_eq!(tag.leave(2, "b"), Ok(()));
    assert_eq!(tag.standing("b"), waits(&[1]));
    assert_eq!(tag.allocation.max_id, 300);
    tag.report(1, 200, "b");
    assert_eq!(tag.grant(1, "b"), run(301, 1));
    assert_eq!(tag.leave(1, "b"), Ok(()));
    assert_eq!(tag.leave(1, "b"), Ok(()), "it has left");
    assert_eq!((tag.servers.len(), tag.allocation.max_id), (0, 301));
}

#[test]
fn operator_ends_the_wait_above_all_reports() {
    for (max_id, next) in [(400, 401), (150, 301)] {
        let mut tag = fleet();
        tag.report(2, 300, "b");
        tag.resume(max_id, "b");
        assert_eq!(tag.grant(1, "b"), run(next, 1));
        assert_eq!(tag.leave(1, "b"), Ok(()), "the operator has decided on its values");
        assert_eq!(tag.standing("c"), waits(&[2]));
    }
}

#[test]
fn server_that_the_operator_did_not_wait_for_is_waited_for_after_the_next_change() {
    let mut tag = fleet();
    tag.resume(400, "b");
    tag.report(2, 20, "c");
    assert_eq!(tag.standing("c"), waits(&[1]));
}

#[test]
fn exhausted_tag_grants_what_is_left_and_then_nothing() {
    let mut tag = fleet();
    assert_eq!(tag.grant(9999, "a"), run(101, 900));
    assert_eq!(tag.grant(1, "a"), Grant::Exhausted);
    assert_eq!(tag.grant(1, "b"), Grant::Waits { unreported: vec![1, 2] });
}

/// Servers 1 and 2 are granted 101 to 110 and 111 to 120, each by two requests in a row.
fn granted() -> SharedTag {
    let mut tag = fleet();
    for server in [1, 1, 2, 2] {
        assert!(matches!(tag.grant_to(server, 5, "a"), Grant::Granted(_)));
    }
    tag
}

#[test]
fn values_granted_last_are_taken_back() {
    let mut tag = granted();
    assert!(!tag.take_back(1, 106, 110, "a"), "others were granted since");
    assert!(tag.take_back(2, 114, 120, "a"), "from both requests");
    assert_eq!(tag.grant(1, "a"), run(114, 1));
    let mut tag = granted();
    assert!(tag.take_back(2, 111, 120, "a"));
    assert!(tag.take_back(1, 110, 110, "a"), "the last ones now");
    assert_eq!(tag.grant_to(2, 5, "a"), run(110, 5));
}

#[test]
fn server_that_gives_back_has_not_received_these_values() {
    let mut tag = granted();
    tag.report(2, 120, "a");
    assert!(tag.take_back(2, 114, 120, "a"));
    assert_eq!(tag.servers.iter().find(|report| report.server == 2).map(|report| report.max_id), Some(113));
    // Its report was lost, or a crash has undone what it recorded: a gap.
    tag.report(2, 120, "a");
    assert_eq!(tag.grant(1, "a"), run(121, 1));
}

#[test]
fn only_what_the_server_itself_was_granted_is_taken_back() {
    for (server, first_id, last_id) in
        [(1, 114, 120), (2, 110, 120), (2, 121, 120), (2, 114, 119), (2, 114, 121), (3, 114, 120)]
    {
        let mut tag = granted();
        assert!(!tag.take_back(server, first_id, last_id, "a"), "{server} {first_id} {last_id}");
        assert_eq!(tag, granted());
    }
}

#[test]
fn values_are_taken_back_once() {
    let mut tag = granted();
    assert!(tag.take_back(2, 114, 120, "a"));
    assert!(!tag.take_back(2, 114, 120, "a"));
    // By another server, up to the same value again.
    tag.grant_to(1, 7, "a");
    tag.report(2, 120, "a");
    assert_eq!(tag.allocation.max_id, 120);
    assert!(!tag.take_back(2, 114, 120, "a"));
}

#[test]
fn values_of_another_history_are_not_taken_back() {
    let mut tag = granted();
    assert!(!tag.take_back(2, 114, 120, "b"));
    tag.report(1, 110, "b");
    assert!(!tag.take_back(2, 114, 120, "b"));
    tag.report(2, 120, "b");
    assert_eq!(tag.standing("b"), Standing::Grants);
    assert!(!tag.take_back(2, 114, 120, "b"));
    let mut tag = granted();
    tag.resume(120, "b");
    assert!(!tag.take_back(2, 114, 120, "b"), "it has not reported");
}

#[test]
fn values_between_two_strides_are_not_granted_again() {
    let mut tag = fleet();
    (tag.allocation.stride, tag.allocation.residue) = (10, 7);
    assert_eq!(tag.grant_to(1, 2, "a"), Grant::Granted(ValueRun { first: 107, count: 2, stride: 10 }));
    assert!(tag.take_back(1, 107, 117, "a"));
    (tag.allocation.stride, tag.allocation.residue) = (1, 0);
    assert_eq!(tag.grant(1, "a"), run(107, 1), "100 was granted before, and 101 may have been");
}

/// A server, and what it has received.
#[derive(Debug, Default)]
struct Server {
    received: i64,
    runs: Vec<ValueRun>,
    /// Granted, and not yet received.
    on_the_way: Option<ValueRun>,
    /// What its ring received last, without a gap.
    stock: Option<ValueRun>,
    /// The first and the last value that it gave back last, before it has asked for others.
    given_back: Option<(i64, i64)>,
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
    Stop { server: usize, drawn: u64, answer_is_lost: bool },
    GiveBackAgain { server: usize },
    Resume { above: i64 },
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
        5 => (server(), 0..20u64, prop::bool::weighted(0.3))
            .prop_map(|(server, drawn, answer_is_lost)| Step::Stop { server, drawn, answer_is_lost }),
        3 => server().prop_map(|server| Step::GiveBackAgain { server }),
        1 => (0..5i64).prop_map(|above| Step::Resume { above }),
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
                self.servers[server].given_back = None;
                let history = self.history();
                if let Grant::Granted(run) =
                    self.with_rows_of(server, |tag| tag.grant_to(server as i64, want, &history))
                {
                    self.servers[server].on_the_way = Some(run).filter(|_| !answer_is_lost);
                }
                self.commit();
            }
            Step::Receive { server } => self.attached(server).into_iter().for_each(|server| self.receive(server)),
            Step::Report { server } => self.attached(server).into_iter().for_each(|server| self.report(server)),
            Step::DrawOwn { want } => {
                if let Grant::Granted(run) = self.tag.grant(want, &self.history()) {
                    self.assert_new(run);
                    self.commit();
                    self.own.push((self.states.len() - 1, run));
                }
            }
            Step::FallBack { states } => self.fall_back(self.states.len().saturating_sub(1 + states)),
            Step::Leave { server } => {
                let Some(server) = self.attached(server) else { return };
                self.receive(server);
                let history = self.history();
                if self.with_rows_of(server, |tag| tag.leave(server as i64, &history)).is_ok() {
                    self.servers[server].has_left = true;
                    self.commit();
                }
            }
            Step::Stop { server, drawn, answer_is_lost } => {
                let Some(server) = self.attached(server) else { return };
                self.stop(server, drawn, answer_is_lost);
            }
            Step::GiveBackAgain { server } => {
                let Some(server) = self.attached(server) else { return };
                if let Some((first_id, last_id)) = self.servers[server].given_back {
                    self.give_back(server, first_id, last_id);
                }
            }
            Step::Resume { above } => self.resume(above),
        }
    }

    /// A server that has drawn so many values of its stock stops, and starts again without a stock.
    fn stop(&mut self, server: usize, drawn: u64, answer_is_lost: bool) {
        self.receive(server);
        let Some(stock) = self.servers[server].stock.take().filter(|stock| stock.count > drawn) else { return };
        let unused = ValueRun { first: stock.first + drawn as i64 * stock.stride, count: stock.count - drawn, ..stock };
        let (first_id, last_id) = (unused.first, unused.last());
        self.servers[server].given_back = Some((first_id, last_id));
        if self.give_back(server, first_id, last_id) {
            let server = &mut self.servers[server];
            server.received = if answer_is_lost { server.received } else { first_id - 1 };
            server.runs.retain(|run| run.first < first_id);
            let last = server.runs.last_mut().filter(|run| run.last() >= first_id);
            last.into_iter().for_each(|run| run.count = (first_id - run.first) as u64 / run.stride as u64);
        }
    }

    fn give_back(&mut self, server: usize, first_id: i64, last_id: i64) -> bool {
        let history = self.history();
        let is_taken = self.with_rows_of(server, |tag| tag.take_back(server as i64, first_id, last_id, &history));
        self.commit();
        is_taken
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
            match &mut server.stock {
                Some(stock) if stock.last() + stock.stride == run.first => stock.count += run.count,
                stock => *stock = Some(run),
            }
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
        if let Grant::Waits { unreported } = world.tag.grant(1, &world.history()) {
            prop_assert!(unreported.iter().all(|server| world.servers[*server as usize].has_left));
        }
    }
}
