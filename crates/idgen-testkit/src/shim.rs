//! Libraries that a test preloads into a server, to replace system calls and functions of other libraries.

use std::path::Path;
use std::process::Command;

/// Compiles a C file below `tests/cluster`.
pub fn compile_shim(source: &str, library: &Path) {
    compile(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cluster").join(source), library);
}

pub(crate) fn compile(source: &Path, library: &Path) {
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([library, source])
        .output()
        .expect("the test needs a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
