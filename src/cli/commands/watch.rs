//! `torchspy watch`: looks at a job every few seconds, and dumps it when it hangs.

use crate::analysis::dump::hang::{Judgement, Marks, Since, judge, steps, trainers};
use crate::analysis::dump::moved::Comparison;
use crate::analysis::dump::verdict::training_thread;
use crate::cli::dump_plan::LookPlan;
use crate::cli::dump_snapshot::{check_target, take_one};
use crate::cli::failure::Failure;
use crate::cli::pause::{interruptible, is_interrupted};
use crate::cli::watch_plan::WatchPlan;
use crate::cli::{hints, messages};
use crate::model::dump::Dump;
use crate::os::host::host_name;
use crate::os::job_activity::{JobActivity, JobCounters};
use crate::report::dump::json::{render_snapshot, render_snapshots};
use crate::report::dump::text::render_dump;
use crate::report::label::counted;
use crate::report::naming::utc;
use crate::sampling::session::SessionError;
use rustc_hash::FxHashSet;
use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Steps whose median is the usual time of one.
const STEPS: usize = 64;
/// Dumps of one run that are kept apart by a number.
const MAX_DUMPS: u32 = 1000;

pub(crate) fn run(plan: &WatchPlan) -> Result<ExitCode, Failure> {
    let signals = interruptible()?;
    for &pid in &plan.look.pids {
        check_target(pid)?;
    }
    let mut watch = Watch::new(plan.clone())?;
    messages::note(&format!(
        "watching {}: a hang is {} without a step or a move, and longer than {} usual steps",
        counted(watch.marks.len() as u64, "trainer"),
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
        let found = watch.look()?;
        if let Found::Hang(dump, why) = &found {
            watch.report(dump, why)?;
        }
        match found {
            Found::Ended => {
                messages::note("the job has ended");
                break;
            }
            Found::Hang(..) if plan.once => return Ok(ExitCode::from(1)),
            Found::Hang(..) | Found::Nothing => {}
        }
        // After a look that took long the next one is not made up for.
        due = (due + plan.every).max(Instant::now());
    }
    Ok(ExitCode::SUCCESS)
}

/// The result of a look.
pub(crate) enum Found {
    Nothing,
    /// What the job does, and why that is a hang: found once.
    Hang(Box<Dump>, String),
    /// There is no process any more.
    Ended,
}

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
    /// The counters when half the time had passed for which a standstill must last.
    half: Option<JobCounters>,
    /// The longest time without a move that ended by itself.
    longest: Duration,
    usual: UsualStep,
    ranks: FxHashSet<u32>,
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
            half: None,
            longest: Duration::ZERO,
            usual: UsualStep::default(),
            ranks: FxHashSet::default(),
            told: None,
        };
        watch.remember(&dump);
        Ok(watch)
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
    ///
    /// # Errors
    /// A snapshot fails for a reason of torchspy's own.
    pub(crate) fn look(&mut self) -> Result<Found, Failure> {
        let counters = self.activity.read();
        let has_ended = |pid: &i32| check_target(*pid).is_err();
        if counters.is_empty() || self.plan.look.pids.iter().all(has_ended) {
            return Ok(Found::Ended);
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
                Err(_) => return Ok(Found::Nothing),
            };
            let marks = Marks::of(&dump);
            if marks != self.marks || marks.is_empty() || counters.has_started(&self.moved) {
                self.longest = self.longest.max(self.moved_at.elapsed());
                self.moved_at = Instant::now();
                self.moved = counters.clone();
                self.half = None;
                self.marks = marks;
                if let Some(Judgement::Hang(_)) = self.told.take() {
                    messages::note("it goes on");
                }
            }
            self.remember(&dump);
        }
        self.last = counters;
        if self.half.is_none() && self.moved_at.elapsed() >= self.patience() / 2 {
            self.half = Some(self.last.clone());
            return Ok(Found::Nothing);
        }
        if self.moved_at.elapsed() < self.patience() {
            return Ok(Found::Nothing);
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

    fn judge(&mut self) -> Result<Found, Failure> {
        // A judged standstill is judged again only if it was none: the wait behind it may change.
        if matches!(self.told, Some(Judgement::Hang(_))) {
            return Ok(Found::Nothing);
        }
        let since = Since {
            busy: self.last.busy(&self.moved),
            ran: self.last.ran(self.half.as_ref().unwrap_or(&self.moved)),
            transfers: self.last.transfers(&self.moved),
            seen: self.ranks.clone(),
        };
        let Ok((dump, _)) = take_one(&self.plan.look) else {
            return Ok(Found::Nothing);
        };
        // It moves again, or its stacks were not read alike.
        if Marks::of(&dump) != self.marks {
            return Ok(Found::Nothing);
        }
        let judgement = judge(&dump, &since);
        let is_new = self.told.as_ref() != Some(&judgement);
        self.told = Some(judgement.clone());
        match judgement {
            Judgement::Hang(why) => Ok(Found::Hang(Box::new(dump), why)),
            Judgement::No(why) => {
                if is_new {
                    messages::note(&format!(
                        "nothing moved for {}, and it is no hang as far as can be told: {why}",
                        seconds(self.moved_at.elapsed())
                    ));
                }
                Ok(Found::Nothing)
            }
        }
    }

    /// Writes the dump of a hang, and runs the user's command.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn report(&self, dump: &Dump, why: &str) -> Result<(), Failure> {
        let length = seconds(self.moved_at.elapsed());
        let text = format!(
            "HANG: no training thread moved for {length}. {why}\n\n{}",
            render_dump(dump)
        );
        let json = render_snapshots(
            &host_name(),
            &[render_snapshot(dump)],
            &Comparison::default(),
        );
        let mut json = json.map_err(Failure::new)?;
        json.push('\n');
        let text_file = write_new(&self.name(dump), "txt", &text)?;
        let json_file = text_file.with_extension("json");
        std::fs::write(&json_file, json).map_err(|error| not_written(&json_file, &error))?;
        messages::note(&format!(
            "a hang: no training thread moved for {length}. {why}. Its dump: {}",
            text_file.display()
        ));
        if let Some(command) = &self.plan.on_hang {
            self.run_command(command, why, &text_file, &json_file);
        }
        Ok(())
    }

    /// The name of a dump, without its extension.
    fn name(&self, dump: &Dump) -> PathBuf {
        let pid = self.plan.look.pids.first().copied().unwrap_or(0);
        let default = || PathBuf::from(format!("torchspy-hang-{pid}-{}", utc(dump.wall_ns)));
        self.plan.output.clone().unwrap_or_else(default)
    }

    fn run_command(&self, command: &str, why: &str, text: &Path, json: &Path) {
        let pid = self.plan.look.pids.first().copied().unwrap_or(0);
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let status = Command::new("sh")
            .args(["-c", command])
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

/// Writes a file with a name that is not taken; returns its path.
fn write_new(name: &Path, extension: &str, text: &str) -> Result<PathBuf, Failure> {
    for number in 1..MAX_DUMPS {
        let mut path = name.as_os_str().to_owned();
        if number > 1 {
            path.push(format!("-{number}"));
        }
        path.push(format!(".{extension}"));
        let path = PathBuf::from(path);
        match std::fs::File::create_new(&path) {
            Ok(mut file) => {
                file.write_all(text.as_bytes())
                    .map_err(|error| not_written(&path, &error))?;
                return Ok(path);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(not_written(&path, &error)),
        }
    }
    Err(Failure::message(format!(
        "{} has {MAX_DUMPS} dumps",
        name.display()
    )))
}

fn not_written(path: &Path, error: &std::io::Error) -> Failure {
    Failure::message(format!("cannot write {}: {error}", path.display()))
        .hint("-o NAME puts the dump elsewhere")
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
