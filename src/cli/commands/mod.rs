//! The subcommands, one file each.

pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod diff;
pub(crate) mod doctor;
mod finish;
pub(crate) mod inspect;
pub(crate) mod record;
pub(crate) mod report;
