//! Formats: a profile in, bytes out.
//!
//! [`view`] selects what is drawn of a profile; flame graph, speedscope and folded stacks draw the
//! same view.

#![allow(
    missing_docs,
    reason = "where a name says it all, a comment would repeat it"
)]

pub mod chrometrace;
pub mod command;
mod counters;
pub mod csv;
pub mod diff_folded;
pub mod dump;
pub mod firefox;
pub mod flamegraph;
pub mod folded;
pub mod job_page;
pub mod label;
pub mod markdown;
mod markers;
pub mod mlflow;
pub mod naming;
pub mod otlp;
pub mod page;
pub mod parquet;
pub mod part;
pub mod perfetto;
pub mod pprof;
mod proto;
pub mod scaling_page;
mod slices;
pub mod speedscope;
pub mod table;
pub mod tables;
pub mod tracks_csv;
pub mod view;

pub mod json;
pub mod text;
