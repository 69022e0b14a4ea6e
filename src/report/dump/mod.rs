//! One snapshot of a job, or several: for people and for machines.

mod head;
pub mod json;
pub mod moved;
pub mod text;
mod thread;
