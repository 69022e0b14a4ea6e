//! The machine that torchspy runs on: names, clocks, limits.
#![allow(unsafe_code)]

use super::process_info::read_bounded;
use nix::libc;
use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The host's name; `localhost` where it has none that can be read.
pub fn host_name() -> String {
    nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "localhost".to_owned())
}

/// Kernel release, as `uname -r` prints it.
pub fn kernel_release() -> String {
    nix::sys::utsname::uname()
        .map(|names| names.release().to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// CPUs that this process may use; 0 where unknown.
pub fn cpus() -> u32 {
    std::thread::available_parallelism().map_or(0, |count| u32::try_from(count.get()).unwrap_or(0))
}

/// CLOCK_MONOTONIC, ns.
pub fn monotonic_ns() -> u64 {
    let Ok(time) = clock_gettime(ClockId::CLOCK_MONOTONIC) else {
        return 0;
    };
    u64::try_from(Duration::from(time).as_nanos()).unwrap_or(u64::MAX)
}

/// Wall clock, ns since 1970.
pub fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

/// A moment of the wall clock in UTC, in ISO 8601's basic form, as file names have it: `20260131T235959Z`.
pub fn utc_stamp(wall_ns: u64) -> String {
    let seconds = libc::time_t::try_from(wall_ns / 1_000_000_000).unwrap_or(0);
    // SAFETY: gmtime_r reads one integer and writes the broken-down time into a value that outlives the call.
    let time = unsafe {
        let mut time: libc::tm = std::mem::zeroed();
        libc::gmtime_r(&raw const seconds, &raw mut time);
        time
    };
    format!(
        "{:04}{:02}{:02}T{:02}{:02}{:02}Z",
        time.tm_year + 1900,
        time.tm_mon + 1,
        time.tm_mday,
        time.tm_hour,
        time.tm_min,
        time.tm_sec
    )
}

/// The CPU quota of a process's cgroup, in CPUs: the tightest on the way to the root. `None` where there is none.
pub fn cgroup_cpu_quota(pid: i32) -> Option<f64> {
    let text = read_bounded(format!("/proc/{pid}/cgroup"), 16 << 10).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let quotas = text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let version_2 = controllers.is_empty();
        let has_cpu = controllers.split(',').any(|name| name == "cpu");
        (version_2 || has_cpu).then(|| tightest_quota(version_2, path))?
    });
    quotas.min_by(f64::total_cmp)
}

fn tightest_quota(version_2: bool, path: &str) -> Option<f64> {
    let mut path = path.trim_end_matches('/').to_owned();
    let mut tightest: Option<f64> = None;
    for _ in 0..64 {
        let here = if version_2 {
            read_text(&format!("/sys/fs/cgroup{path}/cpu.max")).and_then(|t| parse_cpu_max(&t))
        } else {
            let quota = read_text(&format!("/sys/fs/cgroup/cpu{path}/cpu.cfs_quota_us"));
            let period = read_text(&format!("/sys/fs/cgroup/cpu{path}/cpu.cfs_period_us"));
            quota
                .zip(period)
                .and_then(|(q, p)| parse_cpu_max(&format!("{} {}", q.trim(), p.trim())))
        };
        if let Some(here) = here {
            tightest = Some(tightest.map_or(here, |known| known.min(here)));
        }
        match path.rfind('/') {
            Some(slash) => path.truncate(slash),
            None => break,
        }
    }
    tightest
}

fn read_text(path: &str) -> Option<String> {
    let bytes = read_bounded(path, 4096).ok()?;
    String::from_utf8(bytes).ok()
}

/// Parses cgroup v2's `cpu.max`: `max 100000` or `400000 100000` (kernel, admin-guide/cgroup-v2).
fn parse_cpu_max(text: &str) -> Option<f64> {
    let mut fields = text.split_ascii_whitespace();
    let quota: f64 = fields.next()?.parse().ok()?;
    let period: f64 = fields.next()?.parse().ok()?;
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_utc() {
        assert_eq!(utc_stamp(0), "19700101T000000Z");
        assert_eq!(utc_stamp(1_709_210_096_789_000_000), "20240229T123456Z");
    }

    #[test]
    fn quotas() {
        assert_eq!(parse_cpu_max("max 100000\n"), None);
        assert_eq!(parse_cpu_max("250000 100000\n"), Some(2.5));
        assert_eq!(parse_cpu_max("-1 100000"), None);
        assert_eq!(parse_cpu_max(""), None);
    }

    #[test]
    fn the_monotonic_clock_moves() {
        let before = monotonic_ns();
        assert!(before > 0 && monotonic_ns() >= before);
        assert!(!host_name().is_empty() && !kernel_release().is_empty() && cpus() > 0);
    }
}
