//! Fenced writes: a list to which holders append their tokens. Once an append of a later token is committed, none of an
//! earlier one is. Reads of the list give the order, because each append takes the next position under a row lock that it
//! holds until its commit.

use std::collections::HashMap;

use super::holders::Token;
use super::{Call, Outcome, Verdict};

pub const STALE: &str = "a stale token was written after a later one";
pub const LOST: &str = "a committed append is missing";
pub const FAILED: &str = "an append that failed is in the list";
pub const TWICE: &str = "an append is in the list twice";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Append {
    /// The lease and its slot: tokens of different slots have no order.
    pub lane: u32,
    pub token: Token,
    /// Of a shared term: shared terms have no order among themselves.
    pub shared: bool,
    /// Unique in the history.
    pub number: u64,
}

/// Judges a list in the order of its commits, and the calls that wrote it.
pub fn judge(list: &[Append], calls: &[Call<Append, ()>]) -> Verdict {
    let mut verdict = Verdict::of(list.len());
    // By lane: the greatest token of an exclusive append and of any append.
    let mut greatest: HashMap<u32, (Token, Token)> = HashMap::new();
    for append in list {
        let (exclusive, any) = greatest.entry(append.lane).or_insert((Token::MIN, Token::MIN));
        let before = if append.shared { *exclusive } else { *any };
        if append.token < before {
            verdict.report(STALE, || format!("{append:?} after token {before}"));
        }
        *any = append.token.max(*any);
        if !append.shared {
            *exclusive = append.token.max(*exclusive);
        }
    }
    judge_outcomes(list, calls, &mut verdict);
    verdict
}

fn judge_outcomes(list: &[Append], calls: &[Call<Append, ()>], verdict: &mut Verdict) {
    let mut written: HashMap<u64, usize> = HashMap::new();
    list.iter().for_each(|append| *written.entry(append.number).or_default() += 1);
    for (number, _) in written.iter().filter(|(_, count)| **count > 1) {
        verdict.report(TWICE, || format!("append {number}"));
    }
    for call in calls {
        match (call.outcome, written.contains_key(&call.op.number)) {
            (Outcome::Answered(()), false) => verdict.report(LOST, || format!("{call:?}")),
            (Outcome::Failed, true) => verdict.report(FAILED, || format!("{call:?}")),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn append(token: Token, shared: bool, number: u64) -> Append {
        Append { lane: 0, token, shared, number }
    }

    fn call(op: Append, outcome: Outcome<()>) -> Call<Append, ()> {
        Call { session: 0, op, sent: 0, returned: 1, outcome }
    }

    proptest! {
        #[test]
        fn appends_of_terms_in_turn_pass(counts in prop::collection::vec(0..4_usize, 1..50)) {
            let terms = counts.iter().zip(1..).flat_map(|(count, token)| std::iter::repeat_n(token, *count));
            let list: Vec<Append> = terms.zip(0..).map(|(token, number)| append(token, false, number)).collect();
            let calls: Vec<_> = list.iter().map(|append| call(*append, Outcome::Answered(()))).collect();
            prop_assert_eq!(judge(&list, &calls).violations(), 0);
        }

        #[test]
        fn stale_append_is_found(len in 2..50_u64, late in any::<prop::sample::Index>()) {
            let mut list: Vec<Append> = (0..len).map(|n| append(n as Token, false, n)).collect();
            let stale = list.remove(late.index(list.len() - 1));
            list.push(stale);
            prop_assert_eq!(judge(&list, &[]).count(STALE), 1);
        }
    }

    #[test]
    fn shared_terms_have_no_order_among_themselves() {
        assert_eq!(judge(&[append(2, true, 0), append(1, true, 1)], &[]).violations(), 0);
        assert_eq!(judge(&[append(2, true, 0), append(1, false, 1)], &[]).count(STALE), 1);
        assert_eq!(judge(&[append(2, false, 0), append(1, true, 1)], &[]).count(STALE), 1);
    }

    #[test]
    fn lost_failed_and_repeated_appends_are_found() {
        let one = append(1, false, 0);
        assert_eq!(judge(&[], &[call(one, Outcome::Answered(()))]).count(LOST), 1);
        assert_eq!(judge(&[one], &[call(one, Outcome::Failed)]).count(FAILED), 1);
        assert_eq!(judge(&[one, one], &[call(one, Outcome::Unknown)]).count(TWICE), 1);
        assert_eq!(judge(&[], &[call(one, Outcome::Unknown), call(one, Outcome::Failed)]).violations(), 0);
    }
}
