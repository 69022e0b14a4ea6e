//! The validated plan of `torchspy report DIR`, free of clap.

use super::args::ReportArguments;
use super::failure::Failure;
use super::regions;
use super::rules::Rules;
use crate::analysis::job::Job;
use crate::analysis::job::mesh::Mesh;
use crate::model::region::Region;
use crate::report::table::Sheet;
use crate::report::tables::job::{CLOCKS, RANKS, clocks, ranks};
use std::path::PathBuf;

/// Builds a table of a job.
pub(crate) type MakeOfJob = fn(&Job) -> Sheet;

const TABLES: &[(&str, MakeOfJob)] = &[
    ("ranks", |job| Sheet::new(RANKS, &ranks(job))),
    ("clocks", |job| Sheet::new(CLOCKS, &clocks(job))),
];

#[derive(Debug)]
pub(crate) struct JobPlan {
    pub(crate) folder: PathBuf,
    pub(crate) json: bool,
    /// A table, printed alone as CSV.
    pub(crate) csv: Option<MakeOfJob>,
    /// All ranks and files are listed.
    pub(crate) full: bool,
    pub(crate) mesh: Option<Mesh>,
    pub(crate) regions: Vec<Region>,
    pub(crate) rules: Rules,
    /// The key of hashes that replace names; `None`: names stay.
    pub(crate) confidential: Option<String>,
}

impl JobPlan {
    pub(super) fn new(arguments: ReportArguments) -> Result<Self, Failure> {
        let of_one = [
            ("--html", arguments.html),
            ("--itwinai", arguments.itwinai),
            ("--top", arguments.top.is_some()),
            ("--skip-steps", arguments.skip_steps.is_some()),
            ("--steps", arguments.steps.is_some()),
            ("--from", arguments.interval.from.is_some()),
            ("--to", arguments.interval.to.is_some()),
            ("--by", arguments.by.is_some()),
            ("--github-summary", arguments.github_summary),
        ];
        if let Some((option, _)) = of_one.iter().find(|(_, is_set)| *is_set) {
            return Err(Failure::usage(
                format!(
                    "{option} is of one recording, and {} is a folder",
                    arguments.file.display()
                ),
                "torchspy report FILE for one of its recordings",
            ));
        }
        Ok(Self {
            json: arguments.json,
            csv: arguments.csv.as_deref().map(table).transpose()?,
            full: arguments.full,
            mesh: arguments.mesh,
            regions: regions::parse(&arguments.attribution.region)?,
            rules: Rules::read(arguments.attribution.rules.as_deref())?,
            confidential: arguments.confidential.confidential,
            folder: arguments.file,
        })
    }
}

fn table(name: &str) -> Result<MakeOfJob, Failure> {
    let found = TABLES.iter().find(|(each, _)| *each == name);
    found.map(|&(_, make)| make).ok_or_else(|| {
        let names: Vec<&str> = TABLES.iter().map(|(name, _)| *name).collect();
        Failure::usage(
            format!("a job has no table {name}"),
            format!("its tables are {}", names.join(", ")),
        )
    })
}
