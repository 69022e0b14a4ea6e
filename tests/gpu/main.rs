//! GPUs, by a double of NVML that replays what a program logged, or reads a simulated node.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

mod driver_faults;
mod idle_live;
mod node;
mod tracks;
mod trigger;

#[path = "../faults/mod.rs"]
mod faults;
#[path = "../gpu_machine/mod.rs"]
mod gpu_machine;
#[path = "../installed/mod.rs"]
mod installed;
