//! The cost of calling a function that does nothing, written with pgrx: no function of idgen can be faster.

use pgrx::prelude::*;

pgrx::pg_module_magic!();

#[pg_extern(volatile, parallel_safe)]
fn noop() -> i64 {
    0
}
