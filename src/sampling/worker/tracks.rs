//! Counter tracks of devices and processes: publishes the sampled processes to the collectors, and
//! adds what was collected to the segment.

use super::Worker;
use crate::gpu::feed::Sampled;
use crate::model::process::ProcessInfo;
use crate::model::track::{CounterTracks, TrackInfo, TrackKind, TrackMerger, TrackPoint};
use crate::sampling::control::EndedBy;

impl Worker {
    /// Publishes the sampled processes to the collectors.
    pub(super) fn publish_targets(&self) {
        let all = self.tables.processes.iter();
        let living = all.filter(|info| !info.exited && !info.is_left_out());
        let is_forked = |info: &ProcessInfo| {
            let mut all = self.tables.processes.iter();
            all.any(|other| other.pid == info.parent_pid && other.exe == info.exe)
        };
        let sampled = living.map(|info| Sampled {
            is_forked: is_forked(info),
            ..sampled(info)
        });
        self.tracks.tell(sampled.collect());
    }

    /// What was collected since the last call, with `of_tracer`, its own readings.
    pub(super) fn take_tracks(&mut self, of_tracer: CounterTracks, last: bool) -> CounterTracks {
        self.publish_targets();
        let collected = if last {
            self.tracks.take_last()
        } else {
            self.tracks.take()
        };
        let ended = self.inbox.control.take_ended();
        if ended.is_empty() && of_tracer.is_empty() {
            return collected;
        }
        let mut merger = TrackMerger::default();
        merger.add(&collected);
        merger.add(&of_tracer);
        ended.iter().for_each(|end| merger.add(&self.end_of(end)));
        merger.finish()
    }

    /// The signal that ended a process; none twice: the launcher and the keeper both see the end of
    /// a program.
    fn end_of(&mut self, end: &EndedBy) -> CounterTracks {
        let mut tracks = CounterTracks::default();
        let mut all = self.tables.processes.iter();
        let known = all.rfind(|info| info.pid == end.pid);
        if let Some(info) = known
            && self.ended.insert((info.pid, info.start_ticks))
        {
            let track = tracks.tracks.intern(&TrackInfo {
                kind: TrackKind::EndingSignal,
                gpu: None,
                pid: info.pid,
                process: name_of(info),
            });
            tracks.points.push(TrackPoint {
                track,
                start_ns: end.time_ns,
                end_ns: end.time_ns,
                value: u64::try_from(end.signal).unwrap_or(0),
            });
        }
        tracks
    }
}

fn name_of(info: &ProcessInfo) -> String {
    info.exe.rsplit('/').next().unwrap_or_default().to_owned()
}

fn sampled(info: &ProcessInfo) -> Sampled {
    let visible = info
        .environment
        .iter()
        .find(|(name, _)| name == "CUDA_VISIBLE_DEVICES")
        .map(|(_, value)| value.clone());
    Sampled {
        pid: info.pid,
        name: name_of(info),
        has_cuda: info.has_cuda,
        is_forked: false,
        visible,
    }
}
