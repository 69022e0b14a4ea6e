//! When to poll.
//!
//! Time is cut into strata of one period; each is polled once, at a random moment within it. A fixed distance would lock
//! on to training steps of a multiple of it; a random moment in every stratum cannot, and each poll stands for exactly its
//! stratum. A poll that is late by less than a period (or half a millisecond) still is its stratum's; one that comes later stands for the strata that
//! went by, too, so shares stay right under load. The time that threads are stopped because of a poll is theirs besides; the strata
//! that follow are shorter by it, so that as many polls come to a second.

/// A thread that sleeps to a moment wakes up so much later on a virtual machine, at any rate of polls.
const PROMPT_NS: u64 = 200_000;
/// Polls that are late by less are caught up with one after the other, at the highest rates too.
const SLACK_NS: u64 = 500_000;

/// One poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tick {
    /// Start of the time that it stands for, CLOCK_MONOTONIC.
    pub(super) start_ns: u64,
    /// End of that time.
    pub(super) end_ns: u64,
    /// Whether it began more than half a period after its moment, and not just as soon as a thread wakes up.
    pub(super) late: bool,
    /// Strata that went by without a poll of their own.
    pub(super) missed: u64,
}

impl Tick {
    /// The length of the time that it stands for, ns.
    pub(super) fn weight_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }
}

/// The schedule of polls.
#[derive(Debug)]
pub(super) struct Schedule {
    period_ns: u64,
    stratum_ns: u64,
    moment_ns: u64,
    /// Length of the stratum that comes next: a period, or less.
    length_ns: u64,
    /// Time that stops took and that strata have not been shortened by yet.
    behind_ns: u64,
    random: u64,
}

impl Schedule {
    /// A schedule of `rate_hz` polls a second from `start_ns` on.
    pub(super) fn new(rate_hz: f64, start_ns: u64, seed: u64) -> Self {
        let period_ns = ((1e9 / rate_hz) as u64).clamp(10_000, 60_000_000_000);
        let mut schedule = Self {
            period_ns,
            stratum_ns: start_ns,
            moment_ns: start_ns,
            length_ns: period_ns,
            behind_ns: 0,
            random: seed | 1,
        };
        schedule.draw();
        // The first poll comes at once: a user who attaches wants to see something.
        schedule.moment_ns = start_ns;
        schedule
    }

    /// The nominal distance of polls, ns.
    pub(super) fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// Start of the time that no poll stands for yet, CLOCK_MONOTONIC.
    pub(super) fn stratum_ns(&self) -> u64 {
        self.stratum_ns
    }

    /// The moment of the next poll.
    pub(super) fn next_ns(&self) -> u64 {
        self.moment_ns
    }

    /// Takes the next poll, which begins at `now_ns`, and plans the one after it.
    pub(super) fn take(&mut self, now_ns: u64) -> Tick {
        let late_ns = now_ns.saturating_sub(self.moment_ns);
        let late = late_ns > (self.period_ns / 2).max(PROMPT_NS);
        let start_ns = self.stratum_ns;
        let missed = match late_ns < SLACK_NS {
            true => 0,
            false => late_ns / self.period_ns,
        };
        let end_ns = start_ns + self.length_ns + missed * self.period_ns;
        self.stratum_ns = end_ns;
        self.draw();
        Tick {
            start_ns,
            end_ns,
            late,
            missed,
        }
    }

    /// Puts all that is to come off by `by_ns`: for that long threads were stopped because of the poll before.
    ///
    /// Such time is no part of any stratum. It begins at a poll, so no other poll would fall into it as often as into the rest,
    /// and running threads, which alone are stopped, would seem to run for less than they do.
    pub(super) fn put_off(&mut self, by_ns: u64) {
        self.stratum_ns += by_ns;
        self.moment_ns += by_ns;
        self.behind_ns += by_ns;
    }

    /// Periods that went by unsampled, since stops took them, since this was asked last.
    pub(super) fn take_lost(&mut self) -> u64 {
        let lost = self.behind_ns / self.period_ns;
        self.behind_ns %= self.period_ns;
        lost
    }

    /// Begins anew at `now_ns`: what lies between stays unsampled.
    pub(super) fn restart(&mut self, now_ns: u64) {
        self.stratum_ns = now_ns;
        self.behind_ns = 0;
        self.draw();
    }

    fn draw(&mut self) {
        // xorshift64: any generator will do that has no period near that of a training loop.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        // Before its moment is drawn: a poll that stands for its stratum's length is right whatever that is.
        let shorter_ns = self.behind_ns.min(self.period_ns / 2);
        self.behind_ns -= shorter_ns;
        self.length_ns = self.period_ns - shorter_ns;
        self.moment_ns = self.stratum_ns + self.random % self.length_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_a_poll_took_is_in_no_stratum() {
        let mut schedule = Schedule::new(1000.0, 0, 7);
        let tick = schedule.take(0);
        let planned = schedule.next_ns();
        schedule.put_off(5_500_000);
        assert_eq!(schedule.next_ns(), planned + 5_500_000);
        let next = schedule.take(schedule.next_ns());
        assert_eq!(next.start_ns, tick.end_ns + 5_500_000);
        assert_eq!(
            (next.weight_ns(), next.late, next.missed),
            (1_000_000, false, 0)
        );
    }

    #[test]
    fn strata_follow_each_other_and_moments_lie_within() {
        let mut schedule = Schedule::new(100.0, 1_000, 7);
        let mut end = 1_000;
        for _ in 0..1_000 {
            let now = schedule.next_ns() + 5;
            let tick = schedule.take(now);
            assert_eq!(tick.start_ns, end);
            assert!(now >= tick.start_ns && now < tick.end_ns + 5);
            end = tick.end_ns;
        }
        assert_eq!(end, 1_000 + 1_000 * 10_000_000);
    }

    #[test]
    fn a_late_poll_stands_for_the_time_that_went_by() {
        let mut schedule = Schedule::new(100.0, 0, 7);
        schedule.take(0);
        let missed = (45_000_000 - schedule.next_ns()) / 10_000_000;
        let tick = schedule.take(45_000_000);
        let end_ns = 20_000_000 + missed * 10_000_000;
        assert_eq!((tick.start_ns, tick.end_ns), (10_000_000, end_ns));
        assert!(tick.late);
        assert_eq!(tick.missed, missed);
        assert_eq!(schedule.take(schedule.next_ns()).start_ns, end_ns);
    }

    /// Polls of `take_ns` in a second of a schedule of 1,000 Hz, each begun `wake_ns` after its moment or when the one before is
    /// over; every poll's stops take `stop_ns`. Also how long all strata are.
    fn polls_in_a_second(wake_ns: u64, take_ns: u64, stop_ns: u64) -> (u64, u64) {
        let mut schedule = Schedule::new(1000.0, 0, 7);
        let (mut now_ns, mut polls, mut weight_ns) = (0, 0, 0);
        while now_ns < 1_000_000_000 {
            now_ns = now_ns.max(schedule.next_ns() + wake_ns);
            let tick = schedule.take(now_ns);
            polls += 1;
            weight_ns += tick.weight_ns();
            schedule.put_off(stop_ns);
            now_ns += take_ns + stop_ns;
        }
        (polls, weight_ns)
    }

    #[test]
    fn a_late_wake_up_costs_no_poll() {
        for (wake_ns, take_ns) in [(100_000, 50_000), (800_000, 100_000), (0, 900_000)] {
            let (polls, weight_ns) = polls_in_a_second(wake_ns, take_ns, 0);
            assert!(
                (995..=1_005).contains(&polls),
                "{wake_ns} {take_ns}: {polls}"
            );
            assert!(weight_ns.abs_diff(1_000_000_000) < 5_000_000);
        }
    }

    #[test]
    fn stops_cost_no_poll() {
        for stop_ns in [30_000, 300_000] {
            let (polls, weight_ns) = polls_in_a_second(50_000, 50_000, stop_ns);
            assert!((995..=1_005).contains(&polls), "{stop_ns}: {polls}");
            let sampled_ns = 1_000_000_000 - polls * stop_ns;
            assert!(
                weight_ns.abs_diff(sampled_ns) < 5_000_000,
                "{stop_ns}: {weight_ns}"
            );
        }
        // What cannot be caught up with is lost, and said so.
        let mut schedule = Schedule::new(1000.0, 0, 7);
        schedule.take(0);
        schedule.put_off(2_300_000);
        assert_eq!((schedule.take_lost(), schedule.take_lost()), (2, 0));
    }
}
