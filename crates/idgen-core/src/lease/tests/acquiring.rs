//! The order in which a call that acquires leases waits, locks and undoes. What others do meanwhile is a matter of the simulator.

use super::*;
use std::collections::{BTreeSet, VecDeque};

/// What `grant` answers: `None` if that depends on shared terms that are not committed.
type Answer = Option<Result<Granted<usize>, Obstacle>>;

/// What the call holds, but for what was undone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Held {
    queues: BTreeSet<usize>,
    definitions: BTreeSet<usize>,
    shared_grants: BTreeSet<usize>,
    granted: BTreeSet<usize>,
}

impl Held {
    fn of(&mut self, lock: LeaseLock) -> &mut BTreeSet<usize> {
        match lock {
            LeaseLock::Queue => &mut self.queues,
            LeaseLock::Definition => &mut self.definitions,
            LeaseLock::SharedGrants => &mut self.shared_grants,
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Kind {
    is_defined: bool,
    wants_shared: bool,
    bypasses: bool,
}

struct Call {
    leases: usize,
    kind: Kind,
    /// What the next grants answer, and what all others do.
    answers: VecDeque<Answer>,
    /// The time of the call has passed, or is given as none, at this effect, the first time.
    refused: Option<String>,
    held: Held,
    precedes: Vec<i32>,
    now_us: i64,
    changes: u64,
    log: Vec<String>,
}

fn call(leases: usize, answers: impl IntoIterator<Item = Answer>) -> Call {
    Call {
        leases,
        kind: Kind { is_defined: true, ..Kind::default() },
        answers: answers.into_iter().collect(),
        refused: None,
        held: Held::default(),
        precedes: Vec::new(),
        now_us: 50,
        changes: 0,
        log: Vec::new(),
    }
}

impl Call {
    /// False if it is refused.
    fn does(&mut self, effect: String) -> bool {
        let is_refused = self.refused.take_if(|refused| *refused == effect).is_some();
        self.log.push(effect);
        !is_refused
    }

    /// Nobody waits for this call while it waits.
    fn assert_holds_no_row(&self) {
        assert_eq!(
            (&self.held.definitions, &self.held.granted),
            (&BTreeSet::new(), &BTreeSet::new()),
            "{:?}",
            self.log
        );
    }
}

fn patience(patience: Patience) -> &'static str {
    if patience == Patience::None { " at once" } else { "" }
}

impl Acquirer for Call {
    type Term = usize;

    fn leases(&self) -> usize {
        self.leases
    }

    fn lock(&mut self, at: usize, lock: LeaseLock, patient: Patience) -> bool {
        let effect = match lock {
            LeaseLock::Queue => "enter",
            LeaseLock::Definition => "share",
            LeaseLock::SharedGrants => "await shared",
        };
        if lock == LeaseLock::Queue && patient == Patience::OfTheCall {
            assert_eq!(self.held, Held::default(), "it waits in one queue");
        }
        let is_locked = self.does(format!("{effect} {at}{}", patience(patient)));
        if is_locked {
            assert!(self.held.of(lock).insert(at), "{:?}", self.log);
        }
        is_locked
    }

    fn unlock(&mut self, at: usize, lock: LeaseLock) {
        match lock {
            LeaseLock::Queue => self.log.push(format!("leave {at}")),
            LeaseLock::Definition => self.log.push(format!("unlock {at}")),
            LeaseLock::SharedGrants => {}
        }
        assert!(self.held.of(lock).remove(&at), "{:?}", self.log);
    }

    fn bypasses(&self, _at: usize) -> bool {
        self.kind.bypasses
    }

    fn is_defined(&mut self, at: usize, _patience: Patience) -> Option<bool> {
        self.does(format!("read {at}")).then_some(self.kind.is_defined)
    }

    fn wants_shared(&self) -> bool {
        self.kind.wants_shared
    }

    fn grant(&mut self, at: usize, are_shared_over: bool, patient: Patience) -> Option<Tried<usize>> {
        self.changes += 1;
        let over = if are_shared_over { " beside no shared" } else { "" };
        if !self.does(format!("grant {at}{}{over}", patience(patient))) {
            return None;
        }
        let granted = Some(Ok(Granted { term: 100 + at, admits_next: true }));
        let answer = self.answers.pop_front().unwrap_or(granted);
        if matches!(answer, Some(Ok(_))) {
            self.held.granted.insert(at);
        }
        Some(answer)
    }

    fn now_us(&self) -> i64 {
        self.now_us
    }

    fn changes(&self, _at: usize) -> u64 {
        self.changes
    }

    fn sleep(&mut self, at: usize, changes: u64, until_us: Option<i64>) -> bool {
        self.assert_holds_no_row();
        assert!(changes < self.changes, "a change during the attempt is missed");
        self.now_us += 9_000_000;
        self.does(until_us.map_or(format!("sleep {at}"), |until_us| format!("sleep {at} until {until_us}")))
    }

    fn precede(&mut self, at: usize, slots: &[i32]) -> bool {
        self.precedes = slots.to_vec();
        self.does(format!("precede {at} {slots:?}"))
    }

    fn wait_for_rows(&mut self, at: usize, slots: &[i32]) {
        self.assert_holds_no_row();
        self.does(format!("rows {at} {slots:?}"));
    }

    fn undo_unless_granted<T>(&mut self, work: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let before = self.held.clone();
        let result = work(self);
        if result.is_none() {
            self.held = before;
            self.does("undo".to_owned());
        }
        result
    }
}

fn granted(term: usize, admits_next: bool) -> Answer {
    Some(Ok(Granted { term, admits_next }))
}

const HELD: Answer = Some(Err(Obstacle::NoSlot { until_us: None }));

#[test]
fn attempt_reads_the_definition_under_its_lock_and_awaits_shared_terms_only_where_they_matter() {
    let defined = Kind { is_defined: true, ..Kind::default() };
    let own = Kind { bypasses: true, ..defined };
    let shared = Kind { wants_shared: true, ..Kind::default() };
    let unlock = ["unlock 0", "precede 0 []", "leave 0"];
    for (kind, answers, effects) in [
        (defined, vec![], [&["enter 0", "share 0", "read 0", "grant 0"][..], &unlock].concat()),
        (shared, vec![], [&["enter 0", "share 0", "read 0", "grant 0"][..], &unlock].concat()),
        (
            Kind::default(),
            vec![],
            [&["enter 0", "share 0", "read 0", "await shared 0", "grant 0 beside no shared"][..], &unlock].concat(),
        ),
        (
            defined,
            vec![None],
            [&["enter 0", "share 0", "read 0", "grant 0", "await shared 0", "grant 0 beside no shared"][..], &unlock]
                .concat(),
        ),
        (own, vec![None], vec!["read 0", "grant 0", "grant 0 beside no shared", "precede 0 []"]),
    ] {
        let mut call = Call { kind, ..call(1, answers) };
        assert_eq!(acquire(&mut call), Some(vec![100]));
        assert_eq!(call.log, effects);
    }
}

#[test]
fn call_whose_time_passes_leaves_nothing_behind_wherever_that_is() {
    for refused in ["enter 0", "share 0", "read 0", "grant 0", "await shared 0", "grant 0 beside no shared", "sleep 0"]
    {
        let call = call(1, [None, HELD]);
        let mut call = Call { refused: Some(refused.to_owned()), ..call };
        assert_eq!(acquire(&mut call), None, "{refused}");
        assert_eq!((call.refused, &call.held, call.precedes), (None, &Held::default(), vec![]), "{refused}");
    }
}

#[test]
fn head_of_the_queue_does_between_attempts_what_the_obstacle_demands() {
    let locked = |has_other_terms| Obstacle::Locked { slots: vec![2], has_other_terms };
    let (precede, rows) = ("precede 0 [2]", "rows 0 [2]");
    let none = "precede 0 []";
    for (obstacle, refused, effects) in [
        (Obstacle::Changed, None, vec!["sleep 0 until 0"]),
        (Obstacle::NoSlot { until_us: Some(90) }, None, vec![none, "sleep 0 until 90"]),
        (Obstacle::NoSlot { until_us: None }, None, vec![none, "sleep 0"]),
        (locked(false), None, vec![precede, rows, "sleep 0 until 0"]),
        (locked(true), None, vec![precede, "sleep 0"]),
        // The time has passed, which the sleep tells.
        (locked(false), Some(precede), vec![precede, "sleep 0 until 0"]),
        (locked(true), Some(precede), vec![precede, "sleep 0 until 0"]),
    ] {
        let call = call(1, [Some(Err(obstacle.clone()))]);
        let mut call = Call { refused: refused.map(str::to_owned), ..call };
        assert_eq!(acquire(&mut call), Some(vec![100]));
        let attempt = ["share 0", "read 0", "grant 0", "unlock 0"];
        let expected = [&["enter 0"][..], &attempt, &effects, &attempt, &[none, "leave 0"]].concat();
        assert_eq!(call.log, expected, "{obstacle:?}");
    }
    // After ten seconds it waits for the rows, by the clock of leases.
    let mut call = call(1, (0..3).map(|_| Some(Err(locked(true)))));
    assert_eq!(acquire(&mut call), Some(vec![100]));
    call.log.retain(|effect| effect.starts_with("sleep") || effect.starts_with("rows"));
    assert_eq!(call.log, ["sleep 0", "sleep 0", rows, "sleep 0 until 0"]);
}

#[test]
fn several_leases_are_probed_at_the_head_of_one_queue_and_granted_together_without_a_wait() {
    let mut call = call(2, [granted(1, true), granted(1, true), granted(2, false)]);
    assert_eq!(acquire(&mut call), Some(vec![1, 2]));
    let (probe, first) = (["share 0", "read 0", "grant 0", "unlock 0", "undo"], "share 0 at once");
    let both = [first, "read 0", "grant 0 at once", "unlock 0", "enter 1 at once", "share 1 at once", "read 1"];
    let end = ["grant 1 at once", "unlock 1", "precede 0 []", "leave 0"];
    assert_eq!(call.log, [&["enter 0"][..], &probe, &both, &end].concat());
    // The next acquirer of the second one waits for the commit.
    assert_eq!(call.held.queues, BTreeSet::from([1]));
    // Where the probe finds the first one taken, the call waits, and asks for no other.
    let mut waiting = self::call(2, [HELD]);
    assert_eq!(acquire(&mut waiting).map(|terms| terms.len()), Some(2));
    assert_eq!(waiting.log[..8], [&["enter 0"][..], &probe, &["precede 0 []", "sleep 0"]].concat());
}

#[test]
fn call_waits_for_the_lease_that_it_does_not_get_and_probes_that_first() {
    let free = || granted(1, true);
    for (answers, refused) in [(vec![free(), free(), HELD], None), (vec![free(), free()], Some("enter 1 at once"))] {
        let call = call(2, answers);
        let mut call = Call { refused: refused.map(str::to_owned), ..call };
        assert_eq!(acquire(&mut call).map(|terms| terms.len()), Some(2));
        let at = call.log.iter().position(|effect| effect == "enter 1").expect("it waits there");
        assert_eq!(call.log[at - 3..at], ["undo", "precede 0 []", "leave 0"]);
        assert_eq!(call.log[at + 1..at + 3], ["share 1", "read 1"]);
    }
}

#[test]
fn head_that_finds_its_own_lease_taken_after_the_probe_attempts_again() {
    let mut call = call(2, [granted(1, true), HELD]);
    assert_eq!(acquire(&mut call), Some(vec![100, 101]));
    assert!(call.log.contains(&"sleep 0 until 0".to_owned()), "{:?}", call.log);
    assert!(!call.log.contains(&"enter 1".to_owned()), "{:?}", call.log);
}

fn answers() -> impl Strategy<Value = Vec<Answer>> {
    let obstacle = prop_oneof![
        Just(Obstacle::Changed),
        prop::option::of(0..99i64).prop_map(|until_us| Obstacle::NoSlot { until_us }),
        any::<bool>().prop_map(|has_other_terms| Obstacle::Locked { slots: vec![0, 3], has_other_terms }),
    ];
    let answer = prop_oneof![
        any::<bool>().prop_map(|admits_next| granted(7, admits_next)),
        obstacle.prop_map(|obstacle| Some(Err(obstacle))),
    ];
    prop::collection::vec(answer, 0..9)
}

proptest! {
    /// All or none, whatever is in the way and whenever the time passes. `Call` asserts that it waits with nothing locked.
    #[test]
    fn call_holds_all_of_its_leases_or_none(leases in 1..4usize, answers in answers(), refused in 0..40usize) {
        let mut rehearsal = call(leases, answers.clone());
        acquire(&mut rehearsal);
        let refused = rehearsal.log.into_iter().nth(refused);
        let mut call = Call { refused, ..call(leases, answers) };
        let terms = acquire(&mut call);
        prop_assert_eq!(terms.as_ref().map_or(0, Vec::len), call.held.granted.len());
        prop_assert!(terms.is_none_or(|terms| terms.len() == leases));
        prop_assert!(call.held.granted.len() == leases || call.held.queues.is_empty());
        prop_assert!(call.precedes.is_empty() && call.held.definitions.is_empty());
    }
}
