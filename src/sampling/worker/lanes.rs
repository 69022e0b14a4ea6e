//! Lanes of devices and processes: collectors are told who is sampled, and what they gathered goes
//! into the segment.

use super::Worker;
use crate::gpu::feed::Sampled;
use crate::model::lane::Lanes;
use crate::model::process::ProcessInfo;

impl Worker {
    /// Tells collectors who is sampled now.
    pub(super) fn publish_targets(&self) {
        let living = self.tables.processes.iter().filter(|info| !info.exited);
        self.lanes.tell(living.map(sampled).collect());
    }

    pub(super) fn take_lanes(&mut self, last: bool) -> Lanes {
        self.publish_targets();
        if last {
            self.lanes.take_last()
        } else {
            self.lanes.take()
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
