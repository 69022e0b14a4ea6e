//! What a profile is written as: one file per format.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

mod confidential;
mod csv;
mod flamegraph;
mod folded;
mod in_browser;
mod json_schema;
mod markdown;
mod otlp;
mod package;
mod page;
mod page_memory;
mod page_trace;
mod parquet;
mod perfetto;
mod short;
mod speedscope;
mod viewers;

#[path = "../analysis_builder/mod.rs"]
mod analysis_builder;
#[path = "../faults/mod.rs"]
mod faults;
#[path = "../gpu_machine/mod.rs"]
mod gpu_machine;
#[path = "../installed/mod.rs"]
mod installed;
#[path = "../report_profile/mod.rs"]
mod report_profile;
#[path = "../track_builder/mod.rs"]
mod track_builder;
#[path = "../verdict_scenarios/mod.rs"]
mod verdict_scenarios;
