//! Ranges that become invalid: every drawing session notices a changed, dropped or copied tag.

use idgen_testkit::Cluster;
use idgen_testkit::segment::{create, draw, next};
use idgen_testkit::sql::{column, execute, expect_error, in_new_database, value};
use postgres::Client;

use crate::max_id;

/// Two sessions that draw from a tag, one with a prepared statement.
struct Sessions {
    prepared: Client,
    plain: Client,
}

impl Sessions {
    fn of(cluster: &Cluster) -> Sessions {
        let mut prepared = cluster.client();
        execute(&mut prepared, "SET plan_cache_mode = force_generic_plan; PREPARE n AS SELECT segment_next('t')");
        Sessions { prepared, plain: cluster.client() }
    }

    fn draw(&mut self) -> [i64; 2] {
        [value(&mut self.prepared, "EXECUTE n"), next(&mut self.plain, "t")]
    }

    fn expect_error(&mut self, code: &str) {
        expect_error(&mut self.prepared, "EXECUTE n", code);
        expect_error(&mut self.plain, &draw("t"), code);
    }
}

#[test]
fn change_takes_effect_at_the_next_value() {
    let cluster = Cluster::builder().start_with_extension();
    let (mut dba, mut sessions) = (cluster.client(), Sessions::of(&cluster));
    create(&mut dba, "t", "");
    assert_eq!(sessions.draw(), [1, 2]);
    execute(&mut dba, "SELECT segment_alter('t', max_id => 5000)");
    assert_eq!(sessions.draw(), [5001, 5002]);
    execute(&mut dba, "UPDATE idgen.segment SET max_id = 20000");
    assert_eq!(sessions.draw(), [20001, 20002]);

    // Moving max_id back is rejected and changes nothing.
    let max = max_id(&mut dba, "t");
    for sql in ["UPDATE idgen.segment SET max_id = max_id - 1", "SELECT segment_alter('t', max_id => 20002)"] {
        let error = expect_error(&mut dba, sql, "22023");
        assert_eq!(error.detail(), Some(format!("Values up to {max} may have been handed out.").as_str()));
    }
    // The trigger ignores updates of its own columns.
    execute(&mut dba, "UPDATE idgen.segment SET creation = 1, version = 1, created_in = 1, changed_in = 1");
    assert_eq!(sessions.draw(), [20003, 20004]);

    // A rolled-back change has no effect.
    execute(&mut dba, "BEGIN; SELECT segment_alter('t', max_id => 1000000); ROLLBACK");
    assert_eq!(sessions.draw(), [20005, 20006]);
    execute(&mut dba, "UPDATE idgen.segment SET stride = 10, residue = 7");
    assert_eq!(sessions.draw(), [max + 7, max + 17]);

    // Values in the ring above the new bound are not issued.
    let max = max_id(&mut dba, "t");
    execute(&mut dba, &format!("SELECT segment_alter('t', max_id => {}, upper_bound => {})", max + 20, max + 21));
    sessions.expect_error("2200H");
    execute(&mut dba, "SELECT segment_alter('t', upper_bound => 1000000)");
    assert_eq!(sessions.draw(), [max + 30, max + 40]);
}

#[test]
fn recreated_tag_starts_over() {
    let cluster = Cluster::builder().start_with_extension();
    let (mut dba, mut sessions) = (cluster.client(), Sessions::of(&cluster));
    create(&mut dba, "t", "");
    assert_eq!(sessions.draw(), [1, 2]);
    execute(&mut dba, "SELECT segment_drop('t')");
    sessions.expect_error("42704");
    create(&mut dba, "t", ", 300");
    assert_eq!(sessions.draw(), [300, 301]);
    execute(&mut dba, "BEGIN; SELECT segment_drop('t'); SELECT segment_create('t', 50); COMMIT");
    assert_eq!(sessions.draw(), [50, 51]);
    execute(&mut dba, "BEGIN; SELECT segment_drop('t'); ROLLBACK");
    assert_eq!(sessions.draw(), [52, 53]);
    execute(&mut dba, "DELETE FROM idgen.segment; INSERT INTO idgen.segment (tag, owner) VALUES ('t', 'postgres')");
    assert_eq!(sessions.draw(), [1, 2]);

    // A renamed tag continues.
    execute(&mut dba, "UPDATE idgen.segment SET tag = 'renamed'");
    sessions.expect_error("42704");
    assert_eq!(next(&mut dba, "renamed"), 3);
    execute(&mut dba, "UPDATE idgen.segment SET tag = 't'");
    assert_eq!(sessions.draw(), [4, 5]);

    execute(&mut dba, "TRUNCATE idgen.segment");
    sessions.expect_error("42704");
    create(&mut dba, "t", "");
    assert_eq!(sessions.draw(), [1, 2]);
}

/// A statement that draws while others change the segment: a cursor that is fetched in pieces.
struct Statement(Client);

impl Statement {
    fn begin(cluster: &Cluster) -> Statement {
        let mut client = cluster.client();
        let cursor = "DECLARE c CURSOR FOR SELECT segment_next('t') FROM generate_series(1, 100000)";
        execute(&mut client, &format!("BEGIN; {cursor}"));
        Statement(client)
    }

    fn fetch(&mut self) -> [i64; 2] {
        column(&mut self.0, "FETCH 2 FROM c").try_into().expect("two values")
    }
}

#[test]
fn running_statement_draws_nothing_from_a_dropped_segment_smoke() {
    let (cluster, [mut dba]) = Cluster::builder().start_with_clients();
    create(&mut dba, "t", "");
    let mut running = Statement::begin(&cluster);
    assert_eq!(running.fetch(), [1, 2]);
    execute(&mut dba, "SELECT segment_drop('t'); SELECT segment_create('t', 5000)");
    assert_eq!(running.fetch(), [5000, 5001]);
    execute(&mut dba, "BEGIN; SELECT segment_drop('t'); SELECT segment_create('t', 7000); COMMIT");
    assert_eq!(running.fetch(), [7000, 7001]);
    // A rolled-back drop loses no values.
    for undone in [
        "BEGIN; SELECT segment_drop('t'); ROLLBACK",
        "BEGIN; SAVEPOINT s; SELECT segment_drop('t'); ROLLBACK TO s; COMMIT",
        "BEGIN; SAVEPOINT s; SELECT segment_alter('t', stride => 2); ROLLBACK TO s; COMMIT",
    ] {
        let next = running.fetch()[1] + 1;
        execute(&mut dba, undone);
        assert_eq!(running.fetch()[0], next, "{undone}");
    }
    execute(&mut dba, "BEGIN; SAVEPOINT s; SELECT segment_drop('t'); RELEASE s; COMMIT");
    expect_error(&mut running.0, "FETCH 2 FROM c", "42704");
}

#[test]
fn running_statement_follows_a_change_at_the_next_value() {
    let (cluster, [mut dba]) = Cluster::builder().start_with_clients();
    create(&mut dba, "t", "");
    let mut running = Statement::begin(&cluster);
    assert_eq!(running.fetch(), [1, 2]);
    execute(&mut dba, "SELECT segment_alter('t', max_id => 5000)");
    assert_eq!(running.fetch(), [5001, 5002]);
    execute(&mut dba, "SELECT segment_alter('t', max_id => 10000, stride => 10, residue => 7)");
    assert_eq!(running.fetch(), [10007, 10017]);
    // Neither the step nor a grant affects the values.
    execute(&mut dba, "SELECT segment_alter('t', max_step => 5000000); SELECT segment_grant('t', 'public')");
    assert_eq!(running.fetch(), [10027, 10037]);
    let max = max_id(&mut dba, "t");
    execute(&mut dba, &format!("SELECT segment_alter('t', upper_bound => {max})"));
    expect_error(&mut running.0, "FETCH 2 FROM c", "2200H");
}

/// At that point the table's trigger has already announced the change.
#[test]
fn change_suppressed_by_another_trigger_leaves_the_segment_usable() {
    let (cluster, [mut dba]) = Cluster::builder().start_with_clients();
    create(&mut dba, "t", "");
    let mut running = Statement::begin(&cluster);
    assert_eq!(running.fetch(), [1, 2]);
    execute(
        &mut dba,
        "CREATE FUNCTION suppress() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER suppress BEFORE UPDATE OF stride OR DELETE ON idgen.segment FOR EACH ROW EXECUTE FUNCTION suppress()",
    );
    for suppressed in ["SELECT segment_alter('t', stride => 10)", "SELECT segment_drop('t')"] {
        let last = running.fetch()[1];
        execute(&mut dba, suppressed);
        let [first, second] = running.fetch();
        assert!(first > last && second == first + 1, "{suppressed}: {first}, {second} after {last}");
        assert_eq!(next(&mut cluster.client(), "t"), second + 1);
    }
}

/// What keeps each row of a table as it is.
pub(crate) fn keep_rows(table: &str, body: &str) -> String {
    format!(
        "CREATE OR REPLACE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {body}; END';
         CREATE OR REPLACE TRIGGER zz BEFORE INSERT OR UPDATE ON idgen.{table} FOR EACH ROW EXECUTE FUNCTION keep()"
    )
}

/// Otherwise each refill would take the same values.
#[test]
fn values_that_a_trigger_keeps_out_of_the_row_are_not_handed_out() {
    let (_cluster, [mut dba]) = Cluster::builder().start_with_clients();
    execute(&mut dba, "SET idgen.segment_timeout = '1s'");
    const PREVENTED: &str = "could not record values of segment";
    for body in ["RETURN NULL", "RETURN OLD", "NEW.max_id := OLD.max_id; RETURN NEW"] {
        create(&mut dba, "t", "");
        let body = format!("IF TG_OP = ''INSERT'' THEN RETURN NEW; END IF; {body}");
        execute(&mut dba, &keep_rows("segment", &body));
        let error = expect_error(&mut dba, &draw("t"), "55P03");
        assert!(error.detail().is_some_and(|detail| detail.starts_with(PREVENTED)), "{body}: {error:?}");
        // The commit raises the row of a tag that the transaction has created.
        execute(&mut dba, "BEGIN; SELECT segment_create('new'); SELECT segment_next('new')");
        let request = "SELECT segment_request('t', 1, 'one', 0, 10)";
        for sql in ["COMMIT", request] {
            let error = expect_error(&mut dba, sql, "55000");
            assert!(error.message().starts_with(PREVENTED), "{body}: {error:?}");
        }
        execute(&mut dba, "DROP TRIGGER zz ON idgen.segment");
        // A server that no failover would wait for.
        execute(&mut dba, &keep_rows("segment_server", "RETURN NULL"));
        let error = expect_error(&mut dba, request, "55000");
        assert!(error.message().starts_with(PREVENTED), "{body}: {error:?}");
        execute(&mut dba, "DROP TRIGGER zz ON idgen.segment_server");
        assert_eq!(next(&mut dba, "t"), 1);
        execute(&mut dba, "SELECT segment_drop('t')");
    }
    create(&mut dba, "t", "");
    execute(&mut dba, "CREATE RULE kept AS ON UPDATE TO idgen.segment DO INSTEAD NOTHING");
    let error = expect_error(&mut dba, &draw("t"), "55P03");
    assert!(error.detail().is_some_and(|detail| detail.contains("cannot perform UPDATE RETURNING")), "{error:?}");
    execute(&mut dba, "DROP RULE kept ON idgen.segment");
    assert_eq!(next(&mut dba, "t"), 1);
}

#[test]
fn recreated_extension_starts_over() {
    let cluster = Cluster::builder().start_with_extension();
    let (mut dba, mut sessions) = (cluster.client(), Sessions::of(&cluster));
    for first in [1, 70] {
        create(&mut dba, "t", &format!(", {first}"));
        assert_eq!(sessions.draw(), [first, first + 1]);
        execute(&mut dba, "DROP EXTENSION idgen; CREATE EXTENSION idgen");
        sessions.expect_error("42704");
    }
    create(&mut dba, "t", ", 7");
    execute(&mut dba, "BEGIN; DROP EXTENSION idgen; CREATE EXTENSION idgen; SELECT segment_create('t', 9); COMMIT");
    assert_eq!(sessions.draw(), [9, 10]);
}

#[test]
fn recreated_database_has_its_own_values() {
    let cluster = Cluster::builder().start_with_extension();
    for first in [1, 40] {
        let mut client = in_new_database(&cluster, "shop");
        create(&mut client, "t", &format!(", {first}"));
        assert_eq!(next(&mut client, "t"), first);
        drop(client);
        cluster.execute("DROP DATABASE shop");
    }
}
