//! Explores the models: with all rules no promise breaks, and without any one of them a promise does.

use idgen_sim::model::explore::{Size, Space, explore};
use idgen_sim::model::rules::{Rule, Rules};
use idgen_sim::model::{fleet, lease, page, worker};

/// Large in a soak.
fn size() -> Size {
    if std::env::var_os("IDGEN_SOAK_ROUNDS").is_some() { Size::Large } else { Size::Small }
}

/// With all rules: explores to the end, and keeps every promise.
fn assert_promises_hold<S: Space>(at_least: usize) {
    let found = explore(&S::with(Rules::all(), size()));
    if let Some(broken) = &found.counterexample {
        panic!("{}:\n{}", broken.broken, broken.lines.join("\n"));
    }
    assert!(found.is_complete);
    println!("{} states", found.states);
    assert!(found.states >= at_least, "only {} states", found.states);
    assert_eq!(found.missed_goals, [""; 0]);
}

/// Without one rule at a time: a promise breaks, so none of the rules is superfluous.
fn assert_each_rule_is_needed<S: Space>() {
    for rule in S::Rule::ALL {
        let broken = page::without::<S>(*rule);
        println!("without {rule:?}, {} steps: {}", broken.steps(), broken.broken);
        broken.lines.iter().for_each(|line| println!("    {line}"));
    }
}

#[test]
fn leases_keep_their_promises() {
    assert_promises_hold::<lease::space::Space>(100_000);
}

#[test]
fn each_rule_of_leases_is_needed() {
    assert_each_rule_is_needed::<lease::space::Space>();
}

#[test]
fn worker_ids_keep_their_promise() {
    assert_promises_hold::<worker::space::Space>(100_000);
}

#[test]
fn each_rule_of_worker_ids_is_needed() {
    assert_each_rule_is_needed::<worker::space::Space>();
}

#[test]
fn fleets_keep_their_promises() {
    assert_promises_hold::<fleet::space::Space>(100_000);
}

#[test]
fn each_rule_of_fleets_is_needed() {
    assert_each_rule_is_needed::<fleet::space::Space>();
}
