//! What a recording that goes on holds by now: the same figures come sooner or later, whatever else
//! the machine does.

use crate::faults::{PATIENCE, run, seconds_with};
use std::path::Path;
use std::time::{Duration, Instant};

/// `inspect` of it; empty where nothing can be read yet.
pub(crate) fn inspected(path: &Path) -> String {
    run(&["inspect", &path.to_string_lossy()]).stdout
}

/// `report --json` of it; null where nothing can be read yet.
pub(crate) fn report(path: &Path) -> serde_json::Value {
    let report = run(&["report", "--json", &path.to_string_lossy()]);
    serde_json::from_str(&report.stdout).unwrap_or_default()
}

/// Waits until a look says so; fails with what was seen last.
fn wait_for<T: std::fmt::Display>(look: impl Fn() -> T, is_enough: impl Fn(&T) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let seen = look();
        if is_enough(&seen) {
            return;
        }
        assert!(Instant::now() < deadline, "in vain: {seen}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until its dump is as wanted.
pub(crate) fn wait_for_dump(path: &Path, is_enough: impl Fn(&str) -> bool) {
    wait_for(|| inspected(path), |dump| is_enough(dump));
}

/// Waits until `part` stands in its dump.
pub(crate) fn wait_for_part(path: &Path, part: &str) {
    wait_for_dump(path, |dump| dump.contains(part));
}

/// Waits until its stacks with `part` have more than so many seconds.
pub(crate) fn wait_for_seconds(path: &Path, part: &str, seconds: f64) {
    wait_for_dump(path, |dump| seconds_with(dump, part) > seconds);
}

/// Waits until its report is as wanted.
pub(crate) fn wait_for_report(path: &Path, is_enough: impl Fn(&serde_json::Value) -> bool) {
    wait_for(|| report(path), is_enough);
}

/// Waits until it counts more than so many stops.
pub(crate) fn wait_for_stops(path: &Path, stops: u64) {
    wait_for_report(path, |report| {
        report["quality"]["stops"]
            .as_u64()
            .is_some_and(|counted| counted > stops)
    });
}
