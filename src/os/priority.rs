//! The scheduling of torchspy's own threads. While the tracer waits for a CPU, a thread of the
//! target may stay stopped; while any other thread of torchspy runs, a thread of the target may
//! wait for a CPU.
#![allow(unsafe_code)]

use nix::libc;

/// The time slice that is requested if a real-time priority is refused, ns: the shortest that the
/// kernel grants.
const SLICE_NS: u64 = 100_000;

/// `struct sched_attr` of sched_setattr(2), first version: libc has neither it nor the call.
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// How the calling thread gets a CPU quickly.
///
/// A thread with a real-time priority wakes on the CPU where it slept, even if others are idle
/// (select_task_rq_rt in kernel/sched/rt.c), while any other thread is given an idle CPU. So the
/// real-time priority is taken only while a thread of the target is stopped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ahead {
    /// Whether the lowest real-time priority may be taken.
    real_time: bool,
    /// The normal nice value, if one with a short slice was granted.
    nice: Option<i32>,
}

impl Ahead {
    /// Gives the calling thread, and no other, a short slice, which a scheduler with deadlines
    /// (EEVDF, from Linux 6.12 on) serves early, and finds out which further priority is allowed. A
    /// refusal is not an error.
    ///
    /// The nice value stays: with nice -20 a trainer beside busy programs was up to 1.8 times as
    /// slow. Such a thread weighs as much as 87 others; probably the kernel moved these to the
    /// trainer's CPU.
    pub fn prepare() -> Self {
        // SAFETY: 0 is the calling thread; getpriority of a thread that exists cannot fail.
        let own = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let real_time = set(libc::SCHED_FIFO, 0, 1, 0);
        let nice = set(libc::SCHED_OTHER, own, 0, SLICE_NS).then_some(own);
        Self { real_time, nice }
    }

    /// Raises the calling thread above all others until the returned value is dropped.
    pub fn raise(self) -> RaisedPriority {
        let raised = self.real_time && self.nice.is_some() && set(libc::SCHED_FIFO, 0, 1, 0);
        RaisedPriority(self.nice.filter(|_| raised))
    }
}

/// The calling thread has a raised priority.
#[derive(Debug)]
pub struct RaisedPriority(Option<i32>);

impl Drop for RaisedPriority {
    fn drop(&mut self) {
        if let Some(nice) = self.0 {
            set(libc::SCHED_OTHER, nice, 0, SLICE_NS);
        }
    }
}

/// Lowers the calling thread below the target's: it preempts no thread when it wakes (SCHED_BATCH),
/// and has a nice value that is `nice` higher. For work that may wait while a trainer uses every
/// CPU.
pub fn run_behind(nice: i32) {
    set(libc::SCHED_BATCH, nice, 0, 0);
}

/// Lets the calling process, which has no other thread yet, run only on CPUs that are idle, and end
/// with its parent. Where memory runs out, the kernel ends it first.
///
/// A thread that wakes preempts one of this policy at once, and the scheduler takes a CPU on which
/// only such threads run for an idle one (SCHED_IDLE; `sched_idle_cpu` in kernel/sched/fair.c,
/// Linux 5.4); disk I/O has the idle class with it (`task_nice_ioclass`).
pub fn run_last() {
    // SAFETY: no memory is touched; 0 is the calling thread.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    set(libc::SCHED_IDLE, 19, 0, 0);
    // The largest value: proc_pid_oom_score_adj(5). Without the file the kernel chooses by size.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}

fn set(policy: i32, nice: i32, priority: u32, runtime: u64) -> bool {
    let attributes = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: policy as u32,
        flags: 0,
        nice,
        priority,
        runtime,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the kernel reads `size` bytes of `attributes`; 0 is the calling thread.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0_u32) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_wait_runs_behind() {
        // SAFETY: 0 is the calling thread; getpriority of a thread that exists cannot fail.
        let facts = || unsafe {
            (
                libc::sched_getscheduler(0),
                libc::getpriority(libc::PRIO_PROCESS, 0),
            )
        };
        let behind = std::thread::spawn(move || {
            run_behind(10);
            facts()
        });
        assert_eq!(behind.join().unwrap_or_default(), (libc::SCHED_BATCH, 10));
    }

    #[test]
    fn what_runs_last_has_the_idle_policy() {
        let last = std::thread::spawn(|| {
            set(libc::SCHED_IDLE, 19, 0, 0);
            // SAFETY: 0 is the calling thread.
            unsafe { libc::sched_getscheduler(0) }
        });
        assert_eq!(last.join().unwrap_or_default(), libc::SCHED_IDLE);
    }

    #[test]
    fn only_the_calling_thread_is_changed_and_only_while_it_asks_for_it() {
        // SAFETY: 0 is the calling thread.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        let seen = std::thread::spawn(move || {
            let ahead = Ahead::prepare();
            let prepared = policy();
            let in_front = ahead.raise();
            let raised = policy();
            drop(in_front);
            (ahead.real_time, [prepared, raised, policy()])
        });
        let (real_time, seen) = seen.join().unwrap_or_default();
        let raised = if real_time {
            libc::SCHED_FIFO
        } else {
            libc::SCHED_OTHER
        };
        assert_eq!(seen, [libc::SCHED_OTHER, raised, libc::SCHED_OTHER]);
        assert_eq!(policy(), before);
    }
}
