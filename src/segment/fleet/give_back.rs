//! A stop of the server: the values that no session has drawn go back to the coordinator, if they are the last ones that
//! it has granted. Otherwise, and after any failure, they are a gap.
//!
//! First the ring ends, so that no session draws one of them. Then the coordinator takes them back, and only then
//! `max_id` falls here. A crash in between leaves the higher one: the server reports it, and the coordinator goes on above.

use super::fetch::row_of;
use super::request::Failure;
use super::stock::{self, RingStock};
use super::supply_worker::SupplyWorker;
use crate::pg::xact;
use crate::segment::refill;
use crate::segment::state::SEGMENTS;
use crate::segment::store;
use pgrx::prelude::*;

impl SupplyWorker {
    /// Gives back the unused values of all rings, until the coordinator does not answer.
    pub fn give_back(&mut self) {
        for ring in stock::rings(self.duty) {
            let failure = self.give_back_of(&ring).err();
            if let Some(Failure::Coordinator(reason) | Failure::Tag(reason)) = &failure {
                let tag = self.stocks.get(&ring.tenant.key.creation).map_or("", |stock| &stock.row.tag);
                log!("could not give back the unused values of segment \"{tag}\": {reason}");
            }
            if matches!(failure, Some(Failure::Coordinator(_))) {
                return;
            }
        }
    }

    fn give_back_of(&mut self, ring: &RingStock) -> Result<(), Failure> {
        let creation = ring.tenant.key.creation;
        let tag = &self.stocks.get(&creation).ok_or(Failure::Gone)?.row.tag;
        let (definition, link) = row_of(creation)?;
        let server = link.server.ok_or(Failure::Gone)?;
        let unused = SEGMENTS.exclusive(|segments| segments.table.take_unused(ring.index, ring.tenant.handle));
        // If values above them were received that never were in the ring, those were granted last.
        let Some(unused) = unused.filter(|unused| unused.last() == definition.max_id) else { return Ok(()) };
        if self.contact.call(|coordinator| coordinator.return_values(tag, server, &unused))? {
            let lower = || {
                // The stop of the server makes it durable.
                xact::commit_asynchronously();
                store::give_back(creation, server, definition.max_id, unused.first - 1);
            };
            refill::in_transaction(lower).map_err(Failure::Tag)?;
        }
        Ok(())
    }
}
