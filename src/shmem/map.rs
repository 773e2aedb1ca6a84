//! Where each part of shared memory begins.

use super::{Counters, Head};
use crate::bell::Bell;
use crate::lock::registry::{Backend, NameSlot, NameText};
use crate::{clock, lease, segment, settings, worker};
use idgen_core::generator::Generator;
use idgen_core::lease::Ends;
use idgen_core::segment::refillers::Refiller;
use idgen_core::segment::{self as core_segment, Ring};
use idgen_core::table::Tenant;
use pgrx::prelude::*;

/// Where each part begins, and the size of the whole.
pub struct Map {
    pub generator_count: usize,
    pub ring_count: usize,
    pub refiller_count: usize,
    pub backend_count: usize,
    pub name_count: usize,
    pub head: usize,
    pub clock: usize,
    pub generators: usize,
    pub counters: usize,
    pub tenants: usize,
    pub rings: usize,
    pub slots: usize,
    pub segments: usize,
    pub errors: usize,
    pub refillers: usize,
    pub backends: usize,
    pub names: usize,
    pub name_texts: usize,
    pub lease_ends: usize,
    pub lease_counters: usize,
    pub lease_bells: usize,
    pub worker: usize,
    pub worker_lease: usize,
    pub size: usize,
}

impl Map {
    pub fn new() -> Self {
        let generator_count = settings::max_generators();
        let ring_count = settings::max_segments();
        // SAFETY: fixed by the time PostgreSQL asks how much memory is wanted. Every refill worker is one of these.
        let refiller_count = unsafe { pg_sys::max_worker_processes } as usize;
        // SAFETY: as above. Every process that can take a lock is one of these.
        let backend_count = unsafe { pg_sys::MaxBackends } as usize;
        let name_count = settings::max_lock_names();
        let mut size = 0;
        Self {
            generator_count,
            ring_count,
            refiller_count,
            backend_count,
            name_count,
            head: part::<Head>(&mut size, 1),
            clock: part::<clock::State>(&mut size, 1),
            generators: part::<Generator>(&mut size, generator_count),
            counters: part::<Counters>(&mut size, generator_count),
            tenants: part::<Option<Tenant>>(&mut size, generator_count),
            rings: part::<Ring>(&mut size, ring_count),
            slots: part::<segment::Slot>(&mut size, ring_count),
            segments: part::<Option<core_segment::table::Tenant>>(&mut size, ring_count),
            errors: part::<segment::LastError>(&mut size, ring_count),
            refillers: part::<Option<Refiller>>(&mut size, refiller_count),
            backends: part::<Backend>(&mut size, backend_count),
            names: part::<NameSlot>(&mut size, name_count),
            name_texts: part::<NameText>(&mut size, name_count),
            lease_ends: part::<Ends>(&mut size, 1),
            lease_counters: part::<lease::stats::Counters>(&mut size, 1),
            lease_bells: part::<Bell>(&mut size, lease::turnstile::BELLS),
            worker: part::<worker::state::State>(&mut size, 1),
            worker_lease: part::<worker::state::Lease>(&mut size, 1),
            // Last, when every part has been added.
            size,
        }
    }
}

/// Adds a part of so many values, and says where it begins.
fn part<T>(size: &mut usize, count: usize) -> usize {
    let begin = size.next_multiple_of(align_of::<T>());
    *size = begin + count * size_of::<T>();
    begin
}

/// Writes each value of a part at its place.
///
/// # Safety
/// The part is in the block, and nobody else looks at it yet.
pub unsafe fn fill<T>(base: *mut u8, begin: usize, count: usize, value: impl Fn() -> T) -> *mut T {
    // SAFETY: by the above; the part begins at the alignment of its values.
    unsafe {
        let first = base.add(begin).cast::<T>();
        for index in 0..count {
            first.add(index).write(value());
        }
        first
    }
}
