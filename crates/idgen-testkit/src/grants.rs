//! What the coordinator has granted, as it wrote it down itself: by a trigger, in the transactions of the grants.

use std::collections::BTreeMap;
use std::path::PathBuf;

use postgres::Client;

use crate::cluster::Cluster;
use crate::sql::execute;

/// A number by the id times that one token was allowed, in microseconds since 1970.
#[derive(Debug)]
pub struct Rectangle {
    pub number: i32,
    pub token: i64,
    /// What the holder calls himself. Ends with his data directory.
    pub owner: String,
    pub from_us: i64,
    /// After all renewals; or where a holder says that he has ended.
    pub until_us: i64,
}

pub fn epoch_us(time: &str) -> String {
    format!("(extract(epoch FROM {time}) * 1000000)::bigint")
}

/// Has a coordinator write down all that it grants from now on.
pub fn record(coordinator: &Cluster) {
    let (from, until) = (epoch_us("NEW.not_before"), epoch_us("NEW.not_after"));
    execute(
        &mut coordinator.client(),
        &format!(
            "CREATE TABLE public.told (n bigserial PRIMARY KEY, number int, token bigint, owner text, from_us bigint,
                 until_us bigint);
             CREATE FUNCTION public.tell() RETURNS trigger SECURITY DEFINER SET search_path = pg_catalog LANGUAGE plpgsql AS $$
             BEGIN
                 INSERT INTO public.told (number, token, owner, from_us, until_us)
                 SELECT NEW.number, NEW.token, owner, {from}, {until}
                 FROM idgen.lease WHERE name = NEW.pool AND slot = NEW.number AND token = NEW.token;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER tell AFTER INSERT OR UPDATE ON idgen.worker_number FOR EACH ROW EXECUTE FUNCTION tell()"
        ),
    );
}

/// All that was granted, in the order of the times.
pub fn rectangles(client: &mut Client) -> Vec<Rectangle> {
    // A token is of one number and one owner, and has one beginning.
    let sql = "SELECT number, token, owner, from_us, (array_agg(until_us ORDER BY n DESC))[1] FROM told
               GROUP BY token, number, owner, from_us ORDER BY from_us, token";
    let rows = client.query(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let rectangle = |row: &postgres::Row| Rectangle {
        number: row.get(0),
        token: row.get(1),
        owner: row.get(2),
        from_us: row.get(3),
        until_us: row.get(4),
    };
    let rectangles: Vec<Rectangle> = rows.iter().map(rectangle).collect();
    let mut by_token: Vec<&Rectangle> = rectangles.iter().collect();
    by_token.sort_by_key(|rectangle| rectangle.token);
    if let Some(pair) = by_token.windows(2).find(|pair| pair[0].token == pair[1].token) {
        panic!("one token, two beginnings, numbers or owners: {pair:?}");
    }
    rectangles
}

/// With what a coordinator had granted whose last grants were lost in a failover: their holders have them all the same.
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
    all.sort_by_key(|rectangle| (rectangle.from_us, rectangle.token));
    all
}

/// No two tokens were allowed the same time of a number.
pub fn assert_apart(rectangles: &[Rectangle]) {
    ByNumber::new(rectangles);
}

/// The rectangles of each number.
struct ByNumber<'a>(BTreeMap<i32, Vec<&'a Rectangle>>);

impl<'a> ByNumber<'a> {
    /// They follow each other, so that no two of them overlap.
    fn new(rectangles: &'a [Rectangle]) -> ByNumber<'a> {
        let mut by_number = BTreeMap::<i32, Vec<&Rectangle>>::new();
        for rectangle in rectangles {
            assert!(rectangle.from_us <= rectangle.until_us, "{rectangle:?}");
            let earlier = by_number.entry(rectangle.number).or_default();
            if let Some(last) = earlier.last() {
                assert!(
                    last.until_us <= rectangle.from_us,
                    "one number, one time, two tokens: {last:?}, {rectangle:?}"
                );
            }
            earlier.push(rectangle);
        }
        ByNumber(by_number)
    }

    fn find(&self, number: i32, time_us: i64) -> Option<&Rectangle> {
        let of_number = self.0.get(&number)?;
        let begun = of_number.partition_point(|rectangle| rectangle.from_us <= time_us);
        of_number[..begun].last().copied().filter(|rectangle| time_us < rectangle.until_us)
    }
}

/// What clients have seen of a server.
pub struct Seen {
    pub data_dir: PathBuf,
    pub ids: Vec<i64>,
}

/// No two tokens were allowed the same time of a number, and all ids of each server are inside of what it was granted itself.
/// Layout `snowflake`.
pub fn assert_ids_granted(rectangles: &[Rectangle], seen: &[Seen]) {
    let granted = ByNumber::new(rectangles);
    for Seen { data_dir, ids } in seen {
        let directory = data_dir.to_str().expect("a path of ASCII");
        for &id in ids {
            let (number, time_us) = (worker_id_of(id), time_us_of(id));
            let rectangle = granted.find(number, time_us);
            let rectangle = rectangle.unwrap_or_else(|| {
                let near: Vec<_> = granted.0.get(&number).into_iter().flatten().rev().take(3).collect();
                panic!("{id} of worker {number} at {time_us} is outside of all that was granted, at last {near:#?}")
            });
            assert!(rectangle.owner.ends_with(directory), "{id} of {directory} is another's: {rectangle:?}");
        }
    }
}

/// The worker of an id in layout `snowflake`.
pub fn worker_id_of(id: i64) -> i32 {
    (id >> 12 & 1023) as i32
}

/// The beginning of its millisecond, in microseconds since 1970.
pub fn time_us_of(id: i64) -> i64 {
    ((id >> 22) + 1_288_834_974_657) * 1000
}
