//! The validated plan of `torchspy report --trace-file FILE` without a recording, free of clap.

use super::args::{ReportArguments, ReportByName};
use super::failure::Failure;
use crate::report::tables::trace::{MakeOfTrace, TABLES};
use crate::report::tables::{self, Make};
use crate::report::text::{By, Detail, TextOptions};
use std::path::PathBuf;

#[derive(Debug)]
pub(crate) struct TracePlan {
    pub(crate) file: PathBuf,
    pub(crate) json: bool,
    /// What a recording keeps of it is printed.
    pub(crate) is_reduced: bool,
    /// A table, printed alone as CSV.
    pub(crate) csv: Option<MakeOfTrace>,
    /// What of the text is printed.
    pub(crate) text: TextOptions,
}

impl TracePlan {
    pub(super) fn new(file: PathBuf, arguments: &ReportArguments) -> Result<Self, Failure> {
        let of_recording = [
            ("--html", arguments.html),
            ("--itwinai", arguments.itwinai),
            ("--skip-steps", arguments.skip_steps.is_some()),
            ("--steps", arguments.steps.is_some()),
            ("--from", arguments.interval.from.is_some()),
            ("--to", arguments.interval.to.is_some()),
            ("--mesh", arguments.mesh.is_some()),
            ("--github-summary", arguments.github_summary),
            ("--mlflow", arguments.mlflow.mlflow.is_some()),
            ("--region", !arguments.attribution.region.is_empty()),
            ("--rules", arguments.attribution.rules.is_some()),
            (
                "--confidential",
                arguments.confidential.confidential.is_some(),
            ),
        ];
        if let Some((option, _)) = of_recording.iter().find(|(_, is_set)| *is_set) {
            return Err(Failure::usage(
                format!("{option} is of a recording, and there is only a trace"),
                "torchspy report FILE --trace-file TRACE for both",
            ));
        }
        let by = arguments.by.map(by).transpose()?;
        Ok(Self {
            file,
            json: arguments.json,
            is_reduced: arguments.reduced,
            csv: arguments.csv.as_deref().map(table_alone).transpose()?,
            text: TextOptions {
                detail: match arguments.full || arguments.top.is_some() {
                    true => Detail::Full,
                    false => Detail::Brief,
                },
                rows: arguments.top.unwrap_or(TextOptions::default().rows),
                by,
                ..TextOptions::default()
            },
        })
    }
}

fn by(name: ReportByName) -> Result<By, Failure> {
    Ok(match name {
        ReportByName::Op => By::Operator,
        ReportByName::Shape => By::Shape,
        ReportByName::Kernel => By::Kernel,
        _ => {
            return Err(Failure::usage(
                "a trace alone has no such table",
                "--by op, --by shape or --by kernel; or a recording beside it",
            ));
        }
    })
}

fn table_alone(name: &str) -> Result<MakeOfTrace, Failure> {
    of_trace(name).ok_or_else(|| {
        let names: Vec<&str> = names_of_trace().collect();
        Failure::usage(
            format!("a trace has no table {name}"),
            format!("its tables are {}", names.join(", ")),
        )
    })
}

fn of_trace(name: &str) -> Option<MakeOfTrace> {
    let found = TABLES.iter().find(|(each, _)| *each == name);
    found.map(|&(_, make)| make)
}

fn names_of_trace() -> impl Iterator<Item = &'static str> {
    TABLES.iter().map(|(name, _)| *name)
}

/// A table of a recording, or of a trace beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReportTable {
    Recording(Make),
    Trace(MakeOfTrace),
}

/// The table of that name.
pub(super) fn table(name: &str) -> Result<ReportTable, Failure> {
    let of_recording = tables::named(name).map(ReportTable::Recording);
    let of_trace = || of_trace(name).map(ReportTable::Trace);
    of_recording.or_else(of_trace).ok_or_else(|| {
        let of_recording = tables::TABLES.iter().map(|(name, _)| *name);
        let names: Vec<&str> = of_recording.chain(names_of_trace()).collect();
        Failure::usage(
            format!("no table is called `{name}`"),
            format!("these are: {}", names.join(", ")),
        )
    })
}

/// Refuses what has no place for a trace.
pub(super) fn refuse_beside(arguments: &ReportArguments, is_job: bool) -> Result<(), Failure> {
    let without = [
        ("a folder of recordings", is_job),
        (
            "--confidential",
            arguments.confidential.confidential.is_some(),
        ),
    ];
    match without.iter().find(|(_, is_set)| *is_set) {
        Some((what, _)) => Err(refused(what)),
        None => Ok(()),
    }
}

/// What does not go with a trace.
pub(super) fn refused(what: &str) -> Failure {
    Failure::usage(
        format!("--trace-file cannot be combined with {what}"),
        "torchspy report FILE --trace-file TRACE, or --trace-file TRACE alone",
    )
}
