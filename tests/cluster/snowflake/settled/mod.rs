//! P1: no transaction commits a row with an id at or below one that `snowflake_settled()` has returned.

mod prepared;
mod storm;
mod transactions;

use idgen_testkit::sql::value;
use postgres::Client;

fn settled(client: &mut Client) -> i64 {
    value(client, "SELECT snowflake_settled()")
}
