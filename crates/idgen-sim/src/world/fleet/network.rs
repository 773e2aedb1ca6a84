//! The network between attached servers and their coordinator. It delays and loses requests and answers.

use super::super::server::Phase;
use super::Backend;
use super::memory::Memory;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// One call may take so long.
pub const TIMEOUT: Duration = Duration::from_secs(3);

/// What goes wrong.
#[derive(Default)]
pub struct Network {
    /// Servers whose requests do not arrive.
    pub no_requests: BTreeSet<usize>,
    /// Servers whose answers do not arrive.
    pub no_answers: BTreeSet<usize>,
    /// One in so many requests or answers is lost; 0 for none.
    pub loses_once_in: u32,
    /// Some requests take long.
    pub is_slow: bool,
    /// One in so many answers is the one before it again; 0 for none.
    pub repeats_once_in: u32,
}

/// An open connection to a coordinator that runs.
pub struct Connection {
    pub to: usize,
    memory: Rc<Memory>,
}

impl Network {
    fn is_lost(&self, backend: &Backend) -> bool {
        self.loses_once_in > 0 && backend.world().once_in(self.loses_once_in)
    }
}

impl Connection {
    pub fn open(backend: &Backend) -> Result<Self, &'static str> {
        let to = backend.shared.coordinator.get();
        let is_cut = {
            let network = backend.shared.network.borrow();
            let server = backend.server();
            network.no_requests.contains(&server) || network.no_answers.contains(&server)
        };
        if is_cut {
            backend.process.sleep(TIMEOUT);
            return Err("no connection in time");
        }
        match backend.world().servers.borrow()[to].phase {
            Phase::Running => Ok(Self { to, memory: backend.shared.memory(to) }),
            _ => Err("the coordinator is away"),
        }
    }

    pub fn is_alive(&self, backend: &Backend) -> bool {
        let is_same = Rc::ptr_eq(&self.memory, &backend.shared.memory(self.to));
        is_same && backend.world().servers.borrow()[self.to].phase == Phase::Running
    }

    /// Runs a statement at the coordinator, in a backend that outlives the call.
    pub fn call<T: 'static>(
        &self,
        backend: &Backend,
        statement: impl FnOnce(&Backend) -> T + 'static,
    ) -> Result<T, &'static str> {
        backend.process.check_interrupts();
        backend.process.step();
        if !self.is_alive(backend) {
            return Err("the connection is broken");
        }
        let (server, answer) = (backend.server(), Rc::new(RefCell::new(None)));
        let (is_lost, is_slow) = {
            let network = backend.shared.network.borrow();
            (network.no_requests.contains(&server) || network.is_lost(backend), network.is_slow)
        };
        if !is_lost {
            let slot = answer.clone();
            let serve = move |other: &Backend| {
                travel(other, is_slow);
                let result = statement(other);
                travel(other, is_slow);
                let network = other.shared.network.borrow();
                if network.no_answers.contains(&server) || network.is_lost(other) {
                    return other.world().reach("an answer is lost");
                }
                *slot.borrow_mut() = Some(result);
                other.world().signal(server);
            };
            backend.shared.spawn(backend.world(), self.to, "backend", serve);
        }
        let until_us = backend.world().now_us.get() + TIMEOUT.as_micros() as i64;
        loop {
            backend.process.check_interrupts();
            if let Some(answer) = answer.borrow_mut().take() {
                return Ok(answer);
            }
            let left_us = until_us - backend.world().now_us.get();
            if left_us <= 0 {
                return Err("no answer in time");
            }
            if !self.is_alive(backend) {
                return Err("the connection was broken");
            }
            backend.process.wait(Duration::from_micros(left_us.min(500_000) as u64));
        }
    }
}

fn travel(backend: &Backend, is_slow: bool) {
    backend.process.step();
    if is_slow {
        backend.process.sleep(Duration::from_micros(backend.world().one_of(&[100, 100_000, 2_000_000, 8_000_000])));
    }
}
