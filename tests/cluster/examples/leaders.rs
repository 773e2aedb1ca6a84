use std::collections::BTreeMap;

use idgen_testkit::Example;

/// Asks a candidate all the time whether it leads, until its input ends. Prints the token with the times before and after
/// each answer.
pub const ASKING: &str = "
import sys, threading, leader

conninfo, address, ttl = sys.argv[1:]
candidate = leader.Candidate(conninfo, 'scheduler', address, float(ttl))
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
while not stop.wait(0.001):
    before = leader.clock()
    token = candidate.leads()
    if token:
        print(token, int(1e6 * before), int(1e6 * leader.clock()))
candidate.resign()
";

/// An answer that a candidate leads was given between these times, in microseconds of CLOCK_BOOTTIME.
struct Answer {
    token: i64,
    after_us: i64,
    before_us: i64,
}

fn answers(candidate: &Example) -> Vec<Answer> {
    let numbers = |line: &String| line.split(' ').map(|number| number.parse().expect("a number")).collect::<Vec<i64>>();
    let answer = |line: &String| match numbers(line)[..] {
        [token, after_us, before_us] => Answer { token, after_us, before_us },
        _ => panic!("{line:?}"),
    };
    candidate.lines().iter().map(answer).collect()
}

/// No answer under a token was given after one under a later token. Returns the number of tokens.
pub fn assert_one_leader_at_a_time(candidates: &[Example]) -> usize {
    let mut terms = BTreeMap::<i64, (i64, i64)>::new();
    for Answer { token, after_us, before_us } in candidates.iter().flat_map(answers) {
        let (first_before, last_after) = terms.entry(token).or_insert((before_us, after_us));
        (*first_before, *last_after) = (before_us.min(*first_before), after_us.max(*last_after));
    }
    let terms: Vec<_> = terms.into_iter().collect();
    for pair in terms.windows(2) {
        let [(earlier, (_, last_after)), (later, (first_before, _))] = pair else { unreachable!("pairs") };
        assert!(last_after <= first_before, "token {earlier} leads at {last_after}, {later} at {first_before}");
    }
    terms.len()
}
