//! The ways to get at a table: a line `a: every READ of lease(token) -> error` of a scenario stands for a step for each.

/// `{t}` is the table, `{c}` a column.
const WAYS: [(&str, &[&str]); 3] = [("READ", &READ), ("INSERT", &INSERT), ("CHANGE", &CHANGE)];

const READ: [&str; 15] = [
    "SELECT {c} FROM {t}",
    "SELECT row FROM {t} AS row",
    "SELECT count(*) FROM {t} WHERE {c} IS NOT NULL",
    "COPY {t} ({c}) TO STDOUT",
    "COPY (SELECT {c} FROM {t}) TO STDOUT",
    "EXPLAIN (ANALYZE, VERBOSE) SELECT {c} FROM {t}",
    "CREATE TEMP VIEW own AS SELECT {c} FROM {t}; SELECT * FROM own",
    "CREATE TEMP TABLE own AS SELECT {c} FROM {t}",
    "DEALLOCATE ALL; PREPARE own AS SELECT {c} FROM {t}; EXECUTE own",
    "DECLARE own CURSOR WITH HOLD FOR SELECT {c} FROM {t}",
    "DELETE FROM {t} RETURNING {c}",
    "SELECT max({c}::text) OVER (ORDER BY {c}) FROM {t} TABLESAMPLE SYSTEM (100)",
    "CREATE FUNCTION pg_temp.own() RETURNS text SECURITY DEFINER LANGUAGE sql AS 'SELECT max({c}::text) FROM {t}'; \
     SELECT pg_temp.own()",
    "CREATE FUNCTION pg_temp.late() RETURNS text SECURITY DEFINER LANGUAGE plpgsql \
     AS 'BEGIN RETURN (SELECT max({c}::text) FROM {t}); END'; SELECT pg_temp.late()",
    "CREATE FUNCTION pg_temp.cheap(text) RETURNS bool COST 0.0001 LANGUAGE plpgsql AS 'BEGIN RAISE ''%'', $1; END'; \
     SELECT FROM {t} WHERE pg_temp.cheap({c}::text)",
];

const INSERT: [&str; 5] = [
    "INSERT INTO {t} ({c}) VALUES (DEFAULT)",
    "INSERT INTO {t} ({c}) SELECT NULL",
    "INSERT INTO {t} DEFAULT VALUES RETURNING {c}",
    "COPY {t} FROM STDIN",
    "MERGE INTO {t} USING (VALUES (1)) AS new ON false WHEN NOT MATCHED THEN INSERT ({c}) VALUES (DEFAULT)",
];

const CHANGE: [&str; 21] = [
    "UPDATE {t} SET {c} = DEFAULT",
    "DELETE FROM {t}",
    "TRUNCATE {t}",
    "MERGE INTO {t} USING (VALUES (1)) AS new ON true WHEN MATCHED THEN DELETE",
    "INSERT INTO {t} ({c}) VALUES (DEFAULT) ON CONFLICT ({k}) DO UPDATE SET {c} = DEFAULT",
    "SELECT FROM {t} FOR UPDATE",
    "SELECT FROM {t} FOR KEY SHARE",
    "DO $$ BEGIN LOCK TABLE {t} IN ACCESS EXCLUSIVE MODE; END $$",
    "CREATE TRIGGER own BEFORE UPDATE ON {t} FOR EACH ROW EXECUTE FUNCTION row_version({c})",
    "CREATE RULE own AS ON INSERT TO {t} DO INSTEAD NOTHING",
    "CREATE POLICY own ON {t}",
    "CREATE INDEX ON {t} ({c})",
    "CREATE STATISTICS own ON {c}, (1) FROM {t}",
    "CREATE TEMP TABLE own () INHERITS ({t})",
    "ALTER TABLE {t} DISABLE TRIGGER ALL",
    "ALTER TABLE {t} DROP COLUMN {c}",
    "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY",
    "ALTER TABLE {t} OWNER TO CURRENT_USER",
    "ALTER TABLE {t} SET SCHEMA public",
    "ALTER EXTENSION idgen DROP TABLE {t}",
    "DROP TABLE {t}",
];

/// The columns of the unique index that a conflict is found by.
fn key_of(table: &str) -> &'static str {
    match table {
        "lease" => "name, slot",
        "segment" => "tag",
        "segment_server" => "tag, server",
        "worker_id" => "pool, worker_id",
        "worker_history" => "one",
        "public_key" => "prefix, version",
        _ => "name",
    }
}

/// The script with a step for each way.
pub fn expanded(script: &str) -> String {
    let steps = |line: &str| {
        let (who, ways, rest) = WAYS.iter().find_map(|(word, ways)| {
            let (who, rest) = line.split_once(&format!(": every {word} of "))?;
            Some((who, ways, rest.split_once(") -> ")?))
        })?;
        let (table, column) = rest.0.split_once('(')?;
        let filled_in = ways.iter().map(|way| {
            let step =
                way.replace("{t}", &format!("idgen.{table}")).replace("{k}", key_of(table)).replace("{c}", column);
            format!("{who}: {step} -> {}\n", rest.1)
        });
        Some(filled_in.collect::<String>())
    };
    script.lines().map(|line| steps(line).unwrap_or_else(|| format!("{line}\n"))).collect()
}

/// The script of `every.txt` for a role. A line that begins with roles in brackets is not for these.
pub fn for_role(script: &str, login: &str) -> String {
    let lines = script.lines().filter_map(|line| {
        let Some(except) = line.strip_prefix('[') else { return Some(line) };
        let (roles, line) = except.split_once("] ").expect("[ROLES] STEP");
        (!roles.split(", ").any(|role| role == login)).then_some(line)
    });
    format!("a connects as {login}\n{}\n", lines.collect::<Vec<_>>().join("\n"))
}
