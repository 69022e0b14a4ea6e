//! The validated plan of `torchspy dump`.

use super::args::DumpArguments;
use super::failure::Failure;
use super::option_values::{parse_duration_of, redaction};
use super::rules::Rules;
use crate::os::redaction::Redaction;
use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct DumpPlan {
    pub(crate) pid: i32,
    pub(crate) tree: bool,
    pub(crate) locals: bool,
    pub(crate) json: bool,
    pub(crate) native: bool,
    /// Nothing is stopped.
    pub(crate) nonblocking: bool,
    pub(crate) redaction: Redaction,
    pub(crate) repeat: u32,
    pub(crate) every: Duration,
    pub(crate) rules: Rules,
}

impl DumpPlan {
    pub(super) fn new(arguments: &DumpArguments) -> Result<Self, Failure> {
        Ok(Self {
            pid: arguments.pid,
            tree: arguments.tree,
            locals: arguments.locals > 0,
            json: arguments.json,
            native: !arguments.no_native,
            nonblocking: arguments.nonblocking,
            redaction: redaction(arguments.no_redact),
            repeat: arguments.repeat.unwrap_or(1),
            every: parse_duration_of("--every", &arguments.every)?,
            rules: Rules::read(arguments.rules.as_deref())?,
        })
    }
}
