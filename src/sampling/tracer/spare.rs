//! A pool of samples, so that a capture allocates nothing.

use super::account::Charged;
use super::process::TracedProcess;
use crate::model::sample::Capture as Method;
use crate::sampling::kept::Kept;
use crate::sampling::raw::RawSample;

/// Unused samples that are kept, besides those that come back from the worker.
pub(super) const MAX_SPARE: usize = 64;

/// Samples without their buffers. The boxes travel to the worker and back as they are.
#[derive(Debug, Default)]
pub(super) struct SamplePool(pub(super) Kept<Box<RawSample>>);

impl SamplePool {
    /// An empty sample of a thread.
    pub(super) fn blank(
        &mut self,
        process: &TracedProcess,
        at: usize,
        slices: u64,
    ) -> Box<RawSample> {
        let thread = &process.threads[at];
        let recorded = thread.sample(Charged::default(), Method::NotCaptured);
        let (shared, process) = (thread.shared.clone(), process.id);
        if let Some(mut sample) = self.0.pop() {
            sample.recorded = recorded;
            sample.process = process;
            sample.shared = shared;
            sample.slices = slices;
            sample.read_ns = 0;
            sample.python_state = 0;
            sample.registers = None;
            sample.python.clear();
            sample.python_pending_ns = 0;
            sample.python_partial = None;
            sample.failure = None;
            return sample;
        }
        Box::new(RawSample::new(recorded, process, shared, slices))
    }
}
