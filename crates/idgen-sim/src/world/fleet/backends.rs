//! What backends of the coordinator do for attached servers.

use super::network::TIMEOUT;
use super::transaction::{Raised, Transaction, UNKNOWN, guarded};
use super::{Backend, TAGS};
use idgen_core::segment::fleet::Reply;
use idgen_core::segment::fleet::rows::{self, Refused, Server};
use idgen_core::segment::supply::requests::{Answer, Failure};
use idgen_core::segment::tag::Origin;
use idgen_core::segment::{NoValues, ValueRun};

/// The origin, and values unless the coordinator withholds them.
pub type Granted = (Origin, Result<ValueRun, String>);

pub fn request(backend: &Backend, tag: usize, server: Server, count: u64) -> Answer<Granted> {
    let (origin, reply) = in_transaction(
        backend,
        |transaction| rows::request(transaction, TAGS[tag], server, count),
        |transaction, (_, reply)| {
            if let Reply::Granted(run) = reply {
                let has_noticed = transaction.has_noticed(tag);
                backend.shared.judge.borrow_mut().grants(tag, (server.number, has_noticed), run);
                backend.process.tell(|| format!("grants {} to {} to {}", run.first, run.last(), server.number));
            }
        },
    )?;
    let granted = match reply {
        Reply::Granted(run) => Ok(run),
        Reply::Waits { unreported } => Err(format!("{unreported:?}")),
        Reply::Exhausted => Err(String::new()),
    };
    Ok((origin, granted))
}

pub fn leave(backend: &Backend, tag: usize, server: Server) -> Answer<()> {
    let left = in_transaction(
        backend,
        |transaction| rows::leave(transaction, TAGS[tag], server),
        |_, ()| {
            backend.process.tell(|| format!("{} leaves {} with {}", server.number, TAGS[tag], server.received));
        },
    );
    match left {
        // The tag was dropped and this server forgotten, as by an earlier call whose answer was lost.
        Err(Failure::Tag(NoValues::Raised(reason))) if reason == UNKNOWN.0 => Ok(()),
        left => left,
    }
}

/// Waits until the standby has all that this coordinator has committed.
pub fn confirm(backend: &Backend) -> Answer<()> {
    let position = backend.process.directory(|directory| {
        directory.flush();
        directory.wal.flushed
    });
    backend.world().signal(super::COORDINATORS - 1 - backend.server());
    let until_us = backend.world().now_us.get() + TIMEOUT.as_micros() as i64;
    match backend.await_standby(position, until_us) {
        true => Ok(()),
        false => Err(Failure::Coordinator("the standby does not answer".to_owned())),
    }
}

fn in_transaction<T>(
    backend: &Backend,
    work: impl FnOnce(&mut Transaction) -> Result<T, Refused>,
    before_commit: impl FnOnce(&Transaction, &T),
) -> Answer<T> {
    let mut transaction = Transaction::new(backend);
    let refused = |reason: &str| Failure::Tag(NoValues::Raised(reason.to_owned()));
    let outcome = guarded(|| work(&mut transaction)).map_err(|Raised(reason)| refused(reason))?;
    let result = outcome.map_err(|error| match error {
        Refused::Exhausted { .. } => Failure::Exhausted("there are too few values".to_owned()),
        Refused::Unknown => refused(UNKNOWN.0),
        Refused::Chained | Refused::Detached | Refused::CreatedHere | Refused::AboveUpperBound { .. } => {
            refused("it is refused")
        }
    })?;
    before_commit(&transaction, &result);
    transaction.commit();
    Ok(result)
}
