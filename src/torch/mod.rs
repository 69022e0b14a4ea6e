//! What is known of PyTorch: rules that classify functions, stacks, threads and processes. Pure,
//! but for the probe.
//!
//! | file | question |
//! |---|---|
//! | [`rules`] | what is known of torch's, Python's and the system's names: rows of data, with their sources |
//! | [`symbol_name`] | which part of a demangled C++ name is the function's own |
//! | [`classify`] | what a function is, and what a stack of functions was doing |
//! | [`role`] | what a process is in a job, and which of its threads trains |
//! | [`probe`] | which `nn.Module` a call is of: the one part that reads a live process |
//! | [`stitch`] | whose work a thread waits for that waits in `backward()` |
//! | [`waits`] | what a thread waits for |
//! | [`collectives`] | which collective it is in |

pub mod classify;
pub mod collectives;
pub mod probe;
pub mod role;
pub mod rules;
pub mod stitch;
pub mod symbol_name;
pub mod waits;
