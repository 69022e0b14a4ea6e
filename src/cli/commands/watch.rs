//! `torchspy watch`: looks at a job every few seconds, and dumps it when it hangs.

use super::watch_dump::{Hung, check_output, write_json, write_new};
use super::watch_job::Machines;
use crate::analysis::dump::hang::{Judgement, Marks, Since, judge, steps, trainers};
use crate::analysis::dump::verdict::training_thread;
use crate::cli::dump_plan::LookPlan;
use crate::cli::dump_snapshot::{check_target, take_one};
use crate::cli::failure::Failure;
use crate::cli::gather::INTERRUPTED;
use crate::cli::pause::{interruptible, is_interrupted};
use crate::cli::trainers::{running, trainers as trainers_of_job};
use crate::cli::watch_plan::WatchPlan;
use crate::cli::{hints, messages};
use crate::model::dump::Dump;
use crate::model::profile::Role;
use crate::model::wait::WaitKind;
use crate::os::host::host_name;
use crate::os::job_activity::{JobActivity, JobCounters};
use crate::os::sleeps::{is_timed, reads_from_child};
use crate::report::label::counted;
use crate::report::naming::{utc, utc_time};
use crate::sampling::session::SessionError;
use rustc_hash::FxHashSet;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Steps whose median is the usual time of one.
const STEPS: usize = 64;

pub(crate) fn run(plan: &WatchPlan) -> Result<ExitCode, Failure> {
    let signals = interruptible()?;
    let mut plan = plan.clone();
    if let Some(job) = &plan.job {
        plan.look.pids = trainers_of_job(Some(job))?;
    }
    let plan = &plan;
    for &pid in &plan.look.pids {
        check_target(pid)?;
    }
    check_output(plan.output.as_deref())?;
    let mut watch = Watch::new(plan.clone())?;
    let machines = plan.machines.as_ref();
    let mut machines = machines
        .map(|answers| Machines::ask(answers, plan, &watch.ranks, &signals))
        .transpose()?;
    let what = match watch.marks.len() {
        0 => "no trainer was found yet, and watch goes on looking for one".to_owned(),
        count => format!("watching {}", counted(count as u64, "trainer")),
    };
    messages::note(&format!(
        "{what}: a hang is {} without a step or a move, and longer than {} usual steps",
        seconds(plan.after),
        plan.times
    ));
    let begun = Instant::now();
    let mut due = begun;
    loop {
        if is_interrupted(&signals, due) {
            break;
        }
        let now = Instant::now();
        if plan.duration.is_some_and(|length| now >= begun + length) {
            break;
        }
        let mut found = watch.look();
        if let Some(machines) = &mut machines {
            match (
                &found,
                machines.judge(matches!(found, Found::Elsewhere), &signals),
            ) {
                (Found::Elsewhere, Ok(Some((hung, why)))) => found = watch.told_of(hung, why),
                (_, Ok(_)) => {}
                (_, Err(failure)) if failure.status == INTERRUPTED => break,
                (_, Err(failure)) => messages::warning(&failure.text()),
            }
        }
        if let Found::Hang(hung, why) = &found {
            let files = watch.report(hung, why);
            if let Some(command) = &plan.on_hang {
                let mut shell = Command::new("sh");
                signals.inherited().pass_to(&mut shell);
                watch.run_command(shell.args(["-c", command]), why, &files);
            }
        }
        match found {
            Found::Ended => {
                // An elastic launcher starts new workers in place of those that failed.
                let again = plan.job.as_deref().map(|job| running(Some(job)));
                let Some(pids) = again.filter(|pids| !pids.is_empty()) else {
                    messages::note("the job has ended");
                    break;
                };
                messages::note("the job was started again");
                let mut next = plan.clone();
                next.look.pids = pids;
                watch = Watch::new(next)?;
            }
            Found::Hang(..) if plan.once => return Ok(ExitCode::from(1)),
            Found::Hang(..) | Found::Elsewhere | Found::Nothing => {}
        }
        // After a look that took long the next one is not made up for.
        due = (due + plan.every).max(Instant::now());
    }
    Ok(ExitCode::SUCCESS)
}

/// The result of a look.
pub(crate) enum Found {
    Nothing,
    /// It is found once: its dump, and why it is one.
    Hang(Hung, String),
    /// All that waits here waits for other machines.
    Elsewhere,
    /// There is no process any more.
    Ended,
}

/// A dump as text and as JSON, as far as they could be written.
type Written = (Option<PathBuf>, Option<PathBuf>);

/// A job that is looked at from time to time.
pub(crate) struct Watch {
    plan: WatchPlan,
    /// Looks of the kind that finds out whether something moved.
    quick: LookPlan,
    activity: JobActivity,
    /// Training threads of the last look: pid and tid.
    training: Vec<(i32, i32)>,
    marks: Marks,
    /// The counters at the last look, and when something moved last.
    last: JobCounters,
    moved: JobCounters,
    moved_at: Instant,
    /// How long nothing had moved before the first look.
    before: Duration,
    /// The counters when half the time had passed for which a standstill must last.
    half: Option<JobCounters>,
    /// The longest time without a move that ended by itself.
    longest: Duration,
    usual: UsualStep,
    ranks: FxHashSet<u32>,
    /// Whether it was judged to be a hang at the last look.
    is_suspected: bool,
    /// What the standstill was judged to be, so that it is reported once.
    told: Option<Judgement>,
}

impl Watch {
    /// Takes the first look.
    ///
    /// # Errors
    /// The job has ended, or may not be read.
    pub(crate) fn new(plan: WatchPlan) -> Result<Self, Failure> {
        let mut activity = JobActivity::new(&plan.look.pids).map_err(|_| {
            let pid = plan.look.pids.first().copied().unwrap_or(0);
            hints::session_failure(SessionError::NoSuchProcess(pid))
        })?;
        // Without native frames a snapshot ends late: it waits for threads without Python, of which
        // it then reads nothing.
        let quick = LookPlan {
            native: true,
            nonblocking: true,
            ras: false,
            ..plan.look.clone()
        };
        let counters = activity.read();
        let (dump, refused) = take_one(&quick)?;
        if let Some(error) = refused {
            return Err(hints::session_failure(error));
        }
        let mut watch = Self {
            plan,
            quick,
            activity,
            training: Vec::new(),
            marks: Marks::of(&dump),
            last: counters.clone(),
            moved: counters,
            moved_at: Instant::now(),
            before: Duration::ZERO,
            half: None,
            longest: Duration::ZERO,
            usual: UsualStep::default(),
            ranks: FxHashSet::default(),
            is_suspected: false,
            told: None,
        };
        watch.remember(&dump);
        Ok(watch)
    }

    /// The same for a job of which it is known for how long nothing has moved: what is said of a
    /// standstill counts that, what is judged does not.
    pub(crate) fn still_for(self, before: Duration) -> Self {
        Self { before, ..self }
    }

    /// How long nothing has moved.
    fn stood(&self) -> Duration {
        self.moved_at.elapsed() + self.before
    }

    fn remember(&mut self, dump: &Dump) {
        self.training = trainers(dump)
            .filter_map(|process| Some((process.pid, training_thread(process)?.tid)))
            .collect();
        self.ranks
            .extend(trainers(dump).filter_map(|process| process.role.rank()));
        self.usual.add(Instant::now(), steps(dump));
    }

    /// Takes another look.
    pub(crate) fn look(&mut self) -> Found {
        let counters = self.activity.read();
        let has_ended = |pid: &i32| check_target(*pid).is_err();
        if counters.is_empty() || self.plan.look.pids.iter().all(has_ended) {
            return Found::Ended;
        }
        let has_run = |&(pid, tid): &(i32, i32)| counters.has_run(&self.last, pid, tid);
        // A thread that has not been on a CPU is where it was: it need not be read.
        let may_have_moved = self.training.is_empty()
            || self.training.iter().any(has_run)
            || counters.has_started(&self.last);
        if may_have_moved {
            let dump = match take_one(&self.quick) {
                Ok((dump, _)) => dump,
                // It is ending: the next look finds out.
                Err(_) => return Found::Nothing,
            };
            let marks = Marks::of(&dump);
            if marks != self.marks || marks.is_empty() || counters.has_started(&self.moved) {
                self.longest = self.longest.max(self.moved_at.elapsed());
                self.moved_at = Instant::now();
                self.before = Duration::ZERO;
                self.moved = counters.clone();
                self.half = None;
                self.marks = marks;
                self.is_suspected = false;
                if let Some(Judgement::Hang(_)) = self.told.take() {
                    messages::note("it goes on");
                }
            }
            self.remember(&dump);
        }
        self.last = counters;
        if self.half.is_none() && self.moved_at.elapsed() >= self.patience() / 2 {
            self.half = Some(self.last.clone());
            return Found::Nothing;
        }
        if self.moved_at.elapsed() < self.patience() {
            return Found::Nothing;
        }
        self.judge()
    }

    /// The shortest standstill that is judged: longer than steps take, and than those that ended by
    /// themselves.
    fn patience(&self) -> Duration {
        let steps = self.usual.median().mul_f64(self.plan.times);
        self.plan
            .after
            .max(steps)
            .max(self.longest.saturating_mul(2))
    }

    fn judge(&mut self) -> Found {
        // A judged standstill is judged again only if it was none: the wait behind it may change.
        if matches!(self.told, Some(Judgement::Hang(_))) {
            return Found::Nothing;
        }
        let Ok((dump, _)) = take_one(&self.plan.look) else {
            return Found::Nothing;
        };
        // It moves again, or its stacks were not read alike.
        if Marks::of(&dump) != self.marks {
            return Found::Nothing;
        }
        let judgement = judge(&dump, &self.since(&dump));
        // What ends just now is another thing in the snapshot than a moment later: a hang is one at
        // two looks in a row.
        let was_suspected = self.is_suspected;
        self.is_suspected = matches!(judgement, Judgement::Hang(_));
        if self.is_suspected && !was_suspected {
            return Found::Nothing;
        }
        let is_new = self.told.as_ref() != Some(&judgement);
        self.told = Some(judgement.clone());
        match judgement {
            Judgement::Hang(why) => Found::Hang(Hung::Here(Box::new(dump)), why),
            Judgement::Elsewhere(_) if self.plan.machines.is_some() => Found::Elsewhere,
            Judgement::Elsewhere(why) | Judgement::No(why) => {
                if is_new {
                    messages::note(&format!(
                        "nothing moved for {}, and it is no hang as far as can be told: {why}",
                        seconds(self.stood())
                    ));
                }
                Found::Nothing
            }
        }
    }

    /// The hang that the dumps of other machines show.
    fn told_of(&mut self, hung: Hung, why: String) -> Found {
        self.told = Some(Judgement::Hang(why.clone()));
        Found::Hang(hung, why)
    }

    /// What is known of the time since something moved, and of the sleeps in a dump.
    fn since(&self, dump: &Dump) -> Since {
        let others = dump
            .processes
            .iter()
            .filter(|each| each.role == Role::Other);
        let others: Vec<i32> = others.map(|process| process.pid).collect();
        let threads_in = |is_it: &dyn Fn(WaitKind) -> bool| {
            let all = dump.processes.iter().flat_map(|process| {
                let threads = process.threads.iter();
                threads.map(|thread| (process.pid, thread))
            });
            let sleeping = all.filter(|(_, thread)| {
                let wait = thread.wait.as_ref();
                wait.is_some_and(|wait| is_it(wait.kind))
            });
            sleeping
                .map(|(pid, thread)| (pid, thread.tid))
                .collect::<Vec<_>>()
        };
        let locks = threads_in(&|kind| kind == WaitKind::Lock);
        let reads = threads_in(&|kind| kind == WaitKind::Io);
        Since {
            busy: self.last.busy(&self.moved),
            ran: self.last.ran(self.half.as_ref().unwrap_or(&self.moved)),
            transfers: self.last.transfers(&self.moved),
            seen: self.ranks.clone(),
            timed: locks
                .into_iter()
                .filter(|&(pid, tid)| is_timed(pid, tid))
                .collect(),
            from_child: reads
                .into_iter()
                .filter(|&(pid, tid)| reads_from_child(pid, tid, &others))
                .collect(),
        }
    }

    /// Writes the dump of a hang, as far as that is possible: a command is run without one, too,
    /// since ending the job may be all that it does.
    pub(crate) fn report(&self, hung: &Hung, why: &str) -> Written {
        let length = seconds(self.stood());
        let text = format!(
            "HANG on {}, {}: no training thread moved for {length}. {why}\n\n{}",
            host_name(),
            utc_time(hung.wall_ns()),
            hung.text()
        );
        let written = self.write(hung, &text);
        let place = match &written.0 {
            Some(file) => format!("Its dump: {}", file.display()),
            None => "Its dump could not be written".to_owned(),
        };
        messages::note(&format!(
            "a hang: no training thread moved for {length}. {why}. {place}"
        ));
        written
    }

    /// Writes a dump as text and as JSON, and prints why where that fails.
    fn write(&self, hung: &Hung, text: &str) -> Written {
        let print = |failure: Failure| {
            messages::failure(&failure);
        };
        let Ok(text_file) = write_new(&self.name(hung), text).map_err(print) else {
            return (None, None);
        };
        let json_file = write_json(hung, text_file.with_extension("json")).map_err(print);
        (Some(text_file), json_file.ok())
    }

    /// The name of a dump, without its extension.
    fn name(&self, hung: &Hung) -> PathBuf {
        let pid = self.plan.look.pids.first().copied().unwrap_or(0);
        let default = || PathBuf::from(format!("torchspy-hang-{pid}-{}", utc(hung.wall_ns())));
        self.plan.output.clone().unwrap_or_else(default)
    }

    fn run_command(&self, command: &mut Command, why: &str, (text, json): &Written) {
        let pid = self.plan.look.pids.first().copied().unwrap_or(0);
        // Empty where there is no file.
        let absolute = |path: &Option<PathBuf>| {
            let path = path.as_deref().unwrap_or(Path::new(""));
            std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
        };
        let status = command
            .env("TORCHSPY_DUMP", absolute(text))
            .env("TORCHSPY_DUMP_JSON", absolute(json))
            .env("TORCHSPY_HANG", why)
            .env("TORCHSPY_PID", pid.to_string())
            .stdin(Stdio::null())
            .status();
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => messages::warning(&format!("--on-hang ended with {status}")),
            Err(error) => messages::warning(&format!("--on-hang could not be run: {error}")),
        }
    }
}

fn seconds(length: Duration) -> String {
    match length.as_secs() {
        0..120 => format!("{:.1} s", length.as_secs_f64()),
        whole => format!("{} min {} s", whole / 60, whole % 60),
    }
}

/// The usual time of a step, from the steps at each look.
#[derive(Debug, Default)]
struct UsualStep {
    last: Option<(Instant, u64)>,
    lengths: VecDeque<Duration>,
}

impl UsualStep {
    fn add(&mut self, now: Instant, steps: Option<u64>) {
        let Some(steps) = steps else {
            return;
        };
        if let Some((at, before)) = self.last
            && let Some(more) = steps.checked_sub(before).filter(|more| *more > 0)
        {
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            self.lengths
                .push_back(now.saturating_duration_since(at) / more);
            if self.lengths.len() > STEPS {
                self.lengths.pop_front();
            }
        } else if self.last.is_some_and(|(_, before)| before == steps) {
            // The time goes on until the next step.
            return;
        }
        self.last = Some((now, steps));
    }

    /// Zero while no step is known.
    fn median(&self) -> Duration {
        let mut all: Vec<Duration> = self.lengths.iter().copied().collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_step_is_a_median() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut usual = UsualStep::default();
        assert_eq!(usual.median(), Duration::ZERO);
        // Two steps a look, one look without any, then a restart.
        for (second, steps) in [
            (0, 10),
            (10, 12),
            (20, 14),
            (30, 14),
            (40, 16),
            (50, 3),
            (60, 5),
        ] {
            usual.add(at(second), Some(steps));
            usual.add(at(second), None);
        }
        assert_eq!(usual.lengths, [5, 5, 10, 5].map(Duration::from_secs));
        assert_eq!(usual.median(), Duration::from_secs(5));
    }
}
