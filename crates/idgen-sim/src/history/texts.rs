//! Public ids: a text decodes to the id that it was made from, whatever keys were added since, and to nothing else.

use std::collections::HashMap;

use super::Verdict;

pub const SHARED: &str = "a text stands for two ids";
pub const WRONG: &str = "a text decodes to another id";
pub const LOST: &str = "a text that was made does not decode";
pub const FORGED: &str = "a text that was never made decodes";

/// Texts of the long form of one prefix.
#[derive(Clone, Debug)]
pub enum Op {
    Encode {
        id: i64,
        text: String,
    },
    /// Of a text that was made before the call was sent, or that no call makes.
    Decode {
        text: String,
        id: Option<i64>,
    },
}

pub fn judge(ops: &[Op]) -> Verdict {
    let mut verdict = Verdict::of(ops.len());
    let mut made: HashMap<&str, i64> = HashMap::new();
    for op in ops {
        let Op::Encode { id, text } = op else { continue };
        if let Some(other) = made.insert(text, *id).filter(|other| other != id) {
            verdict.report(SHARED, || format!("{text} for {other} and {id}"));
        }
    }
    for op in ops {
        let Op::Decode { text, id } = op else { continue };
        match (made.get(text.as_str()), id) {
            (Some(right), Some(id)) if right != id => verdict.report(WRONG, || format!("{text}: {id}, not {right}")),
            (Some(right), None) => verdict.report(LOST, || format!("{text} of {right}")),
            (None, Some(id)) => verdict.report(FORGED, || format!("{text}: {id}")),
            _ => {}
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(id: i64, text: &str) -> Op {
        Op::Encode { id, text: text.to_owned() }
    }

    fn decode(text: &str, id: Option<i64>) -> Op {
        Op::Decode { text: text.to_owned(), id }
    }

    proptest! {
        #[test]
        fn texts_of_one_function_pass(ids in prop::collection::vec(0..99_i64, 1..50)) {
            let mut ops: Vec<Op> = ids.iter().map(|id| encode(*id, &format!("x{id}"))).collect();
            ops.extend(ids.iter().map(|id| decode(&format!("x{id}"), Some(*id))));
            ops.push(decode("y", None));
            prop_assert_eq!(judge(&ops).violations(), 0);
        }
    }

    #[test]
    fn each_violation_is_found() {
        assert_eq!(judge(&[encode(1, "a"), encode(2, "a")]).count(SHARED), 1);
        assert_eq!(judge(&[encode(1, "a"), decode("a", Some(2))]).count(WRONG), 1);
        assert_eq!(judge(&[encode(1, "a"), decode("a", None)]).count(LOST), 1);
        assert_eq!(judge(&[decode("b", Some(2))]).count(FORGED), 1);
    }
}
