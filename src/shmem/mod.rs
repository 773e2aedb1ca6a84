//! The map of shared memory, and its lock protocol. Nothing outside of this module touches shared memory by address.
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
//! | `Ring` | `idgen.max_segments` | draws: any backend, by atomics; the rest: holder of the segments' lock, exclusively |
//! | `segment::Slot` | the same | any backend, by atomics |
//! | `Option<segment::Tenant>`, `segment::LastError` | the same | holder of the segments' lock, exclusively |
//! | `Option<Refiller>` | `max_worker_processes` | holder of the segments' lock, exclusively |
//! | `lock::Backend` | one for each process | that process, by atomics |
//! | `idgen_core::lease::Ends` | one | holder of the leases' lock, exclusively |
//! | `lease::stats::Counters` | one | any backend, by atomics |
//! | `worker::state::State` | one | any backend, by atomics; the number: holder of the table's lock, exclusively |
//! | `worker::state::Lease` | one | holder of the worker's lock, exclusively |
//! | `Bell`, for leases | 256 | any backend |
//! | `lock::NameSlot`, `lock::NameText` | `idgen.max_lock_names` | holder of the locks' lock, exclusively |
//!
//! Six LWLocks, the tranche `idgen`, taken in this order:
//!
//! 1. The file's lock, for whoever writes the high-water file. Under it: file I/O, which raises nothing. It is only ever
//!    tried; who does not get it waits on a condition variable, which can be cancelled.
//! 2. The table's lock. Under it: no FFI but the next lock, no allocation, no error, no logging.
//! 3. The worker's lock, under the table's where a number and its lease become known together. The same.
//! 4. The segments' lock, 5. the lock of the locks' names, and 6. the leases' lock. The same; never together with the others.
//!
//! Issuing an id, drawing a value and taking a lock whose name is known take none.
//!
//! When a backend crashes, PostgreSQL ends all the others and makes shared memory anew: the same as a start.

use crate::bell::Bell;
use crate::lock::registry::{Backend, NameSlot, NameText};
use crate::{clock, lease, segment, worker};
use idgen_core::generator::Generator;
use idgen_core::lease::Ends;
use idgen_core::segment::refillers::{Refiller, Refillers};
use idgen_core::segment::{self as core_segment, Ring};
use idgen_core::table::{FLOORS, Table, Tenant};
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

mod map;

use map::{Map, fill};

const NAME: &CStr = c"idgen";

/// What only the holder of the table's lock reads or writes.
struct Head {
    floors_ms: [i64; FLOORS],
}

/// What the views show of one generator. Statistics: nothing depends on their order, so every access is relaxed. In cache
/// lines of its own, as the `Generator`.
#[repr(align(128))]
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
    segments_lock: *mut pg_sys::LWLock,
    names_lock: *mut pg_sys::LWLock,
    leases_lock: *mut pg_sys::LWLock,
    worker_lock: *mut pg_sys::LWLock,
    head: *mut Head,
    tenants: *mut Option<Tenant>,
    segments: *mut Option<core_segment::table::Tenant>,
    errors: *mut segment::LastError,
    refillers: *mut Option<Refiller>,
    refiller_count: usize,
    name_texts: *mut NameText,
    lease_ends: *mut Ends,
    worker_lease: *mut worker::state::Lease,
    pub worker: &'static worker::state::State,
    pub clock: &'static clock::State,
    pub generators: &'static [Generator],
    pub counters: &'static [Counters],
    pub rings: &'static [Ring],
    pub slots: &'static [segment::Slot],
    pub backends: &'static [Backend],
    pub names: &'static [NameSlot],
    pub lease_counters: &'static lease::stats::Counters,
    pub lease_bells: &'static [Bell],
}

/// What the holder of the segments' lock has in his hands.
pub struct Segments<'a> {
    pub table: core_segment::table::Table<'a>,
    /// What went wrong at the last refill of each ring.
    pub errors: &'a mut [segment::LastError],
    pub refillers: Refillers<'a>,
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

    /// Works on the table of rings and all that belongs to it, alone. If `work` panics, as in `with_table`.
    pub fn with_segments<R>(&self, work: impl FnOnce(&mut Segments) -> R) -> R {
        // SAFETY: as in `with_table`.
        unsafe { pg_sys::LWLockAcquire(self.segments_lock, pg_sys::LWLockMode::LW_EXCLUSIVE) };
        let count = self.rings.len();
        // SAFETY: initialised by `startup`; the lock is held exclusively, so these are the only references.
        let result = work(&mut unsafe {
            Segments {
                table: core_segment::table::Table {
                    rings: self.rings,
                    tenants: std::slice::from_raw_parts_mut(self.segments, count),
                },
                errors: std::slice::from_raw_parts_mut(self.errors, count),
                refillers: Refillers(std::slice::from_raw_parts_mut(self.refillers, self.refiller_count)),
            }
        });
        // SAFETY: taken above.
        unsafe { pg_sys::LWLockRelease(self.segments_lock) };
        result
    }

    /// Works on the names of locks, alone. If `work` panics, as in `with_table`.
    pub fn with_lock_names<R>(&self, work: impl FnOnce(&mut [NameText]) -> R) -> R {
        // SAFETY: as in `with_table`.
        unsafe { pg_sys::LWLockAcquire(self.names_lock, pg_sys::LWLockMode::LW_EXCLUSIVE) };
        // SAFETY: initialised by `startup`; the lock is held exclusively, so this is the only reference.
        let result = work(unsafe { std::slice::from_raw_parts_mut(self.name_texts, self.names.len()) });
        // SAFETY: taken above.
        unsafe { pg_sys::LWLockRelease(self.names_lock) };
        result
    }

    /// Works on what is known of ended sessions, alone. If `work` panics, as in `with_table`.
    pub fn with_lease_ends<R>(&self, work: impl FnOnce(&mut Ends) -> R) -> R {
        // SAFETY: as in `with_table`.
        unsafe { pg_sys::LWLockAcquire(self.leases_lock, pg_sys::LWLockMode::LW_EXCLUSIVE) };
        // SAFETY: initialised by `startup`; the lock is held exclusively, so this is the only reference.
        let result = work(unsafe { &mut *self.lease_ends });
        // SAFETY: taken above.
        unsafe { pg_sys::LWLockRelease(self.leases_lock) };
        result
    }

    /// Works on what is known of the lease of this server's number, alone. If `work` panics, as in `with_table`.
    pub fn with_worker<R>(&self, work: impl FnOnce(&mut worker::state::Lease) -> R) -> R {
        // SAFETY: as in `with_table`.
        unsafe { pg_sys::LWLockAcquire(self.worker_lock, pg_sys::LWLockMode::LW_EXCLUSIVE) };
        // SAFETY: initialised by `startup`; the lock is held exclusively, so this is the only reference.
        let result = work(unsafe { &mut *self.worker_lease });
        // SAFETY: taken above.
        unsafe { pg_sys::LWLockRelease(self.worker_lock) };
        result
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
        pg_sys::RequestNamedLWLockTranche(NAME.as_ptr(), 6);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn startup() {
    call(&PREVIOUS_STARTUP);
    let map = Map::new();
    let memory = worker::memory::recall();
    // SAFETY: PostgreSQL calls this hook in the postmaster, before any process that could look exists. The block has
    // the size asked for, at PostgreSQL's alignment of cache lines, 128 bytes, which every part's alignment divides; the parts do
    // not overlap and each is written before a reference to it is made.
    let shared = unsafe {
        let mut found = false;
        let base = pg_sys::ShmemInitStruct(NAME.as_ptr(), map.size, &mut found).cast::<u8>();
        // What floor holds is known when the file has been read.
        let head = fill(base, map.head, 1, || Head { floors_ms: [i64::MIN; FLOORS] });
        let clock = fill(base, map.clock, 1, clock::State::new);
        (*clock).moved.init_at_place();
        let worker = fill(base, map.worker, 1, || worker::state::State::new(&memory));
        (*worker).changed.init_at_place();
        if !(*worker).is_set() {
            // Nothing is leased yet, so nothing is allowed.
            (*clock).mark.end_at(i64::MIN);
        }
        let slots = fill(base, map.slots, map.ring_count, segment::Slot::new);
        let slots = std::slice::from_raw_parts(slots, map.ring_count);
        slots.iter().for_each(|slot| slot.refilled.init_at_place());
        let generators = fill(base, map.generators, map.generator_count, Generator::new);
        let counters = fill(base, map.counters, map.generator_count, Counters::default);
        let rings = fill(base, map.rings, map.ring_count, Ring::new);
        let backends = fill(base, map.backends, map.backend_count, Backend::new);
        let names = fill(base, map.names, map.name_count, NameSlot::new);
        let bells = fill(base, map.lease_bells, lease::turnstile::BELLS, Bell::new);
        let lease_bells = std::slice::from_raw_parts(bells, lease::turnstile::BELLS);
        lease_bells.iter().for_each(Bell::init_at_place);
        let locks = pg_sys::GetNamedLWLockTranche(NAME.as_ptr());
        Shared {
            file_lock: &raw mut (*locks).lock,
            table_lock: &raw mut (*locks.add(1)).lock,
            segments_lock: &raw mut (*locks.add(2)).lock,
            names_lock: &raw mut (*locks.add(3)).lock,
            leases_lock: &raw mut (*locks.add(4)).lock,
            worker_lock: &raw mut (*locks.add(5)).lock,
            head,
            tenants: fill(base, map.tenants, map.generator_count, || None),
            segments: fill(base, map.segments, map.ring_count, || None),
            errors: fill(base, map.errors, map.ring_count, segment::LastError::default),
            refillers: fill(base, map.refillers, map.refiller_count, || None),
            refiller_count: map.refiller_count,
            name_texts: fill(base, map.name_texts, map.name_count, NameText::new),
            worker_lease: fill(base, map.worker_lease, 1, worker::state::Lease::default),
            worker: &*worker,
            clock: &*clock,
            generators: std::slice::from_raw_parts(generators, map.generator_count),
            counters: std::slice::from_raw_parts(counters, map.generator_count),
            rings: std::slice::from_raw_parts(rings, map.ring_count),
            slots,
            backends: std::slice::from_raw_parts(backends, map.backend_count),
            names: std::slice::from_raw_parts(names, map.name_count),
            lease_ends: fill(base, map.lease_ends, 1, Ends::new),
            lease_counters: &*fill(base, map.lease_counters, 1, lease::stats::Counters::default),
            lease_bells,
        }
    };
    // SAFETY: PostgreSQL calls it in this process, before it gives up this memory.
    unsafe { pg_sys::on_shmem_exit(Some(clock::mark::at_exit), pg_sys::Datum::null()) };
    // Once a start and once after each crash of a backend: a few words that are never given back.
    SHARED.store(Box::into_raw(Box::new(shared)), Ordering::Relaxed);
}
