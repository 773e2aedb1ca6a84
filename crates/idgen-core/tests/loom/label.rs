//! The label in WAL: the mark that it bounds, and the worker that writes it.

use super::spawn;
use idgen_core::clock::label::{LabelReach, LabelWorker, Labels, NextLabel, PATIENCE};
use loom::sync::atomic::{AtomicI64, Ordering::Relaxed};
use loom::sync::{Arc, Mutex};

/// The lock of the catalog, that of the file with the labels and the mark, and the label in WAL.
struct Server {
    catalog: Mutex<()>,
    file: Mutex<(Labels, i64)>,
    reach: LabelReach,
    wal_ms: AtomicI64,
}

impl Server {
    fn new(mark_ms: i64) -> Arc<Self> {
        Arc::new(Self {
            catalog: Mutex::new(()),
            file: Mutex::new((Labels::default(), mark_ms)),
            reach: LabelReach::new(),
            wal_ms: AtomicI64::new(i64::MIN),
        })
    }

    /// As the worker does.
    fn write_label(&self, until_ms: i64) {
        let label = {
            let _catalog = self.catalog.lock().unwrap();
            let label = self.begin_label(until_ms);
            self.wal_ms.store(label.until_ms, Relaxed);
            label
        };
        self.commit_label(&label);
    }

    fn begin_label(&self, until_ms: i64) -> NextLabel {
        let (labels, mark_ms) = &mut *self.file.lock().unwrap();
        labels.begin(&self.reach, until_ms.max(*mark_ms))
    }

    fn commit_label(&self, label: &NextLabel) {
        self.file.lock().unwrap().0.commit(&self.reach, label);
    }

    /// As a session does whose ids need the mark.
    fn move_mark(&self, to_ms: i64) {
        let (_, mark_ms) = &mut *self.file.lock().unwrap();
        if self.reach.reaches(to_ms) {
            *mark_ms = to_ms;
            assert!(self.wal_ms.load(Relaxed) >= to_ms, "ids need a label that WAL does not have");
        }
    }

    /// Likewise, of a session that has given the worker up.
    fn pass_label(&self, to_ms: i64) {
        {
            let (_, mark_ms) = &mut *self.file.lock().unwrap();
            *mark_ms = to_ms.max(*mark_ms);
        }
        self.reach.follow(to_ms);
    }

    fn assert_within_label(&self) {
        assert!(self.file.lock().unwrap().1 <= self.wal_ms.load(Relaxed));
    }
}

/// S4.
#[test]
fn label_that_goes_back_limits_the_mark_before_it_is_in_wal() {
    loom::model(|| {
        let server = Server::new(1);
        server.write_label(4);
        let lower = spawn(&server, |server| server.write_label(2));
        server.move_mark(3);
        lower.join().unwrap();
        server.assert_within_label();
    });
}

/// S4: the worker of the label that was replaced is the last one to note its commit.
#[test]
fn label_that_was_replaced_is_no_limit() {
    loom::model(|| {
        let server = Server::new(1);
        let later = spawn(&server, |server| server.write_label(4));
        server.write_label(2);
        server.move_mark(3);
        later.join().unwrap();
        server.assert_within_label();
    });
}

/// S4: standbys may lack ids, whichever process is the last to note how far it has come.
#[test]
fn label_that_two_sessions_and_a_worker_follow_is_passed() {
    loom::model(|| {
        let server = Server::new(1);
        let label = server.begin_label(3);
        let other = spawn(&server, |server| server.pass_label(4));
        server.pass_label(2);
        server.commit_label(&label);
        other.join().unwrap();
        assert!(server.reach.is_passed());
        server.write_label(4);
        assert!(!server.reach.is_passed());
    });
}

#[test]
fn one_session_starts_the_worker() {
    loom::model(|| {
        let worker = Arc::new(LabelWorker::default());
        let other = spawn(&worker, |worker| worker.request(1));
        assert!(worker.request(1) != other.join().unwrap());
    });
}

/// S4: else the mark would pass the label without need.
#[test]
fn worker_that_succeeds_after_a_failure_is_not_given_up() {
    loom::model(|| {
        let worker = Arc::new(LabelWorker::default());
        worker.fail(1);
        let now_us = 1 + PATIENCE.as_micros() as i64;
        assert!(worker.is_given_up(now_us, 0));
        assert!(worker.request(now_us));
        let success = spawn(&worker, LabelWorker::succeed);
        assert!(!worker.is_given_up(now_us, 0));
        success.join().unwrap();
    });
}
