//! The command line: arguments, plans, progress and the subcommands.
//!
//! What the user typed becomes a validated [`plan`] before anything happens. Standard output is for
//! data alone; all else goes to standard error, through [`messages`].

mod agent;
mod agent_plan;
mod args;
mod ask;
mod asked_job;
mod browser;
mod commands;
mod config;
mod diff_plan;
mod dump_kernel;
mod dump_plan;
mod dump_snapshot;
mod failure;
mod flight;
mod formats;
mod gather;
mod github_summary;
mod hints;
mod http;
mod job_plan;
mod messages;
mod mlflow;
mod monitor;
mod nccl;
mod objects;
mod open_outputs;
mod option_values;
mod output_file;
mod output_names;
mod output_pattern;
mod outputs;
mod pause;
mod plan;
mod program_log;
mod progress;
mod py_spy_args;
mod pyspy;
mod ras;
mod regions;
mod regular;
mod ring_files;
mod rules;
mod scaling_plan;
mod sources;
mod steering;
mod target;
mod terminal;
mod trace_plan;
mod trainers;
mod transport;
mod trigger;
mod under_way;
mod view;
mod watch_plan;
mod window;

use crate::os::allocator::keep_freed_memory;
use args::Arguments;
use clap::Parser;
use failure::Failure;
use objects::fetch::fetch;
use plan::Plan;
use py_spy_args::PySpyArguments;
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the command of `arguments` (the first is torchspy's own name, or py-spy); returns the exit
/// status.
///
/// 0 for success, 1 for an error, 2 for invalid arguments. `record` with a command has that
/// command's status.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let typed: Vec<OsString> = arguments.into_iter().collect();
    let plan = match py_spy_args::is_called(typed.first()) {
        true => PySpyArguments::try_parse_from(&typed)
            .map(py_spy_args::plan)
            .map_err(|error| messages::parse_error(&error, None)),
        false => match config::complete(typed) {
            Ok(line) => Arguments::try_parse_from(&line)
                .map(Plan::new)
                .map(|plan| plan.map_err(config::with_origin))
                .map_err(|error| messages::parse_error(&error, pyspy::hint(&line, &error))),
            Err(failure) => return messages::failure(&failure),
        },
    };
    let plan = match plan {
        Ok(plan) => plan,
        Err(code) => return code,
    };
    match plan.and_then(dispatch) {
        Ok(code) => code,
        Err(failure) => messages::failure(&failure),
    }
}

fn dispatch(mut plan: Plan) -> Result<ExitCode, Failure> {
    let goes_on = matches!(plan, Plan::View(_));
    let inputs = plan.inputs();
    if !inputs.is_empty() && !goes_on {
        keep_freed_memory();
    }
    inputs.into_iter().try_for_each(fetch)?;
    match plan {
        Plan::Agent(plan) => commands::agent::run(*plan),
        Plan::Record(plan) => commands::record::run(*plan),
        Plan::Report(plan) => commands::report::run(&plan),
        Plan::ReportTrace(plan) => commands::report_trace::run(&plan),
        Plan::ReportJob(plan) => commands::report_job::run(&plan),
        Plan::ConvertJob(plan) => commands::report_job::convert(&plan),
        Plan::Convert(plan) => commands::convert::run(&plan),
        Plan::Snapshot(plan) => commands::snapshot::run(plan),
        Plan::View(plan) => commands::view::run(plan),
        Plan::Send(plan) => commands::send::run(&plan),
        Plan::Trigger(folder) => commands::trigger::run(&folder),
        Plan::Diff(plan) => commands::diff::run(&plan),
        Plan::Scaling(plan) => commands::scaling::run(&plan),
        Plan::Dump(plan) => commands::dump::run(&plan),
        Plan::PySpyDump(plan) => commands::py_spy_dump::run(&plan),
        Plan::InstallPySpy(plan) => commands::install_py_spy::run(&plan),
        Plan::Watch(plan) => commands::watch::run(&plan),
        Plan::Top(plan) => commands::top::run(plan),
        Plan::Rules(plan) => commands::rules::run(&plan),
        Plan::Inspect(plan) => commands::inspect::run(&plan),
        Plan::Doctor(plan) => commands::doctor::run(&plan),
        Plan::Completions(shell) => commands::completions::run(shell),
        Plan::Config(command) => commands::config::run(command.as_deref()),
        Plan::Man(plan) => commands::man::run(&plan),
    }
}
