use super::*;
use proptest::prelude::*;

fn run(first: i64, count: u64) -> ValueRun {
    ValueRun { first, count, stride: 1 }
}

fn drawn(first: i64, count: u64) -> Option<Draw> {
    Some(Draw::Drawn { run: run(first, count), request: false })
}

#[test]
fn turn_asks_for_what_its_calls_want_and_they_draw_it() {
    let mut turns = Turns::default();
    assert_eq!(turns.begin(), None);
    let [first, second] = [2, 3].map(|count| turns.join(count));
    assert_eq!(turns.due(), 5);
    assert_eq!(turns.begin(), Some((1, 5)));
    let late = turns.join(1);
    turns.bring(1, run(11, 5));
    assert_eq!(turns.claim(late, false), None, "it was asked for before this call began");
    assert_eq!(turns.claim(second, false), drawn(11, 3));
    assert_eq!(turns.begin(), Some((2, 1)));
    turns.bring(2, run(20, 1));
    assert_eq!(turns.claim(late, false), drawn(20, 1));
    assert_eq!(turns.claim(first, false), drawn(14, 2), "however late");
}

#[test]
fn call_of_a_turn_that_brings_too_little_joins_another_one() {
    let mut turns = Turns::default();
    let [whole, some, none] = [3, 2, 1].map(|count| turns.join(count));
    assert_eq!(turns.begin(), Some((1, 6)));
    turns.bring(1, run(1, 2));
    assert_eq!(turns.claim(whole, true), Some(Draw::Dry));
    assert_eq!(turns.claim(some, false), drawn(1, 2));
    assert_eq!(turns.claim(none, false), Some(Draw::Dry));
    assert_eq!(turns.kept[0].owed, 0);
}

#[test]
fn turn_that_fails_has_nothing_also_later() {
    let mut turns = Turns::default();
    let ticket = turns.join(1);
    let (number, _) = turns.begin().expect("a call has joined");
    assert_eq!(turns.claim(ticket, false), None);
    turns.give_up();
    turns.bring(number, run(1, 1));
    assert_eq!(turns.claim(ticket, false), Some(Draw::Dry));
}

#[test]
fn call_that_withdraws_is_not_asked_for_and_keeps_no_room() {
    let mut turns = Turns::default();
    let early = turns.join(7);
    let ticket = turns.join(1);
    turns.withdraw(early);
    assert_eq!(turns.begin(), Some((1, 1)));
    turns.withdraw(ticket);
    turns.bring(1, run(1, 1));
    assert_eq!(turns.claim(ticket, false), Some(Draw::Dry));
    assert_eq!(turns.room(), Some(0));
}

#[test]
fn calls_that_never_draw_delay_a_turn_only_if_they_are_of_all_kept_turns() {
    let mut turns = Turns::default();
    let slow: Vec<Ticket> = (0..KEPT as i64)
        .map(|turn| {
            let ticket = turns.join(1);
            let (number, _) = turns.begin().expect("there is room");
            turns.bring(number, run(turn, 1));
            ticket
        })
        .collect();
    turns.join(1);
    assert_eq!((turns.due(), turns.begin()), (0, None));
    assert_eq!(turns.claim(slow[3], false), Some(Draw::Drawn { run: run(3, 1), request: true }));
    assert_eq!(turns.due(), 1);
    assert!(turns.begin().is_some());
    assert_eq!(turns.claim(slow[0], false), Some(Draw::Drawn { run: run(0, 1), request: true }));
}

#[test]
fn another_tenancy_serves_no_earlier_call() {
    let mut turns = Turns::default();
    let begun = turns.join(1);
    let (number, _) = turns.begin().expect("a call has joined");
    let waiting = turns.join(1);
    turns.restart();
    turns.bring(number, run(1, 1));
    let ticket = turns.join(1);
    for ticket in [begun, waiting] {
        assert_eq!(turns.claim(ticket, false), Some(Draw::Dry));
        turns.withdraw(ticket);
    }
    let (number, wanted) = turns.begin().expect("a call has joined");
    assert_eq!(wanted, 1);
    turns.bring(number, run(5, 1));
    assert_eq!(turns.claim(waiting, false), Some(Draw::Dry));
    assert_eq!(turns.claim(ticket, false), drawn(5, 1));
}

#[derive(Clone, Debug)]
enum Step {
    Join { count: u64 },
    Begin,
    End { fails: bool },
    Claim { call: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..4u64).prop_map(|count| Step::Join { count }),
        3 => Just(Step::Begin),
        3 => prop::bool::weighted(0.1).prop_map(|fails| Step::End { fails }),
        4 => (0..20usize).prop_map(|call| Step::Claim { call }),
    ]
}

proptest! {
    /// G4, in one line: a call draws what was asked for after it began, and no value that was brought stays undrawn.
    #[test]
    fn calls_draw_each_value_of_their_turn(steps in prop::collection::vec(step(), 1..200)) {
        let mut turns = Turns::default();
        // The next value, the turn that runs, the waiting calls with the next value when they began, and the values drawn.
        let (mut next, mut running, mut calls, mut all) = (1, None, Vec::new(), Vec::new());
        let settle = |turns: &mut Turns, calls: &mut Vec<(Ticket, i64)>, all: &mut Vec<i64>, call: usize| {
            let (ticket, floor) = calls[call];
            match turns.claim(ticket, true) {
                None => {}
                Some(Draw::Dry) => { calls.swap_remove(call); }
                Some(Draw::Drawn { run, .. }) => {
                    assert!(run.first >= floor && run.count == ticket.count);
                    all.extend(run.first..=run.last());
                    calls.swap_remove(call);
                }
            }
        };
        for step in steps {
            match step {
                Step::Join { count } => calls.push((turns.join(count), next)),
                Step::Begin if running.is_none() => running = turns.begin(),
                Step::End { fails: true } => { turns.give_up(); running = None; }
                Step::End { .. } => if let Some((number, wanted)) = running.take() {
                    turns.bring(number, run(next, wanted));
                    next += wanted as i64;
                },
                Step::Claim { call } if !calls.is_empty() => {
                    let call = call % calls.len();
                    settle(&mut turns, &mut calls, &mut all, call);
                }
                _ => {}
            }
        }
        for call in (0..calls.len()).rev() {
            settle(&mut turns, &mut calls, &mut all, call);
        }
        all.sort_unstable();
        prop_assert_eq!(all, (1..next).collect::<Vec<_>>());
    }
}
