//! The validated plan of `torchspy diff`, free of clap.

use super::args::{ByName, DiffArguments};
use super::failure::Failure;
use super::formats::Format;
use super::output_names::{OutputFile, parse_outputs};
use super::regions;
use super::rules::Rules;
use crate::analysis::diff::Options;
use crate::model::region::Region;
use crate::report::view::By;
use std::path::PathBuf;

/// Maximum of `--run-to-run`, percent.
const MAX_RUN_TO_RUN: f64 = 100.0;

#[derive(Debug)]
pub(crate) struct DiffPlan {
    /// Never empty.
    pub(crate) a: Vec<PathBuf>,
    /// Never empty.
    pub(crate) b: Vec<PathBuf>,
    pub(crate) outputs: Vec<OutputFile>,
    /// Files that are there are replaced.
    pub(crate) force: bool,
    pub(crate) json: bool,
    pub(crate) top: usize,
    pub(crate) rank: Option<u32>,
    pub(crate) options: Options,
    pub(crate) by: By,
    pub(crate) plumbing: bool,
    pub(crate) regions: Vec<Region>,
    pub(crate) rules: Rules,
    /// The key of hashes that replace names; `None`: names stay.
    pub(crate) confidential: Option<String>,
}

impl DiffPlan {
    pub(super) fn new(arguments: DiffArguments) -> Result<Self, Failure> {
        let (a, b) = sides(arguments.files, arguments.a, arguments.b)?;
        let outputs = parse_outputs(arguments.output)?;
        for output in &outputs {
            if !matches!(
                output.format,
                Format::Page | Format::Flamegraph | Format::Folded | Format::Json | Format::Text
            ) {
                return Err(Failure::usage(
                    format!("{}: a comparison has no such form", output.path.display()),
                    "the format goes by the extension: .html .svg .folded .json .txt",
                ));
            }
        }
        let by = match arguments.by {
            ByName::Function => By::Function,
            ByName::Module => By::Module,
        };
        let is_drawn = |output: &OutputFile| {
            matches!(
                output.format,
                Format::Page | Format::Flamegraph | Format::Folded
            )
        };
        let of_drawing = match (by, arguments.plumbing) {
            (_, true) => Some("--plumbing"),
            (By::Module, _) => Some("--by module"),
            _ => None,
        };
        if let Some(option) = of_drawing.filter(|_| !outputs.iter().any(is_drawn)) {
            return Err(Failure::usage(
                format!("{option} is of drawings, and none is written"),
                "add -o diff.html, -o diff.svg or -o diff.folded",
            ));
        }
        let run_to_run = run_to_run(arguments.run_to_run)?;
        Ok(Self {
            a,
            b,
            outputs,
            force: arguments.force,
            json: arguments.json,
            top: arguments.top,
            rank: arguments.rank,
            options: Options { run_to_run },
            by,
            plumbing: arguments.plumbing,
            regions: regions::parse(&arguments.attribution.region)?,
            rules: Rules::read(arguments.attribution.rules.as_deref())?,
            confidential: arguments.confidential.confidential,
        })
    }
}

/// `--run-to-run`, as a share.
pub(super) fn run_to_run(percent: f64) -> Result<f64, Failure> {
    if (0.0..=MAX_RUN_TO_RUN).contains(&percent) {
        return Ok(percent / 100.0);
    }
    Err(Failure::usage(
        format!("--run-to-run {percent} is out of range"),
        "it is a standard deviation in percent: 1 for a quiet machine, 0 to compare the recordings alone",
    ))
}

fn sides(
    files: Vec<PathBuf>,
    a: Vec<PathBuf>,
    b: Vec<PathBuf>,
) -> Result<(Vec<PathBuf>, Vec<PathBuf>), Failure> {
    if !a.is_empty() && !b.is_empty() {
        return Ok((a, b));
    }
    let count = files.len();
    let files: Result<[PathBuf; 2], _> = files.try_into();
    match files {
        Ok([a, b]) => Ok((vec![a], vec![b])),
        Err(_) => Err(Failure::usage(
            match count {
                0 => "nothing to compare: no recording is given".to_owned(),
                1 => "nothing to compare with: one recording is given".to_owned(),
                more => format!("{more} recordings: which are of A, which of B?"),
            },
            "torchspy diff A.tspy B.tspy; several runs of each: torchspy diff --a A1.tspy A2.tspy --b B1.tspy B2.tspy",
        )),
    }
}
