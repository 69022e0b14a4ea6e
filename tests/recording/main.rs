//! The file format: written, read, merged, printed, damaged.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

mod builder;
mod damage;
mod merge;
mod pieces;
mod size;
mod text;
mod writer;
