//! The map of shared memory, and its lock protocol. Nothing outside of this file touches shared memory by address.
//!
//! One block, `idgen`, laid out in this order:
//!
//! | part | how many | who writes |
//! | --- | --- | --- |
//! | `Head` | 1 | holder of the table's lock, exclusively |
//! | `clock::State` | 1 | any backend, by atomics; the mark and its turn: holder of the file's lock |
//! | `Generator` | `idgen.max_generators` | any backend, by atomics; who lives in it: holder of the table's lock, exclusively |
//! | `Counters` | the same | any backend, by atomics |
//! | `Option<Tenant>` | the same | holder of the table's lock, exclusively; readers hold it shared |
//!
//! Two LWLocks, the tranche `idgen`, taken in this order:
//!
//! 1. The file's lock, for whoever writes the high-water file. Under it: file I/O, which raises nothing. It is only ever
//!    tried; who does not get it waits on a condition variable, which can be cancelled.
//! 2. The table's lock. Under it: no FFI, no allocation, no error, no logging.
//!
//! Issuing an id takes neither.
//!
//! When a backend crashes, PostgreSQL ends all the others and makes shared memory anew: the same as a start.

use crate::{clock, settings};
use idgen_core::generator::Generator;
use idgen_core::table::{FLOORS, Table, Tenant};
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

const NAME: &CStr = c"idgen";

/// What only the holder of the table's lock reads or writes.
struct Head {
    floors_ms: [i64; FLOORS],
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
    file_lock: *mut pg_sys::LWLock,
    table_lock: *mut pg_sys::LWLock,
    head: *mut Head,
    tenants: *mut Option<Tenant>,
    pub clock: &'static clock::State,
    pub generators: &'static [Generator],
    pub counters: &'static [Counters],
}

// SAFETY: what the raw pointers reach is touched under its lock only, which works between processes and so between
// threads; the rest is atomics.
unsafe impl Sync for Shared {}

/// Null unless the library was preloaded. Set by the postmaster, inherited by every process it forks.
static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());

/// Shared memory; `None` unless the library was preloaded.
#[inline]
pub fn shared() -> Option<&'static Shared> {
    // SAFETY: either null or a leaked box, which lives as long as the process.
    unsafe { SHARED.load(Ordering::Relaxed).as_ref() }
}

impl Shared {
    /// Works on the table, alone. If `work` panics, the error that becomes of it releases the lock, as PostgreSQL does
    /// for every LWLock.
    pub fn with_table<R>(&self, work: impl FnOnce(&mut Table) -> R) -> R {
        // SAFETY: the lock is of our own tranche, and this process does not hold it: `work` takes none.
        unsafe { pg_sys::LWLockAcquire(self.table_lock, pg_sys::LWLockMode::LW_EXCLUSIVE) };
        // SAFETY: the lock is held exclusively.
        let result = work(&mut unsafe { self.table() });
        // SAFETY: taken above.
        unsafe { pg_sys::LWLockRelease(self.table_lock) };
        result
    }

    /// Looks at who lives where, while nobody moves.
    pub fn with_tenants<R>(&self, look: impl FnOnce(&[Option<Tenant>]) -> R) -> R {
        // SAFETY: as in `with_table`.
        unsafe { pg_sys::LWLockAcquire(self.table_lock, pg_sys::LWLockMode::LW_SHARED) };
        // SAFETY: initialised by `startup`; writers hold the lock exclusively, so there are none.
        let result = look(unsafe { std::slice::from_raw_parts(self.tenants, self.generators.len()) });
        // SAFETY: taken above.
        unsafe { pg_sys::LWLockRelease(self.table_lock) };
        result
    }

    /// Everything is issued before this time. For the postmaster after all its children are gone, when no lock can be
    /// held and none is needed.
    pub fn settled_ms_at_exit(&self) -> i64 {
        // SAFETY: this is the only process left.
        unsafe { self.table() }.settled_ms()
    }

    /// # Safety
    /// The table's lock is held exclusively, or no other process is there; and there is no other `Table` meanwhile.
    unsafe fn table(&self) -> Table<'_> {
        // SAFETY: head and tenants were initialised by `startup`; by the above these are the only references to them.
        let (head, tenants) =
            unsafe { (&mut *self.head, std::slice::from_raw_parts_mut(self.tenants, self.generators.len())) };
        Table { generators: self.generators, tenants, floors_ms: &mut head.floors_ms }
    }

    /// Takes the file's lock, if nobody has it.
    pub fn try_lock_file(&self) -> bool {
        // SAFETY: the lock is of our own tranche.
        unsafe { pg_sys::LWLockConditionalAcquire(self.file_lock, pg_sys::LWLockMode::LW_EXCLUSIVE) }
    }

    pub fn unlock_file(&self) {
        // SAFETY: the caller has it from `try_lock_file`.
        unsafe { pg_sys::LWLockRelease(self.file_lock) };
    }
}

/// Where each part begins, and the size of the whole.
struct Map {
    clock: usize,
    generators: usize,
    counters: usize,
    tenants: usize,
    size: usize,
}

impl Map {
    fn new() -> Self {
        let count = settings::max_generators();
        let clock = after(size_of::<Head>(), align_of::<clock::State>());
        let generators = after(clock + size_of::<clock::State>(), align_of::<Generator>());
        let counters = after(generators + count * size_of::<Generator>(), align_of::<Counters>());
        let tenants = after(counters + count * size_of::<Counters>(), align_of::<Option<Tenant>>());
        Self { clock, generators, counters, tenants, size: tenants + count * size_of::<Option<Tenant>>() }
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
        pg_sys::RequestNamedLWLockTranche(NAME.as_ptr(), 2);
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
        // What floor holds is known when the file has been read.
        head.write(Head { floors_ms: [i64::MIN; FLOORS] });
        let clock = base.add(map.clock).cast::<clock::State>();
        clock.write(clock::State::new());
        (*clock).init_at_place();
        let generators = base.add(map.generators).cast::<Generator>();
        let counters = base.add(map.counters).cast::<Counters>();
        let tenants = base.add(map.tenants).cast::<Option<Tenant>>();
        for index in 0..count {
            generators.add(index).write(Generator::new());
            counters.add(index).write(Counters::default());
            tenants.add(index).write(None);
        }
        let locks = pg_sys::GetNamedLWLockTranche(NAME.as_ptr());
        Shared {
            file_lock: &raw mut (*locks).lock,
            table_lock: &raw mut (*locks.add(1)).lock,
            head,
            tenants,
            clock: &*clock,
            generators: std::slice::from_raw_parts(generators, count),
            counters: std::slice::from_raw_parts(counters, count),
        }
    };
    // SAFETY: PostgreSQL calls it in this process, before it gives up this memory.
    unsafe { pg_sys::on_shmem_exit(Some(clock::mark::at_exit), pg_sys::Datum::null()) };
    // Once a start and once after each crash of a backend: a few words that are never given back.
    SHARED.store(Box::into_raw(Box::new(shared)), Ordering::Relaxed);
}
