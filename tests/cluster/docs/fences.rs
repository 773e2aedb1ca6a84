//! The rules of fenced blocks: each one is run, compared, tried or an excerpt of a file. See CONTRIBUTING.md.

use crate::markdown::{Block, Document};
use crate::{assert_none, document, documents, files, pages, root, text_of};

#[test]
fn fenced_blocks_of_all_documents_follow_the_rules() {
    let makefile = text_of("Makefile");
    let differences = documents().into_iter().flat_map(|document| differences(&document, &makefile));
    assert_none(&differences.collect::<Vec<_>>());
}

fn differences(document: &Document, makefile: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (index, block) in document.blocks.iter().enumerate() {
        let follows_sql = block.is_adjacent && document.blocks[index - 1].is_sql();
        if let Err(what) = check(document, block, follows_sql, makefile) {
            wrong.push(document.at(block.line, what));
        }
    }
    for (number, line) in document.text.lines().enumerate().filter(|(_, line)| line.contains("<pre")) {
        wrong.push(document.at(number + 1, format!("code must be in a fenced block: {line}")));
    }
    wrong
}

fn check(document: &Document, block: &Block, follows_sql: bool, makefile: &str) -> Result<(), String> {
    if !block.is_closed {
        return Err("the block has no end".to_owned());
    }
    match &*block.info {
        "" => Err("the block has no language".to_owned()),
        "sql" | "sql coordinator" | "ini" if !pages::PAGES.contains(&&*document.path) => {
            Err("only blocks of a page are run".to_owned())
        }
        "sql" | "sql coordinator" => Ok(()),
        "text" | "text example" if follows_sql => Ok(()),
        "text" | "text example" => Err("no sql block is right before it: a drawing is a `text figure`".to_owned()),
        "text figure" if follows_sql => Err("a sql block is right before it: its output is `text`".to_owned()),
        "text figure" => Ok(()),
        "text signature" if document.path.starts_with("docs/functions/") => Ok(()),
        "ini" => settings(block).map(drop),
        "sh" => block.text.lines().try_for_each(|line| check_make(line, makefile)),
        info => match info.split_whitespace().collect::<Vec<_>>()[..] {
            [_, path] => check_excerpt(&block.text, path),
            _ => Err(format!("\"{info}\" names no file: `LANGUAGE PATH`")),
        },
    }
}

/// The names and values of an `ini` block, as postgresql.conf has them.
pub fn settings(block: &Block) -> Result<Vec<(&str, &str)>, String> {
    let lines = block.text.lines().map(|line| line.split(" #").next().unwrap_or_default().trim());
    let settings = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    settings.map(setting).collect()
}

fn setting(line: &str) -> Result<(&str, &str), String> {
    let (name, value) = line.split_once('=').ok_or_else(|| format!("not `name = value`: {line}"))?;
    let (name, value) = (name.trim(), value.trim());
    let quoted = value.strip_prefix('\'').and_then(|value| value.strip_suffix('\''));
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c));
    match quoted.unwrap_or(value) {
        // Where libpq finds no certificate of an authority, it refuses to connect.
        value if value.contains("sslmode=verify-full") && !value.contains("sslrootcert=") => {
            Err(format!("sslmode=verify-full needs sslrootcert: {line}"))
        }
        value if is_name && !name.is_empty() && (quoted.is_some() || is_plain(value)) => Ok((name, value)),
        _ => Err(format!("not `name = value`: {line}")),
    }
}

/// postgresql.conf needs no quotes around it.
fn is_plain(value: &str) -> bool {
    !value.is_empty() && value.chars().all(|c| c.is_ascii_alphanumeric() || "_.-+".contains(c))
}

/// Each word after `make` is a target, or sets a variable that the Makefile reads.
fn check_make(line: &str, makefile: &str) -> Result<(), String> {
    let command = line.split(" #").next().unwrap_or_default().trim();
    if command.is_empty() || command.starts_with('#') {
        return Ok(());
    }
    let words = command.strip_prefix("make ").ok_or_else(|| format!("only `make TARGET`, not: {line}"))?;
    let is_known = |word: &str| match word.split_once('=') {
        Some((variable, _)) => makefile.contains(&format!("$({variable})")),
        None => makefile.lines().any(|line| line.starts_with(&format!("{word}:")) && !line.contains(":=")),
    };
    match words.split_whitespace().find(|word| !is_known(word)) {
        Some(word) => Err(format!("the Makefile does not know {word}")),
        None => Ok(()),
    }
}

/// A block with a file is a part of it. A file of the examples is run by a test.
fn check_excerpt(block: &str, path: &str) -> Result<(), String> {
    if !root().join(path).is_file() {
        return Err(format!("there is no file {path}"));
    }
    if !is_part(block, &text_of(path)) {
        return Err(format!("the block is not a part of {path}"));
    }
    match ["examples/", "contrib/"].iter().any(|folder| path.starts_with(folder)) && !is_run(path) {
        true => Err(format!("no test names {path} or its folder, so none runs it")),
        false => Ok(()),
    }
}

/// Examples that no test runs, because their tools cannot be installed here. Their pages say so.
const NOT_RUN: [&str; 1] = ["examples/jdbc/hibernate/"];

/// True if a test names the file, or the folder of its tool.
fn is_run(path: &str) -> bool {
    let (folder, name) = path.rsplit_once('/').unwrap_or_default();
    let tool: Vec<&str> = folder.split('/').take(2).collect();
    let named = [name.to_owned(), tool.join("/")];
    let is_named_in = |path: String| named.iter().any(|name| text_of(&path).contains(name));
    let tests = ["rs", "mjs", "py"].into_iter().flat_map(|extension| files("tests", extension));
    NOT_RUN.iter().any(|folder| path.starts_with(folder))
        || tests.filter(|path| !path.starts_with("tests/cluster/docs/")).any(is_named_in)
}

/// True if consecutive lines of the file equal the block, but for their common indentation.
fn is_part(block: &str, file: &str) -> bool {
    let block: Vec<&str> = block.lines().map(str::trim_end).collect();
    let file: Vec<&str> = file.lines().map(str::trim_end).collect();
    !block.is_empty() && file.windows(block.len()).any(|lines| dedented(lines) == dedented(&block))
}

fn dedented<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let indentation = |line: &&&str| line.len() - line.trim_start().len();
    let least = lines.iter().filter(|line| !line.is_empty()).map(|line| indentation(&line)).min().unwrap_or(0);
    lines.iter().map(|line| line.get(least..).unwrap_or_default()).collect()
}

/// They are `sql` blocks, which the page runs, so they name no file.
#[test]
fn guides_show_the_definitions_of_their_examples() {
    for (guide, example, definitions) in [
        ("docs/guides/transactions.md", "examples/sql/tcc.sql", 6),
        ("docs/guides/due-tasks.md", "examples/sql/due_tasks.sql", 10),
        ("docs/guides/fences.md", "examples/sql/fence.sql", 3),
    ] {
        let (file, blocks) = (text_of(example), document(guide).blocks);
        let defines = |text: &str| {
            ["TABLE", "SCHEMA", "FUNCTION", "INDEX", "VIEW", "TRIGGER"]
                .iter()
                .any(|what| text.starts_with(&format!("CREATE {what} ")))
        };
        let shown: Vec<_> = blocks.iter().filter(|block| block.info == "sql" && defines(&block.text)).collect();
        assert_eq!(shown.len(), definitions, "{guide}");
        for block in shown {
            assert!(is_part(&block.text, &file), "not in {example}: {}", block.text);
        }
    }
}

#[test]
fn broken_rules_of_fenced_blocks_are_found() {
    let makefile = "PG ?= 15\nX := $(PG)\ntest: deps ## all\n";
    let page = |text: &str| Document::parse("README.md", text);
    for text in [
        "```sql\nSELECT 1;\n```\n\n```text\n1\n```\n",
        "```sql\nSELECT 1;\n```\n\n```text example\n1\n```\n",
        "```sql coordinator\nSELECT 1;\n```\n\n```text\n1\n```\n",
        "```text figure\na -> b\n```\n",
        "```ini\na = 'sslmode=verify-full sslrootcert=/b'\n```\n",
        "```ini\nidgen.worker_id = 7  # of this server\nname = 'a b'\n\n# nothing\n```\n",
        "```sh\nmake test PG=18  # all\n\n```\n",
        "```toml Cargo.toml\n[package]\nname = \"idgen\"\n```\n",
        "1. a\n\n   ```toml Cargo.toml\n   [package]\n   name = \"idgen\"\n   ```\n",
    ] {
        assert_eq!(differences(&page(text), makefile), [""; 0], "{text}");
    }
    for (text, what) in [
        ("```sql\nSELECT 1;\n", "no end"),
        ("```\nSELECT 1;\n```\n", "no language"),
        ("a\n\n    SELECT 1;\n", "no language"),
        ("<pre>SELECT 1;</pre>\n", "fenced block"),
        ("```text\n1\n```\n", "right before it"),
        ("```sql\n```\nand\n```text\n1\n```\n", "right before it"),
        ("```sql\n```\n```text figure\n1\n```\n", "its output"),
        ("```ini\nidgen.worker_id\n```\n", "not `name = value`"),
        ("```ini\nname = a b\n```\n", "not `name = value`"),
        ("```ini\n= 7\n```\n", "not `name = value`"),
        ("```ini\na = 'host=b sslmode=verify-full'\n```\n", "needs sslrootcert"),
        ("```sh\nls\n```\n", "only `make TARGET`"),
        ("```sh\nmake test tset\n```\n", "not know tset"),
        ("```sh\nmake X\n```\n", "not know X"),
        ("```sh\nmake test PGG=1\n```\n", "not know PGG=1"),
        ("```python\n1\n```\n", "names no file"),
        ("```text else\n1\n```\n", "no file else"),
        ("```toml Cargo.lock.no\n1\n```\n", "no file Cargo"),
        ("```toml Cargo.toml\nname = \"idgen\"\n[package]\n```\n", "not a part"),
        ("```toml Cargo.toml\n```\n", "not a part"),
    ] {
        let found = differences(&page(text), makefile);
        assert!(found.len() == 1 && found[0].contains(what), "{text}{found:?}");
    }
    let outside = Document::parse("CHANGELOG.md", "```sql\nSELECT 1;\n```\n");
    assert!(differences(&outside, makefile)[0].contains("only blocks of a page"));
}

#[test]
fn excerpts_keep_their_inner_indentation() {
    let file = "class A:\n    def f():\n        return 1\n\n    x = 2\n";
    assert!(is_part("def f():\n    return 1\n\nx = 2\n", file));
    assert!(!is_part("def f():\nreturn 1\n", file));
    assert!(!is_part("def f():\n    return 1\n    x = 2\n", file));
    assert!(!is_part("", file));
}
