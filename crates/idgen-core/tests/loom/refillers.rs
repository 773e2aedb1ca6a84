//! The workers that fill rings: sessions that request values while a worker ends.

use super::spawn;
use idgen_core::segment::refillers::{Call, Duty, Refiller, Refillers};
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use loom::sync::{Arc, Mutex};

const DUTY: Duty = Duty { database: 5, is_attached: false };

/// The demand for the rings of one duty, and the lock of the segments.
struct Server {
    demand: AtomicU64,
    refillers: Mutex<Refillers<'static>>,
}

impl Server {
    fn new() -> Arc<Self> {
        let refillers = Refillers(vec![None::<Refiller>; 1].leak());
        Arc::new(Self { demand: AtomicU64::new(0), refillers: Mutex::new(refillers) })
    }

    /// Demand for some values. The session becomes the worker that it starts.
    fn request(&self, latch: usize) {
        self.demand.fetch_add(1, Relaxed);
        let call = self.refillers.lock().unwrap().call(DUTY, 0);
        if call == Call::Start {
            assert!(self.refillers.lock().unwrap().begin(DUTY, latch));
            self.serve(latch);
        }
    }

    /// As a worker that has waited for demand long enough.
    fn serve(&self, latch: usize) {
        loop {
            self.demand.swap(0, Relaxed);
            let mut refillers = self.refillers.lock().unwrap();
            if refillers.end(DUTY, latch, self.demand.load(Relaxed) > 0) {
                return;
            }
        }
    }
}

#[test]
fn demand_that_a_worker_leaves_starts_another_one() {
    loom::model(|| {
        let server = Server::new();
        let other = spawn(&server, |server| server.request(2));
        server.request(1);
        other.join().unwrap();
        assert_eq!(server.demand.load(Relaxed), 0);
    });
}
