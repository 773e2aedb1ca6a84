//! Public ids on real servers: what sessions know of keys that others change, standbys, servers without preload, dumps, and
//! what the log shows.

mod changes;
mod dump;
mod log;
mod replica;

use idgen_testkit::sql::value;
use postgres::Client;

/// The text of an id.
fn text(client: &mut Client, prefix: &str, id: i64) -> String {
    value(client, &format!("SELECT public_id('{prefix}', {id})"))
}

/// The id of a text; `None` if it is none.
fn decoded(client: &mut Client, prefix: &str, text: &str) -> Option<i64> {
    value(client, &format!("SELECT public_id_try_decode('{prefix}', '{text}')"))
}
