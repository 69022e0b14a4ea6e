//! `py-spy dump`: torchspy called by py-spy's name.

use crate::cli::dump_plan::LookPlan;
use crate::cli::dump_snapshot::take_one;
use crate::cli::failure::Failure;
use crate::cli::{hints, messages};
use crate::os::process_info::{read_process_info, read_stat};
use crate::report::dump::py_spy::{PySpyHead, render_json, render_text, view_of, with_stacks};
use crate::sampling::py_spy_view::{PySpyViewOptions, read_py_spy_view};
use std::process::ExitCode;

/// The validated plan of `py-spy dump`.
#[derive(Clone, Debug)]
pub(crate) struct PySpyDumpPlan {
    /// One process; with `tree` its descendants, too.
    pub(crate) look: LookPlan,
    pub(crate) json: bool,
    pub(crate) view: PySpyViewOptions,
}

pub(crate) fn run(plan: &PySpyDumpPlan) -> Result<ExitCode, Failure> {
    let (mut dump, denied) = take_one(&plan.look)?;
    if let Some(error) = denied {
        return Err(hints::session_failure(error));
    }
    let command = |pid: i32| {
        read_process_info(pid, plan.look.redaction)
            .map(|info| info.command)
            .unwrap_or_default()
    };
    let mut text = String::new();
    for process in &mut dump.processes {
        let is_root = plan.look.pids.contains(&process.pid);
        let executable = || {
            let path = std::fs::read_link(format!("/proc/{}/exe", process.pid));
            path.map_or_else(|_| String::new(), |path| path.display().to_string())
        };
        let read = read_py_spy_view(process.pid, plan.view);
        let mut view = match read.or_else(|error| view_of(process, executable()).ok_or(error)) {
            Ok(view) => view,
            Err(error) if is_root => {
                return Err(Failure::new(error).hint(format!(
                    "torchspy dump --pid {} shows native stacks",
                    process.pid
                )));
            }
            // A child without Python has no stacks in py-spy's form.
            Err(_) => continue,
        };
        for thread in &mut process.threads {
            thread.frames.retain(|frame| !frame.is_region);
        }
        with_stacks(&mut view, &process.threads, plan.look.native);
        if plan.json {
            // py-spy prints the first process alone.
            text = render_json(&view).map_err(Failure::new)? + "\n";
            break;
        }
        if !is_root {
            // py-spy draws a line as wide as the terminal: 80 columns without one.
            text.push_str(&format!("\n{}\n", "-".repeat(80)));
        }
        let parent = read_stat(process.pid).map(|stat| stat.parent_pid);
        let parent = parent.ok().filter(|_| !is_root);
        let head = PySpyHead {
            pid: process.pid,
            command: command(process.pid),
            parent: parent.map(|pid| (pid, command(pid))),
        };
        text.push_str(&render_text(&head, &view));
    }
    messages::data(|out| out.write_all(text.as_bytes()))?;
    Ok(ExitCode::SUCCESS)
}
