//! Direct statements on the relations of the extension, and on tables with its triggers.

use fastrand::Rng;
use postgres::{Client, Row};

use crate::call::Call;
use crate::catalog::Relation;
use crate::session::{Session, Statement};
use crate::values::{Known, Values};

/// A table for each use of the trigger functions, right or wrong. Column `version` is a bigint in `big`.
pub const SETUP: &str = "
    DO $$
    DECLARE
        name text; event text; level text; call text;
    BEGIN
        FOR name, event, level, call IN VALUES
            ('versioned', 'BEFORE UPDATE', 'ROW', 'row_version(version)'),
            ('big', 'BEFORE UPDATE', 'ROW', 'row_version(version)'),
            ('text_version', 'BEFORE UPDATE', 'ROW', 'row_version(body)'),
            ('no_column', 'BEFORE UPDATE', 'ROW', 'row_version('''', ''x'')'),
            ('after_row', 'AFTER INSERT OR UPDATE OR DELETE', 'ROW', 'row_version(version)'),
            ('per_statement', 'BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE', 'STATEMENT', 'row_version(version)'),
            ('guarded', 'BEFORE INSERT OR UPDATE OR DELETE', 'ROW', 'lease_guard(lease)'),
            ('guarded_whole', 'BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE', 'STATEMENT', 'lease_guard(lease)'),
            ('guarded_after', 'AFTER INSERT OR UPDATE OR DELETE', 'ROW', 'lease_guard(lease)'),
            ('guarded_by_nothing', 'BEFORE INSERT OR UPDATE', 'ROW', 'lease_guard()'),
            ('segment_like', 'BEFORE INSERT OR UPDATE', 'ROW', 'idgen.segment_row()'),
            ('definition_like', 'AFTER INSERT OR UPDATE', 'ROW', 'idgen.lease_definition_changed()')
        LOOP
            EXECUTE format('CREATE TABLE %I (version %s)', name, CASE name WHEN 'big' THEN 'bigint' ELSE 'int' END);
            EXECUTE format('ALTER TABLE %I ADD body text', name);
            EXECUTE format('CREATE TRIGGER t %s ON %I FOR EACH %s EXECUTE FUNCTION %s', event, name, level, call);
        END LOOP;
    END $$;
    GRANT ALL ON ALL TABLES IN SCHEMA public TO ordinary;
    INSERT INTO versioned VALUES (1, 'x');
    INSERT INTO big VALUES (1, 'x');
    INSERT INTO text_version VALUES (1, 'x');
    INSERT INTO no_column VALUES (1, 'x');";

/// The tables of [`SETUP`].
pub fn triggered(client: &mut Client) -> Vec<Relation> {
    let tables = "SELECT tgrelid::regclass::text, format_type(atttypid, NULL) FROM pg_trigger
                  JOIN pg_attribute ON attrelid = tgrelid AND attname = 'version' WHERE tgname = 't' ORDER BY tgrelid";
    let rows = client.query(tables, &[]).unwrap_or_else(|error| panic!("{tables}: {error:?}"));
    let table = |row: &Row| Relation {
        qualified: row.get(0),
        columns: vec![("version".to_owned(), row.get(1)), ("body".to_owned(), "text".to_owned())],
    };
    rows.iter().map(table).collect()
}

/// PostgreSQL's own answers to a direct statement: of constraints, types and views.
const OF_POSTGRESQL: [&str; 6] = ["22P02", "23502", "23505", "23514", "428C9", "42809"];

#[derive(Clone, Copy, PartialEq)]
pub enum Verb {
    Select,
    Lock,
    Insert,
    Update,
    Delete,
    Truncate,
}

pub const VERBS: [Verb; 6] = [Verb::Select, Verb::Lock, Verb::Insert, Verb::Update, Verb::Delete, Verb::Truncate];

impl Verb {
    /// A statement on a relation, with a random value in one of its columns.
    pub fn statement(self, relation: &Relation, known: &Known, rng: &mut Rng) -> String {
        let (column, type_name) = &relation.columns[rng.usize(..relation.columns.len())];
        let value = Values::new(rng, known, "").of(column, type_name);
        let relation = &relation.qualified;
        match self {
            Verb::Select => format!("SELECT * FROM {relation} WHERE {column} IS DISTINCT FROM {value}"),
            Verb::Lock => format!("SELECT * FROM {relation} FOR UPDATE"),
            Verb::Insert => format!("INSERT INTO {relation} ({column}) VALUES ({value})"),
            Verb::Update => format!("UPDATE {relation} SET {column} = {value}"),
            Verb::Delete => format!("DELETE FROM {relation}"),
            Verb::Truncate => format!("TRUNCATE {relation}"),
        }
    }
}

/// Runs a direct statement in a subtransaction of the open block. True if it succeeded.
pub fn attempt(session: &mut Session, sql: &str) -> bool {
    session.frame("SAVEPOINT s");
    let statement = Statement { allowed: &OF_POSTGRESQL, ..Statement::new(sql) };
    session.attempt(Statement { recovery: "ROLLBACK TO s", all_or_nothing: false, ..statement }).is_some()
}

/// Makes a call in the same way. It may meet a row that no function has written.
pub fn attempt_call(session: &mut Session, call: &Call) {
    session.frame("SAVEPOINT s");
    let sql = call.sql();
    let statement = Statement { may_wait: call.may_wait, ..Statement::new(&sql) };
    session.attempt(Statement { recovery: "ROLLBACK TO s", all_or_nothing: false, ..statement });
}
