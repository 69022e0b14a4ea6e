//! When to look.
//!
//! Time is cut into strata of one period; each is looked at once, at a random moment within it. A fixed distance would lock
//! on to training steps of a multiple of it; a random moment in every stratum cannot, and each look stands for exactly its
//! stratum. A look that comes too late stands for the strata that went by, so shares stay right under load. The time that
//! threads stand because of a look is theirs besides.

/// One look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tick {
    /// Start of the time that it stands for, CLOCK_MONOTONIC.
    pub(super) start_ns: u64,
    /// End of that time.
    pub(super) end_ns: u64,
    /// Whether it began more than half a period after its moment.
    pub(super) late: bool,
    /// Strata that went by without a look of their own.
    pub(super) missed: u64,
}

impl Tick {
    /// The length of the time that it stands for, ns.
    pub(super) fn weight_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }
}

/// The schedule of looks.
#[derive(Debug)]
pub(super) struct Schedule {
    period_ns: u64,
    stratum_ns: u64,
    moment_ns: u64,
    random: u64,
}

impl Schedule {
    /// A schedule of `rate_hz` looks a second from `start_ns` on.
    pub(super) fn new(rate_hz: f64, start_ns: u64, seed: u64) -> Self {
        let period_ns = ((1e9 / rate_hz) as u64).clamp(10_000, 60_000_000_000);
        let mut schedule = Self {
            period_ns,
            stratum_ns: start_ns,
            moment_ns: start_ns,
            random: seed | 1,
        };
        schedule.draw();
        // The first look comes at once: a user who attaches wants to see something.
        schedule.moment_ns = start_ns;
        schedule
    }

    /// The nominal distance of looks, ns.
    pub(super) fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// Start of the time that no look stands for yet, CLOCK_MONOTONIC.
    pub(super) fn stratum_ns(&self) -> u64 {
        self.stratum_ns
    }

    /// The moment of the next look.
    pub(super) fn next_ns(&self) -> u64 {
        self.moment_ns
    }

    /// Takes the next look, which begins at `now_ns`, and plans the one after it.
    pub(super) fn take(&mut self, now_ns: u64) -> Tick {
        let late = now_ns > self.moment_ns + self.period_ns / 2;
        let start_ns = self.stratum_ns;
        let missed = now_ns
            .saturating_sub(start_ns + self.period_ns)
            .div_ceil(self.period_ns.max(1));
        let missed = if now_ns < start_ns + self.period_ns {
            0
        } else {
            missed
        };
        let end_ns = start_ns + (missed + 1) * self.period_ns;
        self.stratum_ns = end_ns;
        self.draw();
        Tick {
            start_ns,
            end_ns,
            late,
            missed,
        }
    }

    /// Puts all that is to come off by `by_ns`: for that long threads stood because of the look before.
    ///
    /// Such time is no part of any stratum. It begins at a look, so no other look would fall into it as often as into the rest,
    /// and running threads, which alone are stopped, would seem to run for less than they do.
    pub(super) fn put_off(&mut self, by_ns: u64) {
        self.stratum_ns += by_ns;
        self.moment_ns += by_ns;
    }

    /// Begins anew at `now_ns`: what lies between stays unsampled.
    pub(super) fn restart(&mut self, now_ns: u64) {
        self.stratum_ns = now_ns;
        self.draw();
    }

    fn draw(&mut self) {
        // xorshift64: any generator will do that has no period near that of a training loop.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.moment_ns = self.stratum_ns + self.random % self.period_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_a_look_took_is_in_no_stratum() {
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
    fn a_late_look_stands_for_the_time_that_went_by() {
        let mut schedule = Schedule::new(100.0, 0, 7);
        schedule.take(0);
        let tick = schedule.take(45_000_000);
        assert_eq!((tick.start_ns, tick.end_ns), (10_000_000, 50_000_000));
        assert!(tick.late);
        assert_eq!(tick.missed, 3);
        assert_eq!(schedule.take(schedule.next_ns()).start_ns, 50_000_000);
    }
}
