//! The shared memory of a simulated server: it lasts from a start to a crash or a stop.

use idgen_core::clock::port::{HighWater, Written};
use idgen_core::generator::{FLOORS, Floor, Generator, GeneratorTable, GeneratorTenant};
use idgen_core::layout::Layout;
use std::cell::{Cell, RefCell};

/// Fewer than layouts, so that they evict each other.
const GENERATORS: usize = 2;

pub const LAYOUTS: [&str; 3] = ["snowflake", "time:36 worker:10 sequence:4 unit:10ms epoch:2020-01-01", "seconds"];

pub struct Memory {
    pub high_water: HighWater,
    pub table: RefCell<GeneratorTable<'static>>,
    /// Borrowed by the process that holds the lock of the file.
    pub written: RefCell<Written>,
    /// The number of the life of the data.
    pub life: RefCell<String>,
    /// The last write of the file has failed.
    pub is_failing: Cell<bool>,
    /// Since the start a file could not be written, or no worker could be started.
    pub is_disturbed: Cell<bool>,
    /// Transactions of sessions that are running.
    pub transactions: Cell<u32>,
    /// Counts signals, so that none is lost between a test and the wait.
    pub signals: Cell<u64>,
    /// The lock of the catalog with the label.
    pub catalog: RefCell<()>,
    arrays: Arrays,
}

impl Memory {
    pub fn new() -> Self {
        let arrays = Arrays::new();
        // SAFETY: the arrays live until the memory is dropped, the table is dropped with it, and nothing else has a
        // reference that changes them.
        let table = unsafe { GeneratorTable::new(&*arrays.generators, &mut *arrays.tenants, &mut *arrays.floors) };
        Self {
            high_water: HighWater::new(),
            table: RefCell::new(table),
            written: RefCell::default(),
            life: RefCell::default(),
            is_failing: Cell::new(false),
            is_disturbed: Cell::new(false),
            transactions: Cell::new(0),
            signals: Cell::new(0),
            catalog: RefCell::new(()),
            arrays,
        }
    }

    pub fn generator(&self, index: usize) -> &Generator {
        // SAFETY: the array lives as long as the memory, and is only shared.
        unsafe { &(&*self.arrays.generators)[index] }
    }

    pub fn tick_us(&self, layout: usize) -> i64 {
        i64::from(layout_of(layout).unit_ms()) * 1000
    }
}

pub fn layout_of(index: usize) -> Layout {
    Layout::parse(LAYOUTS[index]).expect("a layout")
}

/// What a table of generators refers to.
struct Arrays {
    generators: *mut [Generator],
    tenants: *mut [Option<GeneratorTenant>],
    floors: *mut [Floor],
}

impl Arrays {
    fn new() -> Self {
        Self {
            generators: Box::into_raw((0..GENERATORS).map(|_| Generator::new()).collect()),
            tenants: Box::into_raw(vec![None; GENERATORS].into()),
            floors: Box::into_raw((0..FLOORS).map(|_| Floor::new()).collect()),
        }
    }
}

impl Drop for Arrays {
    fn drop(&mut self) {
        // SAFETY: they come from `Box::into_raw`, and the memory that has used them is being dropped.
        unsafe {
            drop(Box::from_raw(self.generators));
            drop(Box::from_raw(self.tenants));
            drop(Box::from_raw(self.floors));
        }
    }
}
