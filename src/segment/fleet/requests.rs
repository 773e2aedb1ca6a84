//! The supply worker's calls of the coordinator, and which of their failures are the coordinator's, and which a tag's. They
//! work with each coordinator from 0.14.0 on.

use crate::coordinator::{COORDINATOR_WAIT, Client, Coordinator, name_of_this_server, unconfirmed};
use crate::pg::libpq::{Error, Timeout};
use crate::pg::{session, system_clock};
use crate::segment::refill::Port;
use idgen_core::segment::fleet::rows::Server;
use idgen_core::segment::supply::requests::{Answer, Asking, Failure};
use idgen_core::segment::tag::Origin;
use idgen_core::segment::{NoValues, ValueRun};
use std::time::{Duration, Instant};

/// One call may take less time than sessions wait by default, so that the next address has a chance. SIGTERM ends the
/// process during a wait, and nothing else has to end it early.
const TIMEOUT: Timeout =
    Timeout { duration: Duration::from_secs(3), event: &COORDINATOR_WAIT, is_interrupted: || false };

/// A connection that has answered within this time is used without a probe. Each request may be repeated.
const FRESH: Duration = Duration::from_secs(1);

pub struct Supply {
    pub client: Client,
    /// That of the running request.
    connection: Option<Coordinator>,
    /// The name of this server, for the coordinator's views.
    name: String,
}

impl Supply {
    pub fn new() -> Self {
        Self { client: Client::new(c"idgen supply", FRESH), connection: None, name: name_of_this_server() }
    }

    /// No request is due before this time, by the clock of the worker.
    pub fn retry_at_us(&self) -> Option<i64> {
        let (retry_at, now) = (self.client.link.retry_at?, Instant::now());
        let us = |from: Instant, to: Instant| to.saturating_duration_since(from).as_micros() as i64;
        Some(system_clock::boot_us() + us(now, retry_at) - us(retry_at, now))
    }

    fn connection(&mut self) -> &mut Coordinator {
        self.connection.as_mut().expect("a request opens it first")
    }
}

impl Asking for Port<Supply> {
    fn random_fraction(&mut self) -> f64 {
        session::random_fraction()
    }

    fn open(&mut self) -> Result<(), String> {
        let opened = self.0.client.open(TIMEOUT).map_err(|error| error.message)?;
        self.0.connection = Some(opened);
        Ok(())
    }

    fn answered(&mut self) {
        if let Some(connection) = self.0.connection.take() {
            self.0.client.answered(connection);
        }
    }

    fn failures(&mut self) -> u32 {
        self.0.client.link.failures
    }

    fn failed(&mut self, pause: Duration) -> bool {
        self.0.connection = None;
        self.0.client.link.failed(Instant::now(), pause)
    }

    fn ask(&mut self, tag: &str, server: Server, count: u64) -> Answer<(Origin, Result<ValueRun, String>)> {
        let name = self.0.name.clone();
        let coordinator = self.0.connection();
        let sql = format!(
            "SELECT granted.first_id, granted.count, granted.stride, granted.residue, granted.source, granted.waits_for \
             FROM {}.segment_request($1, $2::pg_catalog.int8, $3, $4::pg_catalog.int8, $5::pg_catalog.int8) AS granted",
            coordinator.schema
        );
        let Server { number, received } = server;
        crate::pg::crash_point!("fleet: before the request");
        let row =
            coordinator.query(sql, &[tag, &number.to_string(), &name, &received.to_string(), &count.to_string()])?;
        crate::pg::crash_point!("fleet: answered");
        let [source, waits_for] = [4, 5].map(|column| row.text(column).unwrap_or_default());
        let origin = Origin { source, stride: row.number(2)?, residue: row.number(3)? };
        let range = match row.text(0) {
            Some(_) => Ok(ValueRun { first: row.number(0)?, count: row.number(1)?, stride: origin.stride }),
            None => Err(waits_for),
        };
        Ok((origin, range))
    }

    fn ask_to_leave(&mut self, tag: &str, server: Server) -> Answer<()> {
        let coordinator = self.0.connection();
        let schema = &coordinator.schema;
        let sql = format!("SELECT {schema}.segment_leave($1, $2::pg_catalog.int8, $3::pg_catalog.int8)");
        match coordinator.query(sql, &[tag, &server.number.to_string(), &server.received.to_string()]) {
            // The tag was dropped and this server forgotten, as by an earlier call whose answer was lost.
            Err(error) if error.sqlstate.as_deref() == Some(UNKNOWN) => Ok(()),
            left => Ok(left.map(drop)?),
        }
    }

    /// A failure concerns no tag.
    fn confirm(&mut self) -> Answer<()> {
        let coordinator = self.0.connection();
        let sql = format!("SELECT {}.segment_confirm()", coordinator.schema);
        let confirmed = coordinator.query(sql, &[]).map(drop);
        crate::pg::crash_point!("fleet: confirmed");
        confirmed.map_err(|error| Failure::Coordinator(unconfirmed(error).message))
    }
}

const UNKNOWN: &str = "42704";
const EXHAUSTED: &str = "2200H";

/// What the coordinator answers concerns the tag that it was asked for.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.sqlstate.as_deref() {
            None => Failure::Coordinator(error.message),
            Some(EXHAUSTED) => Failure::Exhausted(error.message),
            Some(_) => Failure::Tag(NoValues::Raised(error.message)),
        }
    }
}
