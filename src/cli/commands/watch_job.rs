//! A job on several machines, asked when all of its ranks on this one wait for others.

use super::watch_dump::Hung;
use crate::analysis::dump::hang::Judgement;
use crate::analysis::dump::hang_job::{judge_job, ranks};
use crate::analysis::dump::job::HostAnswer;
use crate::cli::dump_plan::Answers;
use crate::cli::failure::Failure;
use crate::cli::gather::{gather, no_answer};
use crate::cli::messages;
use crate::cli::watch_plan::WatchPlan;
use crate::os::signals::Signals;
use crate::report::label::counted;
use rustc_hash::FxHashSet;
use std::time::{Duration, Instant};

/// The machines of a job.
pub(super) struct Machines<'p> {
    answers: &'p Answers,
    /// Ranks that were seen at any time.
    seen: FxHashSet<u32>,
    /// The dumps of the last time in this standstill.
    before: Vec<HostAnswer>,
    /// When they are asked next, and how long after that again: a checkpoint of another machine may
    /// take an hour.
    due: Instant,
    pause: Duration,
    pauses: (Duration, Duration),
    /// What was said of this standstill.
    told: Option<String>,
}

impl<'p> Machines<'p> {
    /// Asks all of them once: for their ranks, and so that those that cannot be reached are known
    /// before a hang. `here`: ranks of this machine.
    ///
    /// # Errors
    /// None answers.
    pub(super) fn ask(
        answers: &'p Answers,
        plan: &WatchPlan,
        here: &FxHashSet<u32>,
        signals: &Signals,
    ) -> Result<Self, Failure> {
        let gathered = gather(answers, signals)?;
        if gathered.answers.is_empty() {
            return Err(no_answer(&gathered.unanswered, answers));
        }
        for silent in &gathered.unanswered {
            messages::warning(&format!(
                "{} did not answer: {}. While it does not, a hang may not be told from work there",
                silent.host, silent.why
            ));
        }
        let seen = ranks(&gathered.answers);
        messages::note(&format!(
            "asked {}: {}",
            counted(gathered.answers.len() as u64, "machine"),
            counted(seen.len() as u64, "rank")
        ));
        if let Some(rank) = here.difference(&seen).min() {
            messages::warning(&format!(
                "rank {rank} of this machine is on none of them: name this machine, too"
            ));
        }
        Ok(Self {
            answers,
            seen,
            before: Vec::new(),
            due: Instant::now(),
            pause: plan.every,
            pauses: (plan.every, plan.every.max(plan.after)),
            told: None,
        })
    }

    /// The dump of a hang, and why it is one, once two looks in a row show it. `is_silent`: all
    /// ranks of this machine wait for others.
    ///
    /// # Errors
    /// The machines cannot be named; interrupted.
    pub(super) fn judge(
        &mut self,
        is_silent: bool,
        signals: &Signals,
    ) -> Result<Option<(Hung, String)>, Failure> {
        if !is_silent {
            self.before.clear();
            (self.due, self.pause, self.told) = (Instant::now(), self.pauses.0, None);
            return Ok(None);
        }
        if Instant::now() < self.due {
            return Ok(None);
        }
        let job = gather(self.answers, signals)?;
        self.due = Instant::now() + self.pause;
        self.seen.extend(ranks(&job.answers));
        if !self.before.is_empty() {
            self.pause = (self.pause * 2).min(self.pauses.1);
            match judge_job(&self.before, &job.answers, &job.unanswered, &self.seen) {
                Judgement::Hang(why) => return Ok(Some((Hung::Everywhere(job), why))),
                Judgement::Elsewhere(why) | Judgement::No(why) => self.tell(why),
            }
        }
        self.before = job.answers;
        Ok(None)
    }

    /// Says why it is no hang, once.
    fn tell(&mut self, why: String) {
        if self.told.as_ref() != Some(&why) {
            messages::note(&format!(
                "all ranks here wait for others, and it is no hang as far as can be told: {why}"
            ));
            self.told = Some(why);
        }
    }
}
