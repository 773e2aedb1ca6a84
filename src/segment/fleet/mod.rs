//! Segments of a fleet: a tag that is attached draws from the tag of the same name in the coordinator's database.
//!
//! At the coordinator, `grant` hands out ranges, and `servers` has what each attached server has received. On an attached
//! server, `attach` links a tag, and the supply worker fetches ranges: `contact` keeps the connection, `request` has the
//! calls, `fetch` makes one request, and `stock` measures the rings and says which request is due.

pub mod attach;
mod contact;
pub mod errors;
mod fetch;
pub mod grant;
pub mod launcher;
mod request;
pub mod servers;
mod stock;
pub mod supply_worker;
