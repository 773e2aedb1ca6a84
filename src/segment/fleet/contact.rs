//! The supply worker's connection to the coordinator: its calls of the coordinator's functions, and how they fail.

use crate::coordinator::{COORDINATOR_WAIT, Coordinator, parse};
use crate::pg::libpq::{Error, Timeout};
use crate::pg::session;
use crate::segment::store::Origin;
use crate::settings;
use idgen_core::coordinator::retry_pause;
use idgen_core::segment::ValueRun;
use idgen_core::segment::fleet::is_answer;
use pgrx::prelude::*;
use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::time::{Duration, Instant};

/// The name of its sessions at the coordinator.
const APPLICATION: &CStr = c"idgen supply";

/// One call may take less time than sessions wait by default, so that the next address has a chance. SIGTERM ends the
/// process during a wait, and nothing else has to end it early.
const TIMEOUT: Timeout =
    Timeout { duration: Duration::from_secs(3), event: &COORDINATOR_WAIT, is_interrupted: || false };

/// A connection that has answered within this time is used without asking whether it still works.
const FRESH: Duration = Duration::from_secs(1);

/// Between requests the connection stays open if values were granted within this time.
const LOADED: Duration = Duration::from_mins(1);

pub struct Contact {
    conninfo: CString,
    coordinator: Option<Coordinator>,
    /// The host and address to try first. Counts failed tries, so that each begins at another one.
    first_address: usize,
    answered_at: Option<Instant>,
    granted_at: Option<Instant>,
    /// The last request for values was not confirmed.
    is_unconfirmed: bool,
    /// Requests that have failed in a row because of the coordinator, not of a tag.
    failures: u32,
    /// No request before that.
    pub retry_at: Instant,
    /// The last failure, unless a request has succeeded since.
    pub failure: Option<String>,
}

impl Contact {
    pub fn new() -> Self {
        Self {
            conninfo: settings::coordinator(),
            coordinator: None,
            first_address: 0,
            answered_at: None,
            granted_at: None,
            is_unconfirmed: false,
            failures: 0,
            retry_at: Instant::now(),
            failure: None,
        }
    }

    /// Applies a changed `idgen.coordinator`.
    pub fn follow_settings(&mut self) {
        let conninfo = settings::coordinator();
        if conninfo != self.conninfo {
            (self.conninfo, self.coordinator) = (conninfo, None);
            (self.first_address, self.failures, self.retry_at) = (0, 0, Instant::now());
        }
    }

    /// Runs calls on a connection. Notes whether the coordinator answers: an error that concerns a tag is an answer.
    /// Where a kept connection turns out to be broken, as by a restart of the coordinator, runs them on a new one.
    pub fn call<R>(&mut self, calls: impl Fn(&mut Coordinator) -> Result<R, Failure>) -> Result<R, Failure> {
        let began = Instant::now();
        let kept = self.kept().map(&calls);
        let is_broken = matches!(kept, Some(Err(Failure::Coordinator(_)))) && began.elapsed() < FRESH;
        let outcome = match kept {
            Some(outcome) if !is_broken => outcome,
            _ => self.connect().map_err(Failure::from).and_then(calls),
        };
        match &outcome {
            Err(Failure::Coordinator(reason)) => self.fail(reason),
            _ => self.succeed(),
        }
        outcome
    }

    /// Asks for values, and waits until they count. The values of a request that is not confirmed are lost. So a retry
    /// first waits for the standbys, which changes nothing, and loses no others while these are away.
    pub fn take_values(&mut self, caller: &Caller, count: u64) -> Result<(ValueRun, Origin), Failure> {
        let is_unconfirmed = Cell::new(self.is_unconfirmed);
        let outcome = self.call(|coordinator| {
            if is_unconfirmed.replace(true) {
                coordinator.confirm_segments()?;
            }
            let granted = coordinator.take_values(caller, count)?;
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

    /// The connection of the last request, if it is usable.
    fn kept(&mut self) -> Option<&mut Coordinator> {
        let is_fresh = is_within(self.answered_at, FRESH);
        let kept = self.coordinator.take();
        self.coordinator =
            kept.and_then(|mut kept| (is_fresh || kept.is_usable(&self.conninfo, TIMEOUT)).then_some(kept));
        self.coordinator.as_mut()
    }

    fn connect(&mut self) -> Result<&mut Coordinator, Error> {
        self.coordinator = None;
        let coordinator = Coordinator::connect(&self.conninfo, APPLICATION, self.first_address, TIMEOUT)?;
        Ok(self.coordinator.insert(coordinator))
    }

    fn succeed(&mut self) {
        self.answered_at = Some(Instant::now());
        self.failures = 0;
        if self.failure.take().is_some() {
            log!("the coordinator of attached segments answers again");
        }
    }

    /// The next request tries the next address first. An answer that is still to come is lost: its values are a gap.
    fn fail(&mut self, reason: &str) {
        self.coordinator = None;
        self.first_address += 1;
        self.retry_at = Instant::now() + retry_pause(self.failures, session::random_fraction());
        self.failures += 1;
        if self.failure.replace(reason.to_owned()).is_none() {
            log!("could not fetch values of attached segments: {reason}");
        }
    }

    /// Closes the connection before a pause, unless it is in use and the coordinator has room.
    pub fn rest(&mut self, pause: Duration) {
        let is_loaded = is_within(self.granted_at, LOADED);
        self.coordinator.take_if(|coordinator| !is_loaded || !coordinator.stays_for(pause));
    }
}

fn is_within(at: Option<Instant>, time: Duration) -> bool {
    at.is_some_and(|at| at.elapsed() < time)
}

/// This server, as it speaks of one tag.
pub struct Caller<'a> {
    pub tag: &'a str,
    /// The coordinator knows this server by this number, and shows it by the name.
    pub server: i64,
    pub name: &'a str,
    /// The highest value that this server has ever received.
    pub received: i64,
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

/// Errors that concern a tag: unknown, without the privilege, attached itself, locked, not in the encoding there.
const OF_THE_TAG: [&str; 5] = [UNKNOWN, "42501", "55000", "55P03", "22P05"];

const EXHAUSTED: &str = "2200H";

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.sqlstate.as_deref() {
            Some(EXHAUSTED) => Failure::Exhausted(error.message),
            Some(sqlstate) if OF_THE_TAG.contains(&sqlstate) => Failure::Tag(error.message),
            _ => Failure::Coordinator(error.message),
        }
    }
}

impl Coordinator {
    /// Reports the highest value received.
    pub fn report(&mut self, caller: &Caller) -> Result<Origin, Failure> {
        let row = self.request(caller, 0)?;
        origin(&row)
    }

    /// Asks for values, which also reports. The coordinator has granted them when this returns, and does so only once. They
    /// count once it has confirmed them.
    pub fn take_values(&mut self, caller: &Caller, count: u64) -> Result<(ValueRun, Origin), Failure> {
        let row = self.request(caller, count)?;
        if text(&row, 0).is_none() {
            let servers = text(&row, 5).unwrap_or_default();
            return Err(Failure::Tag(format!(
                "The coordinator grants nothing, because servers have not reported what they have received: {servers}."
            )));
        }
        let origin = origin(&row)?;
        let range = ValueRun { first: parse(&row, 0)?, count: parse(&row, 1)?, stride: origin.stride };
        if !is_answer(&range, origin.residue, caller.received, count) {
            let ValueRun { first, count, stride } = range;
            return Err(Failure::Tag(format!(
                "The coordinator has granted values that were not asked for: {count} from {first} on, by {stride}."
            )));
        }
        Ok((range, origin))
    }

    fn request(&mut self, caller: &Caller, count: u64) -> Result<Vec<Option<String>>, Failure> {
        let sql = |schema: &str| {
            format!(
                "SELECT granted.first_id, granted.count, granted.stride, granted.residue, granted.source, \
                 granted.waits_for FROM {schema}.segment_request($1, $2::pg_catalog.int8, $3, $4::pg_catalog.int8, \
                 $5::pg_catalog.int8) AS granted"
            )
        };
        let Caller { tag, server, name, received } = *caller;
        let [server, received, count] = [server.to_string(), received.to_string(), count.to_string()];
        Ok(self.query(sql, &[tag, &server, name, &received, &count])?)
    }

    /// Ends the attachment of a tag. The last report counts.
    pub fn leave_tag(&mut self, caller: &Caller) -> Result<(), Failure> {
        let sql = |schema: &str| format!("SELECT {schema}.segment_leave($1, $2::pg_catalog.int8, $3::pg_catalog.int8)");
        let Caller { tag, server, received, .. } = *caller;
        match self.query(sql, &[tag, &server.to_string(), &received.to_string()]) {
            // The tag was dropped and this server forgotten, as by an earlier call whose answer was lost.
            Err(error) if error.sqlstate.as_deref() == Some(UNKNOWN) => Ok(()),
            outcome => outcome.map(|_| ()).map_err(Failure::from),
        }
    }

    /// Waits until the coordinator's synchronous standbys have all that it has committed for this server.
    pub fn confirm_segments(&mut self) -> Result<(), Failure> {
        let confirmed = self.query(|schema| format!("SELECT {schema}.segment_confirm()"), &[]);
        confirmed.map(|_| ()).map_err(|error| {
            let message = format!("not confirmed to be on the coordinator's synchronous standbys: {}", error.message);
            Failure::from(Error { message, ..error })
        })
    }
}

fn origin(row: &[Option<String>]) -> Result<Origin, Failure> {
    Ok(Origin { source: text(row, 4).unwrap_or_default(), stride: parse(row, 2)?, residue: parse(row, 3)? })
}

fn text(row: &[Option<String>], column: usize) -> Option<String> {
    row.get(column).cloned().flatten()
}
