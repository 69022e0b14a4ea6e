//! Facts about PyTorch: rules that classify functions, stacks, threads and processes. Pure, except
//! the probe.
//!
//! | file | content |
//! |---|---|
//! | [`rules`] | names of torch, Python and the system: rows of data, with their sources |
//! | [`symbol_name`] | the function's own part of a demangled C++ name |
//! | [`classify`] | classification of functions and stacks |
//! | [`job`] | the place of a process in its job: rank, node, the job's name |
//! | [`rank_choice`] | which ranks of a job are recorded |
//! | [`role`] | the role of a process in a job, and which of its threads trains |
//! | [`probe`] | the `nn.Module` of a call: the only part that reads a live process |
//! | [`stitch`] | whose work a thread waits for in `backward()` |
//! | [`waits`] | what a thread waits for |
//! | [`collectives`] | the collective that it is in |
//! | [`flight_recorder`] | the collectives that torch has kept |
//! | [`flight_pickle`] | the pickles that they are kept in |

pub mod classify;
pub mod collectives;
mod flight_pickle;
pub mod flight_recorder;
pub mod job;
pub mod nccl_ras;
pub mod probe;
pub mod rank_choice;
pub mod role;
pub mod rules;
pub mod stitch;
pub mod symbol_name;
pub mod waits;
