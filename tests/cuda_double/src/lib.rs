//! A stand-in for the CUDA runtime, cuBLAS, cuBLASLt and NCCL, for tests on machines without a GPU.
//!
//! It is preloaded under the soname of the runtime. Streams are queues in virtual time: a kernel
//! has a start and an end on CLOCK_MONOTONIC, takes the time that its name or size says, and
//! computes nothing. Device memory is host memory, and copies copy. All that is on the host is
//! real: torch's own code, its threads, its names and the order of its calls. The prototypes are
//! written from the vendor's public documentation of CUDA 13; what is asked for and is not here is
//! refused, and `refused.PID` in the node's folder has its name.

#![allow(
    non_snake_case,
    missing_docs,
    clippy::missing_safety_doc,
    clippy::too_many_arguments
)]

#[macro_use]
mod call;
mod blas;
mod copies;
mod device;
mod graphs;
mod kernels;
mod memory;
mod model;
mod nccl;
mod refused;
mod streams;
mod torch;
