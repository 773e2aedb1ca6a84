//! The alerts: each one fires when it should, and the page names it.

use std::process::Command;

use idgen_testkit::run;

use super::{file, read};
use crate::repository;

#[test]
fn each_alert_fires_when_it_should_and_only_then() {
    run(Command::new("promtool").args(["check", "rules", "alerts.yml"]).current_dir(repository("contrib/monitoring")));
    run(Command::new("promtool")
        .args(["test", "rules", "alerts_test.yml"])
        .current_dir(repository("contrib/monitoring")));
    // With a condition that never holds, with one that always holds, or without its delay, an alert fails its test.
    let without_delay = |rule: &str| -> String {
        rule.split_inclusive('\n').filter(|line| !line.starts_with("        for:")).collect()
    };
    type Mutation<'a> = (&'a str, &'a dyn Fn(&str) -> String);
    let mutations: [Mutation; 3] = [
        ("never", &|rule| with_expression(rule, "vector(1) > 2")),
        ("always", &|rule| with_expression(rule, "vector(1)")),
        ("at once", &without_delay),
    ];
    for (when, mutate) in mutations {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mutant = alerts().iter().fold(read("alerts.yml"), |text, (_, rule)| text.replace(rule, &mutate(rule)));
        std::fs::write(dir.path().join("alerts.yml"), mutant).expect("the directory is writable");
        std::fs::copy(file("alerts_test.yml"), dir.path().join("alerts_test.yml")).expect("the directory is writable");
        let output =
            Command::new("promtool").args(["test", "rules", "alerts_test.yml"]).current_dir(dir.path()).output();
        let output = output.expect("make guide-deps installs promtool");
        let report = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        for (name, _) in alerts().iter().filter(|(_, rule)| mutate(rule) != *rule) {
            let noticed = report.contains(&format!("alertname: {name}, time:"));
            assert!(noticed, "the test of {name} passes if it fires {when}\n{report}");
        }
    }
}

#[test]
fn page_names_each_alert() {
    let page = std::fs::read_to_string(repository("docs/monitoring.md")).expect("the page is readable");
    for (name, _) in alerts() {
        assert!(page.contains(&format!("| `{name}`: ")), "no row for {name}");
    }
}

/// The names and texts of the alerts.
pub fn alerts() -> Vec<(String, String)> {
    let text = read("alerts.yml");
    let rules = text.split("      - alert: ").skip(1);
    rules.map(|rule| (rule.lines().next().expect("a name").to_owned(), rule.to_owned())).collect()
}

/// A rule with another expression.
fn with_expression(rule: &str, expression: &str) -> String {
    let from = rule.find("        expr: ").expect("a rule has an expression");
    let key = |line: &&str| line.starts_with("        ") && !line.starts_with("         ");
    let next = rule[from..].lines().skip(1).find(key).expect("a rule has more than an expression");
    let to = from + rule[from..].find(next).expect("a line of the rule");
    format!("{}        expr: {expression}\n{}", &rule[..from], &rule[to..])
}
