//! The patches of `make simulate-holes`, which only a long run applies, fit the core as it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn patch_of_each_known_hole_applies() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = fs::read_dir(root.join("crates/idgen-sim/holes")).expect("the directory is readable");
    let patches: Vec<PathBuf> = files.map(|file| file.expect("it is readable").path()).collect();
    assert!(patches.len() >= 30, "{patches:?}");
    for patch in patches {
        let mut check = Command::new("patch");
        check.args(["--dry-run", "--force", "-p1", "--input"]).arg(&patch).current_dir(&root);
        let done = check.output().expect("patch runs");
        assert!(done.status.success(), "{}: {}", patch.display(), String::from_utf8_lossy(&done.stdout));
    }
}
