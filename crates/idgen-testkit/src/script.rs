//! Scenarios of several sessions, written as text: one step a line, in the order in which they run.
//!
//! ```text
//! a: BEGIN; SELECT f()                runs statements, which must succeed
//! a: SELECT f() -> 7|x, 8|y           they return these rows: `nothing` is no row, `null` NULL, `''` an empty text
//! a: SELECT f() -> $token             stores the answer, for which `$token`, a new name, then stands
//! a: SELECT f() -> $next > $token     the same, also for a known name, and the answer is a greater number
//! a: SELECT f() -> error 55000 text   they fail with this SQLSTATE, and the text is in the message, DETAIL or HINT
//! a: SELECT f() -> error              they fail, or lose the connection
//! b waits for advisory: SELECT f()    blocks in this wait event, or in one of this type
//! b waits for Lock                    goes on waiting, in this event
//! b ends -> 7                         returns from that wait, with the outcomes above
//! a: SELECT f() -> has x and y        these texts are in what they return
//! b is paused                         its process is stopped
//! b resumes                           it goes on
//! b leaves                            disconnects
//! b is killed                         its process is, and the server recovers, after which all sessions are new
//! b connects as app                   its session is this role's
//! b connects to shop as app           its session is in this database
//! until: SELECT f() -> 7              is repeated until it returns this
//! clock: 600 s                        the clock of the server is this far from the true one
//! setting: a = b                      changes a setting, by a reload; '' is an empty value
//! server: restarts                    a fast stop and a start, after which all sessions are new
//! server: crashes                     its processes are killed, and it starts again
//! ```
//!
//! Other sessions connect where they are first named, as the superuser, and `$b_pid` is its process. The name of a
//! variable ends where no letter, digit or `_` follows. No other session may wait when one is killed, and none when the
//! server stops or crashes. A line that is indented deeper than others continues the line above, however the first one is
//! indented. A line that begins with `--` is a comment.

use std::collections::BTreeMap;
use std::thread::JoinHandle;

use postgres::{Client, SimpleQueryMessage};

use crate::cluster::Cluster;
use crate::signal::{Paused, pause};
use crate::sql::{PATIENCE, backend_pid, value};

/// The rows as text, or the SQLSTATE and the texts of an error.
type Answer = Result<String, (String, String)>;

enum Session {
    Idle(Box<Client>),
    Waiting(JoinHandle<(Client, Answer)>),
}

struct Script<'a> {
    cluster: &'a Cluster,
    /// Dropped before the sessions: a paused one does not end.
    paused: BTreeMap<String, Paused>,
    sessions: BTreeMap<String, Session>,
    variables: BTreeMap<String, String>,
}

/// Runs a script in sessions of its own. Panics with the step that has another outcome, or if a session waits at the
/// end.
pub fn play(cluster: &Cluster, script: &str) {
    let mut running =
        Script { cluster, paused: BTreeMap::new(), sessions: BTreeMap::new(), variables: BTreeMap::new() };
    for step in steps(script) {
        running.step(&step);
    }
    running.assert_all_idle("the end of the script");
}

/// Runs a script for each of the cases, whose texts replace these names in it.
pub fn play_each<const N: usize>(cluster: &Cluster, script: &str, names: [&str; N], cases: &[[&str; N]]) {
    for case in cases {
        eprintln!("case {case:?}");
        play(cluster, &filled_in(script, names, case));
    }
}

/// The script of one case.
pub fn filled_in<const N: usize>(script: &str, names: [&str; N], case: &[&str; N]) -> String {
    names.iter().zip(case).fold(script.to_owned(), |script, (name, text)| script.replace(name, text))
}

fn steps(script: &str) -> Vec<String> {
    let lines = || script.lines().filter(|line| !line.trim().is_empty());
    let indentation = |line: &str| line.len() - line.trim_start().len();
    let least = lines().skip(1).map(indentation).min().unwrap_or_default();
    let mut steps: Vec<String> = Vec::new();
    for line in lines().filter(|line| !line.trim().starts_with("--")) {
        match steps.last_mut() {
            Some(last) if indentation(line) > least => *last = format!("{last} {}", line.trim()),
            _ => steps.push(line.trim().to_owned()),
        }
    }
    steps
}

impl Script<'_> {
    fn step(&mut self, step: &str) {
        let end = step.find([':', ' ']).unwrap_or_else(|| panic!("\"{step}\" is no step"));
        let (name, rest) = step.split_at(end);
        let (action, outcome) = match rest.rsplit_once(" -> ") {
            Some((action, outcome)) => (action, Some(outcome)),
            None => (rest, None),
        };
        let of_server = ["clock", "setting", "server"].contains(&name);
        let returns = action.starts_with(": ") || action == " ends";
        assert!(outcome.is_none() || returns && !of_server, "{step}: this step has no outcome");
        if name == "until" {
            self.repeat(step, action.trim_start_matches(": "), outcome.expect("an outcome"));
        } else if of_server {
            self.of_server(step, name, action.trim_start_matches(": "));
        } else if let Some(whose) = action.strip_prefix(" connects ") {
            let (database, role) = whose.split_once("as ").unwrap_or((whose, "postgres"));
            let database = database.trim().strip_prefix("to ").unwrap_or("postgres");
            self.connect(step, name, self.cluster.client_as(database, role));
        } else if let Some(sql) = action.strip_prefix(": ") {
            let sql = self.filled_in(sql);
            let mut client = self.idle(name, step);
            let answer = run(&mut client, &sql);
            self.sessions.insert(name.to_owned(), Session::Idle(client.into()));
            self.check(step, answer, outcome);
        } else if let Some(wait) = action.strip_prefix(" waits for ") {
            let event = match wait.split_once(": ") {
                Some((event, sql)) => {
                    self.start(step, name, self.filled_in(sql));
                    event
                }
                None => wait,
            };
            self.await_event(step, name, event);
        } else if action == " ends" {
            let Some(Session::Waiting(waiting)) = self.sessions.remove(name) else {
                panic!("{step}: it does not wait")
            };
            self.cluster.wait_for(PATIENCE, step, || waiting.is_finished());
            let (client, answer) = waiting.join().expect("the session's thread does not panic");
            self.sessions.insert(name.to_owned(), Session::Idle(client.into()));
            self.check(step, answer, outcome);
        } else if action == " is killed" {
            self.cluster.kill9(self.variables[&format!("{name}_pid")].parse().expect("a process id"));
            // It may wait, and returns nothing.
            self.sessions.remove(name);
            self.cluster.wait_until_ready();
            self.forget(step);
        } else if action == " is paused" {
            let pid = self.variables[&format!("{name}_pid")].parse().expect("a process id");
            self.paused.insert(name.to_owned(), pause(pid));
        } else if action == " resumes" {
            assert!(self.paused.remove(name).is_some(), "{step}: it is not paused");
        } else {
            assert_eq!(action, " leaves", "\"{step}\" is no step");
            drop(self.idle(name, step));
        }
    }

    /// A session that runs nothing, which is connected if it is new.
    fn idle(&mut self, name: &str, step: &str) -> Client {
        match self.sessions.remove(name) {
            Some(Session::Idle(client)) => *client,
            Some(Session::Waiting(_)) => panic!("{step}: the session still waits"),
            None => {
                self.connect(step, name, self.cluster.client());
                self.idle(name, step)
            }
        }
    }

    fn connect(&mut self, step: &str, name: &str, mut client: Client) {
        self.variables.insert(format!("{name}_pid"), backend_pid(&mut client).to_string());
        let before = self.sessions.insert(name.to_owned(), Session::Idle(client.into()));
        assert!(before.is_none(), "{step}: it is connected");
    }

    /// What a waiting session returns would be lost.
    fn forget(&mut self, step: &str) {
        self.assert_all_idle(step);
        self.sessions.clear();
    }

    fn assert_all_idle(&self, when: &str) {
        for (name, session) in &self.sessions {
            assert!(matches!(session, Session::Idle(_)), "session {name} waits at {when}");
        }
    }

    fn of_server(&mut self, step: &str, name: &str, action: &str) {
        match (name, action) {
            ("setting", _) => {
                let (name, value) = action.split_once(" = ").unwrap_or_else(|| panic!("{step}: no value"));
                self.cluster.reload_with(name, if value == "''" { "" } else { value });
            }
            ("clock", _) => {
                let seconds = action.strip_suffix(" s").and_then(|number| number.parse::<i64>().ok());
                let seconds = seconds.unwrap_or_else(|| panic!("{step}: no seconds"));
                self.cluster.clock().set_offset_ms(seconds * 1000);
            }
            ("server", "restarts") => {
                self.forget(step);
                self.cluster.restart();
            }
            ("server", "crashes") => {
                self.forget(step);
                self.cluster.kill9_and_restart();
            }
            _ => panic!("\"{step}\" is no step"),
        }
    }

    fn start(&mut self, step: &str, name: &str, sql: String) {
        let mut client = self.idle(name, step);
        let waiting = std::thread::spawn(move || {
            let answer = run(&mut client, &sql);
            (client, answer)
        });
        self.sessions.insert(name.to_owned(), Session::Waiting(waiting));
    }

    fn await_event(&mut self, step: &str, name: &str, event: &str) {
        let Some(Session::Waiting(waiting)) = self.sessions.get(name) else { panic!("{step}: it does not wait") };
        let pid = &self.variables[&format!("{name}_pid")];
        let waits = format!(
            "SELECT count(*) = 1 FROM pg_stat_activity
             WHERE pid = {pid} AND state = 'active' AND '{event}' IN (wait_event, wait_event_type)"
        );
        let mut observer = self.cluster.client();
        self.cluster.wait_for(PATIENCE, step, || waiting.is_finished() || value(&mut observer, &waits));
        if waiting.is_finished() {
            let Some(Session::Waiting(ended)) = self.sessions.remove(name) else { unreachable!("it was there") };
            panic!("{step}: it does not wait, but returns {:?}", ended.join().expect("an answer").1);
        }
    }

    fn repeat(&mut self, step: &str, sql: &str, outcome: &str) {
        let (sql, outcome) = (self.filled_in(sql), Ok(self.filled_in(outcome)));
        let mut observer = self.cluster.client();
        self.cluster.wait_for(PATIENCE, step, || run(&mut observer, &sql) == outcome);
    }

    fn check(&mut self, step: &str, answer: Answer, outcome: Option<&str>) {
        let Some(outcome) = outcome else {
            assert!(answer.is_ok(), "{step}: {answer:?}");
            return;
        };
        if let Some(wanted) = outcome.strip_prefix("error") {
            let wanted = self.filled_in(wanted.trim_start());
            let (code, text) = wanted.split_once(' ').unwrap_or((&wanted, ""));
            let is_it = |raised: &str, texts: &str| (code.is_empty() || raised == code) && texts.contains(text);
            assert!(answer.as_ref().is_err_and(|(raised, texts)| is_it(raised, texts)), "{step}: {answer:?}");
            return;
        }
        let answer = answer.unwrap_or_else(|error| panic!("{step}: {error:?}"));
        if let Some(texts) = outcome.strip_prefix("has ") {
            let texts = self.filled_in(texts);
            assert!(texts.split(" and ").all(|text| answer.contains(text)), "{step}: {answer}");
            return;
        }
        let Some(stored) = outcome.strip_prefix('$') else {
            assert_eq!(answer, self.filled_in(outcome), "{step}");
            return;
        };
        let (stored, least) = stored.split_once(" > ").map_or((stored, None), |(stored, least)| (stored, Some(least)));
        assert!(stored.chars().all(|c| c.is_alphanumeric() || c == '_'), "{step}: ${stored} is no variable");
        if let Some(least) = least {
            let number = |text: &str| text.parse::<i64>().unwrap_or_else(|_| panic!("{step}: {text} is no number"));
            let least = self.filled_in(least);
            assert!(number(&answer) > number(&least), "{step}: {answer} after {least}");
        }
        let before = self.variables.insert(stored.to_owned(), answer);
        assert!(before.is_none() || least.is_some(), "{step}: ${stored} has a value, and the step compares nothing");
    }

    /// The text with the values of its variables.
    fn filled_in(&self, text: &str) -> String {
        let mut parts = text.split('$');
        let mut filled = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(part.len());
            match self.variables.get(&part[..end]) {
                Some(value) => filled.extend([value, &part[end..]]),
                None => filled.extend(["$", part]),
            }
        }
        filled
    }
}

/// Waits until the transaction of an error is rolled back, as [`crate::sql::expect_error`] does.
fn run(client: &mut Client, sql: &str) -> Answer {
    let messages = client.simple_query(sql).map_err(|error| {
        let _ = client.simple_query("");
        let Some(error) = error.as_db_error() else { return ("closed".to_owned(), error.to_string()) };
        let texts = [Some(error.message()), error.detail(), error.hint()];
        (error.code().code().to_owned(), texts.map(Option::unwrap_or_default).join("\n"))
    })?;
    let rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            let texts = (0..row.len()).map(|column| match row.get(column) {
                None => "null",
                Some("") => "''",
                Some(text) => text,
            });
            Some(texts.collect::<Vec<_>>().join("|"))
        }
        _ => None,
    });
    let rows: Vec<String> = rows.collect();
    Ok(if rows.is_empty() { "nothing".to_owned() } else { rows.join(", ") })
}
