//! Settled reads: what a consumer read up to a settled id is all that is ever committed there. Takes time n log n.

use std::collections::HashSet;

use super::Verdict;

pub const MISSED: &str = "a row was committed below an id that was settled before";
pub const GONE: &str = "a row that was read is not in the table";
pub const LOST: &str = "a committed row is missing";

/// The rows with ids above `after`, up to a settled id.
#[derive(Clone, Debug)]
pub struct Read {
    pub after: i64,
    pub settled: i64,
    pub ids: Vec<i64>,
}

/// Judges reads by what the table has in the end, when no transaction runs. `committed` are ids whose commit was answered.
pub fn judge(reads: &[Read], table: &[i64], committed: &[i64]) -> Verdict {
    let mut table = table.to_vec();
    table.sort_unstable();
    let mut verdict = Verdict::of(table.len());
    for id in committed.iter().filter(|id| table.binary_search(id).is_err()) {
        verdict.report(LOST, || format!("{id}"));
    }
    for read in reads {
        let ids: HashSet<i64> = read.ids.iter().copied().collect();
        let from = table.partition_point(|id| *id <= read.after);
        let to = table.partition_point(|id| *id <= read.settled).max(from);
        for id in table[from..to].iter().filter(|id| !ids.contains(id)) {
            verdict.report(MISSED, || format!("{id}, when {} was settled", read.settled));
        }
        for id in ids.iter().filter(|id| table[from..to].binary_search(id).is_err()) {
            verdict.report(GONE, || format!("{id}, which was read when {} was settled", read.settled));
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Reads that follow each other, of a table whose rows are all committed in time.
        #[test]
        fn complete_reads_pass_and_a_late_row_is_found(
            table in prop::collection::btree_set(1..1000_i64, 1..100),
            bounds in prop::collection::btree_set(1..1000_i64, 1..10),
            late in any::<prop::sample::Index>(),
        ) {
            let table: Vec<i64> = table.into_iter().collect();
            let mut after = 0;
            let mut reads = Vec::new();
            for settled in bounds {
                let ids = table.iter().copied().filter(|id| *id > after && *id <= settled).collect();
                reads.push(Read { after, settled, ids });
                after = settled;
            }
            prop_assert_eq!(judge(&reads, &table, &table).violations(), 0);
            let late = table[late.index(table.len())];
            let missed = usize::from(late <= after);
            reads.iter_mut().for_each(|read| read.ids.retain(|id| *id != late));
            prop_assert_eq!(judge(&reads, &table, &table).count(MISSED), missed);
        }
    }

    #[test]
    fn rows_that_vanish_are_found() {
        let read = Read { after: 0, settled: 5, ids: vec![3] };
        assert_eq!(judge(&[read], &[], &[]).count(GONE), 1);
        assert_eq!(judge(&[], &[1], &[1, 2]).count(LOST), 1);
    }
}
