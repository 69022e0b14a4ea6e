//! What code did to memory.

use crate::analysis::Analysis;
use crate::analysis::memory_code::{Peak, ProcessMemory, held};
use crate::analysis::step_peaks::{StepPeaks, step_peaks};
use crate::model::profile::Profile;
use crate::model::seconds::of as seconds;
use crate::report::dump::memory::held_json;
use crate::report::tables::memory::{RaisedRow, lines_of, operators_of, phases_of};
use schemars::JsonSchema;
use serde::Serialize;

/// Maximum number of lines, and of operators.
const MOST: usize = 100;

/// What the code of one process did to its anonymous memory, over the timed steps; without those
/// after start-up.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Memory {
    #[serde(flatten)]
    pub code: MemoryByCode,
    /// What modules and optimizers held, as in `held` of `dump --memory --json`; null if it was
    /// not read.
    pub held: Option<serde_json::Value>,
    /// When that was read, since the start of the recording.
    pub held_at_s: Option<f64>,
    /// Why it was not read; null if it was, or if the recording keeps nothing of it.
    pub held_missing: Option<String>,
}

/// What the code of one process did to the device memory of tensors.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct DeviceMemoryByCode {
    #[serde(flatten)]
    pub code: MemoryByCode,
    /// Null where no step was timed.
    pub step_peaks: Option<StepPeaks>,
}

/// What the code of one process did to memory, over the timed steps; without those after start-up.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct MemoryByCode {
    /// The process.
    pub pid: i32,
    pub rank: Option<u32>,
    /// Time that the sums are of.
    pub seconds: f64,
    /// Steps in this time; 0 if none was timed.
    pub steps: u64,
    /// Memory at its start.
    pub first_bytes: u64,
    /// Memory at its end.
    pub last_bytes: u64,
    /// Net growth each step; null without steps.
    pub net_per_step_bytes: Option<f64>,
    /// Sum of all rises between readings.
    pub raised_bytes: f64,
    /// Sum of all falls.
    pub fell_bytes: f64,
    /// The highest reading of the recording.
    pub peak: MemoryPeak,
    /// By line, the largest rise first.
    pub lines: Vec<RaisedRow>,
    /// By the innermost operator.
    pub operators: Vec<RaisedRow>,
    /// By phase.
    pub phases: Vec<RaisedRow>,
}

/// The highest reading, and what the training thread did then.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct MemoryPeak {
    pub bytes: u64,
    /// Time since the start of the recording.
    pub at_s: f64,
    /// Number of the step in the recording; null outside of steps.
    pub step: Option<u64>,
    pub phase: String,
    pub file: Option<String>,
    pub line: Option<u32>,
    /// The function of the line.
    pub function: Option<String>,
    /// The innermost operator.
    pub operator: Option<String>,
    /// The functions of the stack, outermost first.
    pub stack: Vec<String>,
}

pub(super) fn memory(profile: &Profile, analysis: &Analysis) -> Vec<Memory> {
    let all = analysis.memory.iter();
    all.map(|memory| of_process(profile, memory)).collect()
}

/// What code did to the device memory that torch's allocator gave to tensors.
pub(super) fn allocated(profile: &Profile, analysis: &Analysis) -> Vec<DeviceMemoryByCode> {
    let all = analysis.allocated.iter();
    all.map(|memory| DeviceMemoryByCode {
        code: by_code(profile, memory),
        step_peaks: step_peaks(profile, memory.process),
    })
    .collect()
}

fn of_process(profile: &Profile, memory: &ProcessMemory) -> Memory {
    let kept = held(profile, memory.process);
    let result = kept.as_ref().map(|kept| &kept.result);
    Memory {
        code: by_code(profile, memory),
        held_at_s: kept
            .as_ref()
            .map(|kept| seconds(kept.time_ns.saturating_sub(profile.start_ns))),
        held: result
            .and_then(|result| result.as_ref().ok())
            .map(held_json),
        held_missing: result.and_then(|result| result.as_ref().err()).cloned(),
    }
}

fn by_code(profile: &Profile, memory: &ProcessMemory) -> MemoryByCode {
    let (pid, rank) = profile.pid_and_rank(memory.process);
    let first = |mut rows: Vec<RaisedRow>| {
        rows.truncate(MOST);
        rows
    };
    MemoryByCode {
        pid,
        rank,
        seconds: seconds(memory.to_ns.saturating_sub(memory.from_ns)),
        steps: memory.steps,
        first_bytes: memory.first,
        last_bytes: memory.last,
        net_per_step_bytes: memory.net_per_step(),
        raised_bytes: memory.raised,
        fell_bytes: memory.fell,
        peak: peak(profile, &memory.peak),
        lines: first(lines_of(profile, memory)),
        operators: first(operators_of(profile, memory)),
        phases: phases_of(profile, memory),
    }
}

fn peak(profile: &Profile, peak: &Peak) -> MemoryPeak {
    let facts = &profile.facts;
    let line = facts.line(peak.stack);
    let function = line.and_then(|(function, _)| profile.function(function));
    let operator = facts.operators(peak.stack).next();
    let frames = profile.stacks.leaf_to_root(peak.stack);
    let mut stack: Vec<String> = frames
        .filter_map(|frame| {
            let function = profile.function(profile.stacks.frame(frame).function)?;
            Some(function.shown_name().to_owned())
        })
        .collect();
    stack.reverse();
    MemoryPeak {
        bytes: peak.bytes,
        at_s: seconds(peak.time_ns.saturating_sub(profile.start_ns)),
        step: peak.step,
        phase: profile.phase_name(peak.phase).to_owned(),
        file: function.map(|function| function.file.clone()),
        line: line.map(|(_, line)| line),
        function: function.map(|function| function.name.clone()),
        operator: operator.map(|operator| facts.names.get(operator.name).to_owned()),
        stack,
    }
}
