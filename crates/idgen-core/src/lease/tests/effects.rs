use super::super::effects::{Effect, Effects, Fence};
use proptest::prelude::*;

const NAMES: [&str; 3] = ["a", "b", "c"];
const TOKENS: [i64; 4] = [1, 2, 3, 4];

fn is_shared(token: i64) -> bool {
    token % 2 == 0
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Fence { name: usize, token: i64 },
    Lock { token: i64 },
    Release { token: i64 },
    Savepoint,
    RollbackTo,
    ReleaseSavepoint,
}

fn token() -> impl Strategy<Value = i64> {
    prop::sample::select(TOKENS.to_vec())
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..NAMES.len(), token()).prop_map(|(name, token)| Step::Fence { name, token }),
        2 => token().prop_map(|token| Step::Lock { token }),
        2 => token().prop_map(|token| Step::Release { token }),
        2 => Just(Step::Savepoint),
        2 => Just(Step::RollbackTo),
        1 => Just(Step::ReleaseSavepoint),
    ]
}

/// Every effect of a transaction, each level of savepoints with its own, and answers by a walk over all of them.
struct Naive(Vec<Vec<Step>>);

impl Naive {
    fn steps(&self) -> impl DoubleEndedIterator<Item = &Step> {
        self.0.iter().flatten()
    }

    fn has_locked(&self, asked: i64) -> bool {
        self.steps().any(|step| match step {
            Step::Fence { token, .. } | Step::Lock { token } | Step::Release { token } => *token == asked,
            _ => false,
        })
    }

    fn has_fenced(&self, asked: usize, accepts_shared: bool) -> bool {
        let mut released = Vec::new();
        // The newest first, so a release comes before the fence that it ends.
        self.steps().rev().any(|step| match step {
            Step::Release { token } => {
                released.push(*token);
                false
            }
            Step::Fence { name, token } => {
                *name == asked && !released.contains(token) && (accepts_shared || !is_shared(*token))
            }
            _ => false,
        })
    }
}

fn apply(step: Step, effects: &mut Effects, naive: &mut Naive, levels: &mut Vec<Vec<Effect>>) {
    let effect = match step {
        Step::Fence { name, token } => effects.fence(NAMES[name], token, is_shared(token)),
        Step::Lock { token } => effects.lock(token),
        Step::Release { token } => effects.release(token),
        Step::Savepoint => {
            levels.push(Vec::new());
            naive.0.push(Vec::new());
            return;
        }
        // The transaction itself is no savepoint.
        Step::RollbackTo | Step::ReleaseSavepoint if levels.len() == 1 => return,
        Step::RollbackTo => {
            levels.pop().into_iter().flatten().rev().for_each(|effect| effects.undo(&effect));
            naive.0.pop();
            return;
        }
        Step::ReleaseSavepoint => {
            let (inner, steps) = (levels.pop().into_iter().flatten(), naive.0.pop().into_iter().flatten());
            levels.last_mut().expect("the transaction").extend(inner);
            naive.0.last_mut().expect("the transaction").extend(steps);
            return;
        }
    };
    naive.0.last_mut().expect("the transaction").push(step);
    levels.last_mut().expect("the transaction").extend(effect);
}

proptest! {
    #[test]
    fn effects_answer_as_a_walk_over_all_of_them_does(steps in prop::collection::vec(step(), 0..60)) {
        let (mut effects, mut naive, mut levels) = (Effects::default(), Naive(vec![Vec::new()]), vec![Vec::new()]);
        for step in steps {
            apply(step, &mut effects, &mut naive, &mut levels);
            for token in TOKENS {
                prop_assert_eq!(effects.has_locked(token), naive.has_locked(token), "token {}", token);
            }
            for (index, name) in NAMES.iter().enumerate() {
                for shared in [false, true] {
                    prop_assert_eq!(effects.has_fenced(name, shared), naive.has_fenced(index, shared), "name {}", name);
                }
            }
        }
        levels.into_iter().flatten().rev().for_each(|effect| effects.undo(&effect));
        prop_assert!(TOKENS.iter().all(|token| !effects.has_locked(*token)));
        prop_assert!(NAMES.iter().all(|name| !effects.has_fenced(name, true)));
    }
}

#[test]
fn repeated_effect_is_recorded_once() {
    let mut effects = Effects::default();
    let recorded = (0..1000).flat_map(|_| [effects.fence("a", 1, false), effects.lock(1)]).flatten().count();
    assert_eq!(recorded, 2);
    let fences = vec![Fence { name: "a".to_owned(), is_shared: false }];
    assert_eq!(effects.release(1), Some(Effect::Released { token: 1, fences, is_first: true }));
    assert_eq!(effects.release(1), None);
}
