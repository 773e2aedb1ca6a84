//! The client of the coordinator, the database that `idgen.coordinator` names. The keeper and the supply worker send their
//! requests through it. The core decides when a connection is kept and when a request is tried again.

use crate::pg::datum::escaped;
use crate::pg::latch::WaitEvent;
use crate::pg::libpq::{Connection, Error, INVALID_CONNECTION_STRING, Timeout};
use crate::pg::session;
use idgen_core::coordinator::CoordinatorId;
use idgen_core::coordinator::link::{Link, Step};
use idgen_core::lock::MAX_OWNER_BYTES;
use parking_lot::Mutex;
use pgrx::pg_sys;
use std::ffi::{CStr, CString};
use std::str::FromStr;
use std::time::{Duration, Instant};

pub struct Client {
    /// The name of its sessions there.
    application: &'static CStr,
    conninfo: CString,
    pub link: Link<Coordinator>,
    /// How long the last connection took; zero before the first one.
    pub connected_in: Duration,
}

/// A connection to the coordinator's database, which has identified itself.
pub struct Coordinator {
    pub connection: Connection,
    timeout: Timeout,
    /// It may stay unused until then.
    stays_until: Instant,
    pub identity: CoordinatorId,
    /// The quoted schema of idgen's functions.
    pub schema: String,
    /// It has the table of pools, which came with 0.18.0. Before that, a pool was a lease.
    pub has_pools: bool,
}

/// Identifies the database, and sets up the session. `statement_timeout` ends a statement after the caller has stopped
/// waiting. Commits wait for the disk only: nothing would end a wait for a standby, and a function that confirms waits
/// for that. An idle session is not ended. Texts are UTF-8, as in Rust; a database with MULE_INTERNAL cannot convert
/// them, and takes ASCII only. The last three columns: whether there is room for a connection that stays, when the
/// server has started, and whether it has a table of pools: the role need not be allowed to use its schema. There is
/// room if fewer than half of the connections are in use, and neither role nor database has a limit of its own.
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
    (EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8, \
    EXISTS (SELECT FROM pg_catalog.pg_class AS pools \
            JOIN pg_catalog.pg_namespace AS own ON own.oid OPERATOR(pg_catalog.=) pools.relnamespace \
            WHERE own.nspname OPERATOR(pg_catalog.=) 'idgen' AND pools.relname OPERATOR(pg_catalog.=) 'worker_pool') \
    FROM pg_catalog.pg_control_system() AS control \
    JOIN pg_catalog.pg_database AS database ON database.datname OPERATOR(pg_catalog.=) pg_catalog.current_database() \
    JOIN pg_catalog.pg_roles AS role ON role.rolname OPERATOR(pg_catalog.=) SESSION_USER \
    LEFT JOIN pg_catalog.pg_extension AS extension ON extension.extname OPERATOR(pg_catalog.=) 'idgen' \
    LEFT JOIN pg_catalog.pg_namespace AS space ON space.oid OPERATOR(pg_catalog.=) extension.extnamespace";

/// How long an unused connection stays. A connection costs the coordinator several times the CPU time of a request. But the
/// next one resolves the coordinator's name again, and the network may cut a connection that is idle for longer.
const LONGEST_STAY: Duration = Duration::from_mins(5);

/// The wait for the coordinator, to connect or to answer.
pub static COORDINATOR_WAIT: WaitEvent = WaitEvent::new(c"IdgenCoordinator");

static FOLLOWERS: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Registers a function that the keeper calls when the server has started, and after each change of `idgen.coordinator`.
/// While the postmaster preloads libraries.
pub fn follow(changed: fn()) {
    FOLLOWERS.lock().push(changed);
}

pub fn tell_followers() {
    FOLLOWERS.lock().iter().for_each(|changed| changed());
}

impl Client {
    /// A connection that has answered within `fresh` is used without a probe. Not zero only if requests may be repeated.
    pub fn new(application: &'static CStr, fresh: Duration) -> Self {
        Self { application, conninfo: CString::default(), link: Link::new(fresh), connected_in: Duration::ZERO }
    }

    /// Applies `idgen.coordinator`. True if it has changed.
    pub fn follow(&mut self, conninfo: CString) -> bool {
        let is_changed = conninfo != self.conninfo;
        if is_changed {
            self.conninfo = conninfo;
            self.link.reset();
        }
        is_changed
    }

    /// A connection for a request: the kept one, or a new one. Pass it to [`Client::answered`], or call [`Link::failed`].
    pub fn open(&mut self, timeout: Timeout) -> Result<Coordinator, Error> {
        match self.link.request(Instant::now(), timeout.duration) {
            Step::Use(kept) => return Ok(kept),
            Step::Probe(mut kept) => {
                if kept.answers() {
                    return Ok(kept);
                }
            }
            Step::Connect => {}
        }
        let began = Instant::now();
        let opened = Coordinator::connect(&self.conninfo, self.application, self.link.connect(), timeout)?;
        self.connected_in = began.elapsed();
        Ok(opened)
    }

    /// The coordinator has answered, if only by an error that is no failure of its own.
    pub fn answered(&mut self, coordinator: Coordinator) {
        let (limit, stays_until) = (coordinator.timeout.duration, coordinator.stays_until);
        self.link.answered(Instant::now(), coordinator, limit, stays_until);
    }

    /// A request on a connection of its own, as to a former coordinator.
    pub fn once<R>(
        &mut self,
        conninfo: &CStr,
        timeout: Timeout,
        calls: impl FnOnce(&mut Coordinator) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let opened = Coordinator::connect(conninfo, self.application, self.link.first_host, timeout);
        let outcome = opened.and_then(|mut coordinator| calls(&mut coordinator));
        outcome.inspect_err(|_| self.link.first_host += 1)
    }
}

impl Coordinator {
    fn connect(conninfo: &CStr, application: &CStr, first: usize, timeout: Timeout) -> Result<Self, Error> {
        if conninfo.is_empty() {
            return Err(Error::new("idgen.coordinator is not set"));
        }
        let opened = Connection::open(conninfo, application, first, timeout);
        let mut connection = opened.map_err(|error| match error.message.as_str() {
            INVALID_CONNECTION_STRING => Error::new(format!("idgen.coordinator: {INVALID_CONNECTION_STRING}")),
            _ => error,
        })?;
        let row = connection.query(IDENTIFY, &[&timeout.duration.as_millis().to_string()], timeout);
        // No request was refused.
        let row = Row(row.map_err(|error| Error::new(error.message))?);
        let Some(schema) = row.text(2) else {
            return Err(Error::new(format!("{}: the database does not have the extension idgen", connection.host())));
        };
        // SQL shows this number with a sign.
        let system_identifier = row.number::<i64>(0)? as u64;
        let identity = CoordinatorId { system_identifier, database: row.number(1)? };
        // A server that stops smartly waits for its clients, this process among them.
        let is_this_server = row.number::<i64>(9)? == session::server_start_us();
        let [has_room, has_pools] = [8, 10].map(|column| row.text(column).as_deref() == Some("t"));
        let stay = if has_room && !is_this_server { LONGEST_STAY } else { Duration::ZERO };
        Ok(Self { connection, timeout, stays_until: Instant::now() + stay, identity, schema, has_pools })
    }

    /// So a coordinator that has been restarted, or is silent, is noticed before a request whose answer would be lost.
    fn answers(&mut self) -> bool {
        let half = Timeout { duration: self.timeout.duration / 2, ..self.timeout };
        self.connection.query(c"SELECT", &[], half).is_ok()
    }

    /// Runs a query that returns one row at most. An error with an SQLSTATE is the coordinator's answer to this request, and
    /// the connection is usable after it.
    pub fn query(&mut self, sql: String, params: &[&str]) -> Result<Row, Error> {
        self.query_unless(self.timeout.is_interrupted, sql, params)
    }

    /// As [`Coordinator::query`], with another condition that ends the wait for the answer.
    pub fn query_unless(&mut self, is_interrupted: fn() -> bool, sql: String, params: &[&str]) -> Result<Row, Error> {
        let sql = CString::new(sql).expect("a query of ours has no NUL");
        let answer = self.connection.query(&sql, params, Timeout { is_interrupted, ..self.timeout });
        // A server that is read-only is no coordinator. Another host may be.
        answer.map(Row).map_err(|error| Error { sqlstate: error.sqlstate.filter(|code| code != READ_ONLY), ..error })
    }
}

const READ_ONLY: &str = "25006";

/// The columns of a row; `None` for NULL, and for those of a row that does not exist.
pub struct Row(Vec<Option<String>>);

impl Row {
    pub fn text(&self, column: usize) -> Option<String> {
        self.0.get(column).cloned().flatten()
    }

    pub fn number<N: FromStr>(&self, column: usize) -> Result<N, Error> {
        let text = self.text(column).unwrap_or_default();
        text.parse().map_err(|_| Error::new(format!("the coordinator has returned an invalid number: \"{text}\"")))
    }
}

/// Of a request that waits for the coordinator's synchronous standbys.
pub fn unconfirmed(error: Error) -> Error {
    let message = format!("not confirmed to be on the coordinator's synchronous standbys: {}", error.message);
    Error { message, ..error }
}

/// The name by which the coordinator shows this server: host, port and data directory, as long as an owner may be. In ASCII,
/// which the database of the coordinator has in every encoding.
pub fn name_of_this_server() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let directory = std::env::current_dir().unwrap_or_default();
    // SAFETY: set when the server starts.
    let port = unsafe { pg_sys::PostPortNumber };
    let mut name = escaped(&format!("{}:{port}{}", host.trim(), directory.display()));
    name.truncate(MAX_OWNER_BYTES);
    name
}
