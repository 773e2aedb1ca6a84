//! Sets the library's run path to the server's libdir, so that both load the same libpq. A process has one libpq, and a
//! preloaded library decides which. With the system's libpq, another server's walreceiver fails to connect.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Cargo tracks each version of the package by itself, but all of them share one library file. Without this line, a
    // return to an earlier version keeps the library of the later one.
    println!("cargo::rerun-if-changed=Cargo.toml");
    println!("cargo::rerun-if-env-changed=PGRX_PG_CONFIG_PATH");
    // `make` sets it. Without it the library keeps the default search path.
    let Ok(pg_config) = env::var("PGRX_PG_CONFIG_PATH") else {
        return;
    };
    let output = Command::new(&pg_config).arg("--libdir").output().unwrap_or_else(|e| panic!("{pg_config}: {e}"));
    let directory = String::from_utf8(output.stdout).expect("a path in UTF-8");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-rpath,{}", directory.trim());
}
