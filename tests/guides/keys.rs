//! Where the keys of a database come from. Nothing here names a table, so no key is forgotten.

use idgen_testkit::sql::{column, execute, value};
use postgres::Client;

use crate::page;

/// The columns of serial and identity, as the query of the guide on Django finds them: `table.column`.
pub fn of_sequences(client: &mut Client) -> Vec<String> {
    let blocks = page::sql_blocks("django.md");
    let query = blocks[0].trim_end_matches(';');
    column(client, &format!("SELECT concat_ws('.', \"table\", \"column\") FROM ({query}) AS found ORDER BY 1"))
}

/// The columns whose default is a snowflake id.
pub fn of_snowflakes(client: &mut Client) -> Vec<String> {
    let sql = "SELECT format('%s.%I', adrelid::regclass, attname) FROM pg_attrdef
               JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum
               WHERE pg_get_expr(adbin, adrelid) = 'snowflake_next()' ORDER BY 1";
    column(client, sql)
}

/// No sequence is left that no column draws from, and foreign keys have the type of what they refer to.
pub fn assert_clean(client: &mut Client) {
    let unused =
        "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'S' AND relnamespace <> 'idgen'::regnamespace
                  AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_class.oid AND deptype = 'i'
                                  OR refobjid = pg_class.oid AND classid = 'pg_attrdef'::regclass)";
    assert_eq!(column::<String>(client, unused), [""; 0], "sequences that no column draws from");
    let narrow = "SELECT format('%s.%I', referring.attrelid::regclass, referring.attname) FROM pg_constraint
                  JOIN pg_attribute AS referring ON referring.attrelid = conrelid AND referring.attnum = conkey[1]
                  JOIN pg_attribute AS key ON key.attrelid = confrelid AND key.attnum = confkey[1]
                  WHERE contype = 'f' AND referring.atttypid <> key.atttypid";
    assert_eq!(column::<String>(client, narrow), [""; 0], "foreign keys of another type than the key");
}

/// The smallest value of a column, or NULL in an empty table.
pub fn smallest(client: &mut Client, key: &str) -> Option<i64> {
    let (table, column) = key.rsplit_once('.').expect("a table and a column");
    value(client, &format!("SELECT min({column})::bigint FROM {table}"))
}

/// Changes identities to serials, as Django made them before 4.1.
pub fn make_serials(client: &mut Client) {
    let statements = "SELECT format('SET ROLE %4$I; ALTER TABLE %1$s ALTER COLUMN %2$I DROP IDENTITY;
                                     CREATE SEQUENCE %3$s AS integer OWNED BY %1$s.%2$I;
                                     SELECT setval(''%3$s'', coalesce(max(%2$I), 1), max(%2$I) IS NOT NULL) FROM %1$s;
                                     ALTER TABLE %1$s ALTER COLUMN %2$I SET DEFAULT nextval(''%3$s''); RESET ROLE',
                             attrelid::regclass, attname, pg_get_serial_sequence(attrelid::regclass::text, attname),
                             pg_get_userbyid(relowner))
                      FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid WHERE attidentity <> ''";
    for statement in column::<String>(client, statements) {
        execute(client, &statement);
    }
}
