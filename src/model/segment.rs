//! A second of recording with all the tables that it needs: the unit that is written, checked and, if corrupt, lost.

use super::code::CodeInfo;
use super::frame::Frame;
use super::ids::{FrameId, StackId};
use super::lane::Lanes;
use super::module::{ModuleInfo, SymbolInfo};
use super::nn_module::NnModuleInfo;
use super::process::{ProcessInfo, ThreadInfo};
use super::progress::{Condition, CounterInfo, ProgressPoint};
use super::quality::Quality;
use super::run::{ClockPair, Loss};
use super::sample::Sample;
use serde::{Deserialize, Serialize};

/// Everything that one flush writes. All ids are indices into this segment's own tables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// Counts from 0; a missing number is a lost segment.
    pub index: u64,
    /// First and last moment that it speaks of, CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// See `start_ns`.
    pub end_ns: u64,
    /// Processes seen so far that have samples here or changed.
    pub processes: Vec<ProcessInfo>,
    /// Threads that have samples here.
    pub threads: Vec<ThreadInfo>,
    /// Modules of the frames here.
    pub modules: Vec<ModuleInfo>,
    /// Symbols for the native frames here, as far as they had been loaded. Later segments may bring what this one lacks.
    pub symbols: Vec<SymbolInfo>,
    /// Code objects of the frames here.
    pub codes: Vec<CodeInfo>,
    /// `nn.Module`s whose calls are among the frames here.
    pub nn_modules: Vec<NnModuleInfo>,
    /// Counters of the readings here.
    pub counters: Vec<CounterInfo>,
    /// Readings of counters, by the order in which they were taken.
    pub points: Vec<ProgressPoint>,
    /// Conditions that became known in this segment.
    pub conditions: Vec<Condition>,
    /// What devices and processes took and did.
    pub lanes: Lanes,
    /// Frames of the stacks here.
    pub frames: Vec<Frame>,
    /// Stacks: parent (of a smaller id) and frame.
    pub stacks: Vec<(Option<StackId>, FrameId)>,
    /// Samples by start.
    pub samples: Vec<Sample>,
    /// The sampler's figures over this segment.
    pub quality: Quality,
    /// Clock pairs taken in this segment.
    pub clocks: Vec<ClockPair>,
    /// What was lost in this segment.
    pub losses: Vec<Loss>,
    /// Whether this is the last segment of a recording that ended in order.
    pub last: bool,
}
