//! Every text that idgen reads and returns, in databases with other encodings than UTF-8.

use idgen_testkit::sql::{column, execute, expect_error, hint, row, value};
use idgen_testkit::{Cluster, private_dir};
use postgres::Client;
use std::process::Command;

/// Database encodings, each with a word that it can represent.
const WORDS: [(&str, &str); 4] =
    [("UTF8", "Müller"), ("LATIN1", "Müller"), ("EUC_JP", "山田"), ("SQL_ASCII", "Müller")];

/// A session in a new database with this encoding. The client encoding is UTF-8.
fn database(cluster: &Cluster, encoding: &str) -> Client {
    let name = encoding.to_lowercase();
    cluster.execute(&format!(
        "CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    ));
    let mut client = cluster.client_in(&name);
    execute(&mut client, "CREATE EXTENSION idgen");
    client
}

/// Runs a test in a database of each encoding.
fn in_each(test: impl Fn(&Cluster, &mut Client, &str)) {
    let cluster = Cluster::start();
    for (encoding, word) in WORDS {
        test(&cluster, &mut database(&cluster, encoding), word);
    }
}

#[test]
fn lock_key_is_the_same_in_every_encoding() {
    let cluster = Cluster::start();
    let key = |encoding, word| value::<i64>(&mut database(&cluster, encoding), &format!("SELECT lock_key('{word}')"));
    assert_eq!(key("UTF8", "Müller"), key("LATIN1", "Müller"));
    assert_eq!(key("LATIN9", "Müller"), key("SQL_ASCII", "Müller"));
}

#[test]
fn named_locks_work_in_every_encoding() {
    in_each(|_, client, word| {
        execute(client, &format!("SELECT lock_acquire('{word}'), lock_acquire_many(ARRAY['{word}', '{word} 2'])"));
        // A different text in each call.
        execute(client, &format!("SELECT lock_acquire(name) FROM (VALUES ('{word}'), ('{word} 3')) AS list (name)"));
        assert_eq!(
            column::<String>(client, "SELECT name FROM idgen.locks ORDER BY name"),
            [word.to_owned(), format!("{word} 2"), format!("{word} 3")]
        );
        assert!(value::<bool>(client, &format!("SELECT lock_release_many(ARRAY['{word}', '{word} 2', '{word} 3'])")));
        assert!(value::<bool>(client, &format!("SELECT lock_release('{word}') AND lock_release('{word}')")));
        assert!(!value::<bool>(client, &format!("SELECT lock_release('{word}')")));
    });
}

#[test]
fn leases_work_in_every_encoding_smoke() {
    in_each(|cluster, client, word| {
        execute(client, &format!("SELECT lease_define('{word}', 2)"));
        let granted = row(
            client,
            &format!(
                "SELECT name, owner, token FROM lease_try_acquire('{word}', owner => '{word}', data => '\"{word}\"')"
            ),
        );
        assert_eq!((granted.get::<_, String>(0), granted.get::<_, String>(1)), (word.to_owned(), word.to_owned()));
        let token: i64 = granted.get(2);
        let shown = row(client, "SELECT name, owner, data #>> '{}' FROM idgen.leases WHERE state = 'held'");
        assert_eq!([0, 1, 2].map(|index| shown.get::<_, String>(index)), [word; 3]);
        let renewed = format!("SELECT name FROM lease_renew_many(ARRAY['{word}'], ARRAY[{token}])");
        assert_eq!(column::<String>(client, &renewed), [word]);
        execute(client, &format!("SELECT lease_renew('{word}', {token}), lease_fence('{word}', {token})"));
        let stale = expect_error(client, &format!("SELECT lease_renew('{word}', 1)"), "55000");
        assert!(hint(&stale).starts_with("Stop the work"), "{stale:?}");
        expect_error(client, &format!("SELECT lease_drop('{word}')"), "55006");
        assert!(value::<bool>(client, &format!("SELECT lease_revoke('{word}')")));
        execute(client, &format!("SELECT lease_drop('{word}')"));
        expect_error(client, &format!("SELECT lease_drop('{word}')"), "42704");
        // The check for holders since the snapshot searches by name.
        execute(client, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT");
        let holder = &mut cluster.client_in(&value::<String>(client, "SELECT current_database()"));
        let token: i64 = value(holder, &format!("SELECT token FROM lease_acquire('{word}')"));
        execute(holder, &format!("SELECT lease_release('{word}', {token})"));
        expect_error(client, &format!("SELECT lease_acquire('{word}')"), "40001");
        execute(client, "ROLLBACK");
    });
}

#[test]
fn segments_work_in_every_encoding() {
    in_each(|_, client, word| {
        execute(client, &format!("CREATE ROLE \"{word}\""));
        execute(client, &format!("SELECT segment_create('{word}'), segment_grant('{word}', '{word}')"));
        assert_eq!(value::<i64>(client, &format!("SELECT segment_next('{word}')")), 1);
        let drawn = format!("SELECT segment_next(tag) FROM (VALUES ('{word}'), ('{word}')) AS list (tag)");
        assert_eq!(column::<i64>(client, &drawn), [2, 3]);
        assert_eq!(column::<i64>(client, &format!("SELECT segment_next_many('{word}', 2)")), [4, 5]);
        assert_eq!(column::<String>(client, "SELECT tag FROM idgen.stat_segment"), [word]);
        expect_error(client, &format!("SELECT segment_next('{word} 2')"), "42704");
        expect_error(client, &format!("SELECT segment_create('{word}')"), "42710");
        expect_error(client, &format!("SELECT segment_grant('{word}', '{word} 2')"), "42704");
        let lowered = format!("UPDATE idgen.segment SET max_id = 1 WHERE tag = '{word}'");
        expect_error(client, &lowered, "22023");
        execute(client, &format!("SELECT segment_alter('{word}', step => 2000, owner => '{word}')"));
        execute(client, &format!("SELECT segment_revoke('{word}', '{word}'), segment_drop('{word}')"));
        execute(client, &format!("DROP ROLE \"{word}\""));
    });
}

/// In REPEATABLE READ, a write runs in a subtransaction, and its error is caught and raised again.
#[test]
fn errors_of_writes_are_those_of_postgresql_in_every_encoding() {
    in_each(|_, client, word| {
        execute(
            client,
            &format!(
                "SELECT segment_create('t');
                 ALTER TABLE idgen.segment ADD CONSTRAINT \"{word}\" CHECK (step < 5000)"
            ),
        );
        for level in ["READ COMMITTED", "REPEATABLE READ"] {
            execute(client, &format!("BEGIN ISOLATION LEVEL {level}"));
            let error = expect_error(client, "SELECT segment_alter('t', step => 6000)", "23514");
            assert_eq!((error.constraint(), error.table()), (Some(word), Some("segment")), "{level}: {error:?}");
            assert!(error.message().contains(word), "{level}: {error:?}");
            assert!(error.detail().is_some_and(|detail| detail.starts_with("Failing row")), "{level}: {error:?}");
            assert!(
                error.where_().is_some_and(|context| context.contains("UPDATE idgen.segment")),
                "{level}: {error:?}"
            );
            execute(client, "ROLLBACK");
        }
    });
}

/// The write of a trigger has a subtransaction within that of the write that has fired it. Names that point to freed memory are
/// wrong in a PostgreSQL with assertions; in others they may be right by chance.
#[test]
fn error_that_is_raised_again_twice_is_still_that_of_postgresql() {
    let cluster = Cluster::builder().start_with_extension();
    let (mut client, mut holder) = (cluster.client(), cluster.client());
    execute(
        &mut client,
        "SELECT segment_create('t');
         INSERT INTO idgen.segment_server (tag, server, name, max_id, history, reported_at) VALUES ('t', 1, 'gone', 5, '', now())",
    );
    execute(&mut holder, "BEGIN; SELECT FROM idgen.segment_server FOR UPDATE");
    execute(&mut client, "SET statement_timeout = '100ms'; BEGIN ISOLATION LEVEL REPEATABLE READ");
    let error = expect_error(&mut client, "SELECT segment_drop('t')", "57014");
    assert_eq!((error.file(), error.routine()), (Some("postgres.c"), Some("ProcessInterrupts")), "{error:?}");
    let context = error.where_().unwrap_or_default();
    assert!(
        context.contains("UPDATE idgen.segment_server") && context.contains("DELETE FROM idgen.segment"),
        "{context}"
    );
}

#[test]
fn triggers_work_in_every_encoding_smoke() {
    in_each(|_, client, word| {
        execute(
            client,
            &format!(
                "CREATE TABLE \"{word}\" (\"{word}\" text, \"{word} 2\" int NOT NULL DEFAULT 1);
                 CREATE TRIGGER version BEFORE UPDATE ON \"{word}\"
                     FOR EACH ROW EXECUTE FUNCTION row_version(\"{word} 2\");
                 CREATE TRIGGER guard BEFORE INSERT ON \"{word}\"
                     FOR EACH ROW EXECUTE FUNCTION lease_guard('{word}')"
            ),
        );
        expect_error(client, &format!("INSERT INTO \"{word}\" VALUES ('{word}')"), "55000");
        let token: i64 = value(client, &format!("SELECT token FROM lease_acquire('{word}')"));
        execute(
            client,
            &format!("BEGIN; SELECT lease_fence('{word}', {token}); INSERT INTO \"{word}\" VALUES ('{word}'); COMMIT"),
        );
        execute(client, &format!("UPDATE \"{word}\" SET \"{word}\" = 'new'"));
        assert_eq!(value::<i32>(client, &format!("SELECT \"{word} 2\" FROM \"{word}\"")), 2);
        expect_error(client, &format!("UPDATE \"{word}\" SET \"{word} 2\" = 1"), "40001");
    });
}

#[test]
fn text_forms_of_ids_reject_foreign_characters_in_every_encoding() {
    in_each(|_, client, word| {
        expect_error(client, &format!("SELECT snowflake_next('{word}')"), "22023");
        expect_error(client, &format!("SELECT snowflake_time(1, '{word}')"), "22023");
        expect_error(client, &format!("SELECT snowflake_encode(1, '{word}')"), "22023");
        expect_error(client, &format!("SELECT snowflake_decode('{word}', 'base58')"), "22023");
        expect_error(client, &format!("SELECT worker_acquire('{word}')"), "42704");
        assert!(value::<bool>(client, "SELECT snowflake_next() < snowflake_next()"));
    });
}

/// The setting is text of the configuration file, in UTF-8.
#[test]
fn server_leases_its_worker_id_from_a_pool_in_every_encoding() {
    let coordinator = Cluster::start();
    for (encoding, word) in WORDS {
        execute(&mut database(&coordinator, encoding), &format!("SELECT worker_pool_define('{word}', 0, 2)"));
        let conninfo = coordinator.connect_string(&encoding.to_lowercase(), "postgres");
        let builder = Cluster::builder().conf("idgen.worker_pool", word).conf("idgen.coordinator", &conninfo);
        let (_server, [mut client]) = builder.start_with_clients();
        assert!(value::<bool>(&mut client, "SELECT snowflake_next() < snowflake_next()"));
        assert_eq!(value::<String>(&mut client, "SELECT state FROM idgen.stat_worker"), "leased");
    }
}

/// SQL_ASCII accepts any bytes, but names in idgen are UTF-8.
#[test]
fn invalid_utf8_is_rejected_in_sql_ascii() {
    let cluster = Cluster::start();
    let mut client = database(&cluster, "SQL_ASCII");
    expect_error(&mut client, "SELECT lock_acquire(E'M\\374ller')", "22021");
    expect_error(&mut client, "SELECT lease_acquire(E'M\\374ller')", "22021");
    expect_error(&mut client, "SELECT segment_create(E'M\\374ller')", "22021");
    assert!(value::<bool>(&mut client, "SELECT lock_try_acquire('next')"));
}

/// Messages escape names to ASCII in other encodings, in a form that can be typed.
#[test]
fn message_shows_the_name_in_every_encoding() {
    let cluster = Cluster::start();
    for (encoding, name, shown) in [
        ("UTF8", "Müller", "Müller"),
        ("SQL_ASCII", "Müller", "Müller"),
        ("LATIN1", "Müller", r"M\u00FCller"),
        ("EUC_JP", "山田", r"\u5C71\u7530"),
    ] {
        let mut client = database(&cluster, encoding);
        let mut message = |sql: &str, code| expect_error(&mut client, sql, code).message().to_owned();
        let [segment, lease, lock] = [
            message(&format!("SELECT segment_next('{name}')"), "42704"),
            message(&format!("SELECT lease_fence('{name}', 1)"), "55000"),
            message(&format!("SELECT lock_acquire(repeat('{name}', 100))"), "22023"),
        ];
        assert_eq!(segment, format!("segment \"{shown}\" does not exist"), "{encoding}");
        assert!(lease.contains(&format!("\"{shown}\"")), "{encoding}: {lease}");
        assert_eq!(lock, format!("invalid name \"{}\"", shown.repeat(100)), "{encoding}");
    }
}

/// An identifier with escapes needs standard_conforming_strings, a literal with escapes does not.
#[test]
fn sql_of_a_hint_names_the_same_object_in_every_encoding() {
    in_each(|_, client, word| {
        let schema = format!("\"{word}\"");
        execute(client, &format!("DROP EXTENSION idgen; CREATE SCHEMA {schema}"));
        execute(client, &format!("CREATE EXTENSION idgen SCHEMA {schema}"));
        for setting in ["standard_conforming_strings = on", "standard_conforming_strings = off"] {
            for tag in [word.to_owned(), format!("{word}'s \\ {setting}")] {
                let draw = format!("SELECT {schema}.segment_next($tag${tag}$tag$)");
                let error = expect_error(client, &draw, "42704");
                let create =
                    hint(&error).strip_prefix("Create it with ").and_then(|create| create.split_once("; if it had"));
                let (create, _) = create.expect("a statement");
                execute(client, create);
                assert_eq!(value::<i64>(client, &draw), 1, "{create}");
                execute(client, &format!("SELECT {schema}.segment_drop($tag${tag}$tag$)"));
            }
            // For the second round.
            execute(client, &format!("SET search_path = {schema}; SET standard_conforming_strings = off"));
        }
    });
}

/// A character can have more bytes in EUC_JP than in UTF-8. The table counts these.
#[test]
fn length_of_a_name_counts_in_the_encoding_of_the_database() {
    let cluster = Cluster::start();
    let mut client = database(&cluster, "EUC_JP");
    for (call, message) in
        [("segment_create", "invalid tag"), ("lease_define", "invalid name"), ("worker_pool_define", "invalid name")]
    {
        execute(&mut client, &format!("SELECT {call}(repeat('é', 85))"));
        let error = expect_error(&mut client, &format!("SELECT {call}(repeat('é', 86))"), "22023");
        assert!(error.message().starts_with(message), "{error:?}");
        assert!(error.detail().is_some_and(|detail| detail.ends_with("and this has 258.")), "{error:?}");
    }
    // No table has the names of locks, and that of leases has any length.
    execute(&mut client, "SELECT lock_acquire(repeat('é', 127)), lease_acquire(repeat('é', 127))");
    assert_eq!(column::<String>(&mut client, "SELECT name FROM idgen.locks"), ["é".repeat(127)]);
}

/// The trigger ends each worker with a message of PostgreSQL, which has a letter of Latin 1 where it is translated.
#[test]
fn reason_of_a_worker_that_dies_is_reported_in_every_language() {
    let cluster = Cluster::start();
    let locales = private_dir();
    let german = locales.path().join("de_DE");
    let made = Command::new("localedef").args(["-i", "de_DE", "-f", "ISO-8859-1"]).arg(german).status();
    assert!(made.expect("localedef runs").success());
    cluster.set_env("LOCPATH", locales.path());
    cluster.restart();
    let mut client = database(&cluster, "LATIN1");
    execute(
        &mut client,
        "ALTER DATABASE latin1 SET lc_messages = 'de_DE';
         SELECT segment_create('t', step => 1, min_step => 1, max_step => 1);
         CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             PERFORM pg_terminate_backend(pg_backend_pid());
             RETURN NEW;
         END $$;
         CREATE TRIGGER zz BEFORE UPDATE ON idgen.segment FOR EACH ROW EXECUTE FUNCTION die();
         SET idgen.segment_timeout = '3s'",
    );
    let error = expect_error(&mut client, "SELECT segment_next('t')", "55P03");
    let detail = error.detail().expect("the reason");
    assert!(detail.contains("idgen refill"), "{detail}");
    execute(&mut client, "DROP FUNCTION die CASCADE");
    assert_eq!(value::<i64>(&mut client, "SELECT segment_next('t')"), 1);
}
