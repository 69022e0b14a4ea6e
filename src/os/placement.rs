//! The CPU that the calling thread runs on: not one that a trainer's thread computes on, if there
//! is another.
//!
//! A thread that wakes while all CPUs are busy is placed on the CPU where it slept, and preempts
//! the thread that runs there. For a thread that wakes a hundred times per second it matters which
//! thread it preempts.

use super::host::allowed_cpus;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// Restricts the CPUs of the calling thread, and of no other.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// The CPUs that it is allowed to use; empty if unknown (more CPUs than a set holds).
    allowed: Vec<usize>,
    avoided: Vec<usize>,
}

impl Placement {
    /// For the calling thread, with the CPUs that it may use now.
    pub fn of_this_thread() -> Self {
        Self {
            allowed: allowed_cpus(0).unwrap_or_default(),
            avoided: Vec::new(),
        }
    }

    /// Number of CPUs that it may use; 0 if unknown.
    pub fn cpus(&self) -> usize {
        self.allowed.len()
    }

    /// Whether it may use no CPU besides `cpus`.
    pub fn is_all(&self, cpus: &[usize]) -> bool {
        !self.allowed.is_empty() && self.allowed.iter().all(|cpu| cpus.contains(cpu))
    }

    /// Restricts the thread to one CPU, if it may use that one. A thread that sleeps there wakes
    /// there, and preempts the thread that runs on it.
    pub fn keep_to(&mut self, cpu: usize) {
        if !self.allowed.contains(&cpu) {
            return;
        }
        let others = self.allowed.iter().copied().filter(|&other| other != cpu);
        let others: Vec<usize> = others.collect();
        self.avoid(others);
    }

    /// Excludes only `cpus`; only the first of them if no CPU would be left. If the kernel refuses,
    /// the thread may run on all CPUs again.
    pub fn keep_off(&mut self, cpus: &[usize]) {
        let mut avoided: Vec<usize> = Vec::new();
        for &cpu in cpus {
            let is_new = self.allowed.contains(&cpu) && !avoided.contains(&cpu);
            if is_new && avoided.len() + 1 < self.allowed.len() {
                avoided.push(cpu);
            }
        }
        avoided.sort_unstable();
        self.avoid(avoided);
    }

    fn avoid(&mut self, mut avoided: Vec<usize>) {
        if avoided == self.avoided {
            return;
        }
        let rest = self.allowed.iter().filter(|cpu| !avoided.contains(cpu));
        if !run_on(rest) && !avoided.is_empty() {
            run_on(self.allowed.iter());
            // Its allowed CPUs have changed: it is not restricted from now on.
            self.allowed.clear();
            avoided.clear();
        }
        self.avoided = avoided;
    }
}

fn run_on<'c>(cpus: impl Iterator<Item = &'c usize>) -> bool {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if set.set(cpu).is_err() {
            return false;
        }
    }
    sched_setaffinity(Pid::from_raw(0), &set).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> Vec<usize> {
        Placement::of_this_thread().allowed
    }

    #[test]
    fn a_thread_keeps_off_what_it_is_told_and_no_other_thread_does() {
        let before = allowed();
        if before.len() < 2 {
            println!("skipped: one CPU only");
            return;
        }
        let avoided = before[0];
        let inside = std::thread::spawn(move || {
            let mut placement = Placement::of_this_thread();
            placement.keep_off(&[avoided, 1_000_000]);
            let without = allowed();
            placement.keep_off(&[]);
            (without, allowed())
        });
        let (without, again) = inside.join().unwrap_or_default();
        assert_eq!(without, before[1..]);
        assert_eq!(again, before);
        assert_eq!(allowed(), before);
    }

    #[test]
    fn one_cpu_is_always_left() {
        let seen = std::thread::spawn(|| {
            let before = allowed();
            let mut placement = Placement::of_this_thread();
            placement.keep_off(&before);
            (before, allowed())
        });
        let (before, after) = seen.join().unwrap_or_default();
        assert_eq!(before.last(), after.last());
        assert_eq!(after.len(), 1);
    }
}
