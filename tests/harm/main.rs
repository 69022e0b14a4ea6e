//! Nothing that goes wrong, in torchspy, its target or the machine, harms the target or is passed
//! over in silence.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

mod calls;
mod denied;
mod disk;
mod ends;
mod exec;
mod files;
mod killed;
mod memory;
mod recordings;
mod signals;
mod so_far;

#[path = "../faults/mod.rs"]
mod faults;
#[path = "../installed/mod.rs"]
mod installed;
#[path = "../terminal/mod.rs"]
mod terminal;
