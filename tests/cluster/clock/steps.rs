//! Clock steps under a running server.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use idgen_testkit::ids::{assert_distinct, assert_increasing};
use idgen_testkit::sql::{PATIENCE, backend_pid, check, execute, row, value, wait_until_waiting};
use idgen_testkit::{Cluster, rounds};
use postgres::Client;

use crate::{builder, draw_one, wait_until_past_checkpoint};

const HOUR_MS: i64 = 3_600_000;
/// The error of a measured step, from two clock readings and the ends of a tick.
const GRAIN_MS: f64 = 2.0;

/// An id and the bounds of its lead over the clock, from one reading after the draw and one before.
const DRAW: &str = "SELECT id, (extract(epoch FROM snowflake_time(id) - after) * 1000)::float8,
            (extract(epoch FROM snowflake_time(id) - before) * 1000)::float8
     FROM (SELECT before, id, clock_timestamp() AS after
           FROM (SELECT before, snowflake_next() AS id
                 FROM (SELECT clock_timestamp() AS before OFFSET 0) AS first OFFSET 0) AS drawn OFFSET 0) AS timed";

struct Sample {
    id: i64,
    least_lead_ms: f64,
    most_lead_ms: f64,
    /// The setting of the clock during the draw. `None` if the clock was set in between.
    setting: Option<usize>,
}

/// Twice the number of the current clock setting, plus one while the clock is being set.
struct Settings(AtomicUsize);

impl Settings {
    fn current(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn apply(&self, cluster: &Cluster, offset_ms: i64) {
        self.0.fetch_add(1, Ordering::SeqCst);
        cluster.clock().set_offset_ms(offset_ms);
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The number of steps that the server has counted, and the largest in milliseconds.
fn steps_seen(client: &mut Client) -> (i64, f64) {
    let sql = "SELECT backward_steps, (extract(epoch FROM largest_step) * 1000)::float8 FROM idgen.stat_clock";
    let row = row(client, sql);
    (row.get(0), row.get(1))
}

fn waits(client: &mut Client) -> i64 {
    value(client, "SELECT sum(waits)::bigint FROM idgen.stat_snowflake")
}

/// The steps back in milliseconds, from the log.
fn steps_logged(cluster: &Cluster) -> Vec<i64> {
    const MESSAGE: &str = "the clock has stepped back by ";
    let log = cluster.log();
    let said = log.lines().filter_map(|line| line.split_once(MESSAGE));
    let number = |(_, rest): (&str, &str)| rest.split_once(" ms").and_then(|(ms, _)| ms.parse().ok());
    said.map(|line| number(line).unwrap_or_else(|| panic!("{line:?}"))).collect()
}

fn is_about(shown_ms: f64, step_ms: i64) -> bool {
    (shown_ms - step_ms as f64).abs() <= GRAIN_MS
}

/// The offsets to which the clock is set in turn.
fn offsets() -> Vec<i64> {
    let mut offsets = vec![0, -5, -505, -505 - HOUR_MS];
    offsets.extend((1..=10).map(|n| -505 - HOUR_MS - 50 * n));
    // Forward to the true time, an hour further, and back.
    offsets.extend([0, HOUR_MS, 0, 300, -700]);
    offsets
}

#[test]
fn ids_continue_over_steps_of_the_clock() {
    for _ in 0..rounds(1, 10) {
        let cluster = builder().start_with_extension();
        step_under_load(&cluster);
    }
}

fn step_under_load(cluster: &Cluster) {
    const SESSIONS: usize = 4;
    /// The minimum number of ids that each session draws under each setting of the clock.
    const DRAWS: usize = 100;
    wait_until_past_checkpoint(cluster);
    let mut observer = cluster.client();
    // A first start begins in the millisecond after the clock.
    assert!(draw_one(&mut observer, "snowflake").lead_ms <= 1.0, "the first id is not borrowed");
    let offsets = offsets();
    let settings = Settings(AtomicUsize::new(0));
    let drawn: [AtomicUsize; SESSIONS] = Default::default();
    let finished = AtomicBool::new(false);
    let samples: Vec<Vec<Sample>> = std::thread::scope(|scope| {
        let (settings, drawn, finished) = (&settings, &drawn, &finished);
        let session = |n: usize| {
            let mut client = cluster.client();
            let draw = client.prepare(DRAW).expect("a query");
            let mut samples = Vec::new();
            while !finished.load(Ordering::Relaxed) {
                let before = settings.current();
                let row = client.query_one(&draw, &[]).unwrap_or_else(|error| panic!("{error:?}"));
                let alone = before % 2 == 0 && settings.current() == before;
                samples.push(Sample {
                    id: row.get(0),
                    least_lead_ms: row.get(1),
                    most_lead_ms: row.get(2),
                    setting: alone.then_some(before / 2),
                });
                drawn[n].fetch_add(1, Ordering::Relaxed);
            }
            samples
        };
        let sessions: Vec<_> = (0..SESSIONS).map(|n| scope.spawn(move || session(n))).collect();
        // After a failed assertion in this thread the sessions must end too, or the scope would never end.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            take_steps(cluster, &mut observer, settings, &offsets, || {
                let from: Vec<usize> = drawn.iter().map(|count| count.load(Ordering::Relaxed)).collect();
                cluster.wait_for(PATIENCE, "ids to be drawn", || {
                    drawn.iter().zip(&from).all(|(count, from)| count.load(Ordering::Relaxed) > from + DRAWS)
                });
            });
        }));
        finished.store(true, Ordering::Relaxed);
        let samples = sessions.into_iter().map(|session| session.join().unwrap()).collect();
        outcome.unwrap_or_else(|failure| std::panic::resume_unwind(failure));
        samples
    });
    assert_eq!(waits(&mut observer), 0);
    assert_distinct(samples.iter().flatten().map(|sample| sample.id).collect());
    for samples in &samples {
        assert_increasing(&samples.iter().map(|sample| sample.id).collect::<Vec<i64>>());
        assert_leads(samples, &offsets);
    }
    for setting in 0..offsets.len() {
        assert_lead_is_paid_back(&samples, &offsets, setting);
    }
}

/// Sets the clock to each offset and checks the server's counters and log.
fn take_steps(cluster: &Cluster, observer: &mut Client, settings: &Settings, offsets: &[i64], draw: impl Fn()) {
    let mut back: Vec<i64> = Vec::new();
    let mut furthest_ms = 0;
    draw();
    for pair in offsets.windows(2) {
        settings.apply(cluster, pair[1]);
        if pair[1] < pair[0] {
            back.push(pair[0] - pair[1]);
        }
        furthest_ms = furthest_ms.max(pair[1]);
        let expected = back.len() as i64;
        cluster.wait_for(PATIENCE, "the server to notice the step", || steps_seen(observer).0 >= expected);
        // Every session must notice this setting before the next one.
        draw();
        let (count, largest_ms) = steps_seen(observer);
        assert_eq!(count, expected, "steps back, at {} ms", pair[1]);
        let largest = back.iter().copied().max().expect("the first is a step back");
        assert!(is_about(largest_ms, largest), "largest step {largest_ms} ms, expected {largest}");
        let behind_ms = furthest_ms - pair[1];
        assert_eq!(check(observer, "clock").0, behind_ms <= 1000 - 10, "{behind_ms} ms behind");
    }
    let logged = steps_logged(cluster);
    assert_eq!(logged.len(), back.len(), "{logged:?}, truly {back:?}");
    for (logged, step) in logged.iter().zip(&back) {
        assert!(is_about(*logged as f64, *step), "{logged} ms in the log, expected {step}");
    }
}

/// The lead of one session's ids is at most the lag of the clock and never grows. Nothing is borrowed, so the drift does not
/// add to it.
fn assert_leads(samples: &[Sample], offsets: &[i64]) {
    for (setting, offset) in offsets.iter().enumerate() {
        let furthest = offsets[..=setting].iter().max().expect("at least this one");
        let behind_ms = (furthest - offset) as f64;
        let mut least_ms = f64::INFINITY;
        let mut count = 0;
        for sample in samples.iter().filter(|sample| sample.setting == Some(setting)) {
            let lead_ms = sample.least_lead_ms;
            assert!(lead_ms <= behind_ms + GRAIN_MS, "{lead_ms} ms ahead, the clock is {behind_ms} behind");
            assert!(lead_ms <= least_ms + GRAIN_MS, "{lead_ms} ms ahead, was {least_ms} at setting {setting}");
            least_ms = least_ms.min(sample.most_lead_ms);
            count += 1;
        }
        assert!(count > 50, "{count} ids at setting {setting}");
    }
}

/// While the clock is far behind, slowly drawn ids use up their tick: their time stands still and the clock catches up.
fn assert_lead_is_paid_back(samples: &[Vec<Sample>], offsets: &[i64], setting: usize) {
    let furthest = offsets[..=setting].iter().max().expect("at least this one");
    if furthest - offsets[setting] < HOUR_MS {
        return;
    }
    let all: usize = samples.iter().map(Vec::len).sum();
    let here =
        || samples.iter().flatten().filter(|sample| sample.setting == Some(setting)).map(|sample| sample.id >> 22);
    let ticks = here().max().expect("ids") - here().min().expect("ids");
    let most = 1 + all as i64 / 4096;
    assert!(ticks <= most, "{ticks} ticks for {all} ids under setting {setting}");
}

#[test]
fn slow_drawing_continues_after_a_step_back_without_a_drift() {
    for _ in 0..rounds(1, 10) {
        let cluster = builder().conf("idgen.max_drift", "0").start_with_extension();
        wait_until_past_checkpoint(&cluster);
        let mut client = cluster.client();
        // Ids begin at the millisecond after the first clock reading. If the file is created faster, the first id waits for
        // the rest of the millisecond.
        let mut ids = vec![draw_one(&mut client, "snowflake").id];
        let waited_before = waits(&mut client);
        for offset_ms in [0, -HOUR_MS, -2 * HOUR_MS, -2 * HOUR_MS - 3, HOUR_MS, 0] {
            cluster.clock().set_offset_ms(offset_ms);
            ids.extend((0..300).map(|_| draw_one(&mut client, "snowflake").id));
            assert_eq!(waits(&mut client), waited_before, "at {offset_ms} ms");
        }
        assert_increasing(&ids);
        assert_eq!(steps_seen(&mut client).0, 4);
    }
}

/// Two ids a second.
const SLOW: &str = "time:31 sequence:1 unit:1s epoch:2020-01-01";

#[test]
fn waiting_session_is_not_stuck_when_the_clock_steps() {
    // Two hundred ids take 100 s.
    let cluster = builder().conf("idgen.max_drift", "0").start_with_extension();
    let mut client = cluster.client();
    let mut observer = cluster.client();
    let pid = backend_pid(&mut client);
    let sql = format!("SELECT count(*) FROM snowflake_next_many(200, '{SLOW}')");
    let step_in_the_wait = |observer: &mut Client, offsets: &[i64]| {
        for offset_ms in offsets {
            cluster.clock().set_offset_ms(*offset_ms);
            // Other sessions continue and notice the step.
            for _ in 0..100 {
                draw_one(observer, "snowflake");
            }
            wait_until_waiting(&cluster, pid);
        }
    };
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.simple_query(&sql).expect_err("the wait is ended"));
        wait_until_waiting(&cluster, pid);
        step_in_the_wait(&mut observer, &[-HOUR_MS, -2 * HOUR_MS, 0, -5, 0]);
        execute(&mut observer, &format!("SELECT pg_cancel_backend({pid})"));
        let error = waiter.join().unwrap();
        assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error:?}");
    });
    // A step back during a wait for the next tick: the ids are then ahead, and go on tick by tick.
    execute(&mut client, "SET statement_timeout = '30 s'");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| value::<i64>(&mut client, &sql.replace("200", "10")));
        wait_until_waiting(&cluster, pid);
        cluster.clock().set_offset_ms(-HOUR_MS);
        assert_eq!(waiter.join().unwrap(), 10);
    });
}
