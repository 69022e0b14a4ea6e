//! A trace of torch.profiler beside the recording of the same process: what the host's samples show
//! while a device was idle.
//!
//! Kineto writes CLOCK_REALTIME: `baseTimeNanoseconds` plus the time of an event. A recording has
//! pairs of that clock and its own.

use super::of_thread;
use crate::model::category::Phase;
use crate::model::facts::Line;
use crate::model::ids::{ProcessId, ThreadId};
use crate::model::process::ThreadInfo;
use crate::model::profile::{Profile, Role};
use crate::model::progress::facts;
use crate::trace::kept::Kept;
use crate::trace::{IdleThread, TraceSummary};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A trace, and how it relates to the recording.
#[derive(Clone, Debug)]
pub struct Traced {
    pub trace: TraceSummary,
    /// The traced process, and what its samples add; else why they add nothing.
    pub joined: Result<Joined, NotJoined>,
}

/// What `record --trace` kept of torch.profiler's window.
#[derive(Clone, Debug, Default)]
pub struct InRecording {
    /// The trace of the first rank, or of the one that was asked for.
    pub traced: Option<Traced>,
    /// Ranks of all processes that have one; `None` for what is no rank.
    pub ranks: Vec<Option<u32>>,
    /// Processes without one, and why.
    pub without: Vec<(ProcessId, String)>,
}

/// Why a trace is reported alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotJoined {
    /// No process of the recording has its pid or rank.
    OtherProcess,
    /// The recording has no sample of that time.
    OtherTime,
}

impl NotJoined {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Self::OtherProcess => "none of its processes has the trace's pid or rank",
            Self::OtherTime => "it has no samples of the traced time",
        }
    }
}

/// What both have of the same process at the same time.
#[derive(Clone, Debug)]
pub struct Joined {
    pub process: ProcessId,
    /// The time that both have, CLOCK_MONOTONIC.
    pub window: (u64, u64),
    /// Idle time of devices before the end of the next launch, within `window`.
    pub idle_ns: u64,
    /// The part of `idle_ns` of which there are samples, by the phase and the line that the
    /// launching thread was at, by descending time.
    pub at: Vec<(Phase, Option<Line>, u64)>,
}

/// Relates a trace to a recording.
pub fn traced(profile: &Profile, trace: TraceSummary) -> Traced {
    let joined = join(profile, &trace);
    Traced { trace, joined }
}

/// Finds what the recording itself has, of one rank or of the first.
pub fn in_recording(profile: &Profile, of: Option<u32>) -> InRecording {
    let mut traces = Vec::new();
    let mut found = InRecording::default();
    for condition in &profile.sideband.conditions {
        if condition.name != facts::TORCH_TRACE {
            continue;
        }
        match Kept::parse(&condition.value).map(|kept| kept.result) {
            Some(Ok(trace)) => traces.push((condition.process, *trace)),
            Some(Err(why)) => found.without.push((condition.process, why)),
            None => {
                let why = "what the recording has of it cannot be read";
                found.without.push((condition.process, why.to_owned()));
            }
        }
    }
    let rank = |id: ProcessId| profile.process(id).and_then(|process| process.role.rank());
    traces.sort_by_key(|(process, _)| (rank(*process).unwrap_or(u32::MAX), *process));
    found.ranks = traces.iter().map(|(process, _)| rank(*process)).collect();
    let mut wanted = traces
        .into_iter()
        .filter(|(process, _)| of.is_none() || rank(*process) == of);
    found.traced = wanted.next().map(|(_, trace)| traced(profile, trace));
    found
}

fn join(profile: &Profile, trace: &TraceSummary) -> Result<Joined, NotJoined> {
    let (process, window) = place(profile, trace)?;
    let at = |ns: u64| time_in_recording(profile, trace, ns);
    let mut sums: BTreeMap<(Phase, Option<Line>), u64> = BTreeMap::new();
    let mut idle_ns = 0_u64;
    for thread in &trace.idle_threads {
        let gaps = thread.gaps.iter().filter_map(|&(from, to)| {
            let gap = (at(from)?.max(window.0), at(to)?.min(window.1));
            (gap.0 < gap.1).then_some(gap)
        });
        let gaps: Vec<(u64, u64)> = gaps.collect();
        let lengths = gaps.iter().map(|(from, to)| to - from);
        idle_ns = lengths.fold(idle_ns, u64::saturating_add);
        if let Some(thread) = sampled_thread(profile, process, thread) {
            add_samples(profile, thread, &gaps, &mut sums);
        }
    }
    let mut at: Vec<(Phase, Option<Line>, u64)> = sums
        .into_iter()
        .map(|((phase, line), ns)| (phase, line, ns))
        .collect();
    at.sort_by_key(|&(.., ns)| Reverse(ns));
    Ok(Joined {
        process,
        window,
        idle_ns,
        at,
    })
}

/// The traced process, and the time that both have, CLOCK_MONOTONIC.
///
/// # Errors
/// If the recording has not that process, or not that time.
pub fn place(
    profile: &Profile,
    trace: &TraceSummary,
) -> Result<(ProcessId, (u64, u64)), NotJoined> {
    let process = process(profile, trace).ok_or(NotJoined::OtherProcess)?;
    let at = |ns: u64| time_in_recording(profile, trace, ns);
    let bounds = at(trace.window.0).zip(at(trace.window.1));
    let (start, end) = bounds.ok_or(NotJoined::OtherTime)?;
    let window = (start.max(profile.start_ns), end.min(profile.end_ns));
    match window.0 < window.1 {
        true => Ok((process, window)),
        false => Err(NotJoined::OtherTime),
    }
}

/// The process with the trace's pid; in a container pids differ: then the one with its rank.
fn process(profile: &Profile, trace: &TraceSummary) -> Option<ProcessId> {
    let all = || profile.processes.iter().enumerate();
    let id = |(index, _)| ProcessId::from_index(index);
    let pid = trace.head.pid.and_then(|pid| i32::try_from(pid).ok());
    let by_pid = all().find(|(_, process)| Some(process.info.pid) == pid);
    let rank = trace.head.rank.and_then(|rank| u32::try_from(rank).ok());
    let is_rank = |role: Role| rank.is_some() && role.rank() == rank;
    let by_rank = || all().find(|(_, process)| is_rank(process.role));
    by_pid.or_else(by_rank).map(id)
}

/// The thread that launched, or else the training thread.
fn sampled_thread(profile: &Profile, process: ProcessId, thread: &IdleThread) -> Option<ThreadId> {
    let mut threads = profile.threads.iter();
    let is_it = |other: &ThreadInfo| {
        other.process == process && u64::try_from(other.tid).ok() == thread.tid
    };
    let found = threads.position(is_it);
    let found = found.map(ThreadId::from_index);
    found.or(profile.process(process)?.training_thread)
}

fn add_samples(
    profile: &Profile,
    thread: ThreadId,
    gaps: &[(u64, u64)],
    sums: &mut BTreeMap<(Phase, Option<Line>), u64>,
) {
    let mut gaps = gaps.iter().peekable();
    for sample in of_thread(profile, thread) {
        let (start, end) = (sample.start_ns, sample.start_ns + sample.weight_ns);
        while let Some(&&(from, to)) = gaps.peek() {
            let common = to.min(end).saturating_sub(from.max(start));
            if common > 0 {
                let line = profile.facts.line(sample.stack);
                *sums.entry((sample.phase, line)).or_default() += common;
            }
            if to > end {
                break;
            }
            gaps.next();
        }
    }
}

/// CLOCK_MONOTONIC at a time of the trace's events.
pub fn time_in_recording(profile: &Profile, trace: &TraceSummary, ns: u64) -> Option<u64> {
    profile.monotonic_ns(trace.head.base_ns.checked_add(ns)?)
}
