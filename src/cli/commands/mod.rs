//! The subcommands, one file each.

mod armed;
pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod dump;
mod dump_job;
mod finish;
pub(crate) mod inspect;
pub(crate) mod live_sink;
mod log_mlflow;
pub(crate) mod man;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod report_job;
pub(crate) mod rules;
mod rules_of;
pub(crate) mod scaling;
pub(crate) mod send;
pub(crate) mod snapshot;
mod snapshots;
pub(crate) mod top;
mod top_files;
pub(crate) mod trigger;
pub(crate) mod view;
pub(crate) mod watch;
mod watch_dump;
