//! Analyses of a profile: pure functions whose results the report formats.
//!
//! | file | content |
//! |---|---|
//! | [`summary`] | per process: the training thread's wall time by row, by phase and by activity |
//! | [`intervals`] | how certain a share is |
//! | [`backward`] | time in nodes of autograd's graph, and the modules that they belong to |
//! | [`forward`] | in which modules the operators of forward were called |
//! | [`compile`] | time of torch.compile, and of compiled code |
//! | [`functions`] | time by function and line |
//! | [`modules`] | time of forward by `nn.Module` |
//! | [`operators`] | time by operator and call site |
//! | [`progress`] | steps, epochs and throughput |
//! | [`conditions`] | conditions of the run |
//! | [`threads`] | role and activity of every thread |
//! | [`waits`] | what training threads waited for |
//! | [`input_queue`] | what DataLoader workers did while their trainer waited for them |
//! | [`collectives`], [`late_ranks`] | time in collectives, and which rank arrived last |
//! | [`slow_rank`] | which rank arrives last where devices wait, not hosts |
//! | [`full_queue`] | launches that wait for room in the device's queue |
//! | [`timeline`] | samples by time, for these three |
//! | [`memory_code`] | which lines and operators raised memory |
//! | [`device_memory`] | what torch's allocator held of devices |
//! | [`memory_growth`], [`memory_limits`], [`ends`] | memory that grows, its limits, and what it ended |
//! | [`tracks`] | figures of devices and the host over time |
//! | [`gpu_overlay`] | idle time of devices by what the host executed |
//! | [`traced`] | a trace of torch.profiler beside the recording |
//! | [`energy`] | energy of devices, by run, rank, epoch, step and phase |
//! | [`verdict`] | what the run is bound by |
//! | [`quality`] | how good the samples are, and what they cost |
//! | [`job`] | what a job of many ranks, in many recordings, waits for |
//! | [`scaling`] | how much faster a job gets with more ranks |
//! | [`diff`] | what differs between two runs, beyond noise |

#![allow(
    missing_docs,
    reason = "where a name says it all, a comment would repeat it"
)]

pub mod backward;
pub mod collectives;
pub mod compile;
pub mod conditions;
pub mod device_memory;
pub mod diff;
pub mod dump;
pub mod ends;
pub mod energy;
pub mod forward;
pub mod full_queue;
pub mod functions;
pub mod gpu_overlay;
pub mod input_queue;
pub mod intervals;
pub mod job;
pub mod late_ranks;
pub mod memory_code;
pub mod memory_growth;
pub mod memory_limits;
mod module_groups;
pub mod modules;
mod nets;
pub mod operators;
pub mod progress;
pub mod quality;
pub mod scaling;
mod slopes;
pub mod slow_rank;
pub mod step_peaks;
pub mod summary;
pub mod threads;
pub mod timeline;
pub mod traced;
pub mod tracks;
pub mod verdict;
pub mod waits;

use crate::model::ids::{ProcessId, ThreadId};
use crate::model::profile::{Profile, ProfileSample, Role};
use crate::model::track::TrackKind;
use collectives::ProcessCollectives;
use device_memory::DeviceMemory;
use ends::End;
use energy::Energy;
use gpu_overlay::{GpuIdle, NoOverlay};
use memory_code::ProcessMemory;
use memory_growth::Growth;
use memory_limits::MemoryLimit;
use quality::QualitySummary;
use slow_rank::{SlowDevice, SlowRank};
use summary::ProcessSummary;
use traced::Traced;
use tracks::TrackSummary;
use verdict::Verdict;
use waits::ProcessWaits;

/// All results that reports show.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// Processes: ranks by number, then other trainers, then the rest by start.
    pub processes: Vec<ProcessSummary>,
    /// The process that represents the recording: the first trainer with samples. An index into
    /// `processes`.
    pub primary: Option<usize>,
    /// The waits of trainers, and of the primary process.
    pub waits: Vec<ProcessWaits>,
    /// The collectives of the same processes.
    pub collectives: Vec<ProcessCollectives>,
    /// The rank that arrives last at collectives that run on devices.
    pub slow_rank: Option<SlowRank>,
    /// The device that those of the other ranks wait for.
    pub slow_device: Option<SlowDevice>,
    /// The sampler's figures.
    pub quality: QualitySummary,
    /// Figures of devices and the host.
    pub tracks: TrackSummary,
    /// What code did to the memory of each process.
    pub memory: Vec<ProcessMemory>,
    /// What code did to the device memory that torch's allocator gave to tensors.
    pub allocated: Vec<ProcessMemory>,
    /// What torch's allocator held of devices.
    pub device_memory: Vec<DeviceMemory>,
    /// Processes whose memory grows, fastest first.
    pub growing: Vec<Growth>,
    /// Processes whose tensors take more and more memory of devices.
    pub growing_on_devices: Vec<Growth>,
    /// Limits of memory, and how near it came to them.
    pub limits: Vec<MemoryLimit>,
    /// Processes that a signal ended.
    pub ends: Vec<End>,
    /// Idle time of the device of each rank, and of the primary process, by what its training
    /// thread executed; or why there is none.
    pub gpu_idle: Vec<(ProcessId, Result<GpuIdle, NoOverlay>)>,
    /// Energy of devices.
    pub energy: Energy,
    /// What the run is bound by; `None` if the primary process is not a trainer.
    pub verdict: Option<Verdict>,
    /// The trace of torch.profiler that the user named, or that the recording has.
    pub traced: Option<Traced>,
    /// Ranks of the processes that have one in the recording.
    pub traced_ranks: Vec<Option<u32>>,
    /// Processes that have none although one was asked for, and why.
    pub without_trace: Vec<(ProcessId, String)>,
}

impl Analysis {
    /// The process that represents the recording.
    pub fn primary(&self) -> Option<&ProcessSummary> {
        self.processes.get(self.primary?)
    }

    pub fn primary_waits(&self) -> Option<&ProcessWaits> {
        waits::of(&self.waits, self.primary()?.process)
    }

    pub fn primary_collectives(&self) -> Option<&ProcessCollectives> {
        collectives::of(&self.collectives, self.primary()?.process)
    }
}

/// Analyzes a profile.
pub fn analyze(profile: &Profile) -> Analysis {
    let processes = summary::summarize(profile);
    let primary = summary::primary(&processes);
    let ranks = ranks(&processes, primary);
    let tracks = tracks::summarize(profile);
    let mut growing = memory_growth::growing(profile, &tracks, &processes);
    let memory = memory_code::all(profile, &processes, TrackKind::SampledAnonymous);
    memory_growth::explain(profile, &mut growing, &memory, false);
    let mut growing_on_devices = memory_growth::growing_on_devices(profile, &tracks, &processes);
    let allocated = memory_code::all(profile, &processes, TrackKind::SampledAllocated);
    // Which line raised what stays cannot be told where most falls again in each step.
    memory_growth::explain(profile, &mut growing_on_devices, &[], true);
    let window = traced::in_recording(profile, None);
    let mut analysis = Analysis {
        verdict: None,
        traced: window.traced,
        traced_ranks: window.ranks,
        without_trace: window.without,
        gpu_idle: gpu_overlay::all(profile, &tracks, &ranks),
        energy: energy::energy(profile, &tracks, &ranks),
        waits: waits::all(profile, &ranks),
        collectives: collectives::all(profile, &ranks),
        slow_rank: slow_rank::slow_rank(profile, &tracks, &processes),
        slow_device: slow_rank::slow_device(profile, &tracks, &processes),
        limits: memory_limits::limits(profile, &growing),
        ends: ends::ends(profile),
        device_memory: device_memory::all(profile, &tracks, &growing_on_devices),
        memory,
        allocated,
        growing,
        growing_on_devices,
        processes,
        primary,
        quality: quality::summarize(profile, &ranks),
        tracks,
    };
    analysis.verdict = verdict::verdict(profile, &analysis);
    analysis
}

/// The processes whose waits are reported, with their training threads.
fn ranks(processes: &[ProcessSummary], primary: Option<usize>) -> Vec<(ProcessId, ThreadId)> {
    processes
        .iter()
        .enumerate()
        .filter(|(index, process)| {
            Some(*index) == primary || matches!(process.role, Role::Trainer { .. })
        })
        .filter_map(|(_, process)| Some((process.process, process.training_thread?)))
        .collect()
}

/// The samples of one thread, by start. Samples are sorted by thread and start.
pub(crate) fn of_thread(profile: &Profile, thread: ThreadId) -> Vec<&ProfileSample> {
    let from = profile
        .samples
        .partition_point(|sample| sample.thread < thread);
    profile
        .samples
        .get(from..)
        .unwrap_or_default()
        .iter()
        .take_while(|sample| sample.thread == thread)
        .collect()
}
