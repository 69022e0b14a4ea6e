//! Predicts whether a stop would end a thread's system call early, from its sleeps and stops so
//! far.

use crate::os::syscalls::{Ending, ends_with_eintr, is_transfer};
use crate::os::threads::Whereabouts;

/// How long after a sleep in a call that a stop ends early another one is expected, ns: a thread
/// that sleeps and wakes may be in it at any time. On a loaded machine polls seldom find it there,
/// because it waits for a CPU.
const EXPECTED_NS: u64 = 10_000_000_000;
/// How long a thread is not stopped after a stop ended a call early, ns; doubled each time that the
/// next one follows soon, up to [`LONGEST_NS`]. For the latter time the thread is also not stopped
/// where it slept shortly before.
const NO_STOP_NS: u64 = 1_000_000_000;
const LONGEST_NS: u64 = 64_000_000_000;

/// A thread that ran for at least this long since its last poll has left the call in which it woke,
/// ns.
const LEAST_RUN_NS: u64 = 1_000_000;

/// The system calls of one thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallHistory {
    /// Until then a thread that slept recently may be in a call that a stop ends early.
    expected_until_ns: u64,
    /// Until then it is not stopped, and the length of that interval.
    no_stop_until_ns: u64,
    no_stop_ns: u64,
    /// Voluntary context switches at the last poll, and the stops by torchspy since then.
    switches: Option<u64>,
    own_stops: u64,
}

impl CallHistory {
    /// A poll found it asleep. `has_timeout`: whether a socket of its process has a timeout.
    pub(super) fn record_sleep(
        &mut self,
        whereabouts: &Whereabouts,
        now_ns: u64,
        has_timeout: impl FnOnce(u64) -> bool,
    ) {
        if let Whereabouts::InSyscall {
            number, arguments, ..
        } = whereabouts
            && (is_transfer(*number, arguments) || ends_with_eintr(*number, arguments, has_timeout))
        {
            self.expected_until_ns = now_ns + EXPECTED_NS;
        }
    }

    /// A stop hit a system call.
    pub(super) fn record_interruption(&mut self, ending: Ending, now_ns: u64) {
        if matches!(ending, Ending::Waits | Ending::Exec { .. }) {
            return;
        }
        // Soon after the last one: it makes such calls one after another.
        let is_next =
            self.no_stop_ns > 0 && now_ns < self.no_stop_until_ns.saturating_add(LONGEST_NS);
        let twice_ns = if is_next {
            self.no_stop_ns.saturating_mul(2)
        } else {
            0
        };
        self.no_stop_ns = twice_ns.clamp(NO_STOP_NS, LONGEST_NS);
        self.no_stop_until_ns = now_ns.saturating_add(self.no_stop_ns);
        self.expected_until_ns = now_ns.saturating_add(LONGEST_NS);
    }

    /// torchspy stopped it, which counts as a voluntary context switch.
    pub(super) fn record_own_stop(&mut self) {
        self.own_stops += 1;
    }

    /// Whether a stop now would probably end a call early. The thread ran for `run_ns` since its
    /// last poll, in a tick of `tick_ns`. `was_switched`: it slept since then, or was preempted.
    /// `switches` reads its voluntary context switches.
    pub(super) fn stop_would_interrupt(
        &mut self,
        (run_ns, tick_ns): (u64, u64),
        was_switched: bool,
        switches: impl FnOnce() -> Option<u64>,
        now_ns: u64,
    ) -> bool {
        let before = self.switches.take();
        let own_stops = std::mem::take(&mut self.own_stops);
        if now_ns < self.no_stop_until_ns {
            return true;
        }
        if now_ns >= self.expected_until_ns {
            return false;
        }
        self.switches = switches();
        let slept = match (before, self.switches) {
            (Some(before), Some(now)) => now > before + own_stops,
            _ => was_switched,
        };
        // A thread that hardly ran may have woken in its call and wait for a CPU since.
        slept || run_ns < LEAST_RUN_NS.min(tick_ns / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::system_calls::{Sysno, number};

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn who_sleeps_in_a_transfer_is_left_alone_while_it_sleeps_and_wakes() {
        let mut calls = CallHistory::default();
        let asleep = |length| Whereabouts::InSyscall {
            number: number(Sysno::write),
            arguments: [1, 0, length, 0, 0, 0],
            stack_pointer: 0,
            instruction_pointer: 0,
        };
        calls.record_sleep(&asleep(100), 0, |_| true);
        // Ran for so long of a tick of 10 ms, and gave up its CPU so often by then.
        let cut = |calls: &mut CallHistory, run_ns, switches, now_ns| {
            calls.stop_would_interrupt((run_ns, 10_000_000), true, || switches, now_ns)
        };
        assert!(
            !cut(&mut calls, 0, None, 0),
            "a short write is done as a whole"
        );
        calls.record_sleep(&asleep(1 << 20), 0, |_| true);
        let now_ns = 5 * SECOND_NS;
        assert!(cut(&mut calls, 9_000_000, None, now_ns), "it may sleep");
        assert!(cut(&mut calls, 9_000_000, Some(7), now_ns));
        assert!(
            !cut(&mut calls, 2_000_000, Some(7), now_ns),
            "it lost its CPU to others, and computes"
        );
        calls.record_own_stop();
        assert!(
            !cut(&mut calls, 2_000_000, Some(8), now_ns),
            "it was stopped"
        );
        assert!(cut(&mut calls, 2_000_000, Some(9), now_ns), "it slept");
        assert!(cut(&mut calls, 100_000, Some(9), now_ns), "it hardly ran");
        assert!(!cut(&mut calls, 0, Some(20), 20 * SECOND_NS));
    }

    #[test]
    fn who_waits_for_a_socket_without_a_timeout_is_stopped_as_others_are() {
        let asleep = Whereabouts::InSyscall {
            number: number(Sysno::recvmsg),
            arguments: [7, 0, 0, 0, 0, 0],
            stack_pointer: 0,
            instruction_pointer: 0,
        };
        for has_timeout in [false, true] {
            let mut calls = CallHistory::default();
            calls.record_sleep(&asleep, 0, |socket| {
                assert_eq!(socket, 7);
                has_timeout
            });
            let run = (9_000_000, 10_000_000);
            let interrupts = calls.stop_would_interrupt(run, true, || None, SECOND_NS);
            assert_eq!(interrupts, has_timeout);
        }
    }

    #[test]
    fn what_is_cut_short_soon_again_is_left_alone_for_longer() {
        // It computes.
        let is_alone = |calls: &mut CallHistory, now_ns| {
            calls.stop_would_interrupt((9_000_000, 10_000_000), false, || None, now_ns)
        };
        let mut calls = CallHistory::default();
        let mut now_ns = SECOND_NS;
        for times in [1, 2, 4, 8, 16, 32, 64, 64] {
            calls.record_interruption(Ending::CutShort, now_ns);
            now_ns += times * NO_STOP_NS;
            assert!(is_alone(&mut calls, now_ns - 1) && !is_alone(&mut calls, now_ns));
        }
        // An occasional call does not start a series.
        now_ns += 1_000 * SECOND_NS;
        calls.record_interruption(Ending::CutShort, now_ns);
        assert!(!is_alone(&mut calls, now_ns + NO_STOP_NS));
    }
}
