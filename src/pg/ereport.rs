//! Reports to the client and the server's log.

use super::datum::{self, escaped, needs_no_conversion};
use super::extension;
use parking_lot::Mutex;
use pgrx::pg_sys::panic::{CaughtError, ErrorReport};
use pgrx::prelude::*;
use std::backtrace::Backtrace;
use std::env;
use std::ffi::{CStr, CString};

/// An error, a warning or a notice: SQLSTATE, message, DETAIL and HINT.
pub struct Report {
    code: PgSqlErrorCode,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
}

impl Report {
    pub fn new(code: PgSqlErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), detail: None, hint: None }
    }

    pub fn detail(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }

    /// Functions of the extension are named without their schema here.
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// The message with the DETAIL, and the HINT, for a text that is not raised.
    pub fn into_texts(self) -> (String, String) {
        let detail = self.detail.map_or_else(String::new, |detail| format!(": {detail}"));
        (format!("{}{detail}", self.message), extension::with_schema(self.hint.unwrap_or_default()))
    }

    /// Sends it as an ERROR, which ends the statement.
    pub fn raise(self) -> ! {
        self.send(PgLogLevel::ERROR);
        unreachable!("an error report of level ERROR does not return")
    }

    /// Sends it as a WARNING.
    pub fn warn(self) {
        self.send(PgLogLevel::WARNING);
    }

    /// Sends it as a NOTICE.
    pub fn notice(self) {
        self.send(PgLogLevel::NOTICE);
    }

    fn send(self, level: PgLogLevel) {
        let mut report = ErrorReport::new(self.code, for_message(self.message), env!("CARGO_PKG_NAME"));
        if let Some(detail) = self.detail {
            report = report.set_detail(for_message(detail));
        }
        if let Some(hint) = self.hint {
            report = report.set_hint(for_message(extension::with_schema(hint)));
        }
        report.report(level);
    }
}

/// Declares errors, warnings and notices: each is a function that returns a [`Report`], with its SQLSTATE, its message and,
/// where it has them, its DETAIL and its HINT. A text is a literal of `format!`, with its values after it. The test of the
/// page of errors reads these declarations.
macro_rules! errors {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) {
        $code:ident: $message:literal $(, $message_value:expr)*;
        $(detail: $detail:literal $(, $detail_value:expr)*;)?
        $(hint: $hint:literal $(, $hint_value:expr)*;)?
    })+) => {$(
        $(#[$doc])*
        pub fn $name($($argument: $type),*) -> $crate::pg::ereport::Report {
            $crate::pg::ereport::Report::new(pgrx::PgSqlErrorCode::$code, format!($message $(, $message_value)*))
                $(.detail(format!($detail $(, $detail_value)*)))?
                $(.hint(format!($hint $(, $hint_value)*)))?
        }
    )+};
}
pub(crate) use errors;

/// Clients get no backtraces. pgrx appends one to the DETAIL of each error where the environment asks for them, as
/// `RUST_BACKTRACE=1` does. The standard library reads that once in a process, at the first capture; each library that is
/// written in Rust has its own copy of it.
pub fn disable_backtraces() {
    let asked: Vec<_> = ["RUST_BACKTRACE", "RUST_LIB_BACKTRACE"]
        .into_iter()
        .filter_map(|name| Some((name, env::var_os(name)?)))
        .collect();
    // SAFETY: this process has one thread, here and below.
    asked.iter().for_each(|(name, _)| unsafe { env::remove_var(name) });
    drop(Backtrace::capture());
    asked.iter().for_each(|(name, value)| unsafe { env::set_var(name, value) });
}

/// The handler of a caught error that may be raised again later. pgrx raises an error of PostgreSQL again from
/// PostgreSQL's stack of errors, and removes it from there when its handler returns. A report needs no place there.
pub fn keep<R>(cause: CaughtError) -> Result<R, Box<CaughtError>> {
    Err(Box::new(match cause {
        CaughtError::PostgresError(report) => CaughtError::ErrorReport(report),
        cause => cause,
    }))
}

/// A text as a literal of SQL, for a HINT.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A text for a message. pgrx passes messages on as UTF-8, so a database of another encoding gets ASCII.
pub fn for_message(text: String) -> String {
    if text.is_ascii() || needs_no_conversion() { text } else { escaped(&text) }
}

/// The message of the error that ends this process.
static FATAL: Mutex<Option<CString>> = Mutex::new(None);

/// The hook that another library installed before.
static PREVIOUS: Mutex<pg_sys::emit_log_hook_type> = Mutex::new(None);

/// From now on, [`fatal`] knows the message. For a background worker, once.
pub fn keep_fatal() {
    // SAFETY: a variable of this process, set before an error calls the hook.
    unsafe { *PREVIOUS.lock() = (&raw mut pg_sys::emit_log_hook).replace(Some(on_log)) };
}

/// The message of the error of level FATAL that ends this process, if one does.
pub fn fatal() -> Option<String> {
    FATAL.lock().as_deref().map(datum::name)
}

/// Not guarded: errors of another library pass through this frame, which has nothing to drop then.
unsafe extern "C-unwind" fn on_log(error: *mut pg_sys::ErrorData) {
    // SAFETY: PostgreSQL passes the error that it reports. Its message is null or a C string, copied at once.
    unsafe {
        if (*error).elevel >= PgLogLevel::FATAL as i32 && !(*error).message.is_null() {
            *FATAL.lock() = Some(CStr::from_ptr((*error).message).to_owned());
        }
        let previous = *PREVIOUS.lock();
        if let Some(previous) = previous {
            previous(error);
        }
    }
}
