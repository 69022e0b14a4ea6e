//! Which pids were allocated since the last poll: processes and threads that were started.
//!
//! `/proc/loadavg` ends with the last allocated pid (proc_loadavg(5)). Pids are allocated in
//! ascending order, skipping those in use, and wrap around at the highest (kernel/pid.c,
//! idr_alloc_cyclic). So only pids between two readings can be new, and a machine with a thousand
//! processes need not be listed because one of them started a thread.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread::Builder;
use std::time::Duration;

/// Above this number of new pids, listing all processes is cheaper than checking each.
const MAX_NEW: u64 = 64;
/// Pids that others may have been given since a thread of ours started.
const MAX_NEWER: u64 = 1000;
/// A pid is allocated before its process appears in /proc, and the parent may lose its CPU in
/// between. A missing pid is checked again after this time, then each time the wait has doubled,
/// until it is given up.
const FIRST_WAIT_NS: u64 = 10_000_000;
const LONGEST_WAIT_NS: u64 = 500_000_000;

/// The pid that was allocated last, to a process or a thread: while it does not change, nothing was
/// started. A read takes 2 µs.
#[derive(Debug)]
pub struct NewestPid(Option<File>);

impl NewestPid {
    /// Opens `/proc/loadavg`, whose last field is the newest pid (proc_loadavg(5)).
    pub fn open() -> Self {
        Self(File::open("/proc/loadavg").ok())
    }

    /// The newest pid; `None` if it cannot be read.
    pub fn read(&self) -> Option<u64> {
        let mut buffer = [0; 128];
        let count = self.0.as_ref()?.read_at(&mut buffer, 0).ok()?;
        parse_last_pid(buffer.get(..count)?)
    }

    /// Whether it is of this process's pid namespace: lxcfs shows the host's, in a container that
    /// has pids of its own. A thread that starts now has the newest one, or one a little lower.
    fn is_own(&self) -> bool {
        let started = Builder::new().spawn(|| nix::unistd::gettid().as_raw());
        let started = started.ok().and_then(|thread| thread.join().ok());
        let started = started.and_then(|tid| u64::try_from(tid).ok());
        let newest = self.read();
        started
            .zip(newest)
            .is_some_and(|(tid, newest)| (tid..=tid.saturating_add(MAX_NEWER)).contains(&newest))
    }
}

/// The last field of `/proc/loadavg`.
fn parse_last_pid(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let pid = text.split_ascii_whitespace().nth(4)?.parse().ok()?;
    // What does not know it, as gVisor's, says 0.
    (pid > 0).then_some(pid)
}

/// Which pids to check for new processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewPids {
    /// These pids; some may belong to threads, or to processes that have ended or do not exist yet.
    These(Vec<i32>),
    /// All pids in /proc.
    Any,
}

/// Derives the pids to check from readings of the newest pid.
#[derive(Clone, Debug)]
pub struct PidSeries {
    /// Whether the newest pid and /proc are of the same pid namespace.
    is_comparable: bool,
    /// The newest pid at the last poll, and at the one before.
    last: Option<u64>,
    before: Option<u64>,
    awaited: Vec<Awaited>,
    /// How long a missing pid is awaited before it is checked again, ns.
    first_wait_ns: u64,
    /// When the pids to check were last given, CLOCK_MONOTONIC.
    polled_ns: u64,
}

/// A pid that was allocated and is not in /proc. CLOCK_MONOTONIC, ns.
#[derive(Clone, Debug)]
struct Awaited {
    pid: i32,
    since_ns: u64,
    check_ns: u64,
}

impl PidSeries {
    /// For this process's /proc. A reading that is not of its pids makes it list all of them
    /// whenever that changes.
    pub fn new() -> Self {
        let own = std::fs::read_link("/proc/self").ok();
        let own = own.and_then(|link| link.to_str()?.parse().ok());
        Self::with(own == Some(std::process::id()) && NewestPid::open().is_own())
    }

    fn with(is_comparable: bool) -> Self {
        Self {
            is_comparable,
            last: None,
            before: None,
            awaited: Vec::new(),
            first_wait_ns: FIRST_WAIT_NS,
            polled_ns: 0,
        }
    }

    /// A process need not be found sooner than `period` after its start.
    pub fn look_every(&mut self, period: Duration) {
        let period_ns = u64::try_from(period.as_nanos()).unwrap_or(LONGEST_WAIT_NS);
        self.first_wait_ns = period_ns.clamp(FIRST_WAIT_NS, LONGEST_WAIT_NS);
    }

    /// The pids to check at `now_ns` (CLOCK_MONOTONIC); `newest` is the newest pid (`None`: not
    /// known).
    pub fn poll(&mut self, newest: Option<u64>, now_ns: u64) -> NewPids {
        self.before = std::mem::replace(&mut self.last, newest);
        self.polled_ns = now_ns;
        let before = self.before;
        let (Some(before), Some(newest)) = (before, newest) else {
            self.awaited.clear();
            return NewPids::Any;
        };
        if before != newest {
            let count = newest.saturating_sub(before);
            let are_few = count > 0 && count + self.awaited.len() as u64 <= MAX_NEW;
            if !self.is_comparable || !are_few {
                self.awaited.clear();
                return NewPids::Any;
            }
            let new = (before + 1..=newest).filter_map(|pid| i32::try_from(pid).ok());
            self.awaited.extend(new.map(|pid| Awaited {
                pid,
                since_ns: now_ns,
                check_ns: now_ns,
            }));
        }
        let due = self
            .awaited
            .iter()
            .filter(|awaited| awaited.check_ns <= now_ns);
        NewPids::These(due.map(|awaited| awaited.pid).collect())
    }

    /// Whether `pid` may have been allocated between the last two polls: its earlier process has
    /// then ended.
    pub fn may_be_new(&self, pid: i32) -> bool {
        let (Ok(pid), Some(before), Some(last)) = (u64::try_from(pid), self.before, self.last)
        else {
            return true;
        };
        match before <= last {
            true => before < pid && pid <= last,
            false => before < pid || pid <= last,
        }
    }

    /// Removes the pids that were found, and those that were awaited for too long. The others are
    /// checked again when they were awaited for twice as long.
    pub fn found(&mut self, now_ns: u64, is_there: impl Fn(i32) -> bool) {
        let first_wait_ns = self.first_wait_ns;
        self.awaited.retain_mut(|awaited| {
            if awaited.check_ns > self.polled_ns {
                return true;
            }
            let waited_ns = now_ns.saturating_sub(awaited.since_ns);
            awaited.check_ns = now_ns + waited_ns.max(first_wait_ns);
            waited_ns < LONGEST_WAIT_NS && !is_there(awaited.pid)
        });
    }

    /// How long to wait at `now_ns` before the next check; `None` if no pid is awaited. The latest
    /// pid decides: others that are due are checked together with it.
    pub fn wait(&self, now_ns: u64) -> Option<Duration> {
        let latest_ns = self.awaited.iter().map(|awaited| awaited.since_ns).max()?;
        let waited_ns = now_ns.saturating_sub(latest_ns);
        Some(Duration::from_nanos(waited_ns.max(self.first_wait_ns)))
    }
}

impl Default for PidSeries {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_pid_is_the_last_field() {
        assert_eq!(parse_last_pid(b"0.20 0.18 0.12 1/80 11206\n"), Some(11206));
        assert_eq!(parse_last_pid(b"0.20 0.18\n"), None);
        assert_eq!(parse_last_pid(b"0.00 0.00 0.00 0/0 0\n"), None);
        assert!(NewestPid::open().read().is_some());
    }

    #[test]
    fn only_what_lies_between_two_readings_is_looked_at() {
        let mut series = PidSeries::with(true);
        assert_eq!(series.poll(Some(100), 0), NewPids::Any);
        let new = series.poll(Some(103), 0);
        assert_eq!(new, NewPids::These(vec![101, 102, 103]));
        series.found(0, |_| true);
        assert_eq!(series.poll(Some(103), 0), NewPids::These(vec![]));
        assert_eq!(series.wait(0), None);
    }

    #[test]
    fn what_is_not_there_yet_is_looked_for_again_and_given_up_at_last() {
        let mut series = PidSeries::with(true);
        series.poll(Some(100), 0);
        series.poll(Some(102), 0);
        series.found(0, |pid| pid == 101);
        let mut now_ns = 0;
        let mut polls = 0;
        while let Some(wait) = series.wait(now_ns) {
            now_ns += wait.as_nanos() as u64;
            assert_eq!(series.poll(Some(102), now_ns), NewPids::These(vec![102]));
            series.found(now_ns, |_| false);
            polls += 1;
        }
        assert_eq!((polls, now_ns), (7, 64 * FIRST_WAIT_NS));
        assert_eq!(series.poll(Some(102), now_ns), NewPids::These(vec![]));
    }

    #[test]
    fn a_missing_pid_is_not_checked_for_each_that_follows() {
        let mut series = PidSeries::with(true);
        series.poll(Some(100), 0);
        let (mut checks, mut newest) = (0, 100);
        // Fifty threads a second, each of which has ended before it is looked for.
        for at in 1..=100 {
            let now_ns = at * 20_000_000;
            newest += 1;
            let NewPids::These(pids) = series.poll(Some(newest), now_ns) else {
                panic!("all processes are listed");
            };
            assert!(pids.contains(&i32::try_from(newest).unwrap()));
            checks += pids.len();
            series.found(now_ns, |_| false);
        }
        assert!(checks < 100 * 7, "{checks}");
    }

    #[test]
    fn many_new_pids_and_a_counter_that_began_again_are_a_reason_to_list_all() {
        let mut series = PidSeries::with(true);
        series.poll(Some(100), 0);
        assert_eq!(series.poll(Some(101 + MAX_NEW), 0), NewPids::Any);
        assert_eq!(series.poll(Some(2), 0), NewPids::Any);
        assert_eq!(series.poll(None, 0), NewPids::Any);
        assert_eq!(series.poll(Some(4), 0), NewPids::Any);
        series.poll(Some(4 + MAX_NEW), 0);
        assert_eq!(series.poll(Some(5 + MAX_NEW), 0), NewPids::Any);
        assert_eq!(series.poll(Some(2), 0), NewPids::Any);
        assert!(series.may_be_new(1) && series.may_be_new(2) && series.may_be_new(30_000));
        assert!(!series.may_be_new(3));
        let mut elsewhere = PidSeries::with(false);
        elsewhere.poll(Some(100), 0);
        assert_eq!(elsewhere.poll(Some(101), 0), NewPids::Any);
    }
}
