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
mod cases_naps;
mod cases_spins;
mod code;
mod containers;
mod discover;
mod free_threaded;
mod hostile;
mod nn_modules;
mod progress_counters;
mod stacks;
mod tasks;

use python_target::Target;
use torchspy::model::ids::CodeId;
use torchspy::python::code_object::CodeCache;
use torchspy::python::discover::Interpreter;
use torchspy::python::frames::{PythonStack, read_stack};
use torchspy::python::threads::read_threads;

#[path = "../faults/mod.rs"]
mod faults;
#[path = "../installed/mod.rs"]
mod installed;
#[path = "../python_target/mod.rs"]
mod python_target;
#[path = "../stack_case/mod.rs"]
mod stack_case;

/// The stack of the main thread, which sleeps in a read, and its code objects.
fn main_stack(interpreter: &Interpreter, target: &Target) -> (PythonStack, CodeCache) {
    let memory = target.memory();
    let threads = read_threads(interpreter, &memory).unwrap();
    let mut stack = PythonStack::default();
    read_stack(interpreter, threads[0].state_address, &memory, &mut stack).unwrap();
    let addresses = stack.frames.iter().map(|frame| frame.code_address);
    let mut codes = CodeCache::new(interpreter);
    codes.resolve(&addresses.collect::<Vec<_>>(), &memory, |_| CodeId(0));
    (stack, codes)
}
