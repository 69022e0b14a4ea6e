//! The book, the rules and the folders are what the documentation says.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

mod imports;
mod pages;
mod rules;
