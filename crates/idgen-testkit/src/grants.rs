//! The worker ids that a coordinator has granted, recorded by a trigger in the transactions of the grants.

use std::collections::BTreeMap;
use std::path::PathBuf;

use postgres::Client;

use crate::cluster::Cluster;
use crate::sql::execute;

/// A worker id and the id times that one token was granted, in microseconds since 1970.
#[derive(Debug)]
pub struct Rectangle {
    pub worker_id: i32,
    pub token: i64,
    /// The holder's description of itself. Ends with its data directory.
    pub owner: String,
    pub from_us: i64,
    /// After all renewals, or as reported by the holder when it released the worker id.
    pub until_us: i64,
}

pub fn epoch_us(time: &str) -> String {
    format!("(extract(epoch FROM {time}) * 1000000)::bigint")
}

/// Makes a coordinator record all its grants from now on.
pub fn record(coordinator: &Cluster) {
    let (from, until) = (epoch_us("NEW.not_before"), epoch_us("NEW.not_after"));
    execute(
        &mut coordinator.client(),
        &format!(
            "CREATE TABLE public.recorded (n bigserial PRIMARY KEY, worker_id int, token bigint, owner text, from_us bigint,
                 until_us bigint);
             CREATE FUNCTION public.record_grant() RETURNS trigger SECURITY DEFINER SET search_path = pg_catalog LANGUAGE plpgsql AS $$
             BEGIN
                 -- A grant, a renewal or a release, which ends the token.
                 IF NEW.token IS NOT NULL AND NEW.token IS DISTINCT FROM OLD.token
                     OR OLD.token IS NOT NULL AND NEW.not_after <> OLD.not_after THEN
                     INSERT INTO public.recorded (worker_id, token, owner, from_us, until_us)
                     VALUES (NEW.worker_id, coalesce(NEW.token, OLD.token), NEW.owner, {from}, {until});
                 END IF;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER record_grant AFTER UPDATE ON idgen.worker_id FOR EACH ROW EXECUTE FUNCTION record_grant()"
        ),
    );
}

/// All grants, in the order of their times: one that was released unused is empty, and before the next one.
pub fn rectangles(client: &mut Client) -> Vec<Rectangle> {
    // A token has one worker id, one owner and one beginning.
    let sql = "SELECT worker_id, token, owner, from_us, (array_agg(until_us ORDER BY n DESC))[1] FROM recorded
               GROUP BY token, worker_id, owner, from_us ORDER BY from_us, 5, token";
    let rows = client.query(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let rectangle = |row: &postgres::Row| Rectangle {
        worker_id: row.get(0),
        token: row.get(1),
        owner: row.get(2),
        from_us: row.get(3),
        until_us: row.get(4),
    };
    let rectangles: Vec<Rectangle> = rows.iter().map(rectangle).collect();
    let mut by_token: Vec<&Rectangle> = rectangles.iter().collect();
    by_token.sort_by_key(|rectangle| rectangle.token);
    if let Some(pair) = by_token.windows(2).find(|pair| pair[0].token == pair[1].token) {
        panic!("one token has two beginnings, worker ids or owners: {pair:?}");
    }
    rectangles
}

/// Adds the grants that the old coordinator lost in a failover: their holders still use them.
pub fn merge_lost(granted: Vec<Rectangle>, lost: Vec<Rectangle>) -> Vec<Rectangle> {
    let mut by_token: BTreeMap<i64, Rectangle> =
        granted.into_iter().map(|rectangle| (rectangle.token, rectangle)).collect();
    for rectangle in lost {
        match by_token.get_mut(&rectangle.token) {
            Some(known) => known.until_us = known.until_us.max(rectangle.until_us),
            None => {
                by_token.insert(rectangle.token, rectangle);
            }
        }
    }
    let mut all: Vec<Rectangle> = by_token.into_values().collect();
    all.sort_by_key(|rectangle| (rectangle.from_us, rectangle.until_us, rectangle.token));
    all
}

/// No two tokens were granted the same time of a worker id.
pub fn assert_apart(rectangles: &[Rectangle]) {
    ByWorkerId::new(rectangles);
}

/// The rectangles of each worker id.
struct ByWorkerId<'a>(BTreeMap<i32, Vec<&'a Rectangle>>);

impl<'a> ByWorkerId<'a> {
    /// Asserts that no two rectangles of a worker id overlap.
    fn new(rectangles: &'a [Rectangle]) -> ByWorkerId<'a> {
        let mut by_worker_id = BTreeMap::<i32, Vec<&Rectangle>>::new();
        for rectangle in rectangles {
            assert!(rectangle.from_us <= rectangle.until_us, "{rectangle:?}");
            let earlier = by_worker_id.entry(rectangle.worker_id).or_default();
            if let Some(last) = earlier.last() {
                assert!(
                    last.until_us <= rectangle.from_us,
                    "one worker id, one time, two tokens: {last:?}, {rectangle:?}"
                );
            }
            earlier.push(rectangle);
        }
        ByWorkerId(by_worker_id)
    }

    fn find(&self, worker_id: i32, time_us: i64) -> Option<&Rectangle> {
        let rectangles = self.0.get(&worker_id)?;
        let begun = rectangles.partition_point(|rectangle| rectangle.from_us <= time_us);
        rectangles[..begun].last().copied().filter(|rectangle| time_us < rectangle.until_us)
    }
}

/// The ids that clients of one server have seen.
pub struct Seen {
    pub data_dir: PathBuf,
    pub ids: Vec<i64>,
}

/// No two tokens were granted the same time of a worker id, and every id of a server, in the layout `snowflake`, lies inside
/// a rectangle that was granted to that server.
pub fn assert_ids_granted(rectangles: &[Rectangle], seen: &[Seen]) {
    let granted = ByWorkerId::new(rectangles);
    for Seen { data_dir, ids } in seen {
        let directory = data_dir.to_str().expect("a path of ASCII");
        for &id in ids {
            let (worker_id, time_us) = (worker_id_of(id), time_us_of(id));
            let rectangle = granted.find(worker_id, time_us);
            let rectangle = rectangle.unwrap_or_else(|| {
                let near: Vec<_> = granted.0.get(&worker_id).into_iter().flatten().rev().take(3).collect();
                panic!(
                    "{id} of worker {worker_id} at {time_us} is outside every grant, the last of which are {near:#?}"
                )
            });
            assert!(
                rectangle.owner.ends_with(directory),
                "{id} of {directory} is granted to another server: {rectangle:?}"
            );
        }
    }
}

/// The worker id of an id in the layout `snowflake`.
pub fn worker_id_of(id: i64) -> i32 {
    (id >> 12 & 1023) as i32
}

/// The beginning of its millisecond, in microseconds since 1970.
pub fn time_us_of(id: i64) -> i64 {
    ((id >> 22) + 1_288_834_974_657) * 1000
}
