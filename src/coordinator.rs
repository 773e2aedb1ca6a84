//! The connection to the coordinator, the database that `idgen.coordinator` names. Each capability that uses it has
//! calls of its own.

use crate::pg::latch::WaitEvent;
use crate::pg::libpq::{Connection, Error, INVALID_CONNECTION_STRING, Timeout};
use crate::pg::session;
use idgen_core::coordinator::CoordinatorId;
use parking_lot::Mutex;
use pgrx::pg_sys;
use std::ffi::{CStr, CString};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// A connection to the coordinator's database, which has identified itself.
pub struct Coordinator {
    connection: Connection,
    /// The connection string that it was opened with.
    conninfo: CString,
    timeout: Timeout,
    /// It may be used again until then; `None` if it has to be closed after this attempt.
    usable_until: Option<Instant>,
    pub identity: CoordinatorId,
    /// The quoted schema of idgen's functions.
    schema: String,
}

/// Identifies the database, and sets up the session. `statement_timeout` ends a statement after the caller has stopped
/// waiting. Commits wait for the disk only: nothing would end a wait for a standby, and a function that confirms waits
/// for that. An idle session is not ended. Texts are UTF-8, as in Rust; a database with MULE_INTERNAL cannot convert
/// them, and takes ASCII only. The last two columns: whether there is room for a connection that stays, and when the
/// server has started. There is room if fewer than half of the connections are in use, and neither role nor database
/// has a limit of its own.
const IDENTIFY: &CStr = c"SELECT control.system_identifier, database.oid, pg_catalog.quote_ident(space.nspname), \
    pg_catalog.set_config('statement_timeout', $1, false), \
    pg_catalog.set_config('synchronous_commit', 'local', false), \
    pg_catalog.set_config('default_transaction_isolation', 'read committed', false), \
    pg_catalog.set_config('idle_session_timeout', '0', false), \
    pg_catalog.set_config('client_encoding', CASE WHEN pg_catalog.current_setting('server_encoding') \
                          OPERATOR(pg_catalog.<>) 'MULE_INTERNAL' THEN 'UTF8' END, false), \
    (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_get_activity(NULL) AS session \
     WHERE session.usesysid IS NOT NULL) OPERATOR(pg_catalog.*) 2 \
     OPERATOR(pg_catalog.<) pg_catalog.current_setting('max_connections')::pg_catalog.int8 \
     AND database.datconnlimit OPERATOR(pg_catalog.<) 0 AND role.rolconnlimit OPERATOR(pg_catalog.<) 0, \
    (EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8 \
    FROM pg_catalog.pg_control_system() AS control \
    JOIN pg_catalog.pg_database AS database ON database.datname OPERATOR(pg_catalog.=) pg_catalog.current_database() \
    JOIN pg_catalog.pg_roles AS role ON role.rolname OPERATOR(pg_catalog.=) SESSION_USER \
    LEFT JOIN pg_catalog.pg_extension AS extension ON extension.extname OPERATOR(pg_catalog.=) 'idgen' \
    LEFT JOIN pg_catalog.pg_namespace AS space ON space.oid OPERATOR(pg_catalog.=) extension.extnamespace";

/// How long a connection is used. Then the next one resolves the coordinator's name again, and asks again for room.
/// The network may cut a connection that is idle for longer.
const LONGEST_USE: Duration = Duration::from_mins(5);

/// The wait for the coordinator, to connect or to answer.
pub static COORDINATOR_WAIT: WaitEvent = WaitEvent::new(c"IdgenCoordinator");

static FOLLOWERS: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Registers a function that the keeper calls when the server has started, and after each change of `idgen.coordinator`.
/// While the postmaster preloads libraries.
pub fn follow(changed: fn()) {
    FOLLOWERS.lock().push(changed);
}

/// The keeper calls this with the setting that it knows, and as it is now.
pub fn notice(known: &mut Option<CString>, now: CString) {
    if known.as_ref() != Some(&now) {
        *known = Some(now);
        FOLLOWERS.lock().iter().for_each(|changed| changed());
    }
}

impl Coordinator {
    /// As [`Connection::open`]. `application` is the name of the session there.
    pub fn connect(conninfo: &CStr, application: &CStr, first: usize, timeout: Timeout) -> Result<Self, Error> {
        if conninfo.is_empty() {
            return Err(Error::new("idgen.coordinator is not set"));
        }
        let opened = Connection::open(conninfo, application, first, timeout);
        let mut connection = opened.map_err(|error| match error.message.as_str() {
            INVALID_CONNECTION_STRING => Error::new(format!("idgen.coordinator: {INVALID_CONNECTION_STRING}")),
            _ => error,
        })?;
        let row = connection.query(IDENTIFY, &[&timeout.duration.as_millis().to_string()], timeout)?;
        let Some(Some(schema)) = row.get(2).cloned() else {
            return Err(Error::new(format!("{}: the database does not have the extension idgen", connection.host())));
        };
        let identity = CoordinatorId { system_identifier: parse(&row, 0)?, database: parse(&row, 1)? };
        // A server that stops smartly waits for its clients, this process among them.
        let is_this_server = parse::<i64>(&row, 9)? == session::server_start_us();
        let has_room = row.get(8).cloned().flatten().as_deref() == Some("t");
        let usable_until = (has_room && !is_this_server).then(|| Instant::now() + LONGEST_USE);
        Ok(Self { connection, conninfo: conninfo.to_owned(), timeout, usable_until, identity, schema })
    }

    /// True if the connection can be used again after a pause.
    pub fn stays_for(&self, pause: Duration) -> bool {
        self.usable_until.is_some_and(|until| Instant::now() + pause < until)
    }

    /// True if it was opened with this connection string, with the same timeout, and the coordinator answers. So one
    /// that has been restarted, or is silent, is noticed before a request whose answer would be lost.
    pub fn is_usable(&mut self, conninfo: &CStr, timeout: Timeout) -> bool {
        self.conninfo.as_c_str() == conninfo
            && self.timeout.duration == timeout.duration
            && self.stays_for(Duration::ZERO)
            && self.connection.query(c"SELECT", &[], timeout.with_duration(timeout.duration / 2)).is_ok()
    }

    /// Host and port of the server.
    pub fn host(&self) -> String {
        self.connection.host()
    }

    /// Runs a query that returns one row at most. `sql` gets the quoted schema of idgen's functions.
    pub fn query(&mut self, sql: impl FnOnce(&str) -> String, params: &[&str]) -> Result<Vec<Option<String>>, Error> {
        self.query_unless(self.timeout.is_interrupted, sql, params)
    }

    /// As [`Coordinator::query`], with another condition that ends the wait for the answer.
    pub fn query_unless(
        &mut self,
        is_interrupted: fn() -> bool,
        sql: impl FnOnce(&str) -> String,
        params: &[&str],
    ) -> Result<Vec<Option<String>>, Error> {
        let sql = CString::new(sql(&self.schema)).expect("a query of ours has no NUL");
        self.connection.query(&sql, params, Timeout { is_interrupted, ..self.timeout })
    }
}

/// A number in a column of a row.
pub fn parse<N: FromStr>(row: &[Option<String>], column: usize) -> Result<N, Error> {
    let text = row.get(column).cloned().flatten().unwrap_or_default();
    text.parse().map_err(|_| Error::new(format!("the coordinator has returned an invalid number: \"{text}\"")))
}

/// The name by which the coordinator shows this server: host, port and data directory.
pub fn name_of_this_server() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let directory = std::env::current_dir().unwrap_or_default();
    // SAFETY: set when the server starts.
    format!("{}:{}{}", host.trim(), unsafe { pg_sys::PostPortNumber }, directory.display())
}
