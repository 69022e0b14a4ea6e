//! A stand-in for NVIDIA's `libnvidia-ml.so.1`, for tests: it replays the scenario that
//! `TORCHSPY_NVML_SCENARIO` names, and reads the devices of the simulated node that
//! `TORCHSPY_GPU_SIM` names. Without a scenario, all devices are the node's.
//!
//! It behaves like a driver where that matters: utilization is a mean over windows of its own,
//! given out late, with stamps that jitter; energy steps; GPM compares two samples; calls may fail,
//! block, or cost CPU time. Device and driver names are the scenario's.

#![allow(
    non_snake_case,
    non_upper_case_globals,
    missing_docs,
    clippy::missing_safety_doc
)]

mod calls;
pub mod scenario;
mod state;

/// The variable that names the scenario's file.
pub const SCENARIO: &str = "TORCHSPY_NVML_SCENARIO";
