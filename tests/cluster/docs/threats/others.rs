//! Lines of the threat model that take more than a scenario.

use idgen_testkit::sql::{execute, expect_error, value};
use idgen_testkit::{Cluster, Proxy};
use postgres::Client;

/// The types in the queries of idgen.
const TYPES: [&str; 11] =
    ["bool", "bytea", "int4", "int8", "text", "name", "oid", "regrole", "timestamptz", "interval", "numeric"];

const OPERATORS: [&str; 11] = ["=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "~"];

const FUNCTIONS: [&str; 6] = [
    "now()",
    "clock_timestamp()",
    "pg_has_role(pg_catalog.oid, pg_catalog.text)",
    "pg_has_role(pg_catalog.oid, pg_catalog.oid, pg_catalog.text)",
    "octet_length(pg_catalog.text)",
    "quote_ident(pg_catalog.text)",
];

const RELATIONS: [&str; 8] =
    ["segment", "lease", "lease_definition", "worker_id", "public_key", "pg_locks", "pg_class", "pg_roles"];

/// Calls of every room, also those that only superusers may make.
const CALLS: [&str; 31] = [
    "SELECT segment_create('NAME', step => 2)",
    "SELECT segment_alter('NAME', step => 5, target_duration => '2 seconds')",
    "SELECT segment_grant('NAME', 'app'), segment_revoke('NAME', 'app')",
    "SELECT count(segment_next('NAME')) FROM generate_series(1, 20)",
    "SELECT segment_reserve('NAME', 50)",
    "SELECT segment_request('NAME', 1, 'one', 0, 5)",
    "SELECT segment_leave('NAME', 1, 0), segment_resume('NAME', 0)",
    "BEGIN; SELECT segment_create('new'); SELECT segment_next('new'); ROLLBACK",
    "SELECT segment_drop('NAME')",
    "SELECT worker_pool_define('NAME', count => 2), worker_pool_define('of NAME', first => 5)",
    "SELECT worker_acquire('NAME', 'a')",
    "SELECT worker_acquire('of NAME', prefer => 5)",
    "SELECT worker_renew(pool, token, not_after) FROM idgen.workers WHERE pool OPERATOR(pg_catalog.=) 'NAME'",
    "SELECT worker_confirm(pool, token) FROM idgen.workers WHERE token IS NOT NULL",
    "SELECT worker_release(pool, token, not_before) FROM idgen.workers WHERE pool OPERATOR(pg_catalog.=) 'NAME'",
    "SELECT worker_correct('of NAME', 5, force => true), worker_pool_alter('NAME', count => 3)",
    "SELECT worker_move('NAME', 'of NAME')",
    "SELECT worker_pool_drop('of NAME')",
    "SELECT lease_define('NAME', slots => 2), lease_alter('NAME', ttl => '1 hour')",
    "SELECT lease_acquire('NAME', ttl => '1 hour')",
    "SELECT lease_try_acquire('NAME', '1 min', bind_session => true)",
    "SELECT lease_renew(name, token), lease_fence(name, token) FROM idgen.leases WHERE token IS NOT NULL",
    "SELECT lease_release_many(ARRAY['NAME'], ARRAY[token]) FROM idgen.leases WHERE token IS NOT NULL",
    "SELECT lease_revoke('NAME', 0)",
    "SELECT lease_drop('NAME')",
    "SELECT lock_acquire('NAME'), lock_try_acquire_many('{a,b}'), lock_release('NAME'), lock_release_many('{a,b}')",
    "SELECT public_id_define('NAME', 'long'), public_id_rotate('NAME'), public_id_grant('NAME', 'app')",
    "SELECT public_id_decode('NAME', public_id('NAME', 5)), public_id_retire('NAME', 1), public_id_drop('NAME')",
    "SELECT snowflake_next(), snowflake_settled(), uuidv7_next(), snowflake_parts(snowflake_next())",
    "SELECT idgen.status(), (SELECT count(*) FROM idgen.locks), (SELECT count(*) FROM idgen.stat_segment)",
    "CREATE TEMP TABLE adopted (id bigserial PRIMARY KEY); SELECT snowflake_adopt('adopted', dry_run => false)",
];

/// Plants objects that hide PostgreSQL's. Those that can run record the role that runs them.
fn plant(planter: &mut Client) {
    let trap = |name: &str, arguments: &str, what: &str| {
        format!(
            "CREATE FUNCTION planted.{name}({arguments}) RETURNS pg_catalog.bool LANGUAGE plpgsql
             AS 'BEGIN INSERT INTO public.caught VALUES (current_user, ''{what}''); RETURN true; END'"
        )
    };
    execute(planter, "CREATE SCHEMA planted; GRANT USAGE ON SCHEMA planted TO PUBLIC");
    for function in FUNCTIONS {
        let (name, arguments) = function.strip_suffix(')').and_then(|call| call.split_once('(')).expect("NAME(TYPES)");
        execute(planter, &trap(name, arguments, function));
    }
    for relation in RELATIONS {
        execute(planter, &format!("CREATE TABLE planted.{relation} AS SELECT 1 AS nothing"));
    }
    for name in TYPES {
        execute(planter, &trap("op", &format!("pg_catalog.{name}, pg_catalog.{name}"), &format!("operator of {name}")));
        execute(planter, &trap("checked", &format!("pg_catalog.{name}"), &format!("domain {name}")));
        let domain = format!("CREATE DOMAIN planted.{name} AS pg_catalog.{name} CHECK (planted.checked(VALUE))");
        execute(planter, &domain);
        for operator in OPERATORS {
            let both = format!("FUNCTION = planted.op, LEFTARG = pg_catalog.{name}, RIGHTARG = pg_catalog.{name}");
            execute(planter, &format!("CREATE OPERATOR planted.{operator} ({both})"));
        }
    }
}

/// Also if the search path of all sessions, and so of background workers, begins with the schema of these objects.
#[test]
fn nothing_that_a_role_planted_runs_with_other_rights_than_its_own() {
    let (cluster, [mut dba]) = Cluster::builder().conf("statement_timeout", "1min").start_with_clients();
    execute(
        &mut dba,
        "CREATE ROLE app; CREATE ROLE planter LOGIN; GRANT CREATE ON DATABASE postgres TO planter;
         GRANT EXECUTE ON FUNCTION segment_create, lease_define, worker_pool_define, public_id_define TO planter;
         CREATE TABLE caught (who text, what text); GRANT INSERT ON caught TO PUBLIC",
    );
    plant(&mut cluster.client_as("postgres", "planter"));
    execute(&mut dba, "ALTER DATABASE postgres SET search_path = planted, pg_catalog, public, pg_temp");
    for role in ["planter", "postgres"] {
        let mut client = cluster.client_as("postgres", role);
        for call in CALLS {
            execute(&mut client, &call.replace("NAME", &format!("of_{role}")));
        }
    }
    let caught = "SELECT pg_catalog.count(*) FROM caught";
    let ran = "SELECT COALESCE(pg_catalog.string_agg(DISTINCT caught::pg_catalog.text, ', '), '') FROM caught";
    assert_eq!(value::<String>(&mut dba, ran), "");
    // The control.
    let mut victim = cluster.client();
    execute(&mut victim, "SELECT 1 + 1, now(), 'a'::text");
    assert_eq!(value::<i64>(&mut victim, caught), 3);
}

/// Something else answers in place of the coordinator: here it has no certificate at all.
#[test]
fn server_without_the_certificate_grants_nothing() {
    let (impostor, server) = (Cluster::builder().start_with_extension(), Cluster::builder().start_with_extension());
    impostor.execute("SELECT segment_create('t')");
    let proxy = Proxy::on_tcp(&impostor);
    let mut client = server.client();
    let follow = |client: &mut Client, tls: &str| {
        server.reload_with("idgen.coordinator", &format!("{} {tls}", proxy.conninfo()));
        execute(client, "SELECT segment_attach('t'); SET idgen.segment_timeout = '1s'");
    };
    follow(&mut client, "sslmode=verify-full sslrootcert=/etc/passwd");
    let error = expect_error(&mut client, "SELECT segment_next('t')", "55P03");
    assert!(error.detail().is_some_and(|detail| detail.contains("SSL")), "{error:?}");
    execute(&mut client, "SELECT segment_drop('t')");
    follow(&mut client, "");
    // The control.
    execute(&mut client, "SET idgen.segment_timeout = '1min'");
    assert_eq!(value::<i64>(&mut client, "SELECT segment_next('t')"), 1);
}
