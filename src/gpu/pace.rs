//! How often a device is polled: often enough for short windows, within a CPU budget.

use std::time::Duration;

/// Shortest time between two rounds. GPM needs two samples at least 100 ms apart, and the energy
/// counter steps that often (nvml.h; arXiv 2312.02741).
pub const SHORTEST: Duration = Duration::from_millis(100);
/// Longest time between two rounds, whatever they cost.
const LONGEST: Duration = Duration::from_secs(2);
/// Share of a core that collecting may take, all devices together: 0.4 % leaves room for the host's
/// counter tracks.
const BUDGET: f64 = 0.004;
/// Weight of the latest round in the moving average.
const NEWEST: f64 = 0.1;

/// A polling period that adapts to the CPU time of a round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    mean_ns: f64,
    rounds: u32,
}

impl Pace {
    /// Records the CPU time of a round, ns. The first round, which also does the setup, is ignored.
    pub fn spent(&mut self, cpu_ns: u64) {
        let counted = f64::from(self.rounds);
        self.rounds = self.rounds.saturating_add(1);
        if counted > 0.0 {
            self.mean_ns += (cpu_ns as f64 - self.mean_ns) * NEWEST.max(1.0 / counted);
        }
    }

    /// Time from the start of a round to the start of the next, for one of `sharing` threads that
    /// share the budget.
    pub fn period(&self, sharing: usize) -> Duration {
        let budget = BUDGET / sharing.max(1) as f64;
        let affordable = Duration::from_secs_f64((self.mean_ns / 1e9 / budget).min(3600.0));
        affordable.clamp(SHORTEST, LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cheap_rounds_come_often_and_dear_ones_seldom() {
        let mut pace = Pace::default();
        assert_eq!(pace.period(1), SHORTEST);
        (0..100).for_each(|_| pace.spent(100_000));
        assert_eq!(pace.period(1), SHORTEST);
        (0..200).for_each(|_| pace.spent(2_000_000));
        let period = pace.period(1);
        assert!((450..=510).contains(&period.as_millis()), "{period:?}");
        (0..200).for_each(|_| pace.spent(1_000_000_000));
        assert_eq!(pace.period(1), LONGEST);
        // It is known after two rounds, of which the first is not like the others.
        let mut pace = Pace::default();
        pace.spent(50_000_000);
        assert_eq!(pace.period(1), SHORTEST);
        pace.spent(2_000_000);
        assert_eq!(pace.period(1).as_millis(), 500);
        // Eight devices share one budget.
        let mut pace = Pace::default();
        (0..100).for_each(|_| pace.spent(400_000));
        let period = pace.period(8);
        assert!((780..=810).contains(&period.as_millis()), "{period:?}");
    }
}
