//! Connections to another server: libpq, asynchronous, waiting on the latch. So neither the network nor the other
//! server delays a stop of this one. The only files that call libpq are here.

mod connection;
mod error;
mod options;
mod raw;
mod resolver;
mod result;
mod timeout;

pub use connection::Connection;
pub use error::Error;
pub use options::INVALID_CONNECTION_STRING;
pub use resolver::Resolver;
pub use timeout::Timeout;
