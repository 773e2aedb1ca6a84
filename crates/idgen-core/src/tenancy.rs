//! Tenancies: how a fixed number of generators or rings in shared memory serves any number of id spaces or tags.
//!
//! A generator belongs to one id space at a time, a ring to one tag. When another tenant needs it, the tenancy ends and
//! the next one begins. Backends remember a tenancy and draw without a lock, so each draw must detect that the tenancy
//! has ended. Generators and rings follow the same two rules:
//!
//! 1. A *position* never returns to an earlier value. It counts drawn slots or values, and keeps rising from tenancy to
//!    tenancy. So a compare-and-swap that succeeds proves that nothing happened since its load.
//! 2. The end of a tenancy first writes the next tenancy number and then moves the position. A draw first loads the
//!    position and then the tenancy number. If the draw sees the moved position, it also sees the new number. If it
//!    does not, its compare-and-swap fails, or comes before the move, and then the end counts it.
//!
//! So no draw under an ended tenancy succeeds, and the position that the end reads counts every draw that succeeded.

/// The tenancy has ended: attach again.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended;

/// A tenant's entry in its table, with the tenancy as a backend remembers it. A handle is safe to use after its tenancy
/// has ended: the draw fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attachment<Handle> {
    pub index: usize,
    pub handle: Handle,
    /// The tenancy begins with this attachment.
    pub is_new: bool,
}
