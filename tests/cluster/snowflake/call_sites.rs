//! State cached at a call site must not leak to another: every id has the layout that was asked for.

use std::io::Write;

use idgen_testkit::Cluster;
use idgen_testkit::ids::{assert_distinct, assert_increasing};
use idgen_testkit::sql::{execute, expect_error, ids, value};
use postgres::Client;

use crate::{tag_of, tagged};

/// Each id has the tag beside it, and the ids of each tag increase.
fn assert_tags(rows: &[(i64, i64)]) {
    for (tag, id) in rows {
        assert_eq!(tag_of(*id), *tag, "{id}");
    }
    for tag in rows.iter().map(|(tag, _)| *tag).collect::<std::collections::BTreeSet<_>>() {
        assert_increasing(&rows.iter().filter(|row| row.0 == tag).map(|row| row.1).collect::<Vec<_>>());
    }
}

/// Rows of a tag and an id.
fn pairs(client: &mut Client, sql: &str) -> Vec<(i64, i64)> {
    let rows = client.query(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[test]
fn call_site_in_plpgsql_follows_changing_layouts() {
    let cluster = Cluster::builder().start_with_extension();
    let mut client = cluster.client();
    // Each way to run an expression or a statement with a variable. The call sites persist from call to call.
    let ways = [
        "id := snowflake_next(l);",
        "SELECT snowflake_next(l) INTO id;",
        "id := (SELECT max(x) FROM snowflake_next_many(3, l) AS x);",
        "FOR id IN SELECT snowflake_next_many(2, l) LOOP RETURN NEXT; END LOOP; id := snowflake_next(l);",
        "EXECUTE 'SELECT snowflake_next($1)' INTO id USING l;",
        "EXECUTE format('SELECT snowflake_next(%L)', l) INTO id;",
        "id := snowflake_next(CASE WHEN n > 0 THEN l ELSE 'snowflake' END);",
        "id := next_of(l);",
        "id := next_of_inlined(l);",
    ];
    execute(
        &mut client,
        "CREATE FUNCTION next_of(l text) RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RETURN snowflake_next(l); END';
         CREATE FUNCTION next_of_inlined(l text) RETURNS bigint LANGUAGE sql AS 'SELECT snowflake_next(l)';",
    );
    for way in ways {
        let sql = format!(
            "CREATE OR REPLACE FUNCTION mixed(n int) RETURNS TABLE (tag bigint, id bigint) LANGUAGE plpgsql AS $$
             DECLARE
                 l text;
             BEGIN
                 FOR i IN 1..n LOOP
                     tag := i % 3;
                     l := format('time:41 tag:10=%s sequence:12 epoch:2020-01-01', tag);
                     {way}
                     RETURN NEXT;
                 END LOOP;
             END $$"
        );
        execute(&mut client, &sql);
        for _ in 0..2 {
            let rows = pairs(&mut client, "SELECT tag, id FROM mixed(30)");
            assert!(rows.len() >= 30, "{way}");
            assert_tags(&rows);
        }
    }
}

#[test]
fn call_site_follows_layouts_from_columns() {
    let cluster = Cluster::builder().start_with_extension();
    let mut client = cluster.client();
    let layout = "'time:41 tag:10=' || n % 5 || ' sequence:12 epoch:2020-01-01'";
    execute(
        &mut client,
        &format!(
            "CREATE TABLE layouts AS SELECT n % 5 AS tag, {layout} AS l FROM generate_series(1::bigint, 500) AS n"
        ),
    );
    assert_tags(&pairs(&mut client, "SELECT tag, snowflake_next(l) FROM layouts"));
    assert_tags(&pairs(&mut client, "SELECT tag, snowflake_next(l::varchar) FROM layouts"));
    // Several call sites in one row, some with constants or without a layout.
    let sql = format!(
        "SELECT tag, snowflake_next(l), 900::bigint, snowflake_next('{}'), snowflake_next(), snowflake_next('js53')
         FROM layouts",
        tagged(900)
    );
    let rows = client.query(&sql, &[]).unwrap();
    assert_tags(&rows.iter().map(|row| (row.get(0), row.get(1))).collect::<Vec<_>>());
    assert_tags(&rows.iter().map(|row| (row.get(2), row.get(3))).collect::<Vec<_>>());
    assert_increasing(&rows.iter().map(|row| row.get(4)).collect::<Vec<i64>>());
    assert_increasing(&rows.iter().map(|row| row.get(5)).collect::<Vec<i64>>());

    // An invalid layout is an error each time and does not change the call site.
    expect_error(&mut client, "SELECT snowflake_next(NULL)", "22004");
    expect_error(&mut client, "SELECT snowflake_next(CASE WHEN tag < 4 THEN l END) FROM layouts", "22004");
    expect_error(&mut client, "SELECT snowflake_next(CASE WHEN tag < 4 THEN l ELSE 'no' END) FROM layouts", "22023");
    assert_tags(&pairs(&mut client, "SELECT tag, snowflake_next(l) FROM layouts"));
}

#[test]
fn call_site_in_a_prepared_statement_follows_its_layout_parameter() {
    let cluster = Cluster::builder().start_with_extension();
    for mode in ["auto", "force_generic_plan", "force_custom_plan"] {
        let mut client = cluster.client();
        execute(&mut client, &format!("SET plan_cache_mode = {mode}"));
        let single = client.prepare("SELECT snowflake_next($1)").unwrap();
        let batch = client.prepare("SELECT snowflake_next_many($2, $1)").unwrap();
        let mut rows = Vec::new();
        // The sixth execution may be the first of a generic plan.
        for n in 0..24_i64 {
            let layout = tagged(n % 3);
            rows.push((n % 3, client.query_one(&single, &[&layout]).unwrap().get(0)));
            let found = client.query(&batch, &[&layout, &(n as i32)]).unwrap();
            assert_eq!(found.len(), n as usize);
            rows.extend(found.iter().map(|row| (n % 3, row.get(0))));
        }
        assert_tags(&rows);

        // In SQL, where the call site persists with the plan.
        execute(&mut client, "PREPARE p (text) AS SELECT snowflake_next($1)");
        let rows: Vec<_> =
            (0..24).map(|n| (n % 3, ids(&mut client, &format!("EXECUTE p ('{}')", tagged(n % 3)))[0])).collect();
        assert_tags(&rows);
    }
}

#[test]
fn column_default_draws_ids_in_row_order() {
    let cluster = Cluster::builder().start_with_extension();
    let mut client = cluster.client();
    execute(
        &mut client,
        &format!(
            "CREATE TABLE t (n serial, id bigint UNIQUE DEFAULT snowflake_next('{}'),
                             other bigint UNIQUE DEFAULT snowflake_next('{}'),
                             plain bigint UNIQUE DEFAULT snowflake_next());
             INSERT INTO t (n) SELECT n FROM generate_series(1, 100) AS n;
             INSERT INTO t (n) VALUES (101), (102), (103);
             INSERT INTO t (n, id) VALUES (104, DEFAULT), (105, DEFAULT);
             INSERT INTO t DEFAULT VALUES",
            tagged(5),
            tagged(6)
        ),
    );
    let mut copy = client.copy_in("COPY t (n) FROM STDIN").unwrap();
    (200..2000).for_each(|n| writeln!(copy, "{n}").unwrap());
    copy.finish().unwrap();
    let updated = client.execute("UPDATE t SET other = DEFAULT WHERE n < 50", &[]).unwrap();
    execute(&mut client, &format!("ALTER TABLE t ADD added bigint UNIQUE DEFAULT snowflake_next('{}')", tagged(7)));

    let count: i64 = value(&mut client, "SELECT count(*) FROM t");
    assert_eq!(count, 100 + 3 + 2 + 1 + 1800);
    let mut all = Vec::new();
    for (column, tag) in [("id", 5), ("other", 6), ("added", 7), ("plain", -1)] {
        let drawn = ids(&mut client, &format!("SELECT {column} FROM t"));
        assert!(drawn.iter().all(|id| tag < 0 || tag_of(*id) == tag), "{column}");
        all.extend(assert_distinct(drawn));
    }
    // Rows are inserted in order.
    assert_increasing(&ids(&mut client, "SELECT id FROM t WHERE n >= 50 AND n < 2000 ORDER BY n"));
    let issued = "SELECT sum(issued)::bigint FROM idgen.stat_snowflake";
    assert_eq!(
        value::<i64>(&mut client, issued),
        all.len() as i64 + updated as i64,
        "every id that was drawn is stored"
    );
}
