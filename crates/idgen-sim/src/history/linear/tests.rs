use proptest::prelude::*;

use super::*;

fn call(session: u32, op: Op, sent: Ns, returned: Ns, outcome: Outcome<Answer>) -> Call {
    Call { session, op, sent, returned, outcome }
}

fn acquire(session: u32, shared: bool, ttl: Ns, sent: Ns, token: Token) -> Call {
    call(session, Op::Acquire { shared, ttl }, sent, sent + 5, Outcome::Answered(Answer::Granted(token)))
}

fn done(session: u32, op: Op, sent: Ns) -> Call {
    call(session, op, sent, sent + 5, Outcome::Answered(Answer::Done))
}

fn violations(calls: &[Call], rules: Rules) -> usize {
    judge(calls, rules).violations()
}

/// The definition: tries every order, with any choice of the calls of unknown outcome.
fn is_explained(calls: &[Call], rules: Rules) -> bool {
    let search = Search::new(calls, rules);
    let all = (0..calls.len() as u32).filter(|index| !search.is_void(*index));
    let (known, lost): (Vec<u32>, Vec<u32>) = all.partition(|index| search.known(*index).is_some());
    let (releases, acquires): (Vec<u32>, Vec<u32>) =
        lost.into_iter().partition(|index| !matches!(search.call(*index).op, Op::Acquire { .. }));
    (0..1 << releases.len()).any(|choice| {
        let chosen = releases.iter().enumerate().filter(|(bit, _)| choice >> bit & 1 == 1).map(|(_, index)| *index);
        let left = known.iter().copied().chain(chosen).collect();
        can_go_on(&search, &State::default(), &left, &acquires, 0, 3)
    })
}

/// Lost acquisitions may take effect several times, but more than three of them in a row lead to no other state.
fn can_go_on(search: &Search, state: &State, left: &BTreeSet<u32>, lost: &[u32], latest: Ns, in_a_row: u8) -> bool {
    let Some(first_return) = left.iter().map(|index| search.call(*index).returned).min() else { return true };
    let is_in_time = |index: &&u32| search.call(**index).sent <= first_return;
    let by_lost =
        lost.iter().filter(is_in_time).filter(|index| in_a_row > 0 && search.call(**index).returned >= latest);
    by_lost.into_iter().any(|index| {
        let call = search.call(*index);
        let next = state.grant_unknown(call, call.returned);
        next.is_some_and(|next| can_go_on(search, &next, left, lost, latest.max(call.sent), in_a_row - 1))
    }) || left.iter().filter(is_in_time).any(|index| {
        let call = search.call(*index);
        let next = match search.known(*index) {
            Some(answer) => state.apply(call, answer, search.rank(*index)),
            None => Some(state.remove(call)),
        };
        let mut rest = left.clone();
        rest.remove(index);
        next.is_some_and(|next| can_go_on(search, &next, &rest, lost, latest.max(call.sent), 3))
    })
}

/// Any answers to any calls of three sessions, most of them impossible.
fn anything(rules: Rules) -> impl Strategy<Value = Vec<Call>> {
    let one = (0..8_u8, 1..4_i64, any::<bool>(), 0..30_u64, 0..12_u64, 0..8_u8);
    prop::collection::vec(one, 1..7).prop_map(move |calls| {
        let make = |(n, (kind, token, shared, sent, lasts, luck)): (usize, (u8, Token, bool, Ns, Ns, u8))| {
            // Tokens are granted once.
            let (new, ttl) =
                (if rules.tokens_rise { n as Token } else { token }, if rules.tokens_rise { 12 } else { NEVER });
            let token = if rules.tokens_rise { token % 3 } else { token };
            let (op, answer) = match kind {
                0..=2 => (Op::Acquire { shared, ttl }, Answer::Granted(new)),
                3 => (Op::Acquire { shared, ttl }, Answer::Refused),
                4 => (Op::Release { token }, Answer::Done),
                5 => (Op::Release { token }, Answer::Stale),
                6 if rules.tokens_rise => (Op::Revoke, Answer::Done),
                _ if rules.tokens_rise => (Op::Renew { token, ttl }, Answer::Done),
                _ => (Op::End, Answer::Done),
            };
            let is_unknown = rules.tokens_rise && luck == 0;
            let outcome = if is_unknown { Outcome::Unknown } else { Outcome::Answered(answer) };
            let session = if rules.tokens_rise { n as u32 } else { token as u32 };
            call(session, op, sent, sent + lasts, outcome)
        };
        in_turn(calls.into_iter().enumerate().map(make).collect())
    })
}

/// Leaves out what no client sends: a session sends one call at a time, and uses a token after it was granted.
fn in_turn(calls: Vec<Call>) -> Vec<Call> {
    let token_of = |call: &Call| match call.op {
        Op::Renew { token, .. } | Op::Fence { token, .. } | Op::Release { token } => Some(token),
        Op::Acquire { .. } | Op::Revoke | Op::End => granted(call),
    };
    let mut kept: Vec<Call> = Vec::new();
    for call in calls {
        let is_same = |other: &Call| {
            let is_of_token = call.op != Op::Revoke && other.op != Op::Revoke;
            other.session == call.session || is_of_token && token_of(other) == token_of(&call)
        };
        let overlaps = |other: &Call| other.sent <= call.returned && call.sent <= other.returned;
        if !kept.iter().any(|other| is_same(other) && overlaps(other)) {
            kept.push(call);
        }
    }
    kept
}

/// What a correct server answers to calls that reach it in this order, each some time after it was sent.
fn served(steps: Vec<(u32, u8, bool, Ns, Ns)>) -> Vec<Call> {
    let (mut calls, mut free_at, mut lost) = (Vec::new(), HashMap::new(), HashMap::new());
    let mut holders: Vec<(u32, Token, bool, Ns)> = Vec::new();
    for ((session, kind, shared, before, after), token) in steps.into_iter().zip(1..) {
        let at = token as Ns * 20;
        // A session waits for its answer before it sends the next call.
        let sent = free_at.get(&session).copied().unwrap_or(0).max(at.saturating_sub(before));
        let (returned, ttl) = (at + after, 300);
        if sent > at {
            continue;
        }
        let own = holders.iter().position(|holder| holder.0 == session);
        let (op, answer) = match (own, kind) {
            (_, 8) => {
                lost.extend(holders.drain(..).map(|holder| (holder.0, holder.1)));
                (Op::Revoke, Answer::Done)
            }
            (None, 0..=3) if lost.contains_key(&session) => (Op::Renew { token: lost[&session], ttl }, Answer::Stale),
            (None, _) => {
                let blocks = |(_, _, other, until): &(u32, Token, bool, Ns)| *until > at && !(shared && *other);
                let is_free = !holders.iter().any(blocks);
                if is_free {
                    holders.retain(|(_, _, other, _)| shared && *other);
                    holders.push((session, token, shared, at + ttl));
                }
                (Op::Acquire { shared, ttl }, if is_free { Answer::Granted(token) } else { Answer::Refused })
            }
            (Some(own), 0..=5) => {
                holders[own].3 = at + ttl;
                (Op::Renew { token: holders[own].1, ttl }, Answer::Done)
            }
            (Some(own), _) => (Op::Release { token: holders.remove(own).1 }, Answer::Done),
        };
        free_at.insert(session, returned + 1);
        calls.push(call(session, op, sent, returned, Outcome::Answered(answer)));
    }
    calls
}

/// With revocations, which are of the kind 8, or without.
fn steps(kinds: u8) -> impl Strategy<Value = Vec<(u32, u8, bool, Ns, Ns)>> {
    prop::collection::vec((0..6_u32, 0..kinds, any::<bool>(), 0..90_u64, 0..90_u64), 1..200)
}

const JUDGED: Rules = Rules { tokens_rise: true, refused_if_held: true };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn search_agrees_with_the_definition_for_locks(calls in anything(LOCK)) {
        prop_assert_eq!(violations(&calls, LOCK) == 0, is_explained(&calls, LOCK), "{:#?}", calls);
    }

    #[test]
    fn search_agrees_with_the_definition_for_leases(calls in anything(LEASE)) {
        prop_assert_eq!(violations(&calls, LEASE) == 0, is_explained(&calls, LEASE), "{:#?}", calls);
    }
}

proptest! {
    #[test]
    fn answers_of_a_correct_server_pass(steps in steps(8)) {
        let calls = served(steps);
        let verdict = judge(&calls, JUDGED);
        prop_assert_eq!(verdict.violations(), 0, "{}", verdict);
    }

    #[test]
    fn answers_of_a_correct_server_with_revocations_pass(steps in steps(9)) {
        let calls = served(steps);
        let verdict = judge(&calls, LEASE);
        prop_assert_eq!(verdict.violations(), 0, "{}", verdict);
    }

    /// A lost answer explains no less.
    #[test]
    fn lost_answers_pass(steps in steps(9), lost in prop::collection::vec(any::<prop::sample::Index>(), 1..5)) {
        let mut calls = served(steps);
        for lost in lost {
            let lost = lost.index(calls.len());
            let (session, sent) = (calls[lost].session, calls[lost].sent);
            let later = calls.iter_mut().filter(|call| call.session == session && call.sent >= sent);
            later.for_each(|call| call.outcome = Outcome::Unknown);
        }
        let verdict = judge(&calls, LEASE);
        prop_assert_eq!(verdict.violations(), 0, "{}", verdict);
    }
}

#[test]
fn second_holder_is_found() {
    let first = acquire(1, false, NEVER, 0, 1);
    assert_eq!(violations(&[first.clone(), acquire(2, false, NEVER, 10, 2)], LOCK), 1);
    assert_eq!(violations(&[first.clone(), acquire(2, true, NEVER, 10, 2)], LOCK), 1);
    let release = done(1, Op::Release { token: 1 }, 12);
    assert_eq!(violations(&[first, acquire(2, false, NEVER, 10, 2), release], LOCK), 0);
}

#[test]
fn lock_of_a_session_that_may_have_ended_is_free() {
    let end = call(1, Op::End, 8, NEVER, Outcome::Unknown);
    let calls = [acquire(1, false, NEVER, 0, 1), end, acquire(2, false, NEVER, 10, 2)];
    assert_eq!(violations(&calls, LOCK), 0);
}

#[test]
fn take_over_before_the_end_of_a_term_is_found() {
    let first = acquire(1, false, 100, 0, 1);
    assert_eq!(violations(&[first.clone(), acquire(2, false, 100, 90, 2)], LEASE), 1);
    assert_eq!(violations(&[first.clone(), acquire(2, false, 100, 95, 2)], LEASE), 0);
    let renewal = done(1, Op::Renew { token: 1, ttl: 100 }, 50);
    assert_eq!(violations(&[first, renewal, acquire(2, false, 100, 95, 2)], LEASE), 1);
}

#[test]
fn take_over_during_a_fenced_transaction_is_found() {
    let first = acquire(1, false, 20, 0, 1);
    let fence = done(1, Op::Fence { token: 1, until: 60 }, 10);
    assert_eq!(violations(&[first.clone(), fence.clone(), acquire(2, false, 20, 40, 2)], LEASE), 1);
    assert_eq!(violations(&[first, fence, acquire(2, false, 20, 60, 2)], LEASE), 0);
}

#[test]
fn stale_token_that_works_is_found() {
    let calls =
        [acquire(1, false, 20, 0, 1), acquire(2, false, 20, 30, 2), done(1, Op::Renew { token: 1, ttl: 20 }, 40)];
    assert_eq!(violations(&calls, LEASE), 1);
}

#[test]
fn valid_token_that_is_refused_is_found() {
    let renewal = call(1, Op::Renew { token: 1, ttl: 20 }, 10, 15, Outcome::Answered(Answer::Stale));
    assert_eq!(violations(&[acquire(1, false, 20, 0, 1), renewal.clone()], LEASE), 1);
    // A take-over whose answer was lost explains it.
    let lost = call(2, Op::Acquire { shared: false, ttl: 20 }, 5, NEVER, Outcome::Unknown);
    let late = Call { sent: 30, returned: 35, ..renewal };
    assert_eq!(violations(&[acquire(1, false, 20, 0, 1), lost, late], LEASE), 0);
}

#[test]
fn token_that_works_after_its_revocation_is_found() {
    let first = acquire(1, false, 100, 0, 1);
    let [revocation, renewal] = [done(9, Op::Revoke, 10), done(1, Op::Renew { token: 1, ttl: 100 }, 20)];
    assert_eq!(violations(&[first.clone(), revocation.clone(), renewal.clone()], LEASE), 1);
    // The renewal came first, or the answer of the revocation was lost.
    let early = Call { sent: 12, ..renewal.clone() };
    assert_eq!(violations(&[first.clone(), revocation.clone(), early], LEASE), 0);
    let lost = call(9, Op::Revoke, 10, NEVER, Outcome::Unknown);
    assert_eq!(violations(&[first.clone(), lost, renewal], LEASE), 0);
    let stale = call(1, Op::Renew { token: 1, ttl: 100 }, 20, 25, Outcome::Answered(Answer::Stale));
    assert_eq!(violations(&[first.clone(), revocation.clone(), stale.clone()], LEASE), 0);
    assert_eq!(violations(&[first.clone(), stale], LEASE), 1);
    // It makes room for another holder, also if its answer arrives later.
    let second = acquire(2, false, 100, 12, 2);
    assert_eq!(violations(&[first, Call { returned: 30, ..revocation }, second], LEASE), 0);
}

#[test]
fn token_below_an_earlier_one_is_found() {
    let release = done(1, Op::Release { token: 5 }, 10);
    assert!(violations(&[acquire(1, false, 20, 0, 5), release, acquire(2, false, 20, 30, 4)], LEASE) > 0);
}

#[test]
fn refusal_of_a_free_lock_is_found() {
    let refusal = call(2, Op::Acquire { shared: false, ttl: NEVER }, 10, 15, Outcome::Answered(Answer::Refused));
    assert_eq!(violations(std::slice::from_ref(&refusal), LOCK), 1);
    // A call that fails can have held it for a moment.
    let failed = |sent| call(3, Op::Acquire { shared: false, ttl: NEVER }, sent, sent + 8, Outcome::Failed);
    assert_eq!([1, 5, 12, 16].map(|sent| violations(&[refusal.clone(), failed(sent)], LOCK)), [1, 0, 0, 1]);
}

/// A crash of the server, which loses the calls of all sessions at once.
#[test]
fn many_lost_calls_take_little_time() {
    let lost = |n: u32, shared| call(n, Op::Acquire { shared, ttl: 100 }, 10, 1000, Outcome::Unknown);
    let mut calls: Vec<Call> = (2..40).map(|n| lost(n, n % 2 == 0)).collect();
    calls.extend([acquire(1, false, 100, 0, 1), acquire(50, true, 100, 500, 2), acquire(51, false, 100, 1100, 3)]);
    assert_eq!(violations(&calls, LEASE), 0);
}

#[test]
fn long_history_takes_time_in_proportion() {
    let cycle = |n: Ns| {
        let token = n as Token;
        [acquire(n as u32, false, 100, n * 20, token), done(n as u32, Op::Release { token }, n * 20 + 10)]
    };
    let calls: Vec<Call> = (0..100_000).flat_map(cycle).collect();
    assert_eq!(violations(&calls, LEASE), 0);
}
