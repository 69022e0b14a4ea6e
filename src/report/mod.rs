//! Formats: a profile in, bytes out.
//!
//! [`view`] decides what of a profile is drawn; flamegraph, speedscope and folded draw the same
//! view.

pub mod command;
pub mod csv;
pub mod diff_folded;
pub mod dump;
pub mod flamegraph;
pub mod folded;
pub mod label;
pub mod lanes_csv;
pub mod naming;
pub mod parquet;
pub mod part;
pub mod perfetto;
pub mod speedscope;
pub mod table;
pub mod tables;
pub mod view;

pub mod json;
pub mod text;
