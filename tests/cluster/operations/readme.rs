//! The README: its SQL runs, its output is what psql prints, and its tables match the catalog.
//!
//! psql runs every block fenced `sql`, in order, in one fresh database. A block must succeed without a notice, or fail with
//! the SQLSTATE of its first line `-- fails: SQLSTATE`. A block fenced `text` right after it must equal the output or the
//! error. Of a block fenced `text example` only the columns and the number of rows must match.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use idgen_testkit::Cluster;
use postgres::Client;

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
const FAILS: &str = "-- fails: ";

fn readme() -> String {
    std::fs::read_to_string(Path::new(README)).expect("the README is readable")
}

/// A fenced block: the info string, the line number and the text.
struct Block<'a> {
    info: &'a str,
    line: usize,
    text: String,
    /// True if only blank lines separate this block from the one before.
    adjacent: bool,
}

fn blocks(markdown: &str) -> Vec<Block<'_>> {
    let (mut found, mut open, mut adjacent) = (Vec::new(), None::<Block>, false);
    for (index, line) in markdown.lines().enumerate() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(info), None) => open = Some(Block { info, line: index + 1, text: String::new(), adjacent }),
            (Some(_), Some(block)) => {
                found.push(block);
                adjacent = true;
            }
            (None, Some(mut block)) => {
                block.text += line;
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) => adjacent &= line.trim().is_empty(),
        }
    }
    assert!(open.is_none(), "unclosed fence");
    found
}

/// The output of psql for a block.
struct Outcome {
    success: bool,
    output: String,
    /// Has the SQLSTATE after the severity.
    errors: String,
}

/// Runs every `sql` block and returns the differences by line.
fn check(markdown: &str, mut run: impl FnMut(&str) -> Outcome) -> Vec<String> {
    let blocks = blocks(markdown);
    let mut wrong = Vec::new();
    for (index, block) in blocks.iter().enumerate().filter(|(_, block)| block.info == "sql") {
        let shown = blocks.get(index + 1).filter(|next| next.adjacent && next.info.starts_with("text"));
        if let Err(what) = compare(block, shown, &run(&block.text)) {
            wrong.push(format!("README.md:{}: {what}", block.line));
        }
    }
    if !blocks.iter().any(|block| block.info == "sql") {
        wrong.push("no sql block".to_owned());
    }
    wrong
}

fn compare(block: &Block, shown: Option<&Block>, outcome: &Outcome) -> Result<(), String> {
    let first_line = block.text.lines().next().unwrap_or_default();
    let printed = match first_line.strip_prefix(FAILS) {
        Some(sqlstate) => {
            let code = format!("ERROR:  {}: ", sqlstate.trim());
            if outcome.success || !outcome.errors.contains(&code) {
                return Err(format!("expected {code:?}, got {}{}", outcome.output, outcome.errors));
            }
            // psql prints this line only at higher verbosity.
            let lines = outcome.errors.lines().filter(|line| !line.starts_with("LOCATION:"));
            lines.collect::<Vec<_>>().join("\n").replace(&code, "ERROR:  ")
        }
        None if !outcome.success || !outcome.errors.is_empty() => return Err(outcome.errors.clone()),
        None => outcome.output.clone(),
    };
    let (printed, shown_lines) = (trimmed(&printed), shown.map(|shown| trimmed(&shown.text)));
    let same = match (shown, &shown_lines) {
        (Some(shown), Some(lines)) if shown.info == "text example" => {
            columns(lines) == columns(&printed) && lines.last() == printed.last()
        }
        (_, Some(lines)) => *lines == printed,
        (_, None) => true,
    };
    if same { Ok(()) } else { Err(format!("psql printed\n{}", printed.join("\n"))) }
}

fn trimmed(text: &str) -> Vec<String> {
    text.trim_end().lines().map(|line| line.trim_end().to_owned()).collect()
}

fn columns(lines: &[String]) -> Vec<&str> {
    lines.first().map_or(Vec::new(), |line| line.split('|').map(str::trim).collect())
}

/// The cells of the table whose first column has this heading.
fn table(markdown: &str, heading: &str) -> Vec<Vec<String>> {
    let start = format!("| {heading} |");
    let lines = markdown.lines().skip_while(|line| !line.starts_with(&start)).skip(2);
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let rows: Vec<_> = lines.take_while(|line| line.starts_with('|')).map(cells).collect();
    assert!(!rows.is_empty(), "no table with the heading {heading:?}");
    rows
}

fn bare(cell: &str) -> &str {
    cell.trim_matches('`')
}

fn psql(cluster: &Cluster, sql: &str) -> Outcome {
    let mut command = cluster.program("psql");
    command.args(["-Xq", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", "-d", "readme"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("psql is installed");
    // Dropped at the end of the statement, which closes the input.
    child.stdin.take().expect("a pipe").write_all(sql.as_bytes()).expect("psql reads");
    let output = child.wait_with_output().expect("psql exits");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Outcome { success: output.status.success(), output: text(output.stdout), errors: text(output.stderr) }
}

fn strings(client: &mut Client, sql: &str) -> Vec<String> {
    client.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

#[test]
fn readme_sql_blocks_print_what_is_shown() {
    // Without it CREATE PUBLICATION warns.
    let cluster = Cluster::builder().conf("wal_level", "logical").start();
    cluster.execute("CREATE DATABASE readme");
    let wrong = check(&readme(), |sql| psql(&cluster, sql));
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn readme_check_detects_differences() {
    let outcome = |success, output: &str, errors: &str| {
        let (output, errors) = (output.to_owned(), errors.to_owned());
        move |_: &str| Outcome { success, output: output.clone(), errors: errors.clone() }
    };
    let plain = "```sql\nSELECT 1 AS x;\n```\n";
    let failing = "```sql\n-- fails: 22023\nSELECT 1;\n```\n\n```text\nERROR:  no\n```\n";
    let shown = format!("{plain}\n```text\n x\n---\n 1\n(1 row)\n```\n");
    let example = format!("{plain}\n```text example\n x\n---\n 7\n(1 row)\n```\n");
    let prints = |x: &str| outcome(true, &format!(" x \n---\n {x}\n(1 row)\n\n"), "");

    for (markdown, ok) in [(plain, true), (&*shown, true), (&*example, true), (failing, false), ("no block", false)] {
        assert_eq!(check(markdown, prints("1")).is_empty(), ok, "{markdown}");
    }
    for (markdown, ok) in [(&*shown, false), (&*example, true)] {
        assert_eq!(check(markdown, prints("2")).is_empty(), ok, "{markdown}");
    }
    assert!(!check(&example, outcome(true, " y\n---\n 1\n(1 row)\n", "")).is_empty());
    assert!(!check(&example, outcome(true, " x\n---\n(0 rows)\n", "")).is_empty());
    assert!(!check(plain, outcome(false, "", "ERROR:  22023: no\n")).is_empty());
    assert!(!check(plain, outcome(true, "", "WARNING:  01000: hm\n")).is_empty());
    assert!(check(failing, outcome(false, "", "ERROR:  22023: no\nLOCATION:  idgen, x.rs:1\n")).is_empty());
    assert!(!check(failing, outcome(false, "", "ERROR:  22023: yes\n")).is_empty());
    assert!(!check(failing, outcome(false, "", "ERROR:  22003: no\n")).is_empty());
}

#[test]
fn readme_tables_match_the_catalog() {
    let cluster = Cluster::start();
    cluster.execute("CREATE EXTENSION idgen");
    let (readme, mut client) = (readme(), cluster.client());
    let mut known = settings(&readme, &mut client);
    known.extend(functions(&readme, &mut client));
    known.extend(relations(&readme, &mut client));
    presets(&readme, &mut client);
    let version = strings(&mut client, "SELECT extversion FROM pg_extension WHERE extname = 'idgen'").concat();
    assert!(readme.contains(&format!("This is version {version}.")), "the README is not of version {version}");

    let named = readme.split(|c: char| !c.is_ascii_alphanumeric() && !"_.".contains(c));
    let named: BTreeSet<_> = named.map(|word| word.trim_matches('.').to_owned()).collect();
    known.insert("idgen.so".to_owned());
    // A setting of PostgreSQL and two columns.
    known.extend(["lock_timeout", "lock_delay", "worker_id"].map(str::to_owned));
    let ours = |word: &&String| {
        ["idgen.", "snowflake_", "segment_", "lock_", "lease_", "worker_"].iter().any(|start| word.starts_with(start))
    };
    let unknown: Vec<_> = named.iter().filter(ours).filter(|word| !known.contains(*word)).collect();
    assert!(unknown.is_empty(), "the README has unknown names: {unknown:?}");
    let unnamed: Vec<_> = known.difference(&named).collect();
    assert!(unnamed.is_empty(), "the README lacks {unnamed:?}");
}

fn settings(readme: &str, client: &mut Client) -> BTreeSet<String> {
    let sql = "SELECT ARRAY[name, vartype, coalesce(nullif(current_setting(name), ''), 'empty'),
                      CASE WHEN vartype = 'integer' THEN concat_ws(' ', min_val, 'to', max_val, nullif(unit, '')) END,
                      CASE context WHEN 'postmaster' THEN 'restart' WHEN 'sighup' THEN 'reload'
                                   WHEN 'user' THEN 'at once' END]
               FROM pg_settings WHERE name LIKE 'idgen.%' AND source = 'default'";
    let rows: Vec<Vec<Option<String>>> = client.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    let described = table(readme, "setting");
    let names: BTreeSet<_> = rows.iter().flat_map(|row| row[0].clone()).collect();
    assert_eq!(names, described.iter().map(|row| bare(&row[0]).to_owned()).collect());
    for row in rows {
        let line = described.iter().find(|line| row[0].as_deref() == Some(bare(&line[0]))).expect("compared above");
        for (is, says) in row.iter().zip(line).filter_map(|(is, says)| Some((is.as_deref()?, says))) {
            assert_eq!(bare(says), is, "{line:?}");
        }
    }
    names
}

fn functions(readme: &str, client: &mut Client) -> BTreeSet<String> {
    let sql =
        "SELECT CASE nspname WHEN 'public' THEN '' ELSE nspname || '.' END || proname, pg_get_function_result(p.oid),
                      provolatile::text, proparallel::text, proisstrict,
                      coalesce(proargnames[1:pronargs], '{}'), coalesce(proargnames[pronargs + 1:], '{}')
               FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace JOIN pg_depend d ON d.objid = p.oid
               JOIN pg_extension e ON e.oid = d.refobjid
               WHERE d.classid = 'pg_proc'::regclass AND d.deptype = 'e' AND extname = 'idgen'";
    let described = table(readme, "function");
    let mut names = BTreeSet::new();
    let mut arguments = vec![BTreeSet::new(); described.len()];
    for row in client.query(sql, &[]).unwrap() {
        let (name, result, volatility): (String, String, String) = (row.get(0), row.get(1), row.get(2));
        let (parallel, strict, ins, outs): (String, bool, Vec<String>, Vec<String>) =
            (row.get(3), row.get(4), row.get(5), row.get(6));
        let at = described.iter().position(|line| bare(&line[0]).starts_with(&format!("{name}(")));
        let at = at.unwrap_or_else(|| panic!("the table of functions lacks {name}"));
        let line = &described[at];
        let fits = match result.as_str() {
            "record" => outs.iter().all(|out| line[1].contains(&format!("`{out}`"))),
            _ => line[1].starts_with(&format!("`{result}`")),
        };
        assert!(fits, "{name} returns {result} {outs:?}: {line:?}");
        let by_layout = ins.iter().any(|arg| arg == "layout");
        let says = match line[2].as_str() {
            "stable, immutable with a layout" => ["s", "i"][usize::from(by_layout)],
            other => &other[..1],
        };
        assert_eq!(says, volatility, "{name}: {line:?}");
        assert_eq!(line[3][..1], parallel, "{name}: {line:?}");
        match line[4].as_str() {
            "no argument" => assert!(ins.is_empty(), "{name}: {line:?}"),
            says => assert!(ins.is_empty() || strict == (says == "NULL"), "{name}: {line:?}"),
        }
        arguments[at].extend(ins);
        names.insert(name);
    }
    for (line, arguments) in described.iter().zip(arguments) {
        let (_, signature) = bare(&line[0]).split_once('(').expect("a signature");
        let says = signature.split([',', '[', ']', ')']).filter_map(|arg| arg.split_whitespace().next());
        assert_eq!(says.map(str::to_owned).collect::<BTreeSet<_>>(), arguments, "{line:?}");
    }
    names
}

/// Each view and each table has a section with a table of its columns.
fn relations(readme: &str, client: &mut Client) -> BTreeSet<String> {
    let sql = "SELECT CASE relkind WHEN 'v' THEN 'view' WHEN 'r' THEN 'table' END, c.oid::regclass::text
               FROM pg_class c JOIN pg_depend d ON d.objid = c.oid JOIN pg_extension e ON e.oid = d.refobjid
               WHERE d.classid = 'pg_class'::regclass AND d.deptype = 'e' AND extname = 'idgen' AND relkind IN ('r', 'v')";
    let mut names = BTreeSet::new();
    for row in client.query(sql, &[]).unwrap() {
        let (kind, name): (String, String) = (row.get(0), row.get(1));
        let sql = format!(
            "SELECT attname || ' ' || format_type(atttypid, NULL) FROM pg_attribute
             WHERE attrelid = '{name}'::regclass AND attnum > 0 ORDER BY attnum"
        );
        let (_, section) = readme.split_once(&format!("### The {kind} {name}\n")).expect("a section");
        let says = table(section, "column").into_iter().map(|line| format!("{} {}", bare(&line[0]), line[1]));
        assert_eq!(says.collect::<Vec<_>>(), strings(client, &sql), "{name}");
        names.insert(name);
    }
    names
}

fn presets(readme: &str, client: &mut Client) {
    let refusal = client.query("SELECT * FROM snowflake_layout('?')", &[]).expect_err("no such preset");
    let hint = refusal.as_db_error().and_then(|error| error.hint()).expect("a hint");
    let (_, names) = hint.split_once("preset (").expect("the names of the presets");
    let (names, _) = names.split_once(')').expect("the closing parenthesis");
    let described = table(readme, "preset");
    assert_eq!(described.iter().map(|line| bare(&line[0])).collect::<Vec<_>>().join(", "), names);
    for line in described {
        let sql =
            "SELECT ARRAY[spec, workers::text, ids_per_second::text, to_char(ends_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')]
                   FROM snowflake_layout($1)";
        let is: Vec<String> = client.query_one(sql, &[&bare(&line[0])]).unwrap().get(0);
        assert_eq!(line[1..].iter().map(|cell| bare(cell)).collect::<Vec<_>>(), is, "{line:?}");
    }
}
