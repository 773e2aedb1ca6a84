//! Secrets do not reach the log.

use idgen_testkit::Cluster;
use idgen_testkit::sql::{execute, value};

/// With everything logged that PostgreSQL can log of a statement: its text, its plan, those of the statements in it, and
/// from PostgreSQL 16 on their parameters.
#[test]
fn no_setting_logs_a_secret_smoke() {
    let cluster = Cluster::builder()
        .conf("log_statement", "all")
        .conf("log_min_duration_statement", "0")
        .conf("log_parameter_max_length", "-1")
        .conf("session_preload_libraries", "auto_explain")
        .conf("auto_explain.log_min_duration", "0")
        .conf("auto_explain.log_nested_statements", "on")
        .conf("auto_explain.log_verbose", "on")
        .conf("debug_print_plan", "on")
        .start_with_extension();
    let mut client = cluster.client();
    execute(&mut client, "SELECT public_id_define('ord')");
    execute(&mut client, "SELECT public_id_rotate('ord', 'long')");
    execute(&mut client, "SELECT public_id('ord', 7)");
    let secrets = "SELECT string_agg(encode(secret, 'hex'), ' ') FROM idgen.public_key";
    let secrets: String = value(&mut client, secrets);
    let log = cluster.log();
    // The statements in the functions are logged.
    for statement in ["INSERT INTO idgen.public_key", "SELECT form, secret"] {
        assert!(log.contains(statement), "{statement}");
    }
    for secret in secrets.split(' ') {
        assert_eq!(secret.len(), 64);
        assert!(!log.contains(secret), "the log has {secret}");
    }
}
