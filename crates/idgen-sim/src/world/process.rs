//! The processes of simulated servers. Each runs on a stack of its own, and lets others run at each effect: so a crash or
//! another process can come between any two effects, as on a server.

use super::World;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::rc::Rc;
use std::time::Duration;

/// A room for the frames of the deepest procedure, and of a panic that reports a hole.
const STACK: usize = 256 << 10;

/// Why a process does not run.
#[derive(Clone, Copy, Debug)]
pub enum Pause {
    /// It can run, after others.
    Ready,
    /// Until this time, in microseconds since the world began.
    Until(i64),
    /// Until its server is signaled, or this time.
    Signal { until_us: i64 },
}

/// A process, for the code that runs in it.
pub struct Process<'a> {
    pub world: &'a Rc<World>,
    /// The index of its server.
    pub server: usize,
    pub id: u64,
    yielder: &'a Yielder<(), Pause>,
}

impl Process<'_> {
    /// An effect comes next. Others may run before it, or the server may crash.
    pub fn step(&self) {
        self.yielder.suspend(Pause::Ready);
    }

    pub fn sleep(&self, duration: Duration) {
        let until_us = self.world.now_us.get().saturating_add(duration.as_micros() as i64);
        self.yielder.suspend(Pause::Until(until_us));
    }

    pub fn wait(&self, at_most: Duration) {
        let until_us = self.world.now_us.get().saturating_add(at_most.as_micros() as i64);
        self.yielder.suspend(Pause::Signal { until_us });
    }
}

/// What a process runs.
pub type Work = Box<dyn FnOnce(&Process)>;

/// A process, for the one that schedules it.
pub struct Scheduled {
    pub server: usize,
    pub id: u64,
    pub name: &'static str,
    pub pause: Pause,
    /// Not scheduled before this time, whatever happens: it was stopped.
    pub stopped_until_us: i64,
    coroutine: Coroutine<(), Pause, ()>,
}

impl Scheduled {
    pub fn new(world: &Rc<World>, server: usize, id: u64, name: &'static str, work: Work) -> Self {
        let stack = world.stacks.borrow_mut().pop();
        let stack = stack.unwrap_or_else(|| DefaultStack::new(STACK).expect("memory for a stack"));
        let world = world.clone();
        let coroutine = Coroutine::with_stack(stack, move |yielder, ()| {
            work(&Process { world: &world, server, id, yielder });
        });
        Self { server, id, name, pause: Pause::Ready, stopped_until_us: 0, coroutine }
    }

    pub fn is_ready(&self, now_us: i64) -> bool {
        self.wakes_at_us() <= now_us
    }

    pub fn wakes_at_us(&self) -> i64 {
        let until_us = match self.pause {
            Pause::Ready => 0,
            Pause::Until(until_us) | Pause::Signal { until_us } => until_us,
        };
        until_us.max(self.stopped_until_us)
    }

    /// It waits for a signal, and this is one.
    pub fn wake(&mut self) {
        if matches!(self.pause, Pause::Signal { .. }) {
            self.pause = Pause::Ready;
        }
    }

    /// Runs it until its next effect. False if it has ended.
    pub fn run(&mut self) -> bool {
        match self.coroutine.resume(()) {
            CoroutineResult::Yield(pause) => self.pause = pause,
            CoroutineResult::Return(()) => return false,
        }
        true
    }

    /// Ends it where it is, as a signal would: locks that it holds are released.
    pub fn end(mut self, world: &World) {
        if !self.coroutine.done() {
            self.coroutine.force_unwind();
        }
        world.stacks.borrow_mut().push(self.coroutine.into_stack());
    }
}
