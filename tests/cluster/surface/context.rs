//! The ways in which SQL calls a function.

use fastrand::Rng;
use idgen_testkit::sql::{expect_error, value};

use crate::call::Call;
use crate::session::{Answer, Held, Rows, Session, Statement};

#[derive(Clone, Copy, Debug)]
pub enum Context {
    Plain,
    /// With the command that begins the block.
    Block(&'static str),
    Savepoint,
    /// With the mode of the plan cache.
    Prepared(&'static str),
    Cursor,
    HoldCursor,
    Parallel,
    /// In PL/pgSQL, with an exception block.
    Caught,
    /// In a transaction that has failed.
    Aborted,
    /// Another session cancels the call.
    Cancelled,
    /// Once for each of several rows.
    Rows,
    /// For each of so many rows that a cancel comes in the middle.
    CancelledRows,
    /// As the source of an INSERT.
    Insert,
}

/// The last one is not for a PostgreSQL with assertions: it has one that fails when an exception is caught in a commit.
pub const CONTEXTS: [Context; 18] = [
    Context::Plain,
    Context::Block("BEGIN"),
    Context::Block("BEGIN ISOLATION LEVEL REPEATABLE READ"),
    Context::Block("BEGIN ISOLATION LEVEL SERIALIZABLE"),
    Context::Block("BEGIN READ ONLY"),
    Context::Block("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE"),
    Context::Savepoint,
    Context::Prepared("force_generic_plan"),
    Context::Prepared("force_custom_plan"),
    Context::Cursor,
    Context::Parallel,
    Context::Caught,
    Context::Aborted,
    Context::Cancelled,
    Context::CancelledRows,
    Context::Rows,
    Context::Insert,
    Context::HoldCursor,
];

/// What the contexts need in the database.
pub const SETUP: &str = "
    CREATE TABLE scratch (value text);
    GRANT ALL ON scratch TO PUBLIC;
    CREATE FUNCTION many(count int) RETURNS text[] IMMUTABLE LANGUAGE sql
        RETURN (SELECT array_agg('n' || i) FROM generate_series(1, count) AS i);
    -- The SQLSTATE of a statement. OTHERS does not include a cancel.
    CREATE FUNCTION caught(statement text) RETURNS text LANGUAGE plpgsql AS $$
    BEGIN
        EXECUTE statement;
        RETURN '00000';
    EXCEPTION WHEN OTHERS THEN
        RETURN SQLSTATE || ' ' || SQLERRM;
    END $$";

impl Context {
    /// Makes the call. Returns the rows of the statements that succeeded.
    pub fn run(self, session: &mut Session, call: &Call, rng: &mut Rng) -> Rows {
        let sql = call.sql();
        let statement = Statement {
            may_wait: call.may_wait,
            answer: call.answer,
            all_or_nothing: call.may_hold,
            ..Statement::new(&sql)
        };
        let in_block = Statement { recovery: "ROLLBACK", ..statement };
        let before = session.held();
        let mut rows = Rows::new();
        match self {
            Context::Plain => rows.extend(session.attempt(statement).into_iter().flatten()),
            Context::Block(begin) => {
                session.frame(begin);
                rows.extend(session.attempt(in_block).into_iter().flatten());
                finish(session, rng, &before);
            }
            Context::Savepoint => {
                session.frame("BEGIN; SAVEPOINT s");
                let undo = Statement { recovery: "ROLLBACK TO s", ..statement };
                rows.extend(session.attempt(undo).into_iter().flatten());
                session.frame(if rng.bool() { "ROLLBACK TO s" } else { "RELEASE s" });
                finish(session, rng, &before);
            }
            Context::Prepared(mode) => {
                let (query, types, values) = call.prepared();
                session.frame(&format!("SET plan_cache_mode = {mode}; PREPARE p{types} AS {query}"));
                for _ in 0..2 {
                    let execute = format!("EXECUTE p{values}");
                    rows.extend(session.attempt(Statement { sql: &execute, ..statement }).into_iter().flatten());
                }
                session.frame("DEALLOCATE p; RESET plan_cache_mode");
            }
            Context::Cursor => {
                session.frame("BEGIN");
                let declare = format!("DECLARE c CURSOR FOR {sql}");
                let steps = [declare.as_str(), "FETCH 2 FROM c", "FETCH 2 FROM c", "MOVE 1 FROM c"];
                steps.into_iter().all(|sql| extend(&mut rows, session, Statement { sql, ..in_block }));
                finish(session, rng, &before);
            }
            Context::HoldCursor => {
                session.frame("BEGIN");
                let declare = format!("DECLARE c CURSOR WITH HOLD FOR {sql}");
                // The commit runs the query, and PostgreSQL's timeouts of statements have ended before.
                let commit = Statement { sql: "COMMIT", cancelled: call.may_wait, answer: Answer::Rows, ..in_block };
                let fetch = Statement { sql: "FETCH ALL FROM c", ..in_block };
                let steps = [Statement { sql: &declare, cancelled: false, ..commit }, commit, fetch];
                steps.into_iter().all(|step| extend(&mut rows, session, step));
                session.frame("CLOSE ALL");
            }
            Context::Parallel => {
                let setting = session.parallel_setting;
                session.frame(&format!("SET {setting} = on"));
                rows.extend(session.attempt(statement).into_iter().flatten());
                session.frame(&format!("RESET {setting}"));
            }
            Context::Caught => {
                let sql = format!("SELECT caught($fuzz${sql}$fuzz$)");
                session.attempt(Statement { sql: &sql, answer: Answer::Caught, ..statement });
            }
            Context::Aborted => aborted(session, &sql),
            Context::Cancelled => {
                rows.extend(session.attempt(Statement { cancelled: true, ..statement }).into_iter().flatten());
            }
            Context::CancelledRows => {
                let sql = format!("SELECT count(*) FROM ({} OFFSET 0) AS calls", call.per_row(100_000_000));
                session.attempt(Statement { sql: &sql, cancelled: true, all_or_nothing: false, ..statement });
            }
            Context::Rows => {
                let each = Statement { sql: &call.per_row(3), all_or_nothing: false, ..statement };
                session.attempt(each);
            }
            Context::Insert => {
                let sql = format!("INSERT INTO scratch SELECT call::text FROM ({sql}) AS call");
                session.attempt(Statement { sql: &sql, answer: Answer::Rows, ..statement });
            }
        }
        rows
    }
}

/// Runs one of several statements. False if it failed, so that the others are left out.
fn extend(rows: &mut Rows, session: &mut Session, statement: Statement) -> bool {
    let answer = session.attempt(statement);
    let succeeded = answer.is_some();
    rows.extend(answer.into_iter().flatten());
    succeeded
}

/// Ends a block, if it is still open. If that is refused, the session holds what it held before the block.
fn finish(session: &mut Session, rng: &mut Rng, before: &Held) {
    let end = ["ROLLBACK", "PREPARE TRANSACTION 'fuzz'", "COMMIT", "COMMIT"][rng.usize(..4)];
    // A rollback brings back what the block has released.
    let ended = session.attempt(Statement { all_or_nothing: false, ..Statement::new(end) });
    if ended.is_none() {
        session.assert_nothing_added(before);
    }
    let prepared = "SELECT count(*) FROM pg_prepared_xacts WHERE gid = 'fuzz'";
    if value::<i64>(&mut session.client, prepared) == 1 {
        session.frame(if rng.bool() { "COMMIT PREPARED 'fuzz'" } else { "ROLLBACK PREPARED 'fuzz'" });
    }
}

fn aborted(session: &mut Session, sql: &str) {
    expect_error(&mut session.client, "BEGIN; SELECT 1 / 0", "22012");
    expect_error(&mut session.client, sql, "25P02");
    session.frame("ROLLBACK");
}
