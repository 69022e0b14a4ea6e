//! Counts the execs of a process. While programs follow each other quickly, none of them lives long
//! enough for its interpreter to be found.

/// Execs count as a storm only after this time since the first one, ns.
const PATIENCE_NS: u64 = 300_000_000;
/// Longest lifetime of a program in a storm, ns. A new program is known not to be Python after 200
/// ms.
const SHORT_LIFE_NS: u64 = 250_000_000;

/// The observed execs of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Execs {
    count: u32,
    /// CLOCK_MONOTONIC of the first and the last of them.
    first_ns: u64,
    last_ns: u64,
}

impl Execs {
    /// Records an exec.
    pub(super) fn record(&mut self, now_ns: u64) {
        if self.count == 0 {
            self.first_ns = now_ns;
        }
        self.last_ns = now_ns;
        self.count = self.count.saturating_add(1);
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Whether short-lived programs have followed each other for a while, up to now. The chain of a
    /// launcher (sh, env, python) is shorter.
    pub(super) fn is_storm(&self, now_ns: u64) -> bool {
        self.count > 1
            && now_ns.saturating_sub(self.first_ns) >= PATIENCE_NS
            && now_ns.saturating_sub(self.last_ns) < SHORT_LIFE_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn execs(at_ms: &[u64]) -> Execs {
        let mut execs = Execs::default();
        at_ms.iter().for_each(|at| execs.record(at * MS));
        execs
    }

    #[test]
    fn a_storm_of_execs_is_not_waited_out() {
        let mut storm = Execs::default();
        let mut over_ms = None;
        for ms in (1000..5000).step_by(10) {
            storm.record(ms * MS);
            if over_ms.is_none() && storm.is_storm(ms * MS) {
                over_ms = Some(ms - 1000);
            }
        }
        assert_eq!(over_ms, Some(300));
        assert_eq!(storm.count(), 400);
    }

    #[test]
    fn the_program_that_a_launcher_ends_with_is_waited_for() {
        assert!(!execs(&[]).is_storm(9000 * MS));
        assert!(!execs(&[1000]).is_storm(1400 * MS));
        let chain = execs(&[1000, 1010, 1030]);
        for ms in 1030..5000 {
            assert!(!chain.is_storm(ms * MS), "{ms}");
        }
    }

    #[test]
    fn a_storm_that_is_over_leaves_a_program() {
        let storm = execs(&[1000, 1200, 1400]);
        assert!(storm.is_storm(1500 * MS));
        assert!(!storm.is_storm(1650 * MS));
    }
}
