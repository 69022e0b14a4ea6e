//! The validated plans of `torchspy report DIR` and `torchspy convert DIR`, free of clap.

use super::args::{ByName, ColorName, ConvertArguments, ReportArguments};
use super::failure::Failure;
use super::formats::Format;
use super::mlflow::MlflowPlan;
use super::regions;
use super::rules::Rules;
use crate::analysis::job::Job;
use crate::analysis::job::mesh::Mesh;
use crate::model::region::Region;
use crate::report::table::Sheet;
use crate::report::tables::by_group::{BY_GROUP, by_group};
use crate::report::tables::job::{CLOCKS, RANKS, clocks, ranks};
use std::path::{Path, PathBuf};

/// Builds a table of a job.
pub(crate) type MakeOfJob = fn(&Job) -> Sheet;

const TABLES: &[(&str, MakeOfJob)] = &[
    ("ranks", |job| Sheet::new(RANKS, &ranks(job))),
    ("by_group", |job| Sheet::new(BY_GROUP, &by_group(job))),
    ("clocks", |job| Sheet::new(CLOCKS, &clocks(job))),
];

#[derive(Debug)]
pub(crate) struct JobPlan {
    pub(crate) folder: PathBuf,
    pub(crate) json: bool,
    pub(crate) html: bool,
    /// A table, printed alone as CSV.
    pub(crate) csv: Option<MakeOfJob>,
    /// All ranks and files are listed.
    pub(crate) full: bool,
    pub(crate) mesh: Option<Mesh>,
    pub(crate) regions: Vec<Region>,
    pub(crate) rules: Rules,
    /// The key of hashes that replace names; `None`: names stay.
    pub(crate) confidential: Option<String>,
    /// The job is logged there, too.
    pub(crate) mlflow: Option<MlflowPlan>,
}

impl JobPlan {
    /// The job whose recordings are in a folder, as it is reported without options.
    pub(crate) fn of(folder: &Path, regions: Vec<Region>, rules: Rules) -> Self {
        Self {
            folder: folder.to_owned(),
            json: false,
            html: false,
            csv: None,
            full: false,
            mesh: None,
            regions,
            rules,
            confidential: None,
            mlflow: None,
        }
    }

    pub(super) fn new(folder: PathBuf, arguments: ReportArguments) -> Result<Self, Failure> {
        let of_one = [
            ("--itwinai", arguments.itwinai),
            ("--top", arguments.top.is_some()),
            ("--skip-steps", arguments.skip_steps.is_some()),
            ("--steps", arguments.steps.is_some()),
            ("--from", arguments.interval.from.is_some()),
            ("--to", arguments.interval.to.is_some()),
            ("--by", arguments.by.is_some()),
            ("--github-summary", arguments.github_summary),
        ];
        refuse(&of_one, "report", &folder)?;
        Ok(Self {
            json: arguments.json,
            html: arguments.html,
            csv: arguments.csv.as_deref().map(table).transpose()?,
            full: arguments.full,
            mesh: arguments.mesh,
            regions: regions::parse(&arguments.attribution.region)?,
            rules: Rules::read(arguments.attribution.rules.as_deref())?,
            confidential: arguments.confidential.confidential,
            mlflow: MlflowPlan::new(arguments.mlflow)?,
            folder,
        })
    }
}

/// What a job's recordings are converted into.
#[derive(Debug)]
pub(crate) struct JobConvertPlan {
    pub(crate) job: JobPlan,
    /// `None`: standard output.
    pub(crate) output: Option<PathBuf>,
    /// A file that is there is replaced.
    pub(crate) force: bool,
    /// The output is opened at the end.
    pub(crate) open: bool,
}

impl JobConvertPlan {
    pub(super) fn new(arguments: ConvertArguments) -> Result<Self, Failure> {
        let drawing = &arguments.drawing;
        let of_one = [
            ("--trace-file", arguments.trace_file.is_some()),
            ("--thread-name", arguments.threads.is_some()),
            ("--gpu-idle", arguments.gpu_idle),
            ("--from", arguments.interval.from.is_some()),
            ("--to", arguments.interval.to.is_some()),
            ("--plumbing", drawing.plumbing),
            ("--python-only", drawing.python_only),
            ("--by module", drawing.by == ByName::Module),
            ("--color gpu", drawing.color == ColorName::Gpu),
            ("--idle", drawing.idle),
            ("--function", drawing.function),
            ("--nolineno", drawing.nolineno),
            ("--full-filenames", drawing.full_filenames),
            ("--source", drawing.source),
            ("--editor", drawing.editor.is_some()),
        ];
        refuse(&of_one, "convert", &arguments.file)?;
        let output = arguments.output.output.unwrap_or_else(|| "-".into());
        let to_stdout = output == Path::new("-");
        let format = match arguments.output.format.as_deref() {
            Some(name) => Format::named(name)?,
            None if to_stdout => Format::Page,
            None => Format::of_path(&output)?,
        };
        if format != Format::Page {
            return Err(Failure::usage(
                format!("a job is not written as .{}", format.extension()),
                "convert DIR -o job.html, report DIR --json, or convert FILE of one recording",
            ));
        }
        if arguments.output.open && to_stdout {
            return Err(Failure::usage(
                "--open opens a file, and the output is standard output",
                "name a file: -o job.html --open",
            ));
        }
        Ok(Self {
            job: JobPlan {
                json: false,
                html: true,
                csv: None,
                full: false,
                mesh: arguments.mesh,
                regions: regions::parse(&arguments.attribution.region)?,
                rules: Rules::read(arguments.attribution.rules.as_deref())?,
                confidential: arguments.confidential.confidential,
                mlflow: None,
                folder: arguments.file,
            },
            output: (!to_stdout).then_some(output),
            force: arguments.output.force,
            open: arguments.output.open,
        })
    }
}

/// Refuses options that are of one recording.
fn refuse(of_one: &[(&str, bool)], command: &str, folder: &Path) -> Result<(), Failure> {
    match of_one.iter().find(|(_, is_set)| *is_set) {
        Some((option, _)) => Err(Failure::usage(
            format!(
                "{option} is of one recording, and {} is a folder",
                folder.display()
            ),
            format!("torchspy {command} FILE for one of its recordings"),
        )),
        None => Ok(()),
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
