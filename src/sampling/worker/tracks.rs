//! Counter tracks of devices and processes: publishes the sampled processes to the collectors, and
//! adds what was collected to the segment.

use super::Worker;
use crate::gpu::feed::Sampled;
use crate::model::process::ProcessInfo;
use crate::model::progress::facts;
use crate::model::track::{CounterTracks, TrackInfo, TrackKind, TrackMerger, TrackPoint};
use crate::sampling::control::EndedBy;
use crate::sampling::keeper::KeeperEvent;
use rustc_hash::FxHashMap;

impl Worker {
    /// Publishes the sampled processes to the collectors.
    pub(super) fn publish_targets(&self) {
        let all = &self.tables.processes;
        // Of a pid that was used twice the one that lives.
        let mut by_pid: FxHashMap<i32, &ProcessInfo> = FxHashMap::default();
        for info in all {
            let known = by_pid.entry(info.pid).or_insert(info);
            if known.exited {
                *known = info;
            }
        }
        let living = all
            .iter()
            .filter(|info| !info.exited && !info.is_left_out());
        let sampled = living.map(|info| Sampled {
            is_forked: by_pid
                .get(&info.parent_pid)
                .is_some_and(|parent| is_child(parent, info)),
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
        let of_allocators = self.take_allocators();
        if ended.is_empty() && of_tracer.is_empty() && of_allocators.is_empty() {
            return collected;
        }
        let mut merger = TrackMerger::default();
        merger.add(&collected);
        merger.add(&of_tracer);
        merger.add(&of_allocators);
        ended.iter().for_each(|end| merger.add(&self.end_of(end)));
        merger.finish()
    }

    /// What torch's allocators of device memory hold now. Tells the tracer where to read what they
    /// give to tensors.
    fn take_allocators(&mut self) -> CounterTracks {
        let mut tracks = CounterTracks::default();
        let processes = &self.tables.processes;
        // Without the driver's library no device is in use.
        let is_used = |info: &&ProcessInfo| info.has_cuda && !info.exited && !info.is_left_out();
        let mut holders = Vec::new();
        for (id, image) in &mut self.images {
            if let Some(info) = processes.get(id.index()).filter(is_used)
                && let Some(allocator) = &mut image.allocator
            {
                if allocator.read(&image.memory) {
                    holders.push((info, allocator));
                } else if let Some(why) = allocator.unread() {
                    self.progress
                        .condition(*id, facts::ALLOCATOR_UNREAD, why.to_owned());
                }
            }
        }
        let all: Vec<&ProcessInfo> = holders.iter().map(|(info, _)| *info).collect();
        for (info, allocator) in holders {
            let mut others = all.iter();
            let is_forked = others.any(|other| is_child(other, info));
            let of = (info.pid, name_of(info));
            allocator.add((of.0, &of.1), is_forked, &mut tracks);
            if let Some(words) = allocator.changed_words(is_forked) {
                let pid = info.pid;
                let _ = self.events.send(KeeperEvent::Allocator { pid, words });
            }
        }
        tracks
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

/// Whether a process is a child of another that runs the same program.
fn is_child(parent: &ProcessInfo, info: &ProcessInfo) -> bool {
    parent.pid == info.parent_pid && parent.exe == info.exe
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
