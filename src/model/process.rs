//! Processes and threads, as facts; roles and ranks are derived from them when a recording is read.

use super::ids::ProcessId;
use serde::{Deserialize, Serialize};

/// How the note of a process begins that is not sampled because of its rank.
const LEFT_OUT: &str = "left out by --ranks";

/// A process that was sampled, or seen and skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// The pid as torchspy sees it.
    pub pid: i32,
    /// Start time in clock ticks since boot (`/proc/PID/stat`, field 22): with the pid it names one
    /// process.
    pub start_ticks: u64,
    /// The parent's pid; 0 where unknown.
    pub parent_pid: i32,
    pub exe: String,
    /// The command line, without secrets.
    pub command: Vec<String>,
    /// The allow-listed part of its environment (RANK, WORLD_SIZE, CUDA_VISIBLE_DEVICES, …), live
    /// where it was readable.
    pub environment: Vec<(String, String)>,
    /// Interpreter version, such as `3.11.7`; empty if it is not a Python or none was found.
    pub python: String,
    /// Torch version; empty if torch is not loaded or its version could not be read.
    pub torch: String,
    /// libtorch is mapped.
    pub has_torch: bool,
    /// libcuda is mapped.
    pub has_cuda: bool,
    /// What is missing for this process and why: `not a Python process`, `a 32-bit program: …`.
    /// Empty if nothing.
    pub note: String,
    /// First and last time at which it was seen, CLOCK_MONOTONIC.
    pub first_seen_ns: u64,
    pub last_seen_ns: u64,
    /// CPU time of the whole process over the recording so far, ns.
    pub cpu_ns: u64,
    /// Whether its end was seen.
    pub exited: bool,
}

impl ProcessInfo {
    /// The note of a process of a rank that is not sampled.
    pub fn note_of_left_out(rank: u32) -> String {
        format!("{LEFT_OUT}: rank {rank}")
    }

    /// Whether it is not sampled because of its rank. It may have been until its rank was known.
    pub fn is_left_out(&self) -> bool {
        self.note.starts_with(LEFT_OUT)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadInfo {
    pub process: ProcessId,
    /// The tid as torchspy sees it. Equal to the pid: the main thread.
    pub tid: i32,
    /// Start time in clock ticks since boot, where it was read: with the tid it names one thread.
    pub start_ticks: u64,
    /// `comm`. Unnamed threads inherit their creator's.
    pub name: String,
    /// Whether the interpreter has a thread state for it.
    pub is_python: bool,
    /// First and last time at which it was seen, CLOCK_MONOTONIC.
    pub first_seen_ns: u64,
    pub last_seen_ns: u64,
}
