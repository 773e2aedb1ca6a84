//! Ends a session whose statement ignores its timeout, so that the test fails and does not hang.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Far above the timeout of any statement.
const DEADLINE: Duration = Duration::from_secs(30);

pub struct Watchdog(Arc<Mutex<Option<Instant>>>);

impl Watchdog {
    pub fn start(backend: i32) -> Watchdog {
        let begun = Arc::new(Mutex::new(None::<Instant>));
        let watched = Arc::downgrade(&begun);
        std::thread::spawn(move || {
            while let Some(begun) = watched.upgrade() {
                let mut begun = begun.lock().unwrap();
                if begun.is_some_and(|begun| begun.elapsed() > DEADLINE) {
                    eprintln!("backend {backend} ignored its timeout for {DEADLINE:?}: killed");
                    let _ = kill(Pid::from_raw(backend), Signal::SIGKILL);
                    *begun = None;
                }
                drop(begun);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        Watchdog(begun)
    }

    pub fn watch<T>(&self, statement: impl FnOnce() -> T) -> T {
        *self.0.lock().unwrap() = Some(Instant::now());
        let answer = statement();
        *self.0.lock().unwrap() = None;
        answer
    }
}
