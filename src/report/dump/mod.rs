//! One or several snapshots of a job, for people and for machines.

mod head;
pub mod json;
pub mod moved;
pub mod text;
mod thread;
