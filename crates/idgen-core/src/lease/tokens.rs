//! How fencing tokens are drawn.

/// The sequence of the tokens of a database, as one process reaches it.
pub trait TokenSequence {
    /// True once this process has raised the sequence.
    fn has_raised(&self) -> bool;
    /// Works under the lock, after waiting for those that hold it, unless all share it.
    fn locked<T>(&mut self, is_exclusive: bool, work: impl FnOnce(&mut Self) -> T) -> T;
    /// Raises the last token to the microseconds since 1970, by the wall clock, if it is lower. Other processes can draw
    /// between the read and the write.
    fn raise(&mut self);
    fn next(&mut self) -> i64;
}

/// Draws a token.
///
/// A sequence survives a crash. After a failover to a standby that lags behind, or in a restored database, it can be
/// behind. So each process first raises it to the microseconds since 1970. No server draws a million tokens a second,
/// so wherever clocks move forward, that is past every token drawn before.
///
/// A process raises the sequence under an exclusive lock. If it stopped between reading and setting, it could otherwise
/// set the sequence back below tokens that other processes have drawn since.
pub fn draw<S: TokenSequence>(tokens: &mut S) -> i64 {
    if !tokens.has_raised() {
        tokens.locked(true, S::raise);
    }
    tokens.locked(false, S::next)
}
