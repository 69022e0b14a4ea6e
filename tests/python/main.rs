//! CPython read from outside: each version that is here, and memory that lies.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

mod cases;
mod cases_forks;
mod cases_interpreters;
mod cases_spins;
mod code;
mod discover;
mod hostile;
mod nn_modules;
mod progress_counters;
mod stacks;

#[path = "../faults/mod.rs"]
mod faults;
#[path = "../installed/mod.rs"]
mod installed;
#[path = "../python_target/mod.rs"]
mod python_target;
#[path = "../stack_case/mod.rs"]
mod stack_case;
