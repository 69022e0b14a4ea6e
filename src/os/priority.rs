//! The scheduling of torchspy's own threads. While the tracing thread waits for a CPU, a thread of the target may stand stopped
//! for it; while any other runs, a thread of the target may wait for a CPU.
#![allow(unsafe_code)]

use nix::libc;

/// The slice that is asked for where a real-time priority is refused, ns: the shortest that the kernel grants.
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

/// Puts the calling thread, and it alone, before others for the tens of microseconds that it needs a hundred times a
/// second: the lowest real-time priority where that is allowed, else a short slice, which a scheduler with deadlines
/// (EEVDF, Linux 6.12 on) serves early, with the best nice value that is allowed. What is refused is done without.
pub fn run_ahead() {
    if set(libc::SCHED_FIFO, 0, 1, 0) || set(libc::SCHED_OTHER, -20, 0, SLICE_NS) {
        return;
    }
    set(libc::SCHED_OTHER, 0, 0, SLICE_NS);
}

/// Puts the calling thread behind the target's: it does not preempt anybody when it wakes (SCHED_BATCH), and takes `nice`
/// steps less of a CPU that is contended. For work that may wait, beside a trainer that uses every CPU.
pub fn run_behind(nice: i32) {
    set(libc::SCHED_BATCH, nice, 0, 0);
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
    fn only_the_calling_thread_is_changed() {
        // SAFETY: 0 is the calling thread.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        let ahead = std::thread::spawn(move || {
            run_ahead();
            policy()
        });
        let ahead = ahead.join().unwrap_or(-1);
        assert!(
            matches!(ahead, libc::SCHED_FIFO | libc::SCHED_OTHER),
            "{ahead}"
        );
        assert_eq!(policy(), before);
    }
}
