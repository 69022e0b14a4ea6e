//! torchspy: a sampling profiler for PyTorch trainers.
//!
//! ```text
//! target's memory ──capture──▶ RawSample ──unwind+merge──▶ Sample(StackId) ──▶ recording (file)
//!                                                                ▼
//!                               resolve: symbolize · classify ──▶ Profile ──▶ analysis ──▶ report
//! ```
//!
//! Imports point one way: `cli → top → live → report, analysis → resolve → torch → recording →
//! model`, and `cli → sampling → torch::probe → python → memory → model`, `sampling → gpu → os`,
//! `sampling → native, os → memory`, `native, python → elf → memory`; `arch` lies below all.

pub mod analysis;
pub mod arch;
pub mod cli;
pub mod elf;
pub mod gpu;
pub mod live;
pub mod memory;
pub mod model;
pub mod native;
pub mod os;
pub mod python;
pub mod recording;
pub mod report;
pub mod resolve;
pub mod sampling;
pub mod top;
pub mod torch;
pub mod trace;
