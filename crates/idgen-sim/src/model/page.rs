//! What docs/architecture.md prints of the models: the rules, and the shortest ways to break a promise without two of them.

use super::explore::{Counterexample, Size, Space, explore};
use super::rules::{Rule, Rules};
use super::{fleet, lease, worker};
use std::fmt::Write;

/// The lines between the comments of the page.
pub fn text() -> String {
    let mut text = String::new();
    rules_of::<lease::space::Space>(&mut text, "leases");
    rules_of::<worker::space::Space>(&mut text, "worker ids");
    rules_of::<fleet::space::Space>(&mut text, "fleets");
    counterexample_of::<lease::space::Space>(&mut text, lease::Rule::FenceHoldsRow);
    counterexample_of::<worker::space::Space>(&mut text, worker::Rule::RenewalCompares);
    text
}

/// The shortest steps that break a promise if one rule is not in force.
pub fn without<S: Space>(rule: S::Rule) -> Counterexample {
    let found = explore(&S::with(Rules::all().without(rule), Size::Small));
    found.counterexample.unwrap_or_else(|| panic!("{rule:?} is superfluous: {} states", found.states))
}

fn rules_of<S: Space>(text: &mut String, room: &str) {
    write!(text, "\n| rule of {room} | promise | in words | steps |\n| --- | --- | --- | --- |\n").expect("a string");
    for rule in S::Rule::ALL {
        let steps = without::<S>(*rule).steps();
        let (promise, words) = (rule.promise(), rule.text());
        writeln!(text, "| `{rule:?}` | {promise} | {words} | {steps} |").expect("a string");
    }
}

fn counterexample_of<S: Space>(text: &mut String, rule: S::Rule) {
    let Counterexample { broken, lines } = without::<S>(rule);
    let begin = &lines[0];
    write!(text, "\nWithout `{rule:?}`:\n\n```text figure\n{begin}\n").expect("a string");
    for (number, line) in lines.iter().skip(1).enumerate() {
        writeln!(text, "{}. {line}", number + 1).expect("a string");
    }
    write!(text, "{broken}\n```\n").expect("a string");
}
