//! torch's CUDA build on a simulated GPU node, against what the node's queues and calls really did.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

mod backward;
mod idle;
mod memory;
// Built beside the tests, which load it.
use cuda_double as _;

mod node;
mod ranks;
mod waits;

#[path = "../faults/mod.rs"]
mod faults;
#[path = "../installed/mod.rs"]
mod installed;
