//! Restricts a profile to some of its steps, or to an interval of time.

use super::{series, timed_steps};
use crate::analysis::summary;
use crate::model::ids::{ProcessId, TrackId};
use crate::model::profile::{Profile, ProfileSample};
use crate::model::progress::LeftOutStep;
use crate::model::sample::ThreadState;
use crate::model::track::{CounterTracks, TrackPoint};
use rustc_hash::FxHashMap;

/// Steps of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepRange {
    /// Number of steps to skip at the start.
    pub skip: u64,
    /// Maximum number of steps after those; `None` for all.
    pub count: Option<u64>,
}

/// Why the steps cannot be selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// No counter of steps was read.
    #[error("no steps were counted in this recording: nothing to skip")]
    NoSteps,
    /// The recording has only this many steps.
    #[error("the recording has only {0} step{s}", s = if *.0 == 1 { "" } else { "s" })]
    TooFew(u64),
    /// No sample lies in the interval.
    #[error("nothing was sampled in this interval: the recording lasts {:.3} s", *.0 as f64 / 1e9)]
    Empty(u64),
}

/// Restricts `profile` to `range` of the steps of its first trainer: samples of all threads are cut
/// at the start of the first and the end of the last of these steps. Returns the numbers of both.
///
/// # Errors
/// [`WindowError`]; the profile is then unchanged.
pub fn restrict(profile: &mut Profile, range: StepRange) -> Result<(u64, u64), WindowError> {
    let processes = summary::summarize(profile);
    let primary = summary::primary(&processes).and_then(|at| processes.get(at));
    let process = primary.ok_or(WindowError::NoSteps)?.process;
    let counted = series::count(profile, process).ok_or(WindowError::NoSteps)?;
    if range.skip >= counted.steps {
        return Err(WindowError::TooFew(counted.steps));
    }
    let mut number = counted.earlier;
    let mut start = (range.skip == 0).then_some((profile.start_ns, 0));
    let mut end = None;
    for ended in &counted.ended {
        number = number.saturating_add(ended.count);
        match start {
            None if number >= range.skip => start = Some((ended.before_ns, number)),
            Some((_, skipped)) => {
                let wanted = range.count.map(|count| skipped.saturating_add(count));
                if wanted.is_none_or(|wanted| number <= wanted) || end.is_none() {
                    end = Some((ended.before_ns, number));
                }
            }
            None => {}
        }
    }
    let (Some((start_ns, skipped)), Some((end_ns, last))) = (start, end) else {
        return Err(WindowError::TooFew(counted.steps));
    };
    let end_ns = match range.count {
        Some(_) => end_ns,
        None => profile.end_ns,
    };
    cut(profile, start_ns, end_ns);
    Ok((skipped + 1, last))
}

/// Restricts `profile` to an interval, ns since its start: samples of all threads are cut at both
/// ends. `to_ns` may lie behind its end.
///
/// # Errors
/// [`WindowError`]; the profile is then unchanged.
pub fn restrict_to(profile: &mut Profile, from_ns: u64, to_ns: u64) -> Result<(), WindowError> {
    let start_ns = profile.start_ns.saturating_add(from_ns);
    let end_ns = profile.start_ns.saturating_add(to_ns).min(profile.end_ns);
    let lies_in = |sample: &ProfileSample| {
        let sample_end_ns = sample.start_ns.saturating_add(sample.weight_ns);
        sample.start_ns.max(start_ns) < sample_end_ns.min(end_ns)
    };
    if !profile.samples.iter().any(lies_in) {
        let length_ns = profile.end_ns.saturating_sub(profile.start_ns);
        return Err(WindowError::Empty(length_ns));
    }
    cut(profile, start_ns, end_ns);
    Ok(())
}

fn cut(profile: &mut Profile, start_ns: u64, end_ns: u64) {
    if profile.whole_ns.is_none() {
        profile.left_out_steps = left_out_steps(profile);
        profile.step_changes = series::all_changes(profile);
    }
    let before = running_ns(profile);
    profile.samples.retain_mut(|sample| {
        let sample_end = sample.start_ns.saturating_add(sample.weight_ns);
        let (from, to) = (sample.start_ns.max(start_ns), sample_end.min(end_ns));
        if from >= to {
            return false;
        }
        let part = (to - from) as f64 / sample.weight_ns.max(1) as f64;
        sample.ticks = ((f64::from(sample.ticks) * part).round() as u32).max(1);
        sample.queue_ns = (sample.queue_ns as f64 * part) as u64;
        (sample.start_ns, sample.weight_ns) = (from, to - from);
        true
    });
    let after = running_ns(profile);
    for ((cpu_ns, before), after) in profile.thread_cpu_ns.iter_mut().zip(before).zip(after) {
        *cpu_ns = (*cpu_ns as f64 * (after as f64 / before.max(1) as f64)) as u64;
    }
    for thread in &mut profile.threads {
        thread.first_seen_ns = thread.first_seen_ns.max(start_ns);
        thread.last_seen_ns = thread.last_seen_ns.min(end_ns);
    }
    profile.whole_ns = profile
        .whole_ns
        .or(Some((profile.start_ns, profile.end_ns)));
    profile.start_ns = profile.start_ns.max(start_ns);
    profile.end_ns = profile.end_ns.min(end_ns);
    // The last value before the window is the first value in it.
    let mut before: Vec<Option<usize>> = vec![None; profile.counters.len()];
    for (index, point) in profile.sideband.points.iter().enumerate() {
        if point.time_ns <= start_ns
            && let Some(last) = before.get_mut(point.counter.index())
        {
            *last = Some(index);
        }
    }
    let mut index = 0;
    profile.sideband.points.retain(|point| {
        let is_last_before = before.get(point.counter.index()) == Some(&Some(index));
        index += 1;
        is_last_before || (start_ns < point.time_ns && point.time_ns <= end_ns)
    });
    cut_tracks(profile, start_ns, end_ns);
}

/// Leaves the points of counter tracks that are of the interval; of levels the last one before it,
/// too, which holds until the next.
fn cut_tracks(profile: &mut Profile, start_ns: u64, end_ns: u64) {
    let CounterTracks { tracks, points, .. } = &mut profile.sideband.tracks;
    let is_level = |point: &TrackPoint| {
        let info = tracks.get(point.track.index());
        info.is_some_and(|info| info.kind.is_level())
    };
    let mut last_before: FxHashMap<TrackId, usize> = FxHashMap::default();
    for (index, point) in points.iter().enumerate() {
        if point.end_ns <= start_ns && is_level(point) {
            last_before.insert(point.track, index);
        }
    }
    let mut index = 0;
    points.retain(|point| {
        let is_last_before = last_before.get(&point.track) == Some(&index);
        index += 1;
        // A level is that of the end of its window.
        let is_within = match is_level(point) || point.start_ns == point.end_ns {
            true => (start_ns..=end_ns).contains(&point.end_ns),
            false => point.start_ns < end_ns && start_ns < point.end_ns,
        };
        is_last_before || is_within
    });
}

/// Steps of a complete recording whose lengths means leave out, by process and start.
fn left_out_steps(profile: &Profile) -> Vec<LeftOutStep> {
    let processes = (0..profile.processes.len()).map(ProcessId::from_index);
    let of = |process: ProcessId| {
        let steps = timed_steps(profile, process).into_iter();
        steps.filter_map(move |(step, why)| {
            Some(LeftOutStep {
                process,
                start_ns: step.start_ns,
                end_ns: step.end_ns,
                why: why?,
            })
        })
    };
    processes.flat_map(of).collect()
}

/// Sampled time on a CPU, by thread: exact CPU time is known for the complete recording only.
fn running_ns(profile: &Profile) -> Vec<u64> {
    let mut sums = vec![0_u64; profile.thread_cpu_ns.len()];
    let samples = profile.samples.iter();
    for sample in samples.filter(|sample| sample.state == ThreadState::Running) {
        if let Some(sum) = sums.get_mut(sample.thread.index()) {
            *sum = sum.saturating_add(sample.weight_ns.saturating_sub(sample.queue_ns));
        }
    }
    sums
}
