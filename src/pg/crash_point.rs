//! Named points at which a test stops a process, so that it can crash the server exactly there. Only builds with the
//! feature `crash-points` have them: see `tests/cluster/crash_points`.

/// Does nothing without the feature.
macro_rules! crash_point {
    ($name:literal) => {
        #[cfg(feature = "crash-points")]
        $crate::pg::crash_point::reach($name);
    };
}
pub(crate) use crash_point;

/// Stops this process if a test has ordered that, once. The test sees it, and kills what it wants to kill.
#[cfg(feature = "crash-points")]
pub fn reach(name: &str) {
    /// The test names a point in this file of the data directory, which background workers and the postmaster find too.
    const ORDER: &str = "idgen_crash_point";
    /// The order of a test, with the process that has followed it.
    const REACHED: &str = "idgen_crash_point.reached";
    let is_ordered = std::fs::read_to_string(ORDER).is_ok_and(|order| order == name);
    // Of several processes, one renames the file.
    if is_ordered && std::fs::rename(ORDER, REACHED).is_ok() {
        std::fs::write(REACHED, std::process::id().to_string()).expect("a crash point writes into the data directory");
        // SAFETY: a signal to this process.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
}
