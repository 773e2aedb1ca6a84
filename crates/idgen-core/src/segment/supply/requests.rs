//! The requests of the supply worker, one at a time, and which of their failures are the coordinator's, and which a tag's.

use super::stock::LONGEST_PAUSE;
use crate::coordinator::link::retry_pause;
use crate::segment::fleet::is_answer;
use crate::segment::fleet::rows::Server;
use crate::segment::refill::Filling;
use crate::segment::tag::Origin;
use crate::segment::{NoValues, ValueRun};
use std::time::Duration;

/// How the supply worker reaches the coordinator. Each call may fail, and its answer may be lost.
pub trait Asking: Filling {
    /// Random in [0, 1).
    fn random_fraction(&mut self) -> f64;

    /// Gets a connection for the calls of a request.
    fn open(&mut self) -> Result<(), String>;

    /// The coordinator has answered the request, and the connection may be kept.
    fn answered(&mut self);

    /// How many requests it has failed in a row.
    fn failures(&mut self) -> u32;

    /// The request has failed, and its connection is closed. True if it may be made again at once, otherwise after the pause.
    fn failed(&mut self, pause: Duration) -> bool;

    /// Reports, and asks for values; 0 for none. The coordinator has granted them when this returns, and does so only once.
    /// They count once they are confirmed. Without values, the text names the servers whose reports are missing.
    fn ask(&mut self, tag: &str, server: Server, count: u64) -> Answer<(Origin, Result<ValueRun, String>)>;

    /// Ends the attachment of a tag. Succeeds also if the coordinator has forgotten tag and server.
    fn ask_to_leave(&mut self, tag: &str, server: Server) -> Answer<()>;

    /// Waits until synchronous standbys of the coordinator have all that it has committed.
    fn confirm(&mut self) -> Answer<()>;
}

pub type Answer<T> = Result<T, Failure>;

/// Why there are no values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The coordinator does not answer, or cannot grant values of any tag.
    Coordinator(String),
    /// Concerns this tag alone.
    Tag(NoValues),
    /// The coordinator's tag has no more values.
    Exhausted(String),
    /// The tag was dropped here, or detached.
    Gone,
}

/// Between requests the connection stays open if values were granted within this time.
const LOADED_US: i64 = 60_000_000;

#[derive(Debug, Default)]
pub struct Requests {
    granted_at_us: Option<i64>,
    /// The last request for values was not confirmed.
    is_unconfirmed: bool,
    /// The last failure of the coordinator, unless it has answered since.
    pub failure: Option<String>,
}

impl Requests {
    /// True if the connection is in use, so that it stays open during a pause.
    pub fn is_loaded(&self, now_us: i64) -> bool {
        self.granted_at_us.is_some_and(|granted_at_us| now_us - granted_at_us < LOADED_US)
    }

    /// Makes calls on a connection, and again where that is found broken at once.
    pub(super) fn call<P: Asking, T>(&mut self, port: &mut P, mut calls: impl FnMut(&mut P) -> Answer<T>) -> Answer<T> {
        loop {
            let outcome = port.open().map_err(Failure::Coordinator).and_then(|()| calls(port));
            let Err(Failure::Coordinator(reason)) = &outcome else {
                port.answered();
                self.failure = None;
                return outcome;
            };
            let pause = retry_pause(port.failures(), LONGEST_PAUSE, port.random_fraction());
            if !port.failed(pause) {
                self.failure = Some(reason.clone());
                return outcome;
            }
        }
    }

    /// Asks for values, and waits until they count. The values of a request that is not confirmed are lost. So a retry
    /// first waits for the standbys, which changes nothing, and loses no others while these are away.
    pub(super) fn take_values(
        &mut self,
        port: &mut impl Asking,
        tag: &str,
        server: Server,
        count: u64,
    ) -> Answer<(ValueRun, Origin)> {
        let mut is_unconfirmed = self.is_unconfirmed;
        let outcome = self.call(port, |port| {
            if std::mem::replace(&mut is_unconfirmed, true) {
                port.confirm()?;
            }
            let (origin, range) = port.ask(tag, server, count)?;
            let missing = match range {
                Ok(range) if is_answer(&range, origin.residue, server.received, count) => {
                    port.confirm()?;
                    is_unconfirmed = false;
                    return Ok((range, origin));
                }
                Ok(range) => NoValues::NotAskedFor(range),
                Err(waits_for) => NoValues::Withheld { waits_for },
            };
            Err(Failure::Tag(missing))
        });
        self.is_unconfirmed = is_unconfirmed;
        if outcome.is_ok() {
            self.granted_at_us = Some(port.now_us());
        }
        outcome
    }
}
