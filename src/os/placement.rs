//! Which CPU the calling thread runs on: not one of those that a trainer's own thread computes on,
//! as long as there is another.
//!
//! A thread that wakes while all CPUs are busy is put where it slept, and takes the CPU from who
//! runs there. For a thread that wakes a hundred times a second it matters which thread loses its
//! CPU.

use super::host::allowed_cpus;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// Keeps the calling thread off some CPUs, and it alone.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// Where it may run at all; empty where that is not known (more CPUs than a set has room for).
    allowed: Vec<usize>,
    avoided: Vec<usize>,
}

impl Placement {
    /// For the calling thread, which may run where it may now.
    pub fn of_this_thread() -> Self {
        Self {
            allowed: allowed_cpus(0).unwrap_or_default(),
            avoided: Vec::new(),
        }
    }

    /// How many CPUs it may use; 0 where that is not known.
    pub fn cpus(&self) -> usize {
        self.allowed.len()
    }

    /// Whether `cpus` are all that it may use.
    pub fn is_all(&self, cpus: &[usize]) -> bool {
        !self.allowed.is_empty() && self.allowed.iter().all(|cpu| cpus.contains(cpu))
    }

    /// Keeps to one CPU, where it may use that. A thread that sleeps there wakes there, and takes
    /// the CPU from who runs on it.
    pub fn keep_to(&mut self, cpu: usize) {
        if !self.allowed.contains(&cpu) {
            return;
        }
        let others = self.allowed.iter().copied().filter(|&other| other != cpu);
        let others: Vec<usize> = others.collect();
        self.avoid(others);
    }

    /// Keeps off `cpus`, and only off these; off the first of them if else none would be left.
    /// Where the kernel refuses, the thread may run everywhere again.
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
            // The set of CPUs that it may use has changed: it is left alone from now on.
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
