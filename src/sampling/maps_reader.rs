//! Reads `/proc/PID/maps` with a bounded wait: the kernel takes the target's mmap lock for it,
//! which a thread in a driver may hold for seconds.

use crate::model::mapping::Mapping;
use crate::os::maps::parse_maps;
use crate::os::threads::living_task;
use crossbeam_channel::{Receiver, bounded};
use std::io::Read;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_millis(250);
/// Far above any real process: CUDA processes have tens of thousands of mappings of about 100
/// bytes.
const MAX_MAPS_BYTES: u64 = 64 << 20;

/// Reads the maps of one process, each time on a new thread that is abandoned if it blocks.
#[derive(Debug)]
pub(super) struct MapsReader {
    pid: i32,
    outstanding: Option<Receiver<Option<Vec<Mapping>>>>,
}

impl MapsReader {
    pub(super) fn new(pid: i32) -> Self {
        Self {
            pid,
            outstanding: None,
        }
    }

    /// The mappings; `None` if the read failed or is still blocked.
    pub(super) fn read(&mut self) -> Option<Vec<Mapping>> {
        let (receiver, patience) = match self.outstanding.take() {
            // The last read is still running and has already been waited for: no second one starts.
            Some(receiver) => (receiver, Duration::ZERO),
            None => (self.begin()?, PATIENCE),
        };
        match receiver.recv_timeout(patience) {
            Ok(mappings) => mappings,
            Err(crossbeam_channel::RecvTimeoutError::Timeout) => {
                self.outstanding = Some(receiver);
                None
            }
            Err(crossbeam_channel::RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Whether the last read is still blocked: the mappings are unknown.
    pub(super) fn is_blocked(&self) -> bool {
        self.outstanding.is_some()
    }

    fn begin(&self) -> Option<Receiver<Option<Vec<Mapping>>>> {
        let (sender, receiver) = bounded(1);
        let pid = self.pid;
        std::thread::Builder::new()
            .name("torchspy-maps".to_owned())
            .spawn(move || {
                // The receiver may be gone.
                let _ = sender.send(read_maps(pid));
            })
            .ok()?;
        Some(receiver)
    }
}

fn read_maps(pid: i32) -> Option<Vec<Mapping>> {
    let mut text = Vec::new();
    let file = std::fs::File::open(format!("/proc/{}/maps", living_task(pid))).ok()?;
    file.take(MAX_MAPS_BYTES).read_to_end(&mut text).ok()?;
    // The maps are empty for a dead process, and during an exec.
    (!text.is_empty()).then(|| parse_maps(&text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_read_that_blocks_is_waited_for_once() {
        let (answer, outstanding) = bounded(1);
        let mut reader = MapsReader {
            pid: std::process::id() as i32,
            outstanding: Some(outstanding),
        };
        // One read may take long on a busy machine. Each one does that waits.
        let took = [(); 8].map(|()| {
            let begun = Instant::now();
            assert!(reader.read().is_none() && reader.is_blocked());
            begun.elapsed()
        });
        assert!(took.iter().min() < Some(&PATIENCE), "{took:?}");
        answer.send(Some(Vec::new())).unwrap();
        assert!(reader.read().is_some() && !reader.is_blocked());
    }
}
