//! How many running threads may be stopped in a tick: stops may take only a bounded share of their
//! time.

/// A controller that keeps the stopped share of running threads below a bound.
#[derive(Debug)]
pub(super) struct Budget {
    /// Bound, 0 to 1; infinity for no bound.
    max_share: f64,
    /// Share of running threads to stop per tick, 0 to 1.
    fraction: f64,
    /// Unused stops, in threads, from previous ticks.
    carried: f64,
    /// Number of non-training threads that ran in the last tick.
    others: usize,
    /// Claim sizes of those of them that were not stopped.
    deferred_sizes: Vec<u64>,
    /// Round-robin position among running threads with equal claims.
    turn: usize,
    window_stopped_ns: u64,
    window_run_ns: u64,
    /// Time that stops may still take, ns. One long stop, of a thread that waited for a CPU, is
    /// paid back before the next.
    balance_ns: f64,
}

/// Upper limit of the balance, ns: a quiet interval does not pay for many long stops.
const MAX_BALANCE_NS: f64 = 5_000_000.0;

/// A running thread's claim to be stopped in this tick.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Claim {
    /// It is its process's first thread, which usually is the one that trains.
    pub(super) is_first: bool,
    /// Ticks since its last stop in which it ran and was deferred.
    pub(super) deferred: u32,
}

impl Claim {
    fn size(&self) -> u64 {
        let waiting = u64::from(self.deferred) + 1;
        waiting * if self.is_first { FIRST_CLAIM } else { 1 }
    }
}

/// Where not all threads can be stopped, a first thread is stopped this many times as often as
/// another.
const FIRST_CLAIM: u64 = 8;
/// Assumed length of a stop before any was measured, ns.
const EXPECTED_STOP_NS: f64 = 150_000.0;
/// Time of running threads per update of the controller, ns.
const WINDOW_NS: u64 = 250_000_000;

impl Budget {
    /// Bounds stops to `max_share` of the time of running threads, at one tick every `period_ns`.
    pub(super) fn new(max_share: f64, period_ns: u64) -> Self {
        let expected = EXPECTED_STOP_NS / period_ns as f64;
        Self {
            max_share,
            fraction: (max_share / expected).clamp(0.01, 1.0),
            carried: 1.0,
            others: 0,
            deferred_sizes: Vec::new(),
            turn: 0,
            window_stopped_ns: 0,
            window_run_ns: 0,
            balance_ns: 0.0,
        }
    }

    /// Which running training threads to stop now, before the other threads were polled: indices of
    /// the largest claims, largest first. Assumes that the others run as in the last tick, and
    /// reserves their stops. Called once a tick, before [`Self::choose`].
    pub(super) fn choose_trainers(&mut self, claims: &[Claim]) -> Vec<usize> {
        let running = claims.len() + self.others;
        let count = self.earn(running as f64, running as f64).min(running);
        let sizes: Vec<u64> = claims
            .iter()
            .map(Claim::size)
            .chain(std::mem::take(&mut self.deferred_sizes))
            .collect();
        let mut order = self.in_order(&sizes);
        order.truncate(count);
        order.retain(|&index| index < claims.len());
        self.spend(order.len());
        order
    }

    /// Which of the other running threads to stop now, in the same way. Equal claims take turns.
    pub(super) fn choose(&mut self, claims: &[Claim]) -> Vec<usize> {
        let expected = std::mem::replace(&mut self.others, claims.len());
        let more = claims.len() as f64 - expected as f64;
        let count = self.earn(more, f64::INFINITY).min(claims.len());
        let sizes: Vec<u64> = claims.iter().map(Claim::size).collect();
        let mut order = self.in_order(&sizes);
        self.deferred_sizes = order
            .split_off(count)
            .into_iter()
            .filter_map(|index| sizes.get(index).copied())
            .collect();
        self.spend(order.len());
        order
    }

    /// Adds the stops that `running` threads earn, up to `most` in total; returns how many threads
    /// may be stopped.
    fn earn(&mut self, running: f64, most: f64) -> usize {
        if self.is_overdrawn() {
            0
        } else if self.max_share.is_finite() {
            self.carried = (self.carried + self.fraction * running).clamp(0.0, most);
            self.carried as usize
        } else {
            usize::MAX
        }
    }

    fn spend(&mut self, count: usize) {
        self.turn = self.turn.wrapping_add(count);
        if self.max_share.is_finite() {
            self.carried -= count as f64;
        }
    }

    /// Indices of claims of these sizes, largest first.
    fn in_order(&self, sizes: &[u64]) -> Vec<usize> {
        let count = sizes.len();
        let mut order: Vec<usize> = (0..count)
            .map(|offset| self.turn.wrapping_add(offset) % count)
            .collect();
        order.sort_by_key(|&index| std::cmp::Reverse(sizes.get(index).copied()));
        order
    }

    /// Charges `stopped_ns` of the last tick's stops, in `run_ns` of time of running threads.
    pub(super) fn account(&mut self, stopped_ns: u64, run_ns: u64) {
        self.window_stopped_ns += stopped_ns;
        self.window_run_ns += run_ns;
        if self.max_share.is_finite() {
            let earned_ns = run_ns as f64 * self.max_share;
            self.balance_ns = (self.balance_ns + earned_ns - stopped_ns as f64).min(MAX_BALANCE_NS);
        }
        if self.window_run_ns < WINDOW_NS || !self.max_share.is_finite() {
            return;
        }
        let share = self.window_stopped_ns as f64 / self.window_run_ns as f64;
        // Aims a little below the bound; decreases at once and increases slowly.
        let aim = 0.85 * self.max_share;
        if share > aim {
            self.fraction = (self.fraction * aim / share).max(0.001);
        } else {
            let room = if share > 0.0 { aim / share } else { 1.25 };
            self.fraction = (self.fraction * room.min(1.25)).min(1.0);
        }
        self.window_stopped_ns = 0;
        self.window_run_ns = 0;
    }

    /// Whether stops took more than their share, so that none is allowed now.
    pub(super) fn is_overdrawn(&self) -> bool {
        self.balance_ns < 0.0
    }

    /// Whether the budget allows fewer stops than threads run.
    pub(super) fn is_limiting(&self) -> bool {
        self.max_share.is_finite() && self.fraction < 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stopped training threads and stopped other threads of one tick.
    fn tick(budget: &mut Budget, trainers: &[Claim], others: &[Claim]) -> (Vec<usize>, Vec<usize>) {
        let trainers = budget.choose_trainers(trainers);
        (trainers, budget.choose(others))
    }

    /// Simulates ticks in which each stop takes `stop_ns`; returns the stopped share of running
    /// time.
    fn share(
        budget: &mut Budget,
        running: usize,
        period_ns: u64,
        stop_ns: u64,
        ticks: usize,
    ) -> f64 {
        let mut stopped = 0;
        for _ in 0..ticks {
            let here = tick(budget, &[], &vec![Claim::default(); running]).1.len() as u64 * stop_ns;
            stopped += here;
            budget.account(here, running as u64 * period_ns);
        }
        stopped as f64 / (ticks * running) as f64 / period_ns as f64
    }

    #[test]
    fn everything_is_stopped_while_it_is_cheap() {
        let mut budget = Budget::new(0.02, 10_000_000);
        assert!(share(&mut budget, 8, 10_000_000, 60_000, 500) > 0.0055);
        assert!(!budget.is_limiting());
    }

    #[test]
    fn dear_stops_are_kept_within_the_bound() {
        for (running, stop_ns) in [(1, 300_000), (8, 900_000), (64, 2_000_000)] {
            let mut budget = Budget::new(0.02, 1_000_000);
            share(&mut budget, running, 1_000_000, stop_ns, 3_000);
            assert!(share(&mut budget, running, 1_000_000, stop_ns, 3_000) < 0.02);
        }
    }

    #[test]
    fn a_single_long_stop_is_paid_back_before_the_next() {
        let mut budget = Budget::new(0.02, 10_000_000);
        share(&mut budget, 2, 10_000_000, 60_000, 500);
        budget.account(500_000_000, 0);
        // 2 % of two running threads: 400 us a tick.
        let silent = (0..5_000).take_while(|_| {
            let stops = tick(&mut budget, &[], &[Claim::default(); 2]).1.len();
            budget.account(0, 20_000_000);
            stops == 0
        });
        assert!((1_200..1_250).contains(&silent.count()));
    }

    #[test]
    fn every_thread_gets_its_turn() {
        let mut budget = Budget::new(0.02, 1_000_000);
        let mut stops = [0; 7];
        for _ in 0..10_000 {
            for index in tick(&mut budget, &[], &[Claim::default(); 7]).1 {
                stops[index] += 1;
            }
            budget.account(100_000, 7_000_000);
        }
        let (least, most) = (stops.iter().min(), stops.iter().max());
        assert!(
            least
                .zip(most)
                .is_some_and(|(least, most)| most - least <= 1),
            "{stops:?}"
        );
    }

    /// Stops of a first thread and of others, all always running; a stop takes `stop_ns` of a
    /// tick's 10 ms.
    fn stops_of_first_and_others(others: usize, stop_ns: u64) -> (usize, Vec<usize>) {
        let mut budget = Budget::new(0.02, 10_000_000);
        let mut claims = vec![Claim::default(); others + 1];
        claims[others].is_first = true;
        let mut stops = vec![0; others + 1];
        for _ in 0..10_000 {
            let (trainers, mut chosen) = tick(&mut budget, &claims[others..], &claims[..others]);
            chosen.extend(trainers.iter().map(|_| others));
            for claim in &mut claims {
                claim.deferred += 1;
            }
            for &index in &chosen {
                claims[index].deferred = 0;
                stops[index] += 1;
            }
            let running = claims.len() as u64;
            budget.account(chosen.len() as u64 * stop_ns, running * 10_000_000);
        }
        let first = stops.pop().unwrap_or(0);
        (first, stops)
    }

    #[test]
    fn a_first_thread_keeps_its_rate_where_others_cannot() {
        let (first, others) = stops_of_first_and_others(1, 200_000);
        assert!(first > 9_000, "{first} {others:?}");
        assert!(others[0] > 1_000, "{first} {others:?}");
        let (first, others) = stops_of_first_and_others(5, 400_000);
        assert!(first > 8_000, "{first} {others:?}");
        assert!(
            others.iter().all(|&stops| stops > 500),
            "{first} {others:?}"
        );
    }

    #[test]
    fn no_bound_stops_everything() {
        let mut budget = Budget::new(f64::INFINITY, 1_000_000);
        let claims = [Claim::default(); 5];
        assert_eq!(tick(&mut budget, &claims, &claims).1.len(), 5);
        budget.account(u64::MAX / 2, 1);
        assert_eq!(tick(&mut budget, &claims, &claims).0.len(), 5);
    }
}
