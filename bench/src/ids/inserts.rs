//! Many rows, keyed by ids.

use crate::inserts::{Inserts, Key};
use crate::report::{Figure, Table};
use crate::scale::Scale;
use crate::server::Server;

const SNOWFLAKE: &str = "snowflake_next, `snowflake`";
const SECONDS: &str = "snowflake_next, `seconds`";

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let mut keys = vec![
        Key { name: SNOWFLAKE, column: "bigint DEFAULT snowflake_next()" },
        Key { name: SECONDS, column: "bigint DEFAULT snowflake_next('seconds')" },
        Key { name: "PL/pgSQL over a sequence", column: "bigint DEFAULT plpgsql_next()" },
        Key { name: "gen_random_uuid", column: "uuid DEFAULT gen_random_uuid()" },
    ];
    let uuidv7 = Key { name: "uuidv7", column: "uuid DEFAULT uuidv7()" };
    keys.extend(server.has_function("uuidv7").then_some(uuidv7));
    let inserts = Inserts::measure(server, scale, keys);
    (vec![inserts.figure(SNOWFLAKE), inserts.figure(SECONDS)], vec![inserts.table()])
}
