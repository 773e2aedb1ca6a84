//! The functions and the relations of the extension, from the catalog, so that a new one is tried too.

use std::collections::BTreeMap;

use postgres::{Client, Row};

#[derive(Debug, PartialEq)]
pub struct Argument {
    pub name: String,
    pub type_name: String,
    pub has_default: bool,
}

/// A function, with its input arguments in order.
#[derive(Debug)]
pub struct Function {
    /// With its schema and the types of its arguments, as in `public.lock_key(text)`.
    pub signature: String,
    /// With its schema and without arguments.
    pub qualified: String,
    pub name: String,
    pub arguments: Vec<Argument>,
    /// Whether it is a trigger function, which every direct call must refuse.
    pub is_trigger: bool,
}

/// A table, view or sequence, with its columns and their types.
pub struct Relation {
    pub qualified: String,
    pub columns: Vec<(String, String)>,
}

const MEMBERS: &str = "(SELECT classid, objid FROM pg_depend JOIN pg_extension e ON e.oid = refobjid
                        WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND extname = 'idgen') AS member";

pub fn functions(client: &mut Client) -> Vec<Function> {
    // SQL cannot make a value of type internal, so it calls no function that has such an argument. A procedure is no part
    // of a query.
    // Arguments without a mode are all input; else the inputs are those of mode i, in the same order.
    let sql = format!(
        "SELECT format('%I.%I', n.nspname, p.proname), p.proname::text, p.pronargs::int, p.pronargdefaults::int,
                coalesce(p.proargnames, '{{}}')::text[],
                (SELECT coalesce(array_agg(format_type(t, NULL) ORDER BY i), '{{}}')
                 FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS a (t, i)), p.oid::regprocedure::text,
                p.prorettype = 'trigger'::regtype
         FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
         JOIN {MEMBERS} ON objid = p.oid AND classid = 'pg_proc'::regclass
         -- A query is an argument of this function, so it raises whatever a query can.
         WHERE p.proname <> 'snowflake_adopt_as_owner' AND 'internal'::regtype <> ALL (p.proargtypes)
           AND p.prokind = 'f' ORDER BY 7"
    );
    let rows = client.query(&sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    rows.iter().map(function).collect()
}

fn function(row: &Row) -> Function {
    let (count, defaults): (i32, i32) = (row.get(2), row.get(3));
    let (names, types): (Vec<String>, Vec<String>) = (row.get(4), row.get(5));
    let argument = |(index, type_name): (usize, String)| Argument {
        name: names[index].clone(),
        type_name,
        has_default: index >= (count - defaults) as usize,
    };
    Function {
        signature: row.get(6),
        qualified: row.get(0),
        name: row.get(1),
        arguments: types.into_iter().enumerate().map(argument).collect(),
        is_trigger: row.get(7),
    }
}

pub fn relations(client: &mut Client) -> Vec<Relation> {
    let sql = format!(
        "SELECT objid::regclass::text, quote_ident(attname), format_type(atttypid, NULL)
         FROM {MEMBERS} JOIN pg_attribute ON attrelid = objid AND attnum > 0 AND NOT attisdropped
         WHERE classid = 'pg_class'::regclass ORDER BY 1, attnum"
    );
    let rows = client.query(&sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let mut columns = BTreeMap::<String, Vec<(String, String)>>::new();
    for row in rows {
        columns.entry(row.get(0)).or_default().push((row.get(1), row.get(2)));
    }
    columns.into_iter().map(|(qualified, columns)| Relation { qualified, columns }).collect()
}
