//! What a call costs that does nothing, in the framework that idgen is written in: nothing written in it can be faster.

use pgrx::prelude::*;

pgrx::pg_module_magic!();

#[pg_extern(volatile, parallel_safe)]
fn noop() -> i64 {
    0
}
