//! Whether a stop of a thread would end a system call early: what its sleeps, and its stops so far, tell of it.

use crate::os::syscalls::{Ending, ends_with_eintr, is_transfer};
use crate::os::threads::Whereabouts;

/// For how long after a sleep in such a call the next one is expected: a thread that sleeps and wakes may be in it at any moment.
/// On a loaded machine it is seldom found in one: it waits for a CPU.
const EXPECTED_NS: u64 = 10_000_000_000;
/// For how long a thread is left alone after a call that was cut short, twice as long each time that the next one follows soon. For the
/// longest of these times it is not stopped where it slept a moment ago.
const ALONE_NS: u64 = 1_000_000_000;
const LONGEST_NS: u64 = 64_000_000_000;

/// A thread that ran for so long since its last poll has left the call that it was woken in.
const LEAST_RUN_NS: u64 = 1_000_000;

/// The calls of one thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Calls {
    /// Up to when a thread that slept a moment ago may be in a call that a stop ends early.
    expected_until_ns: u64,
    /// Up to when it is left alone, and how long that was.
    alone_until_ns: u64,
    alone_for_ns: u64,
    /// How often it had given up its CPU at the last poll, and how often it did since because it was stopped.
    switches: Option<u64>,
    own_stops: u64,
}

impl Calls {
    /// It was found asleep.
    pub(super) fn slept(&mut self, whereabouts: &Whereabouts, now_ns: u64) {
        if let Whereabouts::InSyscall {
            number, arguments, ..
        } = whereabouts
            && (is_transfer(*number, arguments) || ends_with_eintr(*number))
        {
            self.expected_until_ns = now_ns + EXPECTED_NS;
        }
    }

    /// It was stopped in a call.
    pub(super) fn stopped(&mut self, ending: Ending, now_ns: u64) {
        if matches!(ending, Ending::Waits | Ending::Exec { .. }) {
            return;
        }
        // Soon after the last time: it makes such calls one after another.
        let is_next =
            self.alone_for_ns > 0 && now_ns < self.alone_until_ns.saturating_add(LONGEST_NS);
        let twice_ns = if is_next {
            self.alone_for_ns.saturating_mul(2)
        } else {
            0
        };
        self.alone_for_ns = twice_ns.clamp(ALONE_NS, LONGEST_NS);
        self.alone_until_ns = now_ns.saturating_add(self.alone_for_ns);
        self.expected_until_ns = now_ns.saturating_add(LONGEST_NS);
    }

    /// It was stopped for a moment.
    pub(super) fn was_stopped(&mut self) {
        self.own_stops += 1;
    }

    /// Whether a stop now would likely cut a call short, of a thread that ran for `run_ns` since its last poll, of `tick_ns`.
    /// `was_switched`: some other thread ran on its CPU meanwhile, or it slept. `switches` gives how often it gave up its CPU so far.
    pub(super) fn would_be_cut(
        &mut self,
        (run_ns, tick_ns): (u64, u64),
        was_switched: bool,
        switches: impl FnOnce() -> Option<u64>,
        now_ns: u64,
    ) -> bool {
        let before = self.switches.take();
        let own_stops = std::mem::take(&mut self.own_stops);
        if now_ns < self.alone_until_ns {
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
        // One that hardly ran may have been woken in its call, and wait for a CPU since.
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
        let mut calls = Calls::default();
        let asleep = |length| Whereabouts::InSyscall {
            number: number(Sysno::write),
            arguments: [1, 0, length, 0, 0, 0],
            stack_pointer: 0,
            instruction_pointer: 0,
        };
        calls.slept(&asleep(100), 0);
        // Ran for so long of a tick of 10 ms, and gave up its CPU so often by then.
        let cut = |calls: &mut Calls, run_ns, switches, now_ns| {
            calls.would_be_cut((run_ns, 10_000_000), true, || switches, now_ns)
        };
        assert!(
            !cut(&mut calls, 0, None, 0),
            "a short write is done as a whole"
        );
        calls.slept(&asleep(1 << 20), 0);
        let now_ns = 5 * SECOND_NS;
        assert!(cut(&mut calls, 9_000_000, None, now_ns), "it may sleep");
        assert!(cut(&mut calls, 9_000_000, Some(7), now_ns));
        assert!(
            !cut(&mut calls, 2_000_000, Some(7), now_ns),
            "it lost its CPU to others, and computes"
        );
        calls.was_stopped();
        assert!(
            !cut(&mut calls, 2_000_000, Some(8), now_ns),
            "it was stopped"
        );
        assert!(cut(&mut calls, 2_000_000, Some(9), now_ns), "it slept");
        assert!(cut(&mut calls, 100_000, Some(9), now_ns), "it hardly ran");
        assert!(!cut(&mut calls, 0, Some(20), 20 * SECOND_NS));
    }

    #[test]
    fn what_is_cut_short_soon_again_is_left_alone_for_longer() {
        // It computes.
        let is_alone = |calls: &mut Calls, now_ns| {
            calls.would_be_cut((9_000_000, 10_000_000), false, || None, now_ns)
        };
        let mut calls = Calls::default();
        let mut now_ns = SECOND_NS;
        for times in [1, 2, 4, 8, 16, 32, 64, 64] {
            calls.stopped(Ending::CutShort, now_ns);
            now_ns += times * ALONE_NS;
            assert!(is_alone(&mut calls, now_ns - 1) && !is_alone(&mut calls, now_ns));
        }
        // One that comes once in a while is none of a row.
        now_ns += 1_000 * SECOND_NS;
        calls.stopped(Ending::CutShort, now_ns);
        assert!(!is_alone(&mut calls, now_ns + ALONE_NS));
    }
}
