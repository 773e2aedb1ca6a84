//! A HINT names a function with the schema of the extension where the search path lacks it. The library knows these
//! functions by how their names begin.

use crate::imports;
use std::fs;

/// The words of the list `FUNCTIONS`.
fn known(source: &str) -> Vec<&str> {
    let (_, list) = source.split_once("const FUNCTIONS: ").expect("the list");
    let (_, list) = list.split_once('=').expect("its words");
    list.split(';').next().expect("its end").split('"').skip(1).step_by(2).collect()
}

/// The functions and procedures that a file of SQL puts into the schema of the user's choice.
fn created(sql: &str) -> Vec<&str> {
    let names = sql.lines().filter_map(|line| {
        let line = line.strip_prefix("CREATE FUNCTION ").or_else(|| line.strip_prefix("CREATE PROCEDURE "))?;
        line.split('(').next()
    });
    names.filter(|name| !name.starts_with("idgen.")).collect()
}

#[test]
fn every_function_of_the_extension_is_qualified_in_hints() {
    let read = |file: &str| fs::read_to_string(imports::repository().join(file)).unwrap();
    let source = read("src/pg/ereport.rs");
    let known = known(&source);
    let mut unused = known.clone();
    for line in read("src/lib.rs").lines().filter_map(|line| line.strip_prefix("extension_sql_file!(\"../")) {
        let sql = read(line.split('"').next().expect("a file"));
        for name in created(&sql) {
            assert!(known.iter().any(|word| name.starts_with(word)), "{name} is not in FUNCTIONS of src/pg/ereport.rs");
            unused.retain(|word| !name.starts_with(word));
        }
    }
    assert_eq!(unused, [""; 0], "no function begins so");
}

#[test]
fn functions_outside_of_the_schema_idgen_are_found() {
    let sql = "CREATE FUNCTION a(\n    b int) RETURNS int\nCREATE FUNCTION idgen.c() RETURNS int\nCREATE PROCEDURE d()";
    assert_eq!(created(sql), ["a", "d"]);
    assert_eq!(known("const FUNCTIONS: [&str; 2] =\n    [\"a_\", \"b\"];\nconst C: &str = \"c\";"), ["a_", "b"]);
}
