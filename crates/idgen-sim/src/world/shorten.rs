//! Shortens a run that breaks a promise, so that its story can be read: by leaving out choices, and by making duller ones.

use super::choices::Choices;
use super::run::{Outcome, Scene, run};
use std::time::{Duration, Instant};

/// The shortest run found in this time that breaks the same promise, with its story.
pub fn shorten<S: Scene>(choices: Vec<u32>, steps: u32, at_most: Duration) -> Outcome {
    let until = Instant::now() + at_most;
    let play = |choices: &[u32], has_story| run::<S>(Choices::replaying(choices.to_vec()), steps, has_story);
    let kind =
        |outcome: &Outcome| outcome.broken.as_ref().and_then(|broken| broken.split(':').next().map(str::to_owned));
    let wanted = kind(&play(&choices, false));
    let is_enough = |candidate: &[u32]| kind(&play(candidate, false)) == wanted;
    let mut best = choices;
    let mut size = best.len() / 2;
    while size > 0 && Instant::now() < until {
        let before = best.len();
        let mut at = 0;
        while at < best.len() && Instant::now() < until {
            let end = (at + size).min(best.len());
            let without = [&best[..at], &best[end..]].concat();
            let dull = [&best[..at], &vec![0; end - at], &best[end..]].concat();
            if is_enough(&without) {
                best = without;
            } else {
                if best[at..end].iter().any(|choice| *choice > 0) && is_enough(&dull) {
                    best = dull;
                }
                at = end;
            }
        }
        // Again in the same size while that helps.
        size = if best.len() < before && size > 1 { size } else { size / 2 };
    }
    play(&best, true)
}
