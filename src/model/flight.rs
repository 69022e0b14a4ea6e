//! The collectives that a rank has called last, as torch keeps them.

use rustc_hash::FxHashMap;

/// What one rank has kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlightDump {
    pub version: String,
    /// In the order in which they were called.
    pub calls: Vec<Call>,
    /// The number of the last collective that each process group was given, by the group's name.
    pub enqueued: FxHashMap<String, u64>,
    /// The job's ranks in each process group, by the group's name.
    pub members: FxHashMap<String, Vec<u32>>,
}

/// A collective, or a point-to-point call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Name and description of the process group. The name is the same on all of its ranks.
    pub group: (String, String),
    /// Counts the group's collectives, from 1.
    pub number: u64,
    pub is_point_to_point: bool,
    /// `all_reduce`.
    pub operation: String,
    /// Sizes of its inputs, and their types: `[4] Float`.
    pub inputs: String,
    pub is_done: bool,
    /// Function, file and line of each frame, the innermost first; empty where they were not kept.
    pub frames: Vec<(String, String, u32)>,
}
