//! Whether a session hangs, judged as `torchspy watch` does it.
//!
//! As long as the samples show that a training thread moves, nothing else is read. Snapshots are
//! taken only in the second half of the time that a standstill must last.

use crate::cli::commands::watch::{Found, Watch};
use crate::cli::messages;
use crate::cli::watch_plan::WatchPlan;
use crate::live::follow::RankPart;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Steps whose median is the usual time of one.
const STEPS: usize = 64;
/// The longest time between two looks.
const EVERY: Duration = Duration::from_secs(10);

/// The state of one session.
pub(crate) struct Standstill {
    /// How it is looked at; `after` is the whole time of a standstill.
    plan: WatchPlan,
    /// Recent steps, ns.
    steps: VecDeque<u64>,
    /// While nothing moves.
    watch: Option<(Watch, Instant)>,
    hangs: bool,
    /// It has moved since it hung: a process that is being killed does so, too, and then ends.
    has_moved: bool,
    /// Dumps are written.
    writes: bool,
}

impl Standstill {
    /// Looks as `plan` says. Dumps are written if it names an output.
    pub(crate) fn new(plan: WatchPlan) -> Self {
        Self {
            writes: plan.output.is_some(),
            plan,
            steps: VecDeque::new(),
            watch: None,
            hangs: false,
            has_moved: false,
        }
    }

    /// Whether it hangs, as far as was found out.
    pub(crate) fn hangs(&self) -> bool {
        self.hangs
    }

    /// Takes what ranks did until `end_ns`, and looks at `job` if they have not moved for long: the
    /// processes that they belong to, which wait for each other.
    pub(crate) fn take(&mut self, ranks: &[RankPart], end_ns: u64, now: Instant, job: &[i32]) {
        let ended = ranks
            .iter()
            .filter_map(|rank| rank.steps.as_ref())
            .flatten();
        self.steps.extend(ended.filter_map(|step| step.each_ns));
        self.steps.drain(..self.steps.len().saturating_sub(STEPS));
        let Some(moved_ns) = ranks.iter().map(|rank| rank.at_one_line_since_ns).max() else {
            return;
        };
        let half = self.patience() / 2;
        if Duration::from_nanos(end_ns.saturating_sub(moved_ns)) < half {
            if self.has_moved {
                messages::note(&format!("{} goes on", self.named()));
            }
            (self.has_moved, self.watch, self.hangs) = (self.hangs, None, false);
            return;
        }
        self.has_moved = false;
        if self.watch.is_none() {
            let mut plan = WatchPlan {
                after: half,
                ..self.plan.clone()
            };
            plan.look.pids = job.to_vec();
            // A process that ends is found out elsewhere.
            let stood = Duration::from_nanos(end_ns.saturating_sub(moved_ns));
            let watch = Watch::new(plan).ok();
            self.watch = watch.map(|watch| (watch.still_for(stood), now));
        }
        let every = EVERY.min(half / 4);
        let found = self.watch.as_mut().and_then(|(watch, due)| {
            if now < *due {
                return None;
            }
            *due = now + every;
            Some(watch.look())
        });
        if let Some(Found::Hang(hung, why)) = found {
            self.hangs = true;
            messages::note(&format!("{} hangs: {why}", self.named()));
            if let Some((watch, _)) = self.watch.as_ref().filter(|_| self.writes) {
                watch.report(&hung, &why);
            }
        }
    }

    /// The shortest standstill that may be a hang.
    fn patience(&self) -> Duration {
        let mut steps: Vec<u64> = self.steps.iter().copied().collect();
        steps.sort_unstable();
        let usual = steps.get(steps.len() / 2).copied().unwrap_or(0);
        let usual = Duration::from_nanos(usual).mul_f64(self.plan.times);
        self.plan.after.max(usual)
    }

    fn named(&self) -> String {
        let pid = self.plan.look.pids.first().copied().unwrap_or(0);
        format!("process {pid}")
    }
}
