//! One or several snapshots of a job, for people and for machines.

pub mod answer;
pub mod flight;
mod head;
pub mod job;
pub mod job_json;
mod job_names;
pub mod json;
pub(crate) mod memory;
pub mod moved;
pub mod py_spy;
pub mod ras;
mod tasks;
pub mod text;
mod thread;
