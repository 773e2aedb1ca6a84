//! The guide on sqlx, with the crate in `examples/sqlx`.

use std::path::PathBuf;
use std::process::{Command, Output};

use idgen_testkit::ids::assert_increasing;
use idgen_testkit::run;
use idgen_testkit::sql::{execute, ids};

use crate::counting::{Counting, printed_ids};
use crate::repository;

/// Builds the crate in a target directory of its own. Returns the directory of its programs.
fn build() -> PathBuf {
    let target = repository("target/sqlx");
    let manifest = repository("examples/sqlx/Cargo.toml");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Cargo sets variables for tests that would describe this crate to the build scripts of the other one.
    run(Command::new(cargo)
        .args(["build", "-q", "--locked", "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(&target));
    target.join("debug")
}

fn program(server: &Counting, name: &str, argument: &str) -> Command {
    let mut command = Command::new(build().join(name));
    command.arg(argument).env("DATABASE_URL", server.url());
    command
}

#[test]
fn sqlx_inserts_1000_rows_in_one_statement() {
    let mut server = Counting::with_tables_of("sqlx.md");
    let mut count = |way: &str| {
        execute(server.client(), "TRUNCATE orders");
        server.forget_statements();
        let printed = printed_ids(&run(&mut program(&server, "idgen-example-sqlx", way)));
        let counted = server.draws_and_inserts();
        let stored = ids(server.client(), "SELECT id FROM orders ORDER BY split_part(item, ' ', 2)::int");
        assert_eq!(printed, stored, "{way}: each id belongs to its item");
        assert_eq!(printed.len(), 1000, "{way}");
        assert_increasing(&printed);
        counted
    };
    assert_eq!(count("returning"), (0, 1));
    assert_eq!(count("drawn"), (1, 1));
}

#[test]
fn sqlx_refuses_an_i32_and_null_and_panics_on_infinity() {
    let server = Counting::with_tables_of("sqlx.md");
    let failure = |argument: &str| {
        let Output { status, stderr, .. } = program(&server, "pitfalls", argument).output().expect("it is built");
        assert!(!status.success(), "{argument}");
        String::from_utf8_lossy(&stderr).into_owned()
    };
    let i32 = failure("i32");
    assert!(i32.contains("is not compatible with SQL type"), "{i32}");
    let null = failure("null");
    assert!(null.contains("UnexpectedNullError"), "{null}");
    let infinity = failure("infinity");
    assert!(infinity.contains("panicked") && infinity.contains("overflowed"), "{infinity}");
    let lease = run(&mut program(&server, "idgen-example-sqlx", "lease"));
    assert!(lease.trim_end().ends_with(" None"), "{lease}");
}
