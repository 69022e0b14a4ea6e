//! The machine that torchspy runs on: names and limits.

use super::process_info::read_text;

/// Maximum length of a cgroup file, bytes.
const MAX_BYTES: u64 = 4096;

/// The host's name; `localhost` if it cannot be read.
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

/// Version and patch level of a kernel release: (6, 18) of `6.18.5-generic`.
pub fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-']);
    let mut next = || numbers.next()?.parse().ok();
    Some((next()?, next()?))
}

/// CPUs that this process may use; 0 if unknown.
pub fn cpus() -> u32 {
    std::thread::available_parallelism().map_or(0, |count| u32::try_from(count.get()).unwrap_or(0))
}

/// A process's cgroups that may have a CPU quota: its own and their ancestors, innermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuGroups {
    /// Folders below /sys/fs/cgroup, and whether they are of version 2.
    folders: Vec<(String, bool)>,
}

impl CpuGroups {
    /// The cgroups of a process; none if it has ended.
    pub fn of(pid: i32) -> Self {
        let text = read_text(&format!("/proc/{pid}/cgroup"), 16 << 10);
        Self::parse(&text.unwrap_or_default())
    }

    /// Parses `/proc/PID/cgroup` (cgroups(7)): `0::/path` is version 2, `N:cpu,cpuacct:/path`
    /// version 1.
    fn parse(text: &str) -> Self {
        const DEEPEST: usize = 64;
        let mut folders = Vec::new();
        for line in text.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
                continue;
            };
            let roots: &[(&str, bool)] = if controllers.is_empty() {
                // Alone, or together with version 1.
                &[("", true), ("/unified", true)]
            } else if controllers.split(',').any(|name| name == "cpu") {
                &[("/cpu", false)]
            } else {
                &[]
            };
            for &(root, version_2) in roots {
                let ancestors = std::path::Path::new(path.trim_end_matches('/')).ancestors();
                let ancestors = ancestors.filter_map(|path| path.to_str()).take(DEEPEST);
                for path in ancestors.map(|path| path.trim_end_matches('/')) {
                    folders.push((format!("/sys/fs/cgroup{root}{path}"), version_2));
                }
            }
        }
        folders.dedup();
        Self { folders }
    }

    /// The quota, in CPUs: the lowest on the way to the root. `None` if there is none.
    pub fn quota(&self) -> Option<f64> {
        let quotas = self.folders.iter().filter_map(|(folder, version_2)| {
            if *version_2 {
                return parse_cpu_max(&read_text(&format!("{folder}/cpu.max"), MAX_BYTES)?);
            }
            let quota = read_text(&format!("{folder}/cpu.cfs_quota_us"), MAX_BYTES)?;
            let period = read_text(&format!("{folder}/cpu.cfs_period_us"), MAX_BYTES)?;
            parse_cpu_max(&format!("{} {}", quota.trim(), period.trim()))
        });
        quotas.min_by(f64::total_cmp)
    }

    /// Total time that the groups were throttled, ns: the maximum over all of them (times of nested
    /// groups overlap). The kernel sums over CPUs. `None` if it reports none.
    pub fn throttled_ns(&self) -> Option<u64> {
        let times = self.folders.iter().filter_map(|(folder, _)| {
            parse_throttled(&read_text(&format!("{folder}/cpu.stat"), MAX_BYTES)?)
        });
        times.max()
    }
}

/// Number of CPUs that a process may run on. `None` if the kernel does not report it.
pub fn affinity_cpus(pid: i32) -> Option<usize> {
    Some(allowed_cpus(pid)?.len())
}

/// The CPUs that a thread may run on; tid 0 is the calling thread. `None` if the kernel refuses, or
/// has more CPUs than a set holds.
pub fn allowed_cpus(tid: i32) -> Option<Vec<usize>> {
    use nix::sched::{CpuSet, sched_getaffinity};
    let set = sched_getaffinity(nix::unistd::Pid::from_raw(tid)).ok()?;
    let is_set = |cpu: &usize| set.is_set(*cpu).unwrap_or(false);
    Some((0..CpuSet::count()).filter(is_set).collect())
}

/// Parses `cpu.stat`: `throttled_usec` in version 2, `throttled_time` in ns in version 1 (kernel,
/// admin-guide/cgroup-v2 and scheduler/sched-bwc).
fn parse_throttled(text: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        let value: u64 = value.trim().parse().ok()?;
        match name {
            "throttled_usec" => Some(value.saturating_mul(1000)),
            "throttled_time" => Some(value),
            _ => None,
        }
    })
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
    fn quotas() {
        assert_eq!(parse_cpu_max("max 100000\n"), None);
        assert_eq!(parse_cpu_max("250000 100000\n"), Some(2.5));
        assert_eq!(parse_cpu_max("-1 100000"), None);
        assert_eq!(parse_cpu_max(""), None);
    }

    #[test]
    fn groups_are_found_in_both_versions() {
        let folders = |text| CpuGroups::parse(text).folders;
        let of = |folder: &str, version_2| (format!("/sys/fs/cgroup{folder}"), version_2);
        assert_eq!(
            folders("0::/a/b:c\n"),
            [
                of("/a/b:c", true),
                of("/a", true),
                of("", true),
                of("/unified/a/b:c", true),
                of("/unified/a", true),
                of("/unified", true)
            ]
        );
        assert_eq!(
            folders("4:memory:/x\n1:cpuacct,cpu:/x\nnonsense\n"),
            [of("/cpu/x", false), of("/cpu", false)]
        );
        assert_eq!(folders("1:cpu:/\n"), [of("/cpu", false)]);
    }

    #[test]
    fn throttled_times() {
        let version_2 = "usage_usec 9\nnr_throttled 3\nthrottled_usec 1500\n";
        assert_eq!(parse_throttled(version_2), Some(1_500_000));
        let version_1 = "nr_periods 0\nnr_throttled 0\nthrottled_time 77\n";
        assert_eq!(parse_throttled(version_1), Some(77));
        assert_eq!(parse_throttled("usage_usec 9\n"), None);
        assert_eq!(parse_throttled("throttled_usec x"), None);
    }

    #[test]
    fn kernels_have_a_version() {
        assert_eq!(kernel_version("6.18.5-generic"), Some((6, 18)));
        assert_eq!(kernel_version("4.18.0-553.el8_10.x86_64"), Some((4, 18)));
        assert_eq!(kernel_version("5"), None);
        assert!(kernel_version(&kernel_release()).is_some());
    }

    #[test]
    fn the_host_has_a_name_and_cpus() {
        assert!(!host_name().is_empty() && !kernel_release().is_empty() && cpus() > 0);
    }
}
