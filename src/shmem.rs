//! Shared memory and its locks. Each capability declares its state as statics of these types, next to the state itself,
//! and registers them when the library is preloaded. Nothing else touches shared memory by address.
//!
//! - [`Part`]: a value that any backend reads and writes, by atomics.
//! - [`Locked`]: a value behind an LWLock.
//!
//! A process that holds one of the locks acquires another one only if that is of a higher order; [`Locked`] checks it.
//! Under a lock, code logs nothing and raises nothing, and allocates nothing where many wait.
//!
//! `pg_shmem_allocations` lists every part by its name, and `crates/idgen-testkit/tests/house/shared_memory.rs` has the table.
//!
//! When a backend crashes, PostgreSQL ends all others and initialises shared memory again, as at a start.

use crate::error;
use crate::pg::session::Replaced;
use crate::pg::{datum, system_clock};
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};

/// The memory in which a value initialises the arrays that belong to it.
pub struct Block {
    /// Null while the size is measured.
    base: *mut u8,
    used: usize,
    size: usize,
}

impl Block {
    /// An array in shared memory. Empty while the size is measured.
    pub fn array<T>(&mut self, count: usize, value: impl Fn() -> T) -> &'static mut [T] {
        let begin = self.used.next_multiple_of(align_of::<T>());
        self.used = begin + count * size_of::<T>();
        if self.base.is_null() {
            return &mut [];
        }
        assert!(self.used <= self.size, "measured {} bytes", self.size);
        // SAFETY: the array is inside of the block, aligned, and overlaps nothing.
        unsafe {
            let first = self.base.add(begin).cast::<T>();
            (0..count).for_each(|index| first.add(index).write(value()));
            std::slice::from_raw_parts_mut(first, count)
        }
    }

    /// The bytes that a value and its arrays need.
    fn measure<T>(init: fn(&mut Block) -> T) -> usize {
        let mut block = Block { base: std::ptr::null_mut(), used: size_of::<T>(), size: 0 };
        std::mem::forget(init(&mut block));
        block.used
    }

    /// Initialises a value in a block of shared memory with this name.
    fn place<T>(name: &CStr, init: fn(&mut Block) -> T) -> *mut T {
        let mut found = false;
        // SAFETY: the postmaster calls this in the startup hook. The block is aligned to PostgreSQL's cache lines, 128
        // bytes, which is the largest alignment in use.
        unsafe {
            let size = Self::measure(init);
            let base = pg_sys::ShmemInitStruct(name.as_ptr(), size, &mut found).cast::<u8>();
            let value = init(&mut Block { base, used: size_of::<T>(), size });
            base.cast::<T>().write(value);
            base.cast::<T>()
        }
    }
}

/// A value in shared memory that all processes read and write without a lock.
pub struct Part<T> {
    name: &'static CStr,
    init: fn(&mut Block) -> T,
    /// Null unless the library was preloaded. Set by the postmaster, inherited by every process that it forks.
    place: AtomicPtr<T>,
}

impl<T: Sync> Part<T> {
    /// `init` runs several times, all but the last to measure, with empty arrays.
    pub const fn new(name: &'static CStr, init: fn(&mut Block) -> T) -> Self {
        Self { name, init, place: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// `None` unless the library was preloaded.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or a value that lives as long as the process and that is only shared from then on.
        unsafe { self.place.load(Relaxed).as_ref() }
    }

    /// Raises 55000 unless the library was preloaded.
    #[inline]
    pub fn require(&self) -> &'static T {
        self.get().unwrap_or_else(|| error::not_preloaded().raise())
    }

    /// Adds to a counter for the views, if the library was preloaded. No code depends on the order of counters.
    pub fn add(&'static self, count: u64, counter: impl FnOnce(&'static T) -> &'static AtomicU64) {
        if let Some(value) = self.get() {
            counter(value).fetch_add(count, Relaxed);
        }
    }
}

/// A value in shared memory behind an LWLock.
pub struct Locked<T> {
    part: Part<T>,
    /// Locks are acquired in ascending order.
    order: u32,
    lock: AtomicPtr<pg_sys::LWLock>,
}

/// The highest order of the locks that this process holds.
static HELD: AtomicU32 = AtomicU32::new(0);

/// Sets [`HELD`] for the work under a lock, also if that panics. PostgreSQL then releases the lock itself.
fn rise_to(order: u32) -> Replaced<u32> {
    let before = HELD.load(Relaxed);
    // In a callback at the commit this is a PANIC. A restart is better than a wait for an LWLock, which nothing cancels.
    assert!(before < order, "lock {order} acquired under lock {before}");
    // SAFETY: a variable of this process.
    unsafe { Replaced::new(HELD.as_ptr(), order) }
}

impl<T: Send + Sync> Locked<T> {
    /// `init` runs as that of a [`Part`].
    pub const fn new(name: &'static CStr, order: u32, init: fn(&mut Block) -> T) -> Self {
        Self { part: Part::new(name, init), order, lock: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Works on the value, alone. Raises 55000 unless the library was preloaded.
    pub fn exclusive<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the lock is held exclusively, so this is the only reference.
        self.holding(pg_sys::LWLockMode::LW_EXCLUSIVE, |value| work(unsafe { &mut *value }))
    }

    /// Reads the value while no process changes it. Raises 55000 unless the library was preloaded.
    pub fn shared<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        // SAFETY: a process that changes the value holds the lock exclusively, so there is none.
        self.holding(pg_sys::LWLockMode::LW_SHARED, |value| read(unsafe { &*value }))
    }

    /// As [`Locked::exclusive`]; `None` if another process holds the lock.
    pub fn try_exclusive<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let (value, lock) = self.placed();
        let _order = rise_to(self.order);
        // SAFETY: a lock of our own tranche.
        if !unsafe { pg_sys::LWLockConditionalAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE) } {
            return None;
        }
        // SAFETY: the lock is held exclusively, so this is the only reference.
        let result = work(unsafe { &mut *value });
        // SAFETY: acquired above.
        unsafe { pg_sys::LWLockRelease(lock) };
        Some(result)
    }

    /// Works on the value without its lock. For the postmaster before its first child, or after its last one: none can
    /// hold it.
    ///
    /// # Safety
    /// This process is the only one of the server, and holds no reference to the value.
    pub unsafe fn without_other_processes<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: by the above.
        work(unsafe { &mut *self.placed().0 })
    }

    fn holding<R>(&self, mode: pg_sys::LWLockMode::Type, work: impl FnOnce(*mut T) -> R) -> R {
        let (value, lock) = self.placed();
        let _order = rise_to(self.order);
        // SAFETY: a lock of our own tranche, which this process does not hold: orders rise.
        unsafe { pg_sys::LWLockAcquire(lock, mode) };
        let result = work(value);
        // SAFETY: acquired above.
        unsafe { pg_sys::LWLockRelease(lock) };
        result
    }

    fn placed(&self) -> (*mut T, *mut pg_sys::LWLock) {
        let value = self.part.place.load(Relaxed);
        if value.is_null() {
            error::not_preloaded().raise();
        }
        (value, self.lock.load(Relaxed))
    }
}

/// A static of a capability, as it is registered.
pub trait Registered: Sync {
    /// The bytes of the value and its arrays.
    fn size(&self) -> usize;
    /// Initialises the value, with its own lock of the tranche.
    fn place(&self, lock: *mut pg_sys::LWLockPadded);
}

impl<T: Sync> Registered for Part<T> {
    fn size(&self) -> usize {
        Block::measure(self.init)
    }

    fn place(&self, _lock: *mut pg_sys::LWLockPadded) {
        self.place.store(Block::place(self.name, self.init), Relaxed);
    }
}

impl<T: Send + Sync> Registered for Locked<T> {
    fn size(&self) -> usize {
        self.part.size()
    }

    fn place(&self, lock: *mut pg_sys::LWLockPadded) {
        // SAFETY: a lock of the tranche.
        self.lock.store(unsafe { &raw mut (*lock).lock }, Relaxed);
        self.part.place(lock);
    }
}

/// The tranche of the locks, as `pg_stat_activity` shows waits for them.
const TRANCHE: &CStr = c"idgen";

/// True if the library was preloaded, so that all parts have their memory.
pub fn is_preloaded() -> bool {
    RESET_US.get().is_some()
}

static REGISTERED: Mutex<Vec<&'static dyn Registered>> = Mutex::new(Vec::new());
static AT_STARTUP: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Registers state of a capability. While the postmaster preloads libraries. An `init` can use parts that are registered
/// before its own.
pub fn register(parts: &[&'static dyn Registered]) {
    REGISTERED.lock().extend(parts);
}

/// Calls the function in the postmaster whenever shared memory has been initialised.
pub fn at_startup(function: fn()) {
    AT_STARTUP.lock().push(function);
}

type Hook = Option<unsafe extern "C-unwind" fn()>;

/// The hooks of libraries that were loaded before.
static PREVIOUS_REQUEST: Mutex<Hook> = Mutex::new(None);
static PREVIOUS_STARTUP: Mutex<Hook> = Mutex::new(None);

/// While the postmaster preloads libraries.
pub fn install_hooks() {
    // SAFETY: hooks are set here in the postmaster, which has one thread, and before anything calls them.
    unsafe {
        *PREVIOUS_REQUEST.lock() = pg_sys::shmem_request_hook;
        pg_sys::shmem_request_hook = Some(request);
        *PREVIOUS_STARTUP.lock() = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(startup);
    }
    register(&[&RESET_US]);
}

fn call(previous: &Mutex<Hook>) {
    let hook = *previous.lock();
    if let Some(hook) = hook {
        // SAFETY: another library installed it as this hook, and PostgreSQL calls the hook now.
        unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| hook()) };
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn request() {
    call(&PREVIOUS_REQUEST);
    let parts = REGISTERED.lock();
    // PostgreSQL aligns each allocation to a cache line.
    let size: usize = parts.iter().map(|part| part.size().next_multiple_of(pg_sys::PG_CACHE_LINE_SIZE as usize)).sum();
    // SAFETY: PostgreSQL calls this hook at the one time when memory and locks can be requested.
    unsafe {
        pg_sys::RequestAddinShmemSpace(size);
        // One for each part, although some need none.
        pg_sys::RequestNamedLWLockTranche(TRANCHE.as_ptr(), parts.len() as i32);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn startup() {
    call(&PREVIOUS_STARTUP);
    // SAFETY: requested above, under this name, with a lock for each part.
    unsafe {
        let locks = pg_sys::GetNamedLWLockTranche(TRANCHE.as_ptr());
        REGISTERED.lock().iter().enumerate().for_each(|(index, part)| part.place(locks.add(index)));
    }
    let functions = AT_STARTUP.lock().clone();
    functions.into_iter().for_each(|function| function());
}

/// A text of fixed size, for shared memory.
#[derive(Clone, Copy)]
pub struct FixedText<const N: usize> {
    length: usize,
    bytes: [u8; N],
}

impl<const N: usize> Default for FixedText<N> {
    fn default() -> Self {
        Self { length: 0, bytes: [0; N] }
    }
}

impl<const N: usize> FixedText<N> {
    /// Keeps as much of the text as there is room for, in whole characters.
    pub fn set(&mut self, text: &str) {
        self.length = text.floor_char_boundary(N);
        self.bytes[..self.length].copy_from_slice(&text.as_bytes()[..self.length]);
    }

    pub fn clear(&mut self) {
        self.length = 0;
    }

    pub fn is_clear(&self) -> bool {
        self.length == 0
    }

    /// `None` when there is none.
    pub fn text(&self) -> Option<String> {
        (!self.is_clear()).then(|| String::from_utf8_lossy(&self.bytes[..self.length]).into_owned())
    }
}

/// Microseconds since 1970. The counters begin at zero when shared memory is initialised.
static RESET_US: Part<AtomicI64> = Part::new(c"idgen reset time", |_| AtomicI64::new(system_clock::wall_us()));

/// The time of the last reset of the counters; NULL without preload.
#[pg_extern(sql = false)]
fn stat_get_reset_time() -> Option<TimestampWithTimeZone> {
    datum::from_us(RESET_US.get()?.load(Relaxed))
}

pub fn set_reset_time() {
    if let Some(reset_us) = RESET_US.get() {
        reset_us.store(system_clock::wall_us(), Relaxed);
    }
}
