//! The validated plan of `torchspy scaling`, free of clap.

use super::args::{BatchName, PerName, ScalingArguments};
use super::diff_plan::run_to_run;
use super::failure::Failure;
use super::formats::{Format, extensions};
use super::job_plan::JobPlan;
use super::output_names::{OutputFile, parse_outputs};
use super::regions;
use super::rules::Rules;
use crate::analysis::scaling::fit::Division;
use crate::analysis::scaling::{Options, Scaling, Unit};
use crate::report::table::Sheet;
use crate::report::tables::scaling::{fit_columns, fits, point_columns, points};

/// Builds a table of the answer.
pub(crate) type MakeOfScaling = fn(&Scaling) -> Sheet;

const TABLES: &[(&str, MakeOfScaling)] = &[
    ("points", |scaling| {
        Sheet::new(&point_columns(), &points(scaling))
    }),
    ("fits", |scaling| Sheet::new(&fit_columns(), &fits(scaling))),
];

/// What is written.
const FORMATS: &[Format] = &[Format::Page, Format::Json, Format::Text];

#[derive(Debug)]
pub(crate) struct ScalingPlan {
    /// Never empty.
    pub(crate) runs: Vec<JobPlan>,
    pub(crate) outputs: Vec<OutputFile>,
    /// Files that are there are replaced.
    pub(crate) force: bool,
    pub(crate) json: bool,
    /// A table, printed alone as CSV.
    pub(crate) csv: Option<MakeOfScaling>,
    pub(crate) options: Options,
}

impl ScalingPlan {
    pub(super) fn new(arguments: ScalingArguments) -> Result<Self, Failure> {
        for path in &arguments.output {
            let format = Format::of_path(path).ok();
            if !format.is_some_and(|format| FORMATS.contains(&format)) {
                return Err(Failure::usage(
                    format!("{}: a comparison of sizes has no such form", path.display()),
                    format!(
                        "the format goes by the extension: {}; --csv prints a table; the page has \
                         the plots",
                        extensions(FORMATS.iter().copied())
                    ),
                ));
            }
        }
        let outputs = parse_outputs(arguments.output)?;
        for (at, run) in arguments.runs.iter().enumerate() {
            if arguments.runs.iter().take(at).any(|other| other == run) {
                return Err(Failure::usage(
                    format!("{} is given twice", run.display()),
                    "each run once: a repetition is another run",
                ));
            }
        }
        let run = |folder| {
            Ok(JobPlan {
                folder,
                json: false,
                html: false,
                csv: None,
                full: false,
                mesh: None,
                regions: regions::parse(&arguments.attribution.region)?,
                rules: Rules::read(arguments.attribution.rules.as_deref())?,
                confidential: arguments.confidential.confidential.clone(),
                mlflow: None,
            })
        };
        Ok(Self {
            runs: arguments
                .runs
                .into_iter()
                .map(run)
                .collect::<Result<_, Failure>>()?,
            outputs,
            force: arguments.force,
            json: arguments.json,
            csv: arguments.csv.as_deref().map(table).transpose()?,
            options: Options {
                per: arguments.per.map(|per| match per {
                    PerName::Epoch => Unit::Epoch,
                    PerName::Step => Unit::Step,
                }),
                batch: arguments.batch.map(|batch| match batch {
                    BatchName::Rank => Division::PerRank,
                    BatchName::Global => Division::Global,
                }),
                run_to_run: run_to_run(arguments.run_to_run)?,
            },
        })
    }
}

fn table(name: &str) -> Result<MakeOfScaling, Failure> {
    let found = TABLES.iter().find(|(each, _)| *each == name);
    found.map(|&(_, make)| make).ok_or_else(|| {
        let names: Vec<&str> = TABLES.iter().map(|(name, _)| *name).collect();
        Failure::usage(
            format!("there is no table {name}"),
            format!("the tables are {}", names.join(", ")),
        )
    })
}
