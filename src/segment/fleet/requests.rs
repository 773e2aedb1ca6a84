//! The supply worker's requests to the coordinator: which failures are the coordinator's, and which a tag's.

use crate::coordinator::{COORDINATOR_WAIT, Client, Coordinator, Origin, Server};
use crate::pg::libpq::{Error, Timeout};
use crate::pg::session;
use crate::settings;
use idgen_core::coordinator::link::retry_pause;
use idgen_core::segment::ValueRun;
use idgen_core::segment::fleet::is_answer;
use pgrx::prelude::*;
use std::cell::Cell;
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
    client: Client,
    granted_at: Option<Instant>,
    /// The last request for values was not confirmed.
    is_unconfirmed: bool,
    /// The last failure of the coordinator, unless it has answered since.
    pub failure: Option<String>,
}

impl Requests {
    pub fn new() -> Self {
        let mut requests = Self {
            client: Client::new(c"idgen supply", FRESH),
            granted_at: None,
            is_unconfirmed: false,
            failure: None,
        };
        requests.follow_settings();
        requests
    }

    /// Applies a changed `idgen.coordinator`.
    pub fn follow_settings(&mut self) {
        self.client.follow(settings::coordinator());
    }

    /// No request is due before this time.
    pub fn retry_at(&self) -> Option<Instant> {
        self.client.link.retry_at
    }

    /// Closes the connection before a pause, unless it is in use and the coordinator has room.
    pub fn pause(&mut self, pause: Duration) {
        match self.granted_at.is_some_and(|granted_at| granted_at.elapsed() < LOADED) {
            true => self.client.link.pause(Instant::now() + pause),
            false => self.client.link.close(),
        }
    }

    /// Runs calls on a connection, and again where that is found broken at once.
    pub fn call<R>(&mut self, calls: impl Fn(&mut Coordinator) -> Result<R, Failure>) -> Result<R, Failure> {
        loop {
            let reason = match self.client.open(TIMEOUT) {
                Ok(mut coordinator) => match calls(&mut coordinator) {
                    Err(Failure::Coordinator(reason)) => reason,
                    outcome => {
                        self.client.answered(coordinator);
                        if self.failure.take().is_some() {
                            log!("the coordinator of attached segments answers again");
                        }
                        return outcome;
                    }
                },
                Err(error) => error.message,
            };
            let pause = retry_pause(self.client.link.failures, LONGEST_PAUSE, session::random_fraction());
            if !self.client.link.failed(Instant::now(), pause) {
                if self.failure.replace(reason.clone()).is_none() {
                    log!("could not fetch values of attached segments: {reason}");
                }
                return Err(Failure::Coordinator(reason));
            }
        }
    }

    /// Asks for values, and waits until they count. The values of a request that is not confirmed are lost. So a retry
    /// first waits for the standbys, which changes nothing, and loses no others while these are away.
    pub fn take_values(&mut self, server: Server, count: u64) -> Result<(ValueRun, Origin), Failure> {
        let is_unconfirmed = Cell::new(self.is_unconfirmed);
        let outcome = self.call(|coordinator| {
            if is_unconfirmed.replace(true) {
                coordinator.confirm_segments()?;
            }
            let granted = request_values(coordinator, server, count)?;
            coordinator.confirm_segments()?;
            is_unconfirmed.set(false);
            Ok(granted)
        });
        self.is_unconfirmed = is_unconfirmed.get();
        if outcome.is_ok() {
            self.granted_at = Some(Instant::now());
        }
        outcome
    }
}

fn request_values(coordinator: &mut Coordinator, server: Server, count: u64) -> Result<(ValueRun, Origin), Failure> {
    let reply = coordinator.request_values(server, count)?;
    let Some(range) = reply.range else {
        return Err(Failure::Tag(format!(
            "The coordinator grants nothing, because servers have not reported what they have received: {}.",
            reply.waits_for
        )));
    };
    if !is_answer(&range, reply.origin.residue, server.received, count) {
        let ValueRun { first, count, stride } = range;
        return Err(Failure::Tag(format!(
            "The coordinator has granted values that were not asked for: {count} from {first} on, by {stride}."
        )));
    }
    Ok((range, reply.origin))
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
