//! The supply worker's calls of the coordinator's functions, and how they fail.

use crate::coordinator::{Coordinator, parse};
use crate::pg::libpq::Error;
use idgen_core::segment::ValueRun;
use idgen_core::segment::fleet::is_answer;

/// This server, as it speaks of one tag.
pub struct Caller<'a> {
    pub tag: &'a str,
    /// The coordinator knows this server by this number, and shows it by the name.
    pub server: i64,
    pub name: &'a str,
    /// The highest value that this server has ever received.
    pub received: i64,
}

/// The coordinator's tag.
pub struct Origin {
    /// Identifies it and its definition.
    pub source: String,
    pub stride: i64,
    pub residue: i64,
}

/// Values that the coordinator has granted. They count once it has confirmed them.
pub struct GrantedRange {
    pub range: ValueRun,
    pub origin: Origin,
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

    /// Asks for values, which also reports. The coordinator has granted them when this returns, and does so only once.
    pub fn take_values(&mut self, caller: &Caller, count: u64) -> Result<GrantedRange, Failure> {
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
        Ok(GrantedRange { range, origin })
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
