//! The supply worker's requests to the coordinator, and which of their failures are the coordinator's, and which a tag's.
//! They work with each coordinator from 0.14.0 on.

use crate::coordinator::{COORDINATOR_WAIT, Client, Coordinator, unconfirmed};
use crate::pg::libpq::{Error, Timeout};
use crate::pg::session;
use crate::segment::store::Origin;
use idgen_core::coordinator::link::retry_pause;
use idgen_core::segment::ValueRun;
use idgen_core::segment::fleet::is_answer;
use pgrx::prelude::*;
use std::time::{Duration, Instant};

/// One call may take less time than sessions wait by default, so that the next address has a chance. SIGTERM ends the
/// process during a wait, and nothing else has to end it early.
const TIMEOUT: Timeout =
    Timeout { duration: Duration::from_secs(3), event: &COORDINATOR_WAIT, is_interrupted: || false };

/// A connection that has answered within this time is used without a probe. Each request may be repeated.
const FRESH: Duration = Duration::from_secs(1);

/// Short enough that a session which waits for some seconds finds a coordinator that has returned.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// Between requests the connection stays open if values were granted within this time.
const LOADED: Duration = Duration::from_mins(1);

pub struct Requests {
    pub client: Client,
    granted_at: Option<Instant>,
    /// The last request for values was not confirmed.
    is_unconfirmed: bool,
    /// The last failure of the coordinator, unless it has answered since.
    pub failure: Option<String>,
}

/// What a request for one tag says of the attached server that sends it.
#[derive(Clone, Copy)]
pub struct Server<'a> {
    pub tag: &'a str,
    /// The coordinator knows the server by this number, and shows it by the name.
    pub number: i64,
    pub name: &'a str,
    /// The highest value that the server has ever received.
    pub received: i64,
}

impl Requests {
    pub fn new() -> Self {
        let client = Client::new(c"idgen supply", FRESH);
        Self { client, granted_at: None, is_unconfirmed: false, failure: None }
    }

    /// Closes the connection before a pause, unless it is in use and the coordinator has room.
    pub fn pause(&mut self, pause: Duration) {
        match self.granted_at.is_some_and(|granted_at| granted_at.elapsed() < LOADED) {
            true => self.client.link.pause(Instant::now() + pause),
            false => self.client.link.close(),
        }
    }

    /// Runs calls on a connection, and again where that is found broken at once.
    fn call<R>(&mut self, mut calls: impl FnMut(&mut Coordinator) -> Result<R, Failure>) -> Result<R, Failure> {
        loop {
            let opened = self.client.open(TIMEOUT).map_err(|error| Failure::Coordinator(error.message));
            let outcome = opened.and_then(|mut coordinator| {
                let outcome = calls(&mut coordinator);
                if !matches!(outcome, Err(Failure::Coordinator(_))) {
                    self.client.answered(coordinator);
                }
                outcome
            });
            let Err(Failure::Coordinator(reason)) = &outcome else {
                if self.failure.take().is_some() {
                    log!("the coordinator of attached segments answers again");
                }
                return outcome;
            };
            let pause = retry_pause(self.client.link.failures, LONGEST_PAUSE, session::random_fraction());
            if !self.client.link.failed(Instant::now(), pause) {
                if self.failure.replace(reason.clone()).is_none() {
                    log!("could not fetch values of attached segments: {reason}");
                }
                return outcome;
            }
        }
    }

    /// Reports the highest value received.
    pub fn report(&mut self, server: Server) -> Result<Origin, Failure> {
        self.call(|coordinator| Ok(request(coordinator, server, 0)?.0))
    }

    /// Ends the attachment of a tag. The last report counts.
    pub fn leave(&mut self, server: Server) -> Result<(), Failure> {
        self.call(|coordinator| {
            let schema = &coordinator.schema;
            let sql = format!("SELECT {schema}.segment_leave($1, $2::pg_catalog.int8, $3::pg_catalog.int8)");
            let left = coordinator.query(sql, &[server.tag, &server.number.to_string(), &server.received.to_string()]);
            match left {
                // The tag was dropped and this server forgotten, as by an earlier call whose answer was lost.
                Err(error) if error.sqlstate.as_deref() == Some(UNKNOWN) => {}
                left => drop(left?),
            }
            confirm(coordinator)
        })
    }

    /// Asks for values, and waits until they count. The values of a request that is not confirmed are lost. So a retry
    /// first waits for the standbys, which changes nothing, and loses no others while these are away.
    pub fn take_values(&mut self, server: Server, count: u64) -> Result<(ValueRun, Origin), Failure> {
        let mut is_unconfirmed = self.is_unconfirmed;
        let outcome = self.call(|coordinator| {
            if std::mem::replace(&mut is_unconfirmed, true) {
                confirm(coordinator)?;
            }
            let (origin, range) = request(coordinator, server, count)?;
            let refusal = match range {
                Ok(range) if is_answer(&range, origin.residue, server.received, count) => {
                    confirm(coordinator)?;
                    is_unconfirmed = false;
                    return Ok((range, origin));
                }
                Ok(ValueRun { first, count, stride }) => format!(
                    "The coordinator has granted values that were not asked for: {count} from {first} on, by {stride}."
                ),
                Err(waits_for) => format!(
                    "The coordinator grants nothing, because servers have not reported what they have received: {waits_for}."
                ),
            };
            Err(Failure::Tag(refusal))
        });
        self.is_unconfirmed = is_unconfirmed;
        if outcome.is_ok() {
            self.granted_at = Some(Instant::now());
        }
        outcome
    }
}

/// Reports the highest value received, and asks for values; 0 for none. Without values, the text has the servers whose reports
/// are missing. The coordinator has granted the values when this returns, and does so only once. They count once it has
/// confirmed them.
fn request(
    coordinator: &mut Coordinator,
    server: Server,
    count: u64,
) -> Result<(Origin, Result<ValueRun, String>), Error> {
    let sql = format!(
        "SELECT granted.first_id, granted.count, granted.stride, granted.residue, granted.source, granted.waits_for \
         FROM {}.segment_request($1, $2::pg_catalog.int8, $3, $4::pg_catalog.int8, $5::pg_catalog.int8) AS granted",
        coordinator.schema
    );
    let Server { tag, number, name, received } = server;
    let row = coordinator.query(sql, &[tag, &number.to_string(), name, &received.to_string(), &count.to_string()])?;
    let [source, waits_for] = [4, 5].map(|column| row.text(column).unwrap_or_default());
    let origin = Origin { source, stride: row.number(2)?, residue: row.number(3)? };
    let range = match row.text(0) {
        Some(_) => Ok(ValueRun { first: row.number(0)?, count: row.number(1)?, stride: origin.stride }),
        None => Err(waits_for),
    };
    Ok((origin, range))
}

/// Waits until the coordinator's synchronous standbys have all that it has committed for this server. A failure
/// concerns no tag.
fn confirm(coordinator: &mut Coordinator) -> Result<(), Failure> {
    let sql = format!("SELECT {}.segment_confirm()", coordinator.schema);
    coordinator.query(sql, &[]).map(drop).map_err(|error| Failure::Coordinator(unconfirmed(error).message))
}

/// Why there are no values.
pub enum Failure {
    /// The coordinator does not answer, or cannot grant values of any tag.
    Coordinator(String),
    /// Concerns this tag alone.
    Tag(String),
    /// The coordinator's tag has no more values.
    Exhausted(String),
    /// The tag was dropped here, or detached.
    Gone,
}

const UNKNOWN: &str = "42704";
const EXHAUSTED: &str = "2200H";

/// What the coordinator answers concerns the tag that it was asked for.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.sqlstate.as_deref() {
            None => Failure::Coordinator(error.message),
            Some(EXHAUSTED) => Failure::Exhausted(error.message),
            Some(_) => Failure::Tag(error.message),
        }
    }
}
