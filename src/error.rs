//! What capabilities report: errors that several of them raise, and rows of the view `idgen.checks`. Each capability has its
//! own errors beside what raises them, and a function that returns its own rows, which `admin` collects.

use crate::pg::ereport::{Report, errors};
use crate::pg::{function, recovery};
use pgrx::fcinfo::pg_getarg_datum;
use pgrx::prelude::*;

errors! {
    fn not_preloaded() {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "idgen must be preloaded";
        detail: "All sessions share state in shared memory, which is allocated when the server starts.";
        hint: "Set shared_preload_libraries = 'idgen' and restart the server. Separate several libraries by commas.";
    }

    fn on_standby(action: &str) {
        ERRCODE_READ_ONLY_SQL_TRANSACTION: "cannot {action} during recovery";
        detail: "This server is a standby. Only its primary issues ids.";
        hint: "Connect to the primary, or promote this server.";
    }

    fn called_for_each_column(function: &str) {
        ERRCODE_FEATURE_NOT_SUPPORTED: "{function}() would be called once for each column";
        detail: "PostgreSQL expands (function(...)).* to a call for each column, and each call changes something.";
        hint: "Call it in FROM: SELECT * FROM {function}(...).";
    }

    /// A file that identifies the data directory.
    fn directory_unreadable(file: &str, error: &std::io::Error) {
        ERRCODE_IO_ERROR: "could not read file \"{file}\": {error}";
        detail: "The file distinguishes this data directory from a copy, and from its own state before a restore.";
        hint: "Restore its permissions. If it is \"idgen_place\" and missing, restart the server, which then writes it.";
    }

    fn place_not_written(file: &str, error: &std::io::Error) {
        ERRCODE_IO_ERROR: "could not write file \"{file}\": {error}";
        detail: "The server does not start without it: nothing else tells it to begin past ids that it has forgotten.";
        hint: "Free disk space, or restore the permissions, and start the server again.";
    }

    fn wal_lost(file: &str) {
        ERRCODE_DATA_CORRUPTED: "WAL of this server was reset or lost";
        detail: "The last values of segments and the last holders of leases may be forgotten.";
        hint: "{}", wal_lost_hint(file);
    }
}

/// Raises 25006 during recovery: a server that issues no ids cannot do this. One check a session suffices: a server does
/// not return to recovery.
pub fn refuse_on_standby(action: &str) {
    if recovery::is_in_progress() {
        on_standby(action).raise();
    }
}

/// Planner support of functions that change something and return several columns. Refuses a statement that would call one
/// for each column: the columns would be those of different blocks, terms or renewals.
#[pg_extern(sql = false)]
fn refuse_row_expansion(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: the argument is not NULL. SQL cannot make a value of type internal, so the planner is the caller.
    let expanded = unsafe {
        let request = pg_getarg_datum(fcinfo, 0).expect("the function is strict");
        function::expanded_function(request.cast_mut_ptr())
    };
    if let Some(function) = expanded {
        called_for_each_column(&function).raise();
    }
    // A null pointer: the call stays as it is.
    0
}

/// What to do before the server can be trusted again.
pub fn wal_lost_hint(file: &str) -> String {
    format!(
        "Raise each segment with segment_alter() above all values that anyone can have got, also in rows that were lost, make \
         sure that no earlier holder of a lease acts any more, and remove the file \"{file}\" from the data directory."
    )
}

pub struct Check {
    pub name: &'static str,
    /// `None` if the check succeeds. "error" if draws, acquisitions or settled reads fail, or a promise may be broken.
    /// "warning" if they still succeed: they wait, are ahead of the clock, or will fail unless somebody acts.
    pub severity: Option<&'static str>,
    pub message: String,
    /// When it began to fail, in milliseconds since 1970; `None` if that is not known.
    pub since_ms: Option<i64>,
    /// The segments, leases, pools or kinds of ids that it is about.
    pub affects: Option<String>,
    /// What to do.
    pub action: Option<String>,
}

impl Check {
    pub fn ok(name: &'static str, message: impl Into<String>) -> Self {
        Self { name, severity: None, message: message.into(), since_ms: None, affects: None, action: None }
    }

    pub fn error(name: &'static str, message: impl Into<String>, action: impl Into<String>) -> Self {
        Self { severity: Some("error"), action: Some(action.into()), ..Self::ok(name, message) }
    }

    pub fn warning(name: &'static str, message: impl Into<String>, action: impl Into<String>) -> Self {
        Self { severity: Some("warning"), ..Self::error(name, message, action) }
    }

    /// For a state in which calls raise this error.
    pub fn raising(name: &'static str, report: Report) -> Self {
        let (message, hint) = report.into_texts();
        Self::error(name, message, hint)
    }

    pub fn since_ms(self, since_ms: Option<i64>) -> Self {
        Self { since_ms, ..self }
    }

    pub fn affects(self, what: impl Into<String>) -> Self {
        Self { affects: Some(what.into()), ..self }
    }
}

/// The first five names, and how many more there are.
pub fn listed(names: &[String]) -> String {
    first_of(names, 5)
}

/// At most so many of them, and how many more there are.
pub fn first_of(all: &[impl ToString], most: usize) -> String {
    let shown: Vec<_> = all.iter().take(most).map(ToString::to_string).collect();
    let more = if all.len() > most { format!(" and {} more", all.len() - most) } else { String::new() };
    shown.join(", ") + &more
}
