//! Who makes ids here.

use crate::contender::Contender;
use crate::server::Server;

pub const NEXT: &str = "snowflake_next, `seconds`";
pub const NEXT_MANY: &str = "snowflake_next_many, `seconds`";

pub fn all(server: &Server) -> Vec<Contender> {
    let mut all: Vec<Contender> = Contender::floors().into();
    all.extend([
        Contender::call(NEXT, "snowflake_next('seconds')"),
        Contender::call("snowflake_next, `snowflake`", "snowflake_next()"),
        Contender::set(NEXT_MANY, "snowflake_next_many($n, 'seconds')"),
        Contender::set("snowflake_next_many, `snowflake`", "snowflake_next_many($n)"),
    ]);
    all.extend(Contender::sequences());
    all.extend([
        Contender::call("PL/pgSQL over a sequence", "plpgsql_next()"),
        Contender::call("gen_random_uuid", "gen_random_uuid()"),
    ]);
    all.extend(server.has_function("uuidv7").then_some(Contender::call("uuidv7", "uuidv7()")));
    all
}
