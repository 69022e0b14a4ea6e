//! Converts the driver's timestamps to CLOCK_MONOTONIC.
//!
//! nvml.h calls the stamps of buffered samples "CPU timestamp in microseconds" and does not name
//! the clock. So the clock is inferred: a clock of this machine by which every newest sample is
//! slightly old, and none is in the future, is taken for the driver's. Where none fits, the offset
//! is bounded from one side, since a sample is never seen before it was taken.

/// A clock by which a sample is older than this is not the driver's: the longest window is 1 s.
const OLDEST_NS: i128 = 5_000_000_000;
/// Samples may seem this far in the future: the stamp and the clock are not read at the same time.
const FUTURE_NS: i128 = 2_000_000;
/// Rate at which the wall clock may be slewed (adjtime(3): 500 ppm).
const SLEW_PPM: i128 = 500;

/// The clocks of this machine, read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    pub monotonic_ns: u64,
    pub realtime_ns: u64,
    pub boottime_ns: u64,
    /// How long reading all of them took, ns.
    pub took_ns: u64,
}

/// Offset of CLOCK_MONOTONIC to the driver's timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relation {
    /// CLOCK_MONOTONIC less the driver's clock, ns.
    pub offset_ns: i128,
    /// Largest error of the offset, ns.
    pub error_ns: u64,
    /// Name of the driver's clock, or `unknown`.
    pub clock: &'static str,
}

impl Relation {
    /// Converts a timestamp of the driver, µs, to CLOCK_MONOTONIC, ns; `None` if it is before that
    /// clock's start.
    pub fn monotonic_ns(&self, driver_us: u64) -> Option<u64> {
        let ns = i128::from(driver_us) * 1000 + self.offset_ns;
        u64::try_from(ns).ok()
    }
}

const NAMES: [&str; 3] = ["realtime", "monotonic", "boottime"];

/// Inference of the driver's clock.
#[derive(Clone, Debug)]
pub struct DriverClock {
    /// Clocks that still fit, in the order of [`NAMES`].
    possible: [bool; 3],
    newest_us: u64,
    /// Smallest and largest difference between CLOCK_MONOTONIC, when a sample was first seen, and
    /// its timestamp.
    seen: Option<(i128, i128)>,
    longest_period_ns: i128,
}

impl Default for DriverClock {
    fn default() -> Self {
        Self {
            possible: [true; 3],
            newest_us: 0,
            seen: None,
            longest_period_ns: 0,
        }
    }
}

impl DriverClock {
    /// Records the newest timestamp of the driver, µs, right after it was read.
    pub fn observe(&mut self, newest_us: u64, now: Now) {
        if newest_us <= self.newest_us {
            return;
        }
        let driver_ns = i128::from(newest_us) * 1000;
        let is_first = self.newest_us == 0;
        if !is_first {
            let period = driver_ns - i128::from(self.newest_us) * 1000;
            self.longest_period_ns = self.longest_period_ns.max(period.min(OLDEST_NS));
        }
        self.newest_us = newest_us;
        // The age of the buffer at the first read means nothing: the device may have been idle.
        let ages = clocks(now).map(|clock| clock - driver_ns);
        let fits = |age: &i128| (-FUTURE_NS..=OLDEST_NS).contains(age);
        if is_first && !ages.iter().any(fits) && ages.iter().any(|age| *age > OLDEST_NS) {
            return;
        }
        for (possible, age) in self.possible.iter_mut().zip(&ages) {
            *possible &= fits(age);
        }
        let late = i128::from(now.monotonic_ns) - driver_ns;
        self.seen = Some(match self.seen {
            Some((least, most)) => (least.min(late), most.max(late)),
            None => (late, late),
        });
    }

    /// The relation as known now; `None` before the first sample.
    pub fn relation(&self, now: Now) -> Option<Relation> {
        let (least, most) = self.seen?;
        let found = (0..NAMES.len()).find(|&at| self.possible[at]);
        if let Some(at) = found {
            let slewed = OLDEST_NS / 1_000_000 * SLEW_PPM;
            // Timestamps have a resolution of 1 µs.
            let error = i128::from(now.took_ns) + 1000 + if at == 0 { slewed } else { 0 };
            return Some(Relation {
                offset_ns: i128::from(now.monotonic_ns) - clocks(now)[at],
                error_ns: u64::try_from(error).unwrap_or(u64::MAX),
                clock: NAMES[at],
            });
        }
        // Assumes that samples become visible within one period.
        let error = (most - least).max(self.longest_period_ns);
        Some(Relation {
            offset_ns: least,
            error_ns: u64::try_from(error).unwrap_or(0),
            clock: "unknown",
        })
    }
}

fn clocks(now: Now) -> [i128; 3] {
    [now.realtime_ns, now.monotonic_ns, now.boottime_ns].map(i128::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOTED_NS: u64 = 1_700_000_000_000_000_000;
    const SLEPT_NS: u64 = 3_600_000_000_000;

    fn now(monotonic_ns: u64) -> Now {
        Now {
            monotonic_ns,
            realtime_ns: BOOTED_NS + monotonic_ns,
            boottime_ns: SLEPT_NS + monotonic_ns,
            took_ns: 300,
        }
    }

    /// Samples each 167 ms by a clock that is `ahead_ns` ahead of the monotonic one, seen 30 ms to
    /// 60 ms later.
    fn observed(ahead_ns: u64) -> (DriverClock, Relation) {
        let mut clock = DriverClock::default();
        let mut last = now(0);
        for sample in 1..40_u64 {
            let taken_ns = 10_000_000_000 + sample * 167_000_000;
            last = now(taken_ns + 30_000_000 + sample % 4 * 10_000_000);
            clock.observe((ahead_ns + taken_ns) / 1000, last);
        }
        let relation = clock.relation(last).unwrap();
        (clock, relation)
    }

    #[test]
    fn the_machines_own_clocks_are_known() {
        for (ahead_ns, name) in [
            (BOOTED_NS, "realtime"),
            (0, "monotonic"),
            (SLEPT_NS, "boottime"),
        ] {
            let (_, relation) = observed(ahead_ns);
            assert_eq!(relation.clock, name);
            assert!(relation.error_ns < 5_000_000, "{relation:?}");
            let back = relation.monotonic_ns((ahead_ns + 12_000_000_000) / 1000);
            assert_eq!(back, Some(12_000_000_000));
        }
    }

    #[test]
    fn a_clock_of_its_own_is_bounded_by_what_was_seen() {
        let ahead_ns = 77_000_000_000_000;
        let (_, relation) = observed(ahead_ns);
        assert_eq!(relation.clock, "unknown");
        let back = relation
            .monotonic_ns((ahead_ns + 12_000_000_000) / 1000)
            .unwrap();
        assert!(back.abs_diff(12_000_000_000) <= relation.error_ns, "{back}");
        assert!(relation.error_ns < 400_000_000);
    }

    #[test]
    fn a_buffer_that_was_old_at_the_start_does_not_hide_the_clock() {
        let mut clock = DriverClock::default();
        let taken_ns = 100_000_000_000;
        let stamp = |ns: u64| (BOOTED_NS + ns) / 1000;
        clock.observe(stamp(taken_ns - 60_000_000_000), now(taken_ns));
        assert_eq!(clock.relation(now(taken_ns)), None);
        clock.observe(stamp(taken_ns), now(taken_ns + 50_000_000));
        let relation = clock.relation(now(taken_ns + 50_000_000)).unwrap();
        assert_eq!(relation.clock, "realtime");
    }

    #[test]
    fn what_is_absurd_gives_no_moment() {
        let (mut clock, relation) = observed(BOOTED_NS);
        assert_eq!(relation.monotonic_ns(5), None);
        clock.observe(u64::MAX, now(u64::MAX - BOOTED_NS));
        assert_eq!(clock.relation(now(0)).unwrap().clock, "unknown");
        assert_eq!(DriverClock::default().relation(now(1)), None);
    }
}
