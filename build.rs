//! Says where the library finds libpq: where the server's own modules find theirs. A process has one libpq, that of whoever is
//! loaded first, and that is a library that is preloaded. With the system's, a server that is not the system's could not stream
//! from its primary any more.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=PGRX_PG_CONFIG_PATH");
    // Without it pgrx asks another PostgreSQL, or none: `make` sets it.
    let Ok(pg_config) = env::var("PGRX_PG_CONFIG_PATH") else {
        return;
    };
    let output = Command::new(&pg_config).arg("--libdir").output().unwrap_or_else(|e| panic!("{pg_config}: {e}"));
    let directory = String::from_utf8(output.stdout).expect("a path in UTF-8");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-rpath,{}", directory.trim());
}
