//! How good the samples are, and what they cost the target.

use super::of_thread;
use crate::model::as_json::{counts, microseconds};
use crate::model::category::SummaryRow;
use crate::model::frame::Partial;
use crate::model::ids::{ProcessId, StackId, ThreadId};
use crate::model::profile::{Profile, ProfileSample};
use crate::model::sample::Capture;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Captures by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Captures {
    /// Sleeping threads that were read without a stop.
    pub asleep: u64,
    /// Ticks in which a thread had not run since its last capture, or had not moved.
    pub reused: u64,
    /// Threads that were stopped.
    pub stopped: u64,
    /// Ticks in which no stack was captured.
    pub unread: u64,
    /// Running threads that the kernel sampled, without a stop.
    pub sampled: u64,
    /// Running threads that were read without a stop.
    pub unstopped: u64,
}

/// Stop times.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Eq, Serialize)]
pub struct StopTimes {
    /// Median.
    #[serde(rename = "p50", serialize_with = "microseconds")]
    #[schemars(with = "f64")]
    pub p50_ns: u64,
    /// 99th percentile.
    #[serde(rename = "p99", serialize_with = "microseconds")]
    #[schemars(with = "f64")]
    pub p99_ns: u64,
    /// Longest.
    #[serde(rename = "max", serialize_with = "microseconds")]
    #[schemars(with = "f64")]
    pub max_ns: u64,
}

/// The sampler's figures.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
#[schemars(rename = "Quality")]
pub struct QualitySummary {
    /// Ticks per second that were carried out.
    pub rate_hz: f64,
    /// Requested rate.
    pub asked_hz: f64,
    /// Captures of training threads per second; null without such threads.
    pub training_hz: Option<f64>,
    /// Ticks carried out.
    pub ticks: u64,
    /// Ticks that began late.
    pub late_ticks: u64,
    /// Ticks that were skipped.
    pub missed_ticks: u64,
    /// Thread samples, in ticks.
    pub samples: u64,
    /// Captures that read a stack.
    pub fresh: u64,
    /// Captures by kind.
    #[schemars(with = "BTreeMap<String, u64>")]
    pub captures: Captures,
    /// Stops of threads.
    pub stops: u64,
    /// Lengths of stops, in microseconds.
    pub stop_us: StopTimes,
    /// Stopped time over the CPU time of all sampled threads.
    pub stopped_share: f64,
    /// Fresh captures that reach their root; null without native stacks.
    pub rooted_share: Option<f64>,
    /// Fresh captures of Python threads in which every native eval frame has its Python frames;
    /// null without any.
    pub merged_share: Option<f64>,
    /// Fresh captures that are truncated, by reason.
    #[serde(serialize_with = "counts")]
    #[schemars(with = "BTreeMap<String, u64>")]
    pub partial: Vec<(Partial, u64)>,
    /// Share of native frames that were found by a checked guess.
    pub guessed_frames: f64,
    /// Share of fresh captures with such a frame.
    pub guessed_stacks: f64,
    /// Share of the training threads' time that no rule classified.
    pub unclassified: f64,
    /// Stacks lost while recording.
    pub lost: u64,
    /// Captures skipped to stay within the budget.
    pub skipped_for_budget: u64,
    /// Captures skipped because an earlier stop request was still outstanding.
    pub skipped_for_late_stop: u64,
    /// Polls of training threads that were skipped because every CPU was busy and their processes
    /// took turns.
    pub skipped_for_turn: u64,
    /// Samples of the kernel whose Python frames had changed between a read just before and one
    /// just after it; the frames are those of the later read.
    pub python_later: u64,
    /// Samples that the kernel was asked for and did not take in time: the thread had left its CPU.
    pub samples_missed: u64,
    /// Samples that the kernel could not be asked for: it did not let torchspy sample the thread,
    /// or had nothing left for another event.
    pub samples_refused: u64,
    /// Stops that took longer than 2 ms; the thread was read after the other threads.
    pub stop_timeouts: u64,
    /// System calls that may have been ended early by a stop, with EINTR or a partial transfer; an
    /// upper bound, since they may have ended so by themselves.
    pub calls_cut_short: u64,
    /// Captures of running threads without a stop, and so without native frames, because a stop
    /// would have ended a system call early.
    pub calls_left_running: u64,
    /// Setuid and setgid programs that run without their privileges because their thread was traced
    /// when they began.
    pub privileges_lost: u64,
    /// torchspy's own CPU time, in cores.
    pub own_cpu: f64,
    /// torchspy's own wait for a CPU, as a share of the time.
    #[serde(skip)]
    pub own_queue: f64,
    /// Time in which the target's cgroup was throttled, ns.
    #[serde(skip)]
    pub throttled_ns: u64,
}

/// Reasons that concern the Python frames of a stack, not its native frames.
pub fn is_python_reason(partial: Partial) -> bool {
    matches!(
        partial,
        Partial::PythonUnreadable
            | Partial::MergeMismatch
            | Partial::UnknownPython
            | Partial::CodeGone
            | Partial::PythonPending
    )
}

/// Which kinds of frames a stack has, from its parent's and its own frame.
#[derive(Clone, Copy, Default)]
struct Shape {
    reasons: u32,
    python: bool,
    native: u32,
    guessed: u32,
}

fn bit(partial: Partial) -> u32 {
    1 << partial as u32
}

fn shapes(profile: &Profile) -> Vec<Shape> {
    let mut shapes: Vec<Shape> = Vec::with_capacity(profile.stacks.stacks().len());
    for &(parent, frame) in profile.stacks.stacks() {
        let mut shape = parent
            .and_then(|parent| shapes.get(parent.index()).copied())
            .unwrap_or_default();
        let frame = profile.stacks.frame(frame);
        if let Some(partial) = frame.partial {
            shape.reasons |= bit(partial);
        }
        if let Some(trust) = frame.trust {
            shape.native += 1;
            shape.guessed += u32::from(trust.is_guess());
        }
        shape.python |= profile
            .function(frame.function)
            .is_some_and(|function| function.is_python);
        shapes.push(shape);
    }
    shapes
}

/// Counts over fresh captures.
#[derive(Default)]
struct Counts {
    rooted: u64,
    python: u64,
    merged: u64,
    native: u64,
    guessed: u64,
    with_guess: u64,
    reasons: [u64; Partial::ALL.len()],
}

impl Counts {
    fn add(&mut self, shape: Option<Shape>, native: bool) {
        let Some(shape) = shape else {
            return;
        };
        let python_reasons: u32 = Partial::ALL
            .iter()
            .filter(|&&reason| is_python_reason(reason))
            .map(|&reason| bit(reason))
            .sum();
        self.rooted += u64::from(native && shape.reasons & !python_reasons == 0);
        let ill = shape.reasons & python_reasons != 0;
        self.python += u64::from(shape.python || ill);
        self.merged += u64::from(shape.python && !ill);
        self.native += u64::from(shape.native);
        self.guessed += u64::from(shape.guessed);
        self.with_guess += u64::from(shape.guessed > 0);
        for (count, &reason) in self.reasons.iter_mut().zip(Partial::ALL) {
            *count += u64::from(shape.reasons & bit(reason) != 0);
        }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| ratio(part, whole))
}

/// Summarizes the sampler's figures. `ranks` are the processes that train, with their training
/// threads: launchers and DataLoader workers, which mostly sleep, would hide what is missing there.
pub fn summarize(profile: &Profile, ranks: &[(ProcessId, ThreadId)]) -> QualitySummary {
    let shapes = shapes(profile);
    let shape = |stack: Option<StackId>| stack.and_then(|stack| shapes.get(stack.index()).copied());
    let mut counts = Counts::default();
    // A thread that may run is read without its registers: native frames are not expected.
    let mut native_reads = 0;
    let mut summary = QualitySummary::default();
    for sample in &profile.samples {
        let ticks = u64::from(sample.ticks);
        summary.samples += ticks;
        match sample.capture {
            Capture::Stopped => summary.captures.stopped += 1,
            Capture::Asleep => summary.captures.asleep += 1,
            Capture::Unstopped => summary.captures.unstopped += 1,
            Capture::Sampled => summary.captures.sampled += 1,
            Capture::Reused => summary.captures.reused += ticks,
            Capture::NotCaptured => summary.captures.unread += ticks,
        }
        if sample.capture.is_fresh() {
            summary.fresh += 1;
            let native = sample.capture != Capture::Unstopped;
            native_reads += u64::from(native);
            counts.add(shape(sample.stack), native);
        }
    }
    let quality = &profile.sideband.quality;
    let elapsed_ns = profile.recorded_ns();
    summary.asked_hz = profile.run.rate_hz;
    summary.ticks = quality.ticks;
    summary.late_ticks = quality.late_ticks;
    summary.missed_ticks = quality.missed_ticks;
    summary.rate_hz = ratio(quality.ticks, elapsed_ns) * 1e9;
    summary.training_hz = captured_ticks(profile, ranks).map(|share| share * summary.rate_hz);
    summary.stops = quality.stops.count();
    summary.stop_us = StopTimes {
        p50_ns: quality.stops.quantile_ns(0.5).unwrap_or(0),
        p99_ns: quality.stops.quantile_ns(0.99).unwrap_or(0),
        max_ns: quality.stops.max_ns(),
    };
    summary.stopped_share = ratio(quality.stops.total_ns(), quality.target_run_ns);
    summary.rooted_share = profile
        .run
        .native
        .then(|| share(counts.rooted, native_reads))
        .flatten();
    summary.merged_share = share(counts.merged, counts.python);
    summary.partial = Partial::ALL
        .iter()
        .zip(counts.reasons)
        .filter(|&(_, count)| count > 0)
        .map(|(&reason, count)| (reason, count))
        .collect();
    summary.guessed_frames = ratio(counts.guessed, counts.native);
    summary.guessed_stacks = ratio(counts.with_guess, summary.fresh);
    summary.unclassified = unclassified(profile, ranks);
    summary.lost = profile
        .sideband
        .losses
        .iter()
        .map(|loss| loss.samples)
        .sum();
    summary.skipped_for_budget = quality.skipped_for_budget;
    summary.stop_timeouts = quality.stop_timeouts;
    summary.skipped_for_late_stop = quality.skipped_for_late_stop;
    summary.skipped_for_turn = quality.skipped_for_turn;
    summary.python_later = quality.python_later;
    summary.samples_missed = quality.samples_missed;
    summary.samples_refused = quality.samples_refused;
    summary.calls_cut_short = quality.calls_cut_short;
    summary.calls_left_running = quality.calls_left_running;
    summary.privileges_lost = quality.privileges_lost;
    summary.own_cpu = ratio(quality.own_cpu_ns, elapsed_ns);
    summary.own_queue = ratio(quality.own_queue_ns, elapsed_ns);
    summary.throttled_ns = quality.throttled_ns;
    summary
}

fn training_samples<'p>(
    profile: &'p Profile,
    ranks: &[(ProcessId, ThreadId)],
) -> impl Iterator<Item = &'p ProfileSample> {
    let threads = ranks.iter().map(|&(_, thread)| thread);
    threads.flat_map(|thread| of_thread(profile, thread))
}

/// Share of the training threads' ticks in which their stacks were known, without ticks that a
/// later capture stands for.
fn captured_ticks(profile: &Profile, ranks: &[(ProcessId, ThreadId)]) -> Option<f64> {
    let (mut captured, mut all) = (0, 0);
    for sample in training_samples(profile, ranks) {
        let ticks = u64::from(sample.ticks);
        all += ticks;
        captured += match sample.capture {
            Capture::Reused => ticks,
            capture => u64::from(capture.is_fresh()).min(ticks),
        };
    }
    share(captured, all)
}

fn unclassified(profile: &Profile, ranks: &[(ProcessId, ThreadId)]) -> f64 {
    let mut all = 0_u64;
    let mut unknown = 0_u64;
    for sample in training_samples(profile, ranks) {
        all = all.saturating_add(sample.weight_ns);
        if sample.row == SummaryRow::Unclassified {
            unknown = unknown.saturating_add(sample.weight_ns.saturating_sub(sample.queue_ns));
        }
    }
    ratio(unknown, all)
}
