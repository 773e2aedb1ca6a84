//! When a call that finds a ring dry requests a refill.

/// The requests of one wait, by the number of refills of the ring.
#[derive(Debug)]
pub struct Requests {
    /// Before the last draw.
    seen: u64,
    /// As seen when the last request was made.
    made_at: Option<u64>,
}

impl Requests {
    /// Before the first draw of the wait.
    pub fn new(refills: u64) -> Self {
        Self { seen: refills, made_at: None }
    }

    /// Before each draw, not after it: a refill in between may have filled the ring. The worker then drops the request, and the
    /// next draw of a block discards values to make room. That refill must count as one that came after the request.
    pub fn see(&mut self, refills: u64) {
        self.seen = refills;
    }

    /// After a draw that has found the ring dry. A refill that has brought too few values needs another request.
    pub fn is_due(&self) -> bool {
        self.made_at != Some(self.seen)
    }

    pub fn make(&mut self) {
        self.made_at = Some(self.seen);
    }

    /// True if no refill has come since the last request.
    pub fn is_open(&self, refills: u64) -> bool {
        self.made_at == Some(refills)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_open_until_a_refill_and_due_after_it() {
        let mut requests = Requests::new(5);
        assert_eq!((requests.is_due(), requests.is_open(5)), (true, false));
        requests.make();
        assert_eq!((requests.is_due(), requests.is_open(5), requests.is_open(6)), (false, true, false));
        requests.see(6);
        assert_eq!((requests.is_due(), requests.is_open(6)), (true, false));
    }
}
