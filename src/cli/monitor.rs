//! What a recorder that waits for slow steps or an idle GPU looks at: a few reads a second, without
//! a stop and without native frames.

use super::commands::live_sink::LiveSink;
use super::failure::Failure;
use super::hints;
use crate::analysis::progress::onset::Onset;
use crate::model::progress::CounterKind;
use crate::model::run::RunInfo;
use crate::model::segment::Segment;
use crate::model::track::{SHARE_ONE, TrackKind};
use crate::sampling::session::{Session, SessionOptions};
use crossbeam_channel::Receiver;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::time::Duration;

/// Reads a second: a step that ends between two is known to a fifth of a second, of windows of 5 s.
const RATE_HZ: f64 = 5.0;
const SEGMENT: Duration = Duration::from_secs(1);
/// Time over which the GPUs' utilization is averaged, ns.
const GPU_WINDOW_NS: u64 = 30_000_000_000;
/// A few segments may be missing at an end of it.
const GPU_SEEN_NS: u64 = 25_000_000_000;

/// What is worth a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Conditions {
    /// Steps that are slower than their median by so many deviations.
    pub(crate) slow: Option<f64>,
    /// A mean utilization of the GPUs below this share, 0 to 1.
    pub(crate) gpu_below: Option<f64>,
}

impl Conditions {
    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// In words, for who waits for them.
    pub(crate) fn words(self) -> Vec<String> {
        let slow = self
            .slow
            .map(|limit| format!("steps slower than their median by {limit} deviations"));
        let gpu = self
            .gpu_below
            .map(|share| format!("GPU utilization below {} %", share * 100.0));
        slow.into_iter().chain(gpu).collect()
    }
}

/// A process, watched.
pub(super) struct Monitor {
    conditions: Conditions,
    session: Option<Session>,
    segments: Receiver<Segment>,
    /// By pid, number and kind of a counter.
    onsets: FxHashMap<(i32, u32, CounterKind), Onset>,
    /// Windows of utilization: end, length and share.
    utilization: VecDeque<(u64, u64, f64)>,
    is_idle: bool,
}

impl Monitor {
    /// Begins to watch.
    pub(super) fn start(
        run: &RunInfo,
        options: &SessionOptions,
        conditions: Conditions,
    ) -> Result<Self, Failure> {
        let (session, segments) = begin(run, options)?;
        Ok(Self {
            conditions,
            session: Some(session),
            segments,
            onsets: FxHashMap::default(),
            utilization: VecDeque::new(),
            is_idle: false,
        })
    }

    /// Whether a recording has stopped it.
    pub(super) fn is_stopped(&self) -> bool {
        self.session.is_none()
    }

    /// Goes on after a recording. What was learnt of steps is kept.
    pub(super) fn go_on(&mut self, run: &RunInfo, options: &SessionOptions) -> Result<(), Failure> {
        let (session, segments) = begin(run, options)?;
        self.session = Some(session);
        self.segments = segments;
        self.onsets.values_mut().for_each(Onset::interrupt);
        self.utilization.clear();
        Ok(())
    }

    /// Leaves the process alone, while it is recorded.
    pub(super) fn stop(&mut self) {
        if let Some(session) = self.session.take() {
            // What it read is of no more use.
            let _ = session.stop();
        }
    }

    /// What has happened since the last call that is worth a recording.
    pub(super) fn poll(&mut self) -> Option<String> {
        let segments: Vec<Segment> = self.segments.try_iter().collect();
        let reasons = segments.iter().filter_map(|segment| {
            let steps = self.take_steps(segment);
            let gpu = self.take_utilization(segment);
            steps.or(gpu)
        });
        // Each segment is looked at.
        reasons.collect::<Vec<String>>().into_iter().next()
    }

    fn take_steps(&mut self, segment: &Segment) -> Option<String> {
        let deviations = self.conditions.slow?;
        let mut slow = None;
        for point in &segment.sideband.points {
            let info = segment.tables.counters.get(point.counter.index());
            let key = info.and_then(|info| {
                let process = segment.tables.processes.get(info.process.index())?;
                Some((process.pid, info.number, info.kind))
            });
            if let Some(key) = key.filter(|(_, _, kind)| kind.counts_steps()) {
                let onset = self.onsets.entry(key).or_default();
                slow = slow.or(onset.add(point.time_ns, point.value, deviations));
            }
        }
        for onset in self.onsets.values_mut() {
            slow = slow.or(onset.wait(segment.end_ns, deviations));
        }
        slow.map(|slow| format!("steps took {:.2} times as long as usual", slow.ratio))
    }

    fn take_utilization(&mut self, segment: &Segment) -> Option<String> {
        let below = self.conditions.gpu_below?;
        let tracks = &segment.sideband.tracks;
        for point in &tracks.points {
            let track = tracks.tracks.get(point.track.index());
            let is_one = track.is_some_and(|track| track.kind == TrackKind::Utilization);
            if is_one && point.end_ns > point.start_ns {
                let share = point.value.min(SHARE_ONE) as f64 / SHARE_ONE as f64;
                let window = (point.end_ns, point.end_ns - point.start_ns, share);
                self.utilization.push_back(window);
            }
        }
        let from_ns = segment.end_ns.saturating_sub(GPU_WINDOW_NS);
        self.utilization.retain(|(end_ns, ..)| *end_ns > from_ns);
        let first = self.utilization.iter().map(|(end_ns, ..)| *end_ns).min()?;
        if segment.end_ns.saturating_sub(first) < GPU_SEEN_NS {
            return None;
        }
        let length: f64 = self.utilization.iter().map(|each| each.1 as f64).sum();
        let busy: f64 = self
            .utilization
            .iter()
            .map(|each| each.1 as f64 * each.2)
            .sum();
        let mean = busy / length;
        let was_idle = std::mem::replace(&mut self.is_idle, mean < below);
        (self.is_idle && !was_idle)
            .then(|| format!("GPU utilization was {:.0} % over 30 s", mean * 100.0))
    }
}

fn begin(run: &RunInfo, options: &SessionOptions) -> Result<(Session, Receiver<Segment>), Failure> {
    let options = SessionOptions {
        rate_hz: RATE_HZ,
        native: false,
        nonblocking: true,
        segment: SEGMENT,
        ..options.clone()
    };
    let (sink, segments) = LiveSink::new();
    let session =
        Session::start(run.pid, options, Box::new(sink)).map_err(hints::session_failure)?;
    Ok((session, segments))
}
