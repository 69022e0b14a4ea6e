//! `torchspy snapshot PID-or-FILE`: `convert` of a recording that is still being written.

use super::convert;
use crate::cli::failure::Failure;
use crate::cli::plan::{SnapshotOf, SnapshotPlan};
use crate::cli::under_way;
use crate::os::priority;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// How far behind the trainer's nice value: somebody waits for the page, but the trainer comes
/// first.
const NICE: i32 = 10;

pub(crate) fn run(plan: SnapshotPlan) -> Result<ExitCode, Failure> {
    match plan.is_child {
        true => priority::run_last(),
        false => priority::run_behind(NICE),
    }
    let mut convert = plan.convert;
    let format = convert.format;
    let beside = |name: &Path| {
        let extension = format!("snapshot.{}", format.extension());
        name.with_extension(extension)
    };
    let (default, shown) = match plan.of {
        SnapshotOf::File(path) => {
            let (default, shown) = (beside(&path), path.display().to_string());
            convert.file = path;
            (default, shown)
        }
        SnapshotOf::Process(pid) => {
            let found = under_way::of_process(pid)?;
            let name = beside(&found.name);
            let default = PathBuf::from(name.file_name().unwrap_or_default());
            let shown = found.shown();
            convert.file = found.path;
            (default, shown)
        }
    };
    if !plan.names_output {
        convert.output = Some(default);
    }
    convert::run_as(&convert, &shown)
}
