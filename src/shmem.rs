//! The map of shared memory, and its lock protocol. Nothing outside of this file touches shared memory by address.
//!
//! One block, `idgen`, laid out in this order:
//!
//! | part | how many | who writes |
//! | --- | --- | --- |
//! | `Head` | 1 | holder of the lock, exclusively |
//! | `Generator` | `idgen.max_generators` | any backend, by atomics; who lives in it: holder of the lock, exclusively |
//! | `Counters` | the same | any backend, by atomics |
//! | `Option<Tenant>` | the same | holder of the lock, exclusively; readers hold it shared |
//!
//! The lock is one LWLock, the tranche `idgen`. Under it: no FFI, no allocation, no error, no logging; it nests in
//! nothing and nothing nests in it. Issuing an id does not take it.
//!
//! When a backend crashes, PostgreSQL ends all the others and makes shared memory anew: the same as a start.

use crate::{clock, settings};
use idgen_core::generator::Generator;
use idgen_core::table::{Table, Tenant};
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

const NAME: &CStr = c"idgen";

/// What only the holder of the lock reads or writes.
struct Head {
    floor_ms: i64,
}

/// What the views show of one generator. Statistics: nothing depends on their order, so every access is relaxed.
#[repr(align(64))]
#[derive(Default)]
pub struct Counters {
    pub issued: AtomicU64,
    pub batches: AtomicU64,
    pub borrowed: AtomicU64,
    pub waits: AtomicU64,
    pub wait_us: AtomicU64,
}

impl Counters {
    pub fn reset(&self) {
        for counter in [&self.issued, &self.batches, &self.borrowed, &self.waits, &self.wait_us] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// Shared memory as this process sees it.
pub struct Shared {
    lock: *mut pg_sys::LWLock,
    head: *mut Head,
    tenants: *mut Option<Tenant>,
    pub generators: &'static [Generator],
    pub counters: &'static [Counters],
}

/// Null unless the library was preloaded. Set by the postmaster, inherited by every process it forks.
static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());

/// Shared memory; `None` unless the library was preloaded.
#[inline]
pub fn shared() -> Option<&'static Shared> {
    // SAFETY: either null or a leaked box, which lives as long as the process.
    unsafe { SHARED.load(Ordering::Relaxed).as_ref() }
}

impl Shared {
    /// Works on the table, alone.
    pub fn with_table<R>(&self, work: impl FnOnce(&mut Table) -> R) -> R {
        self.locked(pg_sys::LWLockMode::LW_EXCLUSIVE, || {
            // SAFETY: head and tenants were initialised by `startup` and are reached under this lock only, which is
            // held exclusively: the references are the only ones while they live.
            let (head, tenants) =
                unsafe { (&mut *self.head, std::slice::from_raw_parts_mut(self.tenants, self.generators.len())) };
            work(&mut Table { generators: self.generators, tenants, floor_ms: &mut head.floor_ms })
        })
    }

    /// Looks at who lives where, while nobody moves.
    pub fn with_tenants<R>(&self, look: impl FnOnce(&[Option<Tenant>]) -> R) -> R {
        self.locked(pg_sys::LWLockMode::LW_SHARED, || {
            // SAFETY: initialised by `startup`; writers hold the lock exclusively, so there are none.
            look(unsafe { std::slice::from_raw_parts(self.tenants, self.generators.len()) })
        })
    }

    /// If `work` panics, the error that becomes of it releases the lock, as PostgreSQL does for every LWLock.
    fn locked<R>(&self, mode: pg_sys::LWLockMode::Type, work: impl FnOnce() -> R) -> R {
        // SAFETY: the lock is of our own tranche, and this process does not hold it: `work` takes none.
        unsafe { pg_sys::LWLockAcquire(self.lock, mode) };
        let result = work();
        // SAFETY: taken above.
        unsafe { pg_sys::LWLockRelease(self.lock) };
        result
    }
}

/// Where each part begins, and the size of the whole.
struct Map {
    generators: usize,
    counters: usize,
    tenants: usize,
    size: usize,
}

impl Map {
    fn new() -> Self {
        let count = settings::max_generators();
        let generators = after(size_of::<Head>(), align_of::<Generator>());
        let counters = after(generators + count * size_of::<Generator>(), align_of::<Counters>());
        let tenants = after(counters + count * size_of::<Counters>(), align_of::<Option<Tenant>>());
        Self { generators, counters, tenants, size: tenants + count * size_of::<Option<Tenant>>() }
    }
}

fn after(end: usize, align: usize) -> usize {
    end.next_multiple_of(align)
}

type Hook = Option<unsafe extern "C-unwind" fn()>;

/// The hooks that were there before ours.
static PREVIOUS_REQUEST: Mutex<Hook> = Mutex::new(None);
static PREVIOUS_STARTUP: Mutex<Hook> = Mutex::new(None);

/// Called while the postmaster preloads libraries.
pub fn install_hooks() {
    // SAFETY: hooks are set here in the postmaster, which has one thread, and before anything calls them.
    unsafe {
        *PREVIOUS_REQUEST.lock() = pg_sys::shmem_request_hook;
        pg_sys::shmem_request_hook = Some(request);
        *PREVIOUS_STARTUP.lock() = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(startup);
    }
}

fn call(previous: &Mutex<Hook>) {
    let hook = *previous.lock();
    if let Some(hook) = hook {
        // SAFETY: what another library installed as this hook, called when PostgreSQL calls the hook.
        unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| hook()) };
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn request() {
    call(&PREVIOUS_REQUEST);
    // SAFETY: PostgreSQL calls this hook at the one time when memory and locks may be asked for.
    unsafe {
        pg_sys::RequestAddinShmemSpace(Map::new().size);
        pg_sys::RequestNamedLWLockTranche(NAME.as_ptr(), 1);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn startup() {
    call(&PREVIOUS_STARTUP);
    let map = Map::new();
    let count = settings::max_generators();
    // SAFETY: PostgreSQL calls this hook in the postmaster, before any process that could look exists. The block has
    // the size asked for, at a cache line's alignment, which every part's alignment divides; the parts do not overlap
    // and each is written before a reference to it is made.
    let shared = unsafe {
        let mut found = false;
        let base = pg_sys::ShmemInitStruct(NAME.as_ptr(), map.size, &mut found).cast::<u8>();
        let head = base.cast::<Head>();
        // No id of before may be in the millisecond that is running.
        head.write(Head { floor_ms: clock::now_ms() + 1 });
        let generators = base.add(map.generators).cast::<Generator>();
        let counters = base.add(map.counters).cast::<Counters>();
        let tenants = base.add(map.tenants).cast::<Option<Tenant>>();
        for index in 0..count {
            generators.add(index).write(Generator::new());
            counters.add(index).write(Counters::default());
            tenants.add(index).write(None);
        }
        Shared {
            lock: &raw mut (*pg_sys::GetNamedLWLockTranche(NAME.as_ptr())).lock,
            head,
            tenants,
            generators: std::slice::from_raw_parts(generators, count),
            counters: std::slice::from_raw_parts(counters, count),
        }
    };
    // Once a start and once after each crash of a backend: a few words that are never given back.
    SHARED.store(Box::into_raw(Box::new(shared)), Ordering::Relaxed);
}
