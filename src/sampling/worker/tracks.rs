//! Counter tracks of devices and processes: publishes the sampled processes to the collectors, and
//! adds what was collected to the segment.

use super::Worker;
use crate::gpu::feed::Sampled;
use crate::model::process::ProcessInfo;
use crate::model::track::CounterTracks;

impl Worker {
    /// Publishes the sampled processes to the collectors.
    pub(super) fn publish_targets(&self) {
        let all = self.tables.processes.iter();
        let living = all.filter(|info| !info.exited && !info.is_left_out());
        self.tracks.tell(living.map(sampled).collect());
    }

    pub(super) fn take_tracks(&mut self, last: bool) -> CounterTracks {
        self.publish_targets();
        if last {
            self.tracks.take_last()
        } else {
            self.tracks.take()
        }
    }
}

fn sampled(info: &ProcessInfo) -> Sampled {
    let visible = info
        .environment
        .iter()
        .find(|(name, _)| name == "CUDA_VISIBLE_DEVICES")
        .map(|(_, value)| value.clone());
    Sampled {
        pid: info.pid,
        name: info.exe.rsplit('/').next().unwrap_or_default().to_owned(),
        has_cuda: info.has_cuda,
        visible,
    }
}
