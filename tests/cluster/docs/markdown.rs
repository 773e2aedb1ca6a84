//! What the checks need of a Markdown file: fenced blocks, headings, links and tables.

use std::ops::Range;

use pulldown_cmark::{CodeBlockKind, Event, LinkType, Options, Parser, Tag, TagEnd};

pub struct Document {
    pub path: String,
    pub text: String,
    pub blocks: Vec<Block>,
    pub headings: Vec<Heading>,
    pub links: Vec<Link>,
    /// The anchors that HTML defines.
    pub ids: Vec<String>,
    pub tables: Vec<Table>,
}

/// A block of code.
pub struct Block {
    /// Empty also for a block that is indented and has no fence.
    pub info: String,
    pub line: usize,
    pub text: String,
    /// Only blank lines separate it from the block before.
    pub is_adjacent: bool,
    pub is_closed: bool,
}

pub struct Heading {
    pub level: usize,
    pub line: usize,
    pub text: String,
    /// The anchor that GitHub and mdBook give it.
    pub slug: String,
}

/// A link or an image.
pub struct Link {
    pub line: usize,
    pub target: String,
}

pub struct Table {
    pub line: usize,
    /// The heading above it.
    pub section: String,
    pub header: Vec<String>,
    /// The source of each cell.
    pub rows: Vec<Vec<String>>,
}

impl Block {
    /// True if psql runs it.
    pub fn is_sql(&self) -> bool {
        self.info == "sql" || self.is_for_coordinator()
    }

    /// True if psql runs it in the database of the coordinator.
    pub fn is_for_coordinator(&self) -> bool {
        self.info == "sql coordinator"
    }
}

impl Document {
    pub fn parse(path: &str, text: &str) -> Document {
        let mut document = Document {
            path: path.to_owned(),
            text: text.to_owned(),
            blocks: Vec::new(),
            headings: Vec::new(),
            links: Vec::new(),
            ids: Vec::new(),
            tables: Vec::new(),
        };
        let mut undefined = Vec::new();
        let events = Parser::new_with_broken_link_callback(
            text,
            Options::ENABLE_TABLES,
            Some(|link: pulldown_cmark::BrokenLink| {
                // Brackets alone, as in `bigint[]`, are text.
                if link.link_type == LinkType::Reference {
                    undefined.push((link.span.start, link.reference.to_string()));
                }
                None
            }),
        );
        let mut reader = Reader { document: &mut document, heading: None, block: None, end_of_block: None };
        for (event, range) in events.into_offset_iter() {
            reader.read(event, range);
        }
        for (start, reference) in undefined {
            document
                .links
                .push(Link { line: line_of(text, start), target: format!("[{reference}] without a definition") });
        }
        document
    }

    /// The tables whose first columns have these headings.
    pub fn tables_of<'a>(&'a self, headings: &'a [&str]) -> impl Iterator<Item = &'a Table> {
        self.tables.iter().filter(move |table| {
            table.header.len() >= headings.len() && table.header.iter().zip(headings).all(|(cell, is)| cell == is)
        })
    }

    /// A difference at a line.
    pub fn at(&self, line: usize, what: impl std::fmt::Display) -> String {
        format!("{}:{line}: {what}", self.path)
    }
}

struct Reader<'a> {
    document: &'a mut Document,
    /// The start and the text of the heading that is read.
    heading: Option<(usize, String)>,
    block: Option<Block>,
    end_of_block: Option<usize>,
}

impl Reader<'_> {
    fn read(&mut self, event: Event, range: Range<usize>) {
        let line = line_of(&self.document.text, range.start);
        match event {
            Event::Start(Tag::CodeBlock(kind)) => self.begin_block(&kind, &range),
            Event::End(TagEnd::CodeBlock) => self.document.blocks.extend(self.block.take()),
            Event::Text(text) if self.block.is_some() => {
                self.block.as_mut().expect("matched").text.push_str(&text);
            }
            Event::Start(Tag::Heading { .. }) => self.heading = Some((range.start, String::new())),
            Event::End(TagEnd::Heading(level)) => {
                let (start, text) = self.heading.take().expect("a heading ends where it began");
                let line = line_of(&self.document.text, start);
                let slug = self.unused(&slug(&text));
                self.document.headings.push(Heading { level: level as usize, line, text, slug });
            }
            Event::Text(text) | Event::Code(text) => {
                if let Some((_, heading)) = &mut self.heading {
                    heading.push_str(&text);
                }
            }
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                self.document.links.push(Link { line, target: dest_url.into_string() });
            }
            Event::Html(html) | Event::InlineHtml(html) => self.read_html(&html, line),
            Event::Start(Tag::Table(_)) => {
                let section = self.document.headings.last().map_or(String::new(), |heading| heading.text.clone());
                self.document.tables.push(Table { line, section, header: Vec::new(), rows: Vec::new() });
            }
            Event::Start(Tag::TableRow) => self.table().rows.push(Vec::new()),
            Event::Start(Tag::TableCell) => {
                let cell = self.document.text[range].trim().trim_matches('|').trim().replace("\\|", "|");
                let table = self.table();
                table.rows.last_mut().unwrap_or(&mut table.header).push(cell);
            }
            _ => {}
        }
    }

    fn begin_block(&mut self, kind: &CodeBlockKind, range: &Range<usize>) {
        let text = &self.document.text;
        let source = text[range.clone()].trim_end();
        let (info, is_closed) = match kind {
            CodeBlockKind::Indented => (String::new(), true),
            CodeBlockKind::Fenced(info) => {
                let fence = &source[..3];
                let is_closed = source.lines().skip(1).last().is_some_and(|last| last.trim().starts_with(fence));
                (info.trim().to_owned(), is_closed)
            }
        };
        let is_adjacent = self.end_of_block.is_some_and(|end| text[end..range.start].trim().is_empty());
        self.end_of_block = Some(range.start + source.len());
        self.block =
            Some(Block { info, line: line_of(text, range.start), text: String::new(), is_adjacent, is_closed });
    }

    fn table(&mut self) -> &mut Table {
        self.document.tables.last_mut().expect("a cell is in a table")
    }

    fn read_html(&mut self, html: &str, line: usize) {
        for (name, value) in attributes(html) {
            match name {
                "href" | "src" => self.document.links.push(Link { line, target: value.to_owned() }),
                "srcset" => {
                    let sources = value.split(',').filter_map(|source| source.split_whitespace().next());
                    self.document.links.extend(sources.map(|source| Link { line, target: source.to_owned() }));
                }
                "id" | "name" => self.document.ids.push(value.to_owned()),
                _ => {}
            }
        }
    }

    /// A second heading of the same text gets `-1`, a third one `-2`.
    fn unused(&self, slug: &str) -> String {
        let is_used = |slug: &str| self.document.headings.iter().any(|heading| heading.slug == slug);
        let numbered = (1..).map(|number| format!("{slug}-{number}"));
        std::iter::once(slug.to_owned()).chain(numbered).find(|slug| !is_used(slug)).expect("endless")
    }
}

/// The attributes of the tags in a piece of HTML.
fn attributes(html: &str) -> impl Iterator<Item = (&str, &str)> {
    html.match_indices("=\"").filter_map(move |(at, sign)| {
        let name = html[..at].rsplit(|c: char| !c.is_ascii_alphanumeric()).next()?;
        let (value, _) = html[at + sign.len()..].split_once('"')?;
        Some((name, value))
    })
}

/// GitHub's rule: lower case, without punctuation, a hyphen for a blank.
fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || "_- ".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase()
}

fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

/// The code in a piece of Markdown.
pub fn code_spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// A cell without the backticks of code.
pub fn bare(cell: &str) -> &str {
    cell.trim_matches('`')
}

#[test]
fn fenced_blocks_are_read_with_info_line_and_neighbour() {
    let text =
        "a\n\n```sql\nSELECT 1;\n```\n\n```text\n 1\n```\nb\n```ini x\n```\n\n1. c\n\n   ```sh\n   d\n     e\n   ```\n";
    let blocks = Document::parse("x.md", text).blocks;
    let seen: Vec<_> = blocks.iter().map(|b| (&*b.info, b.line, &*b.text, b.is_adjacent, b.is_closed)).collect();
    let expected = [
        ("sql", 3, "SELECT 1;\n", false, true),
        ("text", 7, " 1\n", true, true),
        ("ini x", 11, "", false, true),
        ("sh", 16, "d\n  e\n", false, true),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn unclosed_and_indented_blocks_are_seen() {
    let document = Document::parse("x.md", "a\n\n    indented\n\nb\n\n```sql\nSELECT 1;\n");
    let seen: Vec<_> = document.blocks.iter().map(|b| (&*b.info, b.is_closed)).collect();
    assert_eq!(seen, [("", true), ("sql", false)]);
}

#[test]
fn headings_have_the_anchors_of_github() {
    let text = "# The view `idgen.locks`\n## Why, and when not?\n## Crash\n## Crash\n## `kill -9` [x](y)\n## a_b - c\n";
    let headings = Document::parse("x.md", text).headings;
    let slugs: Vec<_> = headings.iter().map(|heading| (heading.level, &*heading.slug)).collect();
    let expected = [
        (1, "the-view-idgenlocks"),
        (2, "why-and-when-not"),
        (2, "crash"),
        (2, "crash-1"),
        (2, "kill--9-x"),
        (2, "a_b---c"),
    ];
    assert_eq!(slugs, expected);
}

#[test]
fn links_images_and_html_are_read() {
    let html = "<p id=\"k\"><source srcset=\"l.svg 1x, m.svg\"><img src=\"n.svg\"></p>";
    let text = format!("[a](b.md#c) ![d](e.svg)\n\n[f][g] [h][i] int[]\n\n{html}\n\n[g]: o.md\n");
    let document = Document::parse("x.md", &text);
    let targets: Vec<_> = document.links.iter().map(|link| (link.line, &*link.target)).collect();
    let expected = [
        (1, "b.md#c"),
        (1, "e.svg"),
        (3, "o.md"),
        (5, "l.svg"),
        (5, "m.svg"),
        (5, "n.svg"),
        (3, "[i] without a definition"),
    ];
    assert_eq!(targets, expected);
    assert_eq!(document.ids, ["k"]);
}

#[test]
fn tables_are_read_by_section_and_cell() {
    let text = "# a\n\n| b | c |\n| --- | --- |\n| `d` | e \\| f |\n| | g |\n\n## h\n\n|i|\n|-|\n|j|\n";
    let document = Document::parse("x.md", text);
    let [first, second] = &document.tables[..] else { panic!("two tables") };
    assert_eq!((first.line, &*first.section, &*second.section), (3, "a", "h"));
    assert_eq!((&first.header[..], &second.header[..]), (&["b".to_owned(), "c".to_owned()][..], &["i".to_owned()][..]));
    assert_eq!(first.rows, [["`d`", "e | f"], ["", "g"]]);
    assert_eq!(second.rows, [["j"]]);
    let count = |headings: &[&str]| document.tables_of(headings).count();
    assert_eq!([count(&["b"]), count(&["b", "c"]), count(&["b", "d"]), count(&["i", "c"])], [1, 1, 0, 0]);
}
