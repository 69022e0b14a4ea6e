//! The sampler: when to look, whom to stop, what to copy, and what to make of it.

pub mod session;
