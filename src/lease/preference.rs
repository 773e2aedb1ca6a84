//! Which slots a caller would rather have, and what it knows of their holders beyond the rows of leases.

use std::collections::HashSet;

/// Asked by the head of the queue before each choice, and so about slots as they are then.
pub trait Preference {
    /// The first of these slots that is free is granted, even if it was never granted before.
    fn first(&self) -> Vec<i32> {
        Vec::new()
    }

    /// These slots are granted only where no other is free, in this order.
    fn last(&self) -> Vec<i32> {
        Vec::new()
    }

    /// Slots whose holders are known to have ended. Terms in them that another clock has written are over; those by this
    /// clock keep their end. Asked only where there is a term of another clock.
    fn ended(&self) -> HashSet<i32> {
        HashSet::new()
    }
}

/// No preference: any slot will do.
pub struct AnySlot;

impl Preference for AnySlot {}
