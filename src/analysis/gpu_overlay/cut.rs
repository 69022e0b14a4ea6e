//! Restricts a profile to idle windows, for flame graphs of the code that starves a device.

use super::windows::{Window, Windows};
use super::{idle_windows, served};
use crate::analysis::tracks;
use crate::model::ids::ProcessId;
use crate::model::profile::{Profile, ProfileSample};
use rustc_hash::FxHashMap;

/// A window counts as idle if no kernel ran for at least this share of it.
pub const IDLE_WINDOW: f64 = 0.9;

/// Number of windows that were kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Idle windows, of all devices.
    pub windows: usize,
    /// Windows, of all devices.
    pub of: usize,
}

/// Why no samples can be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NothingKept {
    /// No device with windows is known to be used by a sampled process.
    #[error(
        "this recording has no windows of GPU utilization of a GPU that a sampled process uses"
    )]
    NoWindows,
    /// No window is idle.
    #[error(
        "in none of the recording's {0} windows of GPU utilization was the GPU idle for 90 % or more"
    )]
    NoneIdle(usize),
    /// No sample is in them.
    #[error("nothing was sampled in the {0} windows in which the GPU was idle for 90 % or more")]
    NothingSampled(usize),
}

/// Keeps the parts of samples in `profile` that are in idle windows of the device of their process,
/// or of the trainer that their process loads data for. Samples of other processes are removed.
///
/// # Errors
/// [`NothingKept`]; the profile is then unchanged.
pub fn keep_idle(profile: &mut Profile) -> Result<Kept, NothingKept> {
    let windows = idle_windows(profile, &tracks::summarize(profile));
    if windows.is_empty() {
        return Err(NothingKept::NoWindows);
    }
    // A worker uses the windows of its trainer.
    let own = windows
        .iter()
        .filter(|(process, _)| served(profile, **process) == **process);
    let all = own.flat_map(|(_, windows)| windows.all());
    let kept = Kept {
        windows: all.clone().filter(|window| is_idle(window)).count(),
        of: all.count(),
    };
    if kept.windows == 0 {
        return Err(NothingKept::NoneIdle(kept.of));
    }
    let idle: FxHashMap<ProcessId, Vec<(u64, u64)>> = windows
        .iter()
        .map(|(&process, windows)| (process, intervals(windows)))
        .collect();
    let mut samples = Vec::new();
    for sample in &profile.samples {
        let thread = profile.thread(sample.thread);
        let Some(idle) = thread.and_then(|thread| idle.get(&thread.process)) else {
            continue;
        };
        let end_ns = sample.start_ns.saturating_add(sample.weight_ns);
        let first = idle.partition_point(|&(_, to_ns)| to_ns <= sample.start_ns);
        let own = idle.get(first..).unwrap_or_default().iter();
        for &(from_ns, to_ns) in own.take_while(|(from_ns, _)| *from_ns < end_ns) {
            let (from_ns, to_ns) = (from_ns.max(sample.start_ns), to_ns.min(end_ns));
            samples.push(part_of(sample, from_ns, to_ns));
        }
    }
    if samples.is_empty() {
        return Err(NothingKept::NothingSampled(kept.windows));
    }
    profile.samples = samples;
    Ok(kept)
}

fn is_idle(window: &Window) -> bool {
    window.amount >= IDLE_WINDOW * window.length_ns() as f64
}

/// Idle windows; successive ones are merged.
fn intervals(windows: &Windows) -> Vec<(u64, u64)> {
    let mut intervals: Vec<(u64, u64)> = Vec::new();
    for window in windows.all().iter().filter(|window| is_idle(window)) {
        match intervals.last_mut() {
            Some((_, to_ns)) if *to_ns == window.start_ns => *to_ns = window.end_ns,
            _ => intervals.push((window.start_ns, window.end_ns)),
        }
    }
    intervals
}

/// A tick counts on the side that has most of it.
fn part_of(sample: &ProfileSample, from_ns: u64, to_ns: u64) -> ProfileSample {
    let part = (to_ns - from_ns) as f64 / sample.weight_ns.max(1) as f64;
    ProfileSample {
        start_ns: from_ns,
        weight_ns: to_ns - from_ns,
        queue_ns: (sample.queue_ns as f64 * part) as u64,
        ticks: (f64::from(sample.ticks) * part).round() as u32,
        ..*sample
    }
}
