//! Launches that wait for room in the device's queue while they spin.
//!
//! A launch queue holds a limited number of kernels (1,024 on many devices). When it is full, a
//! launch returns when the device has taken a kernel. A thread that sleeps meanwhile is seen to
//! wait; one that spins looks like one that launches. But a launch takes a few microseconds, and
//! what torch does for it several times as long. So where the device has hardly any spare time, a
//! thread that launches for as long as all its other work takes has launches that
//! wait, unless it waits for the device in another way for longer. It is an inference, and its
//! label says so. The launches' own work, a small part, is among it.

use super::gpu_overlay::device_of;
use super::tracks::{self, spans, summarize};
use crate::model::category::{Activity, SummaryRow};
use crate::model::facts::Wait;
use crate::model::ids::{ProcessId, ThreadId};
use crate::model::profile::{Profile, ProfileSample};
use crate::model::track::TrackKind;
use crate::model::wait::WaitKind;
use std::ops::Range;

/// Share of the time in which kernels ran, from which on a device has hardly any spare time. A
/// queue that was full still drains for a moment at the ends of steps.
const SATURATED: f64 = 0.9;
/// Launches by other work. Of GPT on the simulated node it is 0.13 where nothing waits, and 4.4
/// where the queue is full for a part of each step.
const TIMES: f64 = 1.0;
/// Fewer samples in an interval show nothing.
const FEWEST: usize = 20;
/// Stretches with a shorter gap are judged together, ns: on a busy machine single windows fall
/// below the limit, and what is left between them is too short to be judged by itself.
const NEAR_NS: u64 = 2_000_000_000;
/// What such launches wait for.
const LABEL: &str = "room in the launch queue (inferred)";

/// Turns launches that surely wait into waits for the device. Profiles without utilization remain
/// as they are.
pub fn mark(profile: &mut Profile) {
    let tracks = summarize(profile);
    let mut found: Vec<usize> = Vec::new();
    for index in 0..profile.processes.len() {
        let process = ProcessId::from_index(index);
        let stretches = saturated(profile, &tracks, process);
        if stretches.is_empty() {
            continue;
        }
        let of_process = |thread: &ThreadId| {
            let info = profile.thread(*thread);
            info.is_some_and(|info| info.process == process)
        };
        let threads = (0..profile.threads.len()).map(ThreadId::from_index);
        for thread in threads.filter(of_process) {
            let near = |one: &Range<u64>, next: &Range<u64>| next.start - one.end <= NEAR_NS;
            for stretches in stretches.chunk_by(near) {
                found.extend(waiting(profile, thread, stretches));
            }
        }
    }
    if found.is_empty() {
        return;
    }
    let wait = Wait {
        kind: WaitKind::GpuSync,
        label: profile.facts.names.intern(LABEL),
    };
    for index in found {
        if let Some(sample) = profile.samples.get_mut(index) {
            sample.activity = Activity::GpuSync;
            sample.row = SummaryRow::GpuWait;
            sample.wait = Some(wait);
        }
    }
}

/// The times in which the device of a process had hardly any spare time.
fn saturated(
    profile: &Profile,
    tracks: &tracks::TrackSummary,
    process: ProcessId,
) -> Vec<Range<u64>> {
    let utilization = device_of(tracks, process)
        .ok()
        .and_then(|device| device.figure(TrackKind::Utilization));
    let all = utilization.map_or(Vec::new(), |figure| spans(profile, figure.track));
    let mut stretches: Vec<Range<u64>> = Vec::new();
    for span in all.iter().filter(|span| span.value >= SATURATED) {
        match stretches.last_mut() {
            Some(last) if last.end >= span.start_ns => last.end = span.end_ns,
            _ => stretches.push(span.start_ns..span.end_ns),
        }
    }
    stretches
}

/// A launch that was not seen to wait; of a thread that waits for the backward engine, the
/// engine's.
fn launches(sample: &ProfileSample) -> bool {
    sample.activity == Activity::GpuLaunch && sample.wait.is_none()
}

/// A thread's samples within a stretch, with their indices.
fn within<'p>(
    profile: &'p Profile,
    thread: ThreadId,
    stretch: &Range<u64>,
) -> impl Iterator<Item = (usize, &'p ProfileSample)> + use<'p> {
    let from = profile
        .samples
        .partition_point(|sample| (sample.thread, sample.start_ns) < (thread, stretch.start));
    let end = stretch.end;
    let rest = profile.samples.get(from..).unwrap_or_default().iter();
    (from..).zip(rest).take_while(move |(_, sample)| {
        sample.thread == thread && sample.start_ns.saturating_add(sample.weight_ns) <= end
    })
}

/// The samples of a thread within stretches that launch, if they wait.
fn waiting(profile: &Profile, thread: ThreadId, stretches: &[Range<u64>]) -> Vec<usize> {
    let (mut launch_ns, mut other_ns, mut waits_ns) = (0_u64, 0_u64, 0_u64);
    let mut found = Vec::new();
    let samples = stretches
        .iter()
        .flat_map(|stretch| within(profile, thread, stretch));
    for (index, sample) in samples {
        let ns = sample.weight_ns.saturating_sub(sample.queue_ns);
        let sum = match sample.wait {
            _ if launches(sample) => {
                found.push(index);
                &mut launch_ns
            }
            Some(wait) if wait.kind.is_for_earlier_work() => &mut waits_ns,
            Some(_) => continue,
            None => &mut other_ns,
        };
        *sum = sum.saturating_add(ns);
    }
    let is_full = found.len() >= FEWEST
        && launch_ns as f64 >= TIMES * other_ns as f64
        && launch_ns >= waits_ns;
    if !is_full {
        found.clear();
    }
    found
}
