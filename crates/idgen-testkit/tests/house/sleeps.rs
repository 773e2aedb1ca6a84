//! Each sleep of a process checks for interrupts first. A loop that sleeps for no time at all then still ends when its
//! statement is canceled or its process is stopped, and no loop has to remember that.

use crate::imports;
use std::fs;

/// How a process can sleep, and the only files that may.
const SLEEPS: [&str; 5] = [
    "pg_sys::WaitLatch",
    "libc::nanosleep",
    "pg_sys::ConditionVariableTimedSleep",
    "pg_sys::ConditionVariableSleep",
    "thread::sleep",
];
const FILES: [&str; 1] = ["src/pg/latch.rs"];

/// The sleeps of a file that no check for interrupts in the same function precedes.
fn unchecked(source: &str) -> Vec<&str> {
    let mut is_checked = false;
    let mut found = Vec::new();
    for line in source.lines().map(str::trim) {
        is_checked = line.starts_with("check_for_interrupts!()") || is_checked && !line.contains("fn ");
        if !is_checked && SLEEPS.iter().any(|sleep| line.contains(sleep)) {
            found.push(line);
        }
    }
    found
}

#[test]
fn every_sleep_checks_for_interrupts_first() {
    for module in imports::read("src").modules {
        let source = fs::read_to_string(imports::repository().join(&module.file)).unwrap();
        let sleeps = SLEEPS.iter().any(|sleep| source.contains(sleep));
        assert_eq!(sleeps, FILES.contains(&module.file.as_str()), "{}: sleeps are in {FILES:?}", module.file);
        assert_eq!(unchecked(&source), [""; 0], "{}", module.file);
    }
}

#[test]
fn sleep_without_a_check_is_found() {
    let source = "fn a() {\n    check_for_interrupts!();\n}\nfn b() {\n    libc::nanosleep(x, y);\n}";
    assert_eq!(unchecked(source), ["libc::nanosleep(x, y);"]);
    assert_eq!(unchecked(&source.replace("fn b() {", "fn b() {\n    check_for_interrupts!();")), [""; 0]);
}
