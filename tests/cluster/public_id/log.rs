//! Secrets do not reach the log.

use std::ffi::c_char;

use idgen_core::public_id::SECRET_BYTES;
use idgen_testkit::Cluster;
use idgen_testkit::sql::{column, execute, value};
use postgres::error::SqlState;

/// With everything logged that PostgreSQL can log of a statement: its text, its plan, and by auto_explain those of the
/// statements in it, from PostgreSQL 16 on with their parameters. Servers built without contrib lack auto_explain.
#[test]
fn no_setting_logs_a_secret_smoke() {
    let (cluster, [mut client]) = Cluster::builder()
        .conf("log_statement", "all")
        .conf("log_min_duration_statement", "0")
        .conf("log_parameter_max_length", "-1")
        .conf("debug_print_plan", "on")
        // Lines of a plan are broken at blanks.
        .conf("debug_pretty_print", "off")
        .start_with_clients();
    let missing = client.batch_execute("LOAD 'auto_explain'").err();
    if let Some(error) = &missing {
        let version = value::<String>(&mut client, "SHOW server_version_num");
        assert!(version.as_str() > "16" && error.code() == Some(&SqlState::UNDEFINED_FILE), "{error}");
    } else {
        execute(
            &mut client,
            "SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on; \
             SET auto_explain.log_verbose = on",
        );
    }
    execute(&mut client, "SELECT public_id_define('ord')");
    execute(&mut client, "SELECT public_id_rotate('ord', 'long')");
    execute(&mut client, "SELECT public_id('ord', 7)");
    let secrets: Vec<Vec<u8>> = column(&mut client, "SELECT secret FROM idgen.public_key");
    assert_eq!(secrets.len(), 2);
    // A constant that the log must have, with bytes on both sides of 128.
    let logged: Vec<u8> = (112..144).collect();
    execute(&mut client, &format!("SELECT '\\x{}'::bytea", hex(&logged)));
    let log = cluster.log().split_whitespace().collect::<Vec<_>>().join(" ");
    // auto_explain logs the statements in the functions.
    for statement in ["INSERT INTO idgen.public_key", "SELECT form, secret"] {
        assert!(missing.is_some() || log.contains(statement), "{statement}");
    }
    for form in [hex, in_a_plan] {
        assert!(log.contains(&form(&logged)), "{} is not found", form(&logged));
        for secret in &secrets {
            assert_eq!(secret.len(), SECRET_BYTES);
            assert!(!log.contains(&form(secret)), "the log has {}", form(secret));
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// As debug_print_plan prints a constant: each byte as a char of C, which is signed on some platforms only.
fn in_a_plan(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!(" {}", *byte as c_char)).collect()
}
