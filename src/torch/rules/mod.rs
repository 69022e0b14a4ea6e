//! Rules: what is known of names, as tables with their sources. No logic beyond looking a name up.
//!
//! # How a moment is attributed
//!
//! Every sample has two coordinates that do not depend on each other, and one summary row that follows from them.
//!
//! **Phase**: the Python frames (and a few native ones) carry marks; the stack is read from its leaf outward.
//!
//! | order | mark | meaning |
//! |---|---|---|
//! | 1 | whole | decides wherever it stands: what runs inside a DataLoader's fetch is input, be it an `nn.Module`; inside of the compiler, compile; at the interpreter's exit, shutdown |
//! | 2 | strong | the nearest one decides; a region of the user's (`--region`) is one, before the rules of its own file |
//! | 3 | weak | a file as a whole; decides if it is nearer than the nearest strong mark |
//! | 4 | import | forgets the weak marks nearer than itself; without any other mark: `startup` |
//! | 5 | around | `framework`, where no code of the user's is nearer; comes before a step of the user's, too |
//! | 6 | thread name | `pt_autograd_*` is backward, `pt_nccl_*` communication, … |
//! | 7 | role | a DataLoader worker's moments are input |
//! | 8 | none | `user` |
//!
//! What would be `user` or `framework` is input where the interpreter itself is at work on a line that takes a batch: it frees the last one.
//!
//! A closure that an optimizer's step calls is the user's step where it is Lightning's, which has a row; of others only the modules and the
//! backward within are told apart from the step.
//!
//! An import inside a training phase therefore counts to that phase. A forward that the functions of activation
//! checkpointing run inside of backward is no forward but `recompute`, and so is all else that they do, down to the next strong
//! mark: the backward of the recomputed part (reentrant checkpointing) is backward.
//!
//! **Activity**: from the leaf outward to the first frame that a rule knows. System libraries and code without names
//! are passed through; what was passed decides where no frame is known before the nearest Python frame.
//!
//! | first known frame | thread runs | thread sleeps |
//! |---|---|---|
//! | a wait by its nature (OpenMP barrier, GPU sync, collective wait, GIL) | that activity | that activity |
//! | GPU call | that activity | that activity: the driver blocks |
//! | compute, dispatch, autograd, Python | that activity | by system call: futex → lock_wait, read/write → io, poll/sleep → sleep |
//! | the loading of a library, or what defines its bindings | native_other, whatever it calls | by system call |
//! | none, but code of a library that no rule knows | native_other | by system call |
//! | none, but torch's own code | dispatch | by system call |
//! | none, and only code without name or file | unclassified | by system call |
//! | any but a wait, and the interpreter nearer to the leaf | python | as above |
//! | Python | python | by system call; futex directly under a Python frame is the inlined `take_gil` → gil_wait; poll under `multiprocessing` or `threading` is a queue → lock_wait |
//!
//! While a process ends (under `exit`), what would be a collective or a GPU call is native_other: destructors of the libraries.
//!
//! `_local_scalar_dense_cuda` (`.item()`) makes a GPU copy under it a GPU sync.
//!
//! **Summary row**: first match.
//!
//! | order | rule | row |
//! |---|---|---|
//! | 1 | gil_wait, but of start-up and compile | python |
//! | 2 | phase input | input |
//! | 3 | phase communication, or a collective | communication |
//! | 4 | cpu_wait | cpu_wait |
//! | 5 | phase startup | startup |
//! | 6 | phase compile | compile |
//! | 7 | phase shutdown, checkpoint | other |
//! | 8 | gpu_sync | gpu_wait |
//! | 9 | aten, gemm, dispatch, autograd, gpu_launch, gpu_copy, gpu_alloc | host_computation |
//! | 10 | omp_idle | omp_barrier |
//! | 11 | python | python |
//! | 12 | unclassified | unclassified |
//! | 13 | anything else | other |
//!
//! omp_idle of a training thread is the end of a parallel region: an operator waits for its slowest thread. It is time of that
//! operator, but no computation. Time in the run queue is `cpu_wait`, row `cpu_wait`, whatever the thread was about to do.

pub mod collectives;
pub mod compile;
pub mod frameworks;
pub mod input;
pub mod libraries;
pub mod modules;
pub mod native;
pub mod operators;
pub mod phases;
pub mod progress;
pub mod python;
pub mod symbols;
pub mod syscalls;
pub mod waits;

/// Version of all tables together. Raised with every change that may move time from one category to another.
pub const RULES_VERSION: u32 = 4;
