//! Values for arguments, as SQL expressions: plausible ones, so that calls succeed, and extreme ones.

use std::collections::BTreeMap;

use fastrand::Rng;

/// What earlier calls returned, so that later ones can pass it.
#[derive(Default)]
pub struct Known {
    /// The last token of each lease.
    pub tokens: BTreeMap<String, i64>,
    /// The end of the last interval of each pool.
    pub not_after: BTreeMap<String, String>,
    pub last_id: i64,
    /// PostgreSQL 17 and later have infinite intervals.
    pub infinite_intervals: bool,
}

/// The segment whose values are checked, and a prefix of public ids. No call drops or alters them.
pub const KEPT: &str = "kept";
/// A lock and a lease that another session holds.
pub const BUSY: &str = "busy";

/// The functions that may use the segment [`KEPT`].
const DRAWS: [&str; 3] = ["segment_next", "segment_next_many", "segment_reserve"];
/// The functions that change the keys of a prefix.
const KEYS: [&str; 7] = [
    "public_id_define",
    "public_id_rotate",
    "public_id_retire",
    "public_id_drop",
    "public_id_alter",
    "public_id_grant",
    "public_id_revoke",
];
const LAYOUTS: [&str; 9] = [
    "snowflake",
    "twitter",
    "sonyflake",
    "instagram",
    "pgedge",
    "seconds",
    "js53",
    "time:20 sequence:1 unit:1000ms epoch:2020-01-01",
    "time:50 sequence:3 worker:5 tag:3=7 epoch:0ms",
];
const FORMATS: [&str; 9] = ["base58", "base62", "base36", "base32", "hex", "base2", "base64", "sort62", "sort32"];
const ROLES: [&str; 5] = ["ordinary", "public", "postgres", "pg_monitor", "nobody"];

/// Texts that break what does not expect them. Each is an SQL expression.
const TEXTS: [&str; 17] = [
    "''",
    "' '",
    "repeat('x', 255)",
    "repeat('x', 256)",
    "repeat('é', 128)",
    "repeat('x', 1000000)",
    "repeat('山', 300000)",
    "'O''Brien'",
    "'\"; SELECT 1 --'",
    r"E'back\\slash'",
    r"E'\x01\b\f\n\r\t\x1b\x7f'",
    "'Müller 山田 🦀'",
    "U&'\\202E\\FEFF\\+10FFFF'",
    "'%s %n $1 {} \\u0000'",
    "'NULL'",
    "'-1'",
    "'9223372036854775808'",
];
const INTS: [i64; 14] = [
    -1,
    10,
    255,
    256,
    1000,
    1023,
    1024,
    65535,
    65536,
    65537,
    1 << 20,
    i32::MIN as i64,
    i32::MAX as i64 - 1,
    i32::MAX as i64,
];
const BIGINTS: [i64; 12] = [
    -1,
    10,
    1 << 22,
    i32::MIN as i64 - 1,
    1 << 40,
    1 << 53,
    1_000_000_000,
    1_000_000_001,
    i64::MIN,
    i64::MIN + 1,
    i64::MAX - 1,
    i64::MAX,
];
const TIMEOUTS: [&str; 3] = ["0", "1 ms", "20 ms"];
const TTLS: [&str; 3] = ["1 second", "30 seconds", "10 minutes"];
const INTERVALS: [&str; 12] = [
    "-1 microsecond",
    "1 microsecond",
    "-1 day",
    "1 month",
    "1 month -30 days",
    "25 days",
    "178000000 years",
    "-178000000 years",
    "2147483647 days",
    "2147483647 months 2147483647 days 2562047788 hours",
    "-2147483648 months -2147483648 days -2562047788 hours",
    "9223372036854775807 microseconds",
];
const NEAR: [&str; 3] = ["now()", "now() - interval '1 hour'", "now() + interval '1 minute'"];
const TIMES: [&str; 9] = [
    "'infinity'",
    "'-infinity'",
    "'4713-01-01 00:00:00+00 BC'",
    "'294276-12-31 23:59:59.999999+00'",
    "'1969-12-31 23:59:59.999999+00'",
    "'1970-01-01 00:00:00+00'",
    "'2000-01-01 00:00:00+00'",
    "'2080-07-10 00:00:00+00'",
    "'10000-01-01 00:00:00+00'",
];
const UUIDS: [&str; 5] = [
    "'00000000-0000-0000-0000-000000000000'",
    "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
    "'ffffffff-ffff-7fff-bfff-ffffffffffff'",
    "'919108f7-52d1-4320-9bac-f847db4148a8'",
    "'017f22e2-79b0-7cc3-c8c4-dc0c0c07398f'",
];
const JSONS: [&str; 8] = [
    "'{}'",
    "'null'",
    "'\"é\\\"\\\\\"'",
    "'{\"a\": [1, null, {\"b\": 1e300}]}'",
    "'-1e1000'",
    "(repeat('[', 1000) || repeat(']', 1000))",
    "('\"' || repeat('x', 1000000) || '\"')",
    "'[]'",
];
const ARRAYS: [&str; 9] = [
    "'{}'",
    "'{NULL}'",
    "'{1,NULL}'",
    "'{{1,2},{3,4}}'",
    "'{{{1}}}'",
    "'[5:6]={1,2}'",
    "'[-2147483648:-2147483647]={1,2}'",
    "many(1000)",
    "many(20000)",
];

fn pick<'a, T: ?Sized>(rng: &mut Rng, list: &[&'a T]) -> &'a T {
    list[rng.usize(..list.len())]
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Chooses values for the arguments of one call.
pub struct Values<'a> {
    pub rng: &'a mut Rng,
    pub known: &'a Known,
    /// The name that this call is about.
    name: &'static str,
    /// Whether arguments are mostly plausible.
    plausible: bool,
}

impl<'a> Values<'a> {
    pub fn new(rng: &'a mut Rng, known: &'a Known, function: &str) -> Values<'a> {
        let names: &[&'static str] = match function.split('_').next() {
            Some("segment") if DRAWS.contains(&function) => &["live", "other", KEPT],
            Some("segment") => &["live", "other"],
            Some("public") if KEYS.contains(&function) => &["live", "other"],
            Some("public" | "id") => &["live", "other", KEPT, KEPT],
            Some("lease") => &["lease", "other", BUSY],
            Some("worker") => &["pool", "pool", "pool 2"],
            _ => &["live", "other", "pool", "lease", BUSY],
        };
        let name = pick(rng, names);
        let plausible = rng.u8(..10) < 6;
        Values { rng, known, name, plausible }
    }

    /// An expression of this type, with a cast, so that overloaded functions are not ambiguous.
    pub fn of(&mut self, argument: &str, type_name: &str) -> String {
        let nothing = self.rng.u8(..if self.plausible { 40 } else { 12 }) == 0;
        let value = if nothing { "NULL".to_owned() } else { self.not_null(argument, type_name) };
        format!("({value})::{type_name}")
    }

    fn not_null(&mut self, argument: &str, type_name: &str) -> String {
        // One argument in 16 is extreme in a plausible call, and one in two in another.
        let extreme = self.rng.u8(..16) < if self.plausible { 1 } else { 8 };
        match type_name {
            "text" if extreme => pick(self.rng, &TEXTS).to_owned(),
            "text" => quoted(&self.text(argument)),
            "integer" => self.integer(extreme, &INTS),
            // Ids a day ahead are refused unless forced, and a forced one would end the ids of this server.
            "boolean" if argument == "force" => "false".to_owned(),
            "boolean" => self.rng.bool().to_string(),
            "bigint" if extreme => self.integer(true, &BIGINTS),
            "bigint" => self.bigint(argument),
            "interval" if extreme && self.known.infinite_intervals && self.rng.u8(..4) == 0 => {
                quoted(pick(self.rng, &["infinity", "-infinity"]))
            }
            "interval" if extreme => quoted(pick(self.rng, &INTERVALS)),
            "interval" if argument == "timeout" => quoted(pick(self.rng, &TIMEOUTS)),
            "interval" => quoted(pick(self.rng, &TTLS)),
            "timestamp with time zone" => self.time(argument, extreme),
            "uuid" if extreme => pick(self.rng, &UUIDS).to_owned(),
            "uuid" => "uuidv7_next()".to_owned(),
            "jsonb" => pick(self.rng, &JSONS).to_owned(),
            "text[]" if extreme => pick(self.rng, &ARRAYS).to_owned(),
            "text[]" => format!("ARRAY[{}, 'other']", quoted(self.name)),
            // As many as plausible names.
            "bigint[]" if extreme => pick(self.rng, &ARRAYS[..7]).to_owned(),
            "bigint[]" => format!("ARRAY[{}, {}]", self.bigint("token"), self.bigint("other")),
            "regclass" if extreme => pick(self.rng, &["'idgen.segment'", "'idgen.locks'", "'pg_class'"]).to_owned(),
            "regclass" => "'adopted'".to_owned(),
            "regnamespace" => pick(self.rng, &["'public'", "4294967295"]).to_owned(),
            "oid" => self.integer(false, &INTS),
            "regrole" => "'ordinary'".to_owned(),
            "regrole[]" => pick(self.rng, &["'{}'", "'{ordinary,-}'", "'{NULL}'"]).to_owned(),
            "bytea" => pick(self.rng, &["''", "'\\x00'", "sha256('')"]).to_owned(),
            "double precision" => pick(self.rng, &["0", "-1", "1e300", "'NaN'", "'-infinity'"]).to_owned(),
            "name" if argument == "column_name" => "'id'".to_owned(),
            "name" => "'x'".to_owned(),
            "tid" => pick(self.rng, &["'(0,1)'", "'(4294967295,65535)'"]).to_owned(),
            "integer[]" => "'{}'".to_owned(),
            _ => panic!("no values for the type {type_name} of {argument}: add some"),
        }
    }

    fn text(&mut self, argument: &str) -> String {
        match argument {
            "layout" => pick(self.rng, &LAYOUTS),
            "format" => pick(self.rng, &FORMATS),
            "role" => pick(self.rng, &ROLES),
            "owner" => pick(self.rng, &["ordinary", "postgres"]),
            // Each number is the text of an id in the short form.
            "text" if self.name == KEPT => pick(self.rng, &["kept_11111111111", "kept_2QuNpqi7rZN"]),
            "text" => pick(self.rng, &["1", "10", "3", "MTIz", "00000000001", "0000000000001"]),
            "form" => pick(self.rng, &["short", "long"]),
            "to_pool" if self.name == "pool" => "pool 2",
            "to_pool" => "pool",
            _ => self.name,
        }
        .to_owned()
    }

    fn integer(&mut self, extreme: bool, extremes: &[i64]) -> String {
        let value = if extreme { extremes[self.rng.usize(..extremes.len())] } else { self.rng.i64(0..5) };
        value.to_string()
    }

    fn bigint(&mut self, argument: &str) -> String {
        // Drawn in every case, so that what the server returns does not change what comes after.
        let small = self.rng.i64(0..1000);
        let value = match argument {
            "token" => self.known.tokens.get(self.name).copied().unwrap_or(small),
            "id" => self.known.last_id - (small << 20),
            _ => small,
        };
        value.to_string()
    }

    fn time(&mut self, argument: &str, extreme: bool) -> String {
        let known = self.known.not_after.get(self.name);
        match known {
            Some(known) if argument == "last_not_after" && !extreme => quoted(known),
            _ if extreme => pick(self.rng, &TIMES).to_owned(),
            _ => pick(self.rng, &NEAR).to_owned(),
        }
    }
}
