//! What analyses say of profiles that are made here: no process, no clock.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

mod attribution;
mod backward;
mod classes;
mod compile;
mod diff;
mod frameworks;
mod gpu_energy;
mod gpu_overlay;
mod job;
mod job_groups;
mod job_page;
mod memory;
mod modules;
mod operators;
mod progress;
mod regions;
mod report;
mod scaling;
mod slow_rank;
mod speed;
mod top_view;
mod trace;
mod traced;
mod verdict;
mod verdict_corpus;
mod verdict_words;
mod waits;

#[path = "../analysis_builder/mod.rs"]
mod analysis_builder;
#[path = "../track_builder/mod.rs"]
mod track_builder;
#[path = "../verdict_scenarios/mod.rs"]
mod verdict_scenarios;
