//! Reports to the client and the server's log, with the functions in their hints as a user has to write them.

use super::datum::{self, escaped, needs_no_conversion};
use super::session::Replaced;
use parking_lot::Mutex;
use pgrx::pg_sys::panic::{CaughtError, ErrorReport, ErrorReportWithLevel};
use pgrx::prelude::*;
use std::backtrace::Backtrace;
use std::env;
use std::ffi::{CStr, CString, c_void};
use std::panic::AssertUnwindSafe;
use std::ptr::null_mut;

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
        (format!("{}{detail}", self.message), with_schema(self.hint.unwrap_or_default()))
    }

    /// Sends it as an ERROR, which ends the statement.
    pub fn raise(self) -> ! {
        self.send(PgLogLevel::ERROR);
        unreachable!("an error report of level ERROR does not return")
    }

    pub fn warn(self) {
        self.send(PgLogLevel::WARNING);
    }

    pub fn notice(self) {
        self.send(PgLogLevel::NOTICE);
    }

    fn send(self, level: PgLogLevel) {
        let mut report = ErrorReport::new(self.code, for_message(self.message), env!("CARGO_PKG_NAME"));
        if let Some(detail) = self.detail {
            report = report.set_detail(for_message(detail));
        }
        if let Some(hint) = self.hint {
            report = report.set_hint(for_message(with_schema(hint)));
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

/// An error that was caught, and can be raised again as it was.
pub enum Caught {
    OfPostgres(ErrorCopy),
    OfRust(Box<CaughtError>),
}

/// PostgreSQL's copy of its error; pgrx's own lacks fields, and its texts are UTF-8. It is in the memory of the transaction: when
/// PostgreSQL raises it again, the names of the source file and the like stay there, and the error passes queries of SPI, which
/// free their own memory.
pub struct ErrorCopy(*mut pg_sys::ErrorData);

impl Drop for ErrorCopy {
    fn drop(&mut self) {
        // SAFETY: the transaction has not ended: PostgreSQL reports an error before that. Such names are not freed.
        unsafe { pg_sys::FreeErrorData(self.0) };
    }
}

/// Runs `work`, in a transaction. An error of PostgreSQL is no longer on PostgreSQL's stack of errors when this returns.
pub fn catching<R>(work: impl FnOnce() -> R) -> Result<R, Caught> {
    // SAFETY: memory contexts of this process, here and below. The handler runs while the error is on that stack.
    let context = AssertUnwindSafe(unsafe { pg_sys::CurrentMemoryContext });
    let keep = move |cause| unsafe {
        pg_sys::MemoryContextSwitchTo(pg_sys::TopTransactionContext);
        let caught = match cause {
            CaughtError::PostgresError(_) => Caught::OfPostgres(ErrorCopy(pg_sys::CopyErrorData())),
            cause => Caught::OfRust(Box::new(cause)),
        };
        pg_sys::MemoryContextSwitchTo(*context);
        Err(caught)
    };
    let work = AssertUnwindSafe(work);
    PgTryBuilder::new(AssertUnwindSafe(|| Ok((work.0)()))).catch_others(keep).execute()
}

impl Caught {
    pub fn code(&self) -> PgSqlErrorCode {
        match self {
            // SAFETY: a copy that lives.
            Self::OfPostgres(error) => unsafe { (*error.0).sqlerrcode.into() },
            Self::OfRust(cause) => known_to_pgrx(cause).sql_error_code(),
        }
    }

    /// The source file of PostgreSQL that has raised it.
    pub fn file(&self) -> Option<&CStr> {
        let Self::OfPostgres(error) = self else { return None };
        // SAFETY: as above. The name is null or a C string.
        unsafe { Some((*error.0).filename).filter(|name| !name.is_null()).map(|name| CStr::from_ptr(name)) }
    }

    pub fn rethrow(self) -> ! {
        match self {
            Self::OfPostgres(error) => {
                // With some versions, the binding says that it does not return, and with others it does not.
                // SAFETY: as above.
                let raise = |error| -> () { unsafe { pg_sys::ReThrowError(error) } };
                raise(error.0);
                unreachable!("an error that is raised does not return")
            }
            Self::OfRust(cause) => cause.rethrow(),
        }
    }
}

/// What pgrx knows of an error that is being handled.
pub fn known_to_pgrx(cause: &CaughtError) -> &ErrorReportWithLevel {
    let (CaughtError::PostgresError(report)
    | CaughtError::ErrorReport(report)
    | CaughtError::RustPanic { ereport: report, .. }) = cause;
    report
}

/// A text as a literal of SQL, for a HINT. As E'' where it has a backslash, which standard_conforming_strings gives a meaning,
/// and where [`for_message`] will make escapes of it.
pub fn quoted(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    match text.contains('\\') || is_escaped(text) {
        true => format!("E'{}'", doubled.replace('\\', r"\\")),
        false => format!("'{doubled}'"),
    }
}

/// The name of an object as an identifier of SQL, for a HINT: with escapes of U&"" where [`for_message`] would make others.
fn identifier(name: &CStr) -> String {
    let text = datum::name(name);
    if is_escaped(&text) {
        let escape = |letter: char| match letter {
            '"' | '\\' => format!("{letter}{letter}"),
            letter if letter.is_ascii() => letter.to_string(),
            letter => format!(r"\+{:06X}", u32::from(letter)),
        };
        return format!("U&\"{}\"", text.chars().map(escape).collect::<String>());
    }
    // SAFETY: a C string, and the result, which is copied at once, is it or a copy.
    unsafe { datum::name(CStr::from_ptr(pg_sys::quote_identifier(name.as_ptr()))) }
}

/// A text for a message. pgrx passes messages on as UTF-8, so a database of another encoding gets ASCII.
pub fn for_message(text: String) -> String {
    if is_escaped(&text) { escaped(&text) } else { text }
}

/// True if [`for_message`] makes escapes of its characters.
fn is_escaped(text: &str) -> bool {
    !(text.is_ascii() || needs_no_conversion())
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
    let message = FATAL.lock().clone();
    message.as_deref().map(datum::name)
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

unsafe extern "C-unwind" {
    /// How many triggers this process is in. Linked without pgrx's guard: it returns a variable, and ignores its argument.
    #[link_name = "pg_trigger_depth"]
    fn trigger_depth(call: pg_sys::FunctionCallInfo) -> pg_sys::Datum;
}

unsafe extern "C-unwind" fn note_depth(depth: *mut c_void) {
    // SAFETY: registered below, with this argument.
    unsafe { *depth.cast::<pg_sys::Datum>() = trigger_depth(null_mut()) };
}

/// Runs `work`, and tells whether its last report was raised within a trigger that it has fired.
pub fn noting_triggers<R>(work: impl FnOnce() -> R) -> (R, bool) {
    let stack = &raw mut pg_sys::error_context_stack;
    // SAFETY: variables of this process. PostgreSQL calls what is on the stack at each report, and both locals outlive that.
    let (result, before, at_report) = unsafe {
        let before = trigger_depth(null_mut());
        let mut at_report = before;
        let arg = (&raw mut at_report).cast();
        let mut callback = pg_sys::ErrorContextCallback { previous: *stack, callback: Some(note_depth), arg };
        let on_stack = Replaced::new(stack, &raw mut callback);
        let result = work();
        drop(on_stack);
        (result, before, at_report)
    };
    (result, at_report.value() > before.value())
}

/// The extension, and the schema of its tables.
pub const EXTENSION: &CStr = c"idgen";

/// How the functions begin that CREATE EXTENSION puts into a schema of the user's choice.
const FUNCTIONS: [&str; 9] =
    ["snowflake_", "uuidv7_", "segment_", "public_id", "id_", "lock_", "lease_", "worker_", "row_version"];

/// More schemas than a search path has. A HINT names a later one, which is right as well.
const LONGEST_PATH: usize = 64;

/// A text with calls of these functions that can be typed: with their schema, unless the search path has it.
fn with_schema(text: String) -> String {
    match hidden_schema() {
        Some(schema) => qualified(&text, &schema),
        None => text,
    }
}

/// The schema as an identifier of SQL. `None` if its name can be left out, or there is no extension.
fn hidden_schema() -> Option<String> {
    // SAFETY: reads catalogs, which needs a transaction. The tuple is read before the scan ends; the key and the name outlive
    // the scan.
    unsafe {
        if !pg_sys::IsTransactionState() {
            return None;
        }
        let mut key = pg_sys::ScanKeyData::default();
        let (column, equal) = (pg_sys::Anum_pg_extension_extname as i16, pg_sys::BTEqualStrategyNumber as u16);
        pg_sys::ScanKeyInit(&mut key, column, equal, pg_sys::F_NAMEEQ.into(), EXTENSION.as_ptr().into());
        let table = pg_sys::table_open(pg_sys::ExtensionRelationId, pg_sys::AccessShareLock as i32);
        let index = pg_sys::Oid::from_u32(pg_sys::ExtensionNameIndexId);
        let scan = pg_sys::systable_beginscan(table, index, true, null_mut(), 1, &mut key);
        let tuple = Some(pg_sys::systable_getnext(scan)).filter(|tuple| !tuple.is_null());
        let schema =
            tuple.map(|tuple| (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_extension>()).extnamespace);
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(table, pg_sys::AccessShareLock as i32);
        // Unlike the list of the path, this creates no temporary schema.
        let mut path = [pg_sys::InvalidOid; LONGEST_PATH];
        let schemas = pg_sys::fetch_search_path_array(path.as_mut_ptr(), LONGEST_PATH as i32);
        let is_hidden = |schema: &_| !path.iter().take(schemas as usize).any(|other| other == schema);
        let name = schema.filter(is_hidden).map(|schema| pg_sys::get_namespace_name(schema));
        name.filter(|name| !name.is_null()).map(|name| identifier(CStr::from_ptr(name)))
    }
}

/// Leaves literals as they are: a name can look like a call.
fn qualified(text: &str, schema: &str) -> String {
    let mut result = String::with_capacity(text.len() + schema.len() + 1);
    let (mut before, mut is_literal) = (' ', false);
    for (at, letter) in text.char_indices() {
        // An apostrophe follows a word, a literal does not, other than E''.
        is_literal ^= letter == '\'' && (is_literal || matches!(last_word(&text[..at]), "" | "E"));
        let begins_word = letter.is_ascii_lowercase() && !(before.is_alphanumeric() || "_.".contains(before));
        if begins_word && !is_literal && is_call(&text[at..]) {
            result.extend([schema, "."]);
        }
        result.push(letter);
        before = letter;
    }
    result
}

/// The word that ends here, or nothing.
fn last_word(text: &str) -> &str {
    text.rsplit(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default()
}

/// True if a call of one of the functions begins here.
fn is_call(text: &str) -> bool {
    let name = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_')).next().unwrap_or_default();
    text[name.len()..].starts_with('(') && FUNCTIONS.iter().any(|function| name.starts_with(function))
}
