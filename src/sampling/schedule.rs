//! When to poll.
//!
//! Time is divided into strata of one period; each stratum has one poll, at a random time in it. A
//! fixed interval would lock on to training steps that are a multiple of it; a random time in each
//! stratum cannot, and each poll stands for exactly its stratum. A poll that is late by less than a
//! period (or half a millisecond) still stands for its own stratum; a later poll also stands for
//! the strata that it missed, so shares stay correct under load. The time for which a poll stops
//! threads belongs to no stratum; the next strata are shorter by it, so that the poll rate stays
//! the same.

/// Usual wake-up delay of a sleeping thread on a virtual machine, ns.
const PROMPT_NS: u64 = 200_000;
/// Polls that are late by less than this miss no stratum, ns: at high rates they follow at once.
const SLACK_NS: u64 = 500_000;

/// One poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tick {
    /// Start of the interval that it stands for, CLOCK_MONOTONIC.
    pub(super) start_ns: u64,
    /// End of that interval.
    pub(super) end_ns: u64,
    /// Whether it began more than half a period after its due time, and later than a usual wake-up.
    pub(super) late: bool,
    /// Strata without a poll of their own that it also stands for.
    pub(super) missed: u64,
}

impl Tick {
    /// Length of the interval that it stands for, ns.
    pub(super) fn weight_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }
}

/// The schedule of polls.
#[derive(Debug)]
pub(super) struct Schedule {
    period_ns: u64,
    stratum_ns: u64,
    due_ns: u64,
    /// Length of the next stratum: a period, or less.
    length_ns: u64,
    /// Time of stops by which strata were not shortened yet.
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
            due_ns: start_ns,
            length_ns: period_ns,
            behind_ns: 0,
            random: seed | 1,
        };
        schedule.draw();
        // The first poll is immediate: a user who attaches wants a result soon.
        schedule.due_ns = start_ns;
        schedule
    }

    /// Nominal time between polls, ns.
    pub(super) fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// Start of the next stratum, CLOCK_MONOTONIC.
    pub(super) fn stratum_ns(&self) -> u64 {
        self.stratum_ns
    }

    /// When the next poll is due, CLOCK_MONOTONIC.
    pub(super) fn next_ns(&self) -> u64 {
        self.due_ns
    }

    /// Takes the next poll, which begins at `now_ns`, and schedules the one after it.
    pub(super) fn take(&mut self, now_ns: u64) -> Tick {
        let late_ns = now_ns.saturating_sub(self.due_ns);
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

    /// Delays all further polls by `by_ns`, the time for which the last poll stopped threads.
    ///
    /// That time belongs to no stratum. It begins at a poll, so another poll would fall into it
    /// less often than into other time, and running threads, the only ones that are stopped, would
    /// be underestimated.
    pub(super) fn delay(&mut self, by_ns: u64) {
        self.stratum_ns += by_ns;
        self.due_ns += by_ns;
        self.behind_ns += by_ns;
    }

    /// Periods lost to stops since the last call.
    pub(super) fn take_missed_periods(&mut self) -> u64 {
        let lost = self.behind_ns / self.period_ns;
        self.behind_ns %= self.period_ns;
        lost
    }

    /// Restarts at `now_ns`: the time in between is not sampled.
    pub(super) fn restart(&mut self, now_ns: u64) {
        self.stratum_ns = now_ns;
        self.behind_ns = 0;
        self.draw();
    }

    fn draw(&mut self) {
        // xorshift64: any generator whose period is far from that of a training loop will do.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        // Before the due time is drawn, so that the poll stands for the shortened stratum.
        let shorter_ns = self.behind_ns.min(self.period_ns / 2);
        self.behind_ns -= shorter_ns;
        self.length_ns = self.period_ns - shorter_ns;
        self.due_ns = self.stratum_ns + self.random % self.length_ns;
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
        schedule.delay(5_500_000);
        assert_eq!(schedule.next_ns(), planned + 5_500_000);
        let next = schedule.take(schedule.next_ns());
        assert_eq!(next.start_ns, tick.end_ns + 5_500_000);
        assert_eq!(
            (next.weight_ns(), next.late, next.missed),
            (1_000_000, false, 0)
        );
    }

    #[test]
    fn strata_follow_each_other_and_poll_times_lie_within() {
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

    /// Simulates a second at 1,000 Hz: polls take `take_ns` and their stops `stop_ns`; each begins
    /// `wake_ns` after it is due, or when the previous one ends. Returns the number of polls, and
    /// the length of all strata.
    fn polls_in_a_second(wake_ns: u64, take_ns: u64, stop_ns: u64) -> (u64, u64) {
        let mut schedule = Schedule::new(1000.0, 0, 7);
        let (mut now_ns, mut polls, mut weight_ns) = (0, 0, 0);
        while now_ns < 1_000_000_000 {
            now_ns = now_ns.max(schedule.next_ns() + wake_ns);
            let tick = schedule.take(now_ns);
            polls += 1;
            weight_ns += tick.weight_ns();
            schedule.delay(stop_ns);
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
        // Periods that cannot be caught up with are counted as lost.
        let mut schedule = Schedule::new(1000.0, 0, 7);
        schedule.take(0);
        schedule.delay(2_300_000);
        assert_eq!(
            (
                schedule.take_missed_periods(),
                schedule.take_missed_periods()
            ),
            (2, 0)
        );
    }
}
