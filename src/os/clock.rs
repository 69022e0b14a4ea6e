//! Clocks: the monotonic one that times everything, the wall clock that aligns hosts, and CPU
//! clocks.
#![allow(unsafe_code)]

use crate::model::run::ClockPair;
use nix::libc;
use std::time::Duration;

fn read(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for a timespec; an unknown clock only makes the call fail.
    let result = unsafe { libc::clock_gettime(clock, &mut time) };
    (result == 0).then(|| {
        u64::try_from(time.tv_sec)
            .unwrap_or(0)
            .saturating_mul(1_000_000_000)
            .saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
    })
}

/// CLOCK_MONOTONIC, ns.
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// CLOCK_BOOTTIME, ns: the clock of processes' start times.
pub fn boottime_ns() -> u64 {
    read(libc::CLOCK_BOOTTIME).unwrap_or(0)
}

/// The wall clock, ns since 1970.
pub fn wall_ns() -> u64 {
    read(libc::CLOCK_REALTIME).unwrap_or(0)
}

/// Both clocks, read back to back.
pub fn clock_pair() -> ClockPair {
    ClockPair {
        monotonic_ns: monotonic_ns(),
        wall_ns: wall_ns(),
    }
}

/// CPU time of all threads of this process, ns.
pub fn own_cpu_ns() -> u64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or(0)
}

/// CPU time of the calling thread, ns.
pub fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

/// CPU time of process `pid`, ns; `None` once it has ended.
///
/// The clock id of another process is `(~pid << 3) | CPUCLOCK_SCHED` (linux/posix-timers_types.h,
/// `make_process_cpuclock`). CPU time of a running thread is included only after the next scheduler
/// tick.
pub fn process_cpu_ns(pid: i32) -> Option<u64> {
    const CPUCLOCK_SCHED: i32 = 2;
    read((!pid << 3) | CPUCLOCK_SCHED)
}

/// Sleeps until CLOCK_MONOTONIC shows `deadline_ns`; a signal may wake it early.
pub fn sleep_until(deadline_ns: u64) {
    let time = libc::timespec {
        tv_sec: (deadline_ns / 1_000_000_000) as _,
        tv_nsec: (deadline_ns % 1_000_000_000) as _,
    };
    // SAFETY: `time` is a valid timespec and no remainder is asked for.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &time,
            std::ptr::null_mut(),
        );
    }
}

/// Asks the kernel to wake the calling thread on time: timer slack of 1 ns instead of 50 µs
/// (prctl(2)).
pub fn wake_precisely() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer and touches only the calling thread.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0, 0, 0);
    }
}

/// A duration as a timespec.
pub(super) fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: duration.as_secs() as _,
        tv_nsec: libc::c_long::from(duration.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monotonic_clock_moves() {
        let before = monotonic_ns();
        assert!(before > 0 && monotonic_ns() >= before);
    }
}
