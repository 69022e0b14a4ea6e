//! The command line of `py-spy`, by which name torchspy may be called (py-spy 0.4,
//! `src/config.rs`): programs that start py-spy find it on `PATH`.

use super::args::{Arguments, parse_pid};
use super::commands::py_spy_dump::PySpyDumpPlan;
use super::dump_plan::LookPlan;
use super::failure::Failure;
use super::plan::Plan;
use super::rules::Rules;
use crate::os::redaction::Redaction;
use crate::report::folded::PySpyForm;
use crate::sampling::py_spy_view::PySpyViewOptions;
use clap::{ArgAction, Args, Parser, Subcommand};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The name that programs call.
pub(super) const NAME: &str = "py-spy";

/// Whether torchspy was called by this name, as the first argument says.
pub(super) fn is_called(name: Option<&OsString>) -> bool {
    name.is_some_and(|name| Path::new(name).file_name() == Some(OsStr::new(NAME)))
}

/// torchspy, called py-spy: dump and raw stacks as py-spy 0.4 prints them
#[derive(Debug, Parser)]
#[command(
    name = "py-spy",
    version = concat!("0.4.3 (torchspy ", env!("CARGO_PKG_VERSION"), ")"),
    disable_help_subcommand = true,
    infer_subcommands = true
)]
pub(super) struct PySpyArguments {
    #[command(subcommand)]
    command: PySpyCommand,
}

#[derive(Debug, Subcommand)]
enum PySpyCommand {
    /// Records stacks to a flamegraph, speedscope, raw or Chrome trace file
    Record(PySpyRecord),
    /// Shows functions as they run: torchspy top
    Top(PySpyTop),
    /// Dumps the stacks of a process to stdout
    Dump(PySpyDump),
}

#[derive(Debug, Args)]
struct PySpySampling {
    /// The process, in decimal or hex
    #[arg(short, long, value_parser = parse_pid)]
    pid: Option<i32>,
    /// Samples per second
    #[arg(short, long, default_value = "100")]
    rate: String,
    /// Its child processes, too
    #[arg(short, long)]
    subprocesses: bool,
    /// Full paths of files
    #[arg(long)]
    full_filenames: bool,
    /// Only threads that hold the GIL
    #[arg(short, long)]
    gil: bool,
    /// Threads that sleep, too
    #[arg(short, long)]
    idle: bool,
    /// Native frames, too
    #[arg(short, long)]
    native: bool,
    /// Never stop a thread
    #[arg(long)]
    nonblocking: bool,
    /// A program to start, and its arguments
    #[arg(trailing_var_arg = true, value_name = "python_program")]
    program: Vec<OsString>,
}

#[derive(Debug, Args)]
struct PySpyRecord {
    /// Output file; one that is there is replaced
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Format of the output
    #[arg(short, long, default_value = "flamegraph",
          ignore_case = true, value_parser = ["flamegraph", "raw", "speedscope", "chrometrace"])]
    format: String,
    /// Seconds to sample for, or unlimited
    #[arg(short, long, default_value = "unlimited")]
    duration: String,
    /// Functions by their first line
    #[arg(short = 'F', long)]
    function: bool,
    /// No line numbers
    #[arg(long)]
    nolineno: bool,
    /// Ids of threads in the output
    #[arg(short, long)]
    threads: bool,
    /// Taken, and of no effect: what a program prints is never held back
    #[arg(long, hide = true)]
    capture: bool,
    /// Taken, and of no effect: where stderr is no terminal there is no progress
    #[arg(long, hide = true)]
    hideprogress: bool,
    #[command(flatten)]
    sampling: PySpySampling,
}

#[derive(Debug, Args)]
struct PySpyTop {
    /// Taken, and of no effect: what is new is drawn twice a second
    #[arg(long)]
    delay: Option<f64>,
    #[command(flatten)]
    sampling: PySpySampling,
}

#[derive(Debug, Args)]
struct PySpyDump {
    /// The process, in decimal or hex
    #[arg(short, long, value_parser = parse_pid, required_unless_present = "core")]
    pid: Option<i32>,
    /// A core file (not read by torchspy)
    #[arg(short, long, conflicts_with = "pid")]
    core: Option<PathBuf>,
    /// Full paths of files
    #[arg(long)]
    full_filenames: bool,
    /// Variables of each frame; -ll shows more of their values
    #[arg(short, long, action = ArgAction::Count)]
    locals: u8,
    /// JSON
    #[arg(short, long)]
    json: bool,
    /// Its child processes, too
    #[arg(short, long)]
    subprocesses: bool,
    /// Native frames, too
    #[arg(short, long)]
    native: bool,
    /// Never stop a thread
    #[arg(long)]
    nonblocking: bool,
}

/// The plan of a command line of py-spy.
pub(super) fn plan(arguments: PySpyArguments) -> Result<Plan, Failure> {
    match arguments.command {
        PySpyCommand::Record(record) => record_plan(&record),
        PySpyCommand::Top(top) => torchspy(words("top", &top.sampling)),
        PySpyCommand::Dump(dump) => dump_plan(&dump),
    }
}

fn dump_plan(dump: &PySpyDump) -> Result<Plan, Failure> {
    let Some(pid) = dump.pid else {
        return Err(Failure::usage(
            "torchspy does not read core files",
            "py-spy itself does, under another name or path: py-spy dump --core FILE",
        ));
    };
    Ok(Plan::PySpyDump(PySpyDumpPlan {
        look: LookPlan {
            memory: false,
            pids: vec![pid],
            tree: dump.subprocesses,
            // py-spy's own words for them are read with the view.
            locals: false,
            native: dump.native,
            nonblocking: dump.nonblocking,
            ras: false,
            redaction: Redaction::On,
            rules: Rules::read(None)?,
        },
        json: dump.json,
        view: PySpyViewOptions {
            locals: dump.locals,
            full_filenames: dump.full_filenames,
            redaction: Redaction::On,
        },
    }))
}

fn record_plan(record: &PySpyRecord) -> Result<Plan, Failure> {
    let mut typed = words("record", &record.sampling);
    let mut options = vec![
        "--force".into(),
        "--format".into(),
        record.format.to_lowercase().into(),
        "--duration".into(),
        OsString::from(&record.duration),
    ];
    if let Some(output) = &record.output {
        options.extend(["--output".into(), output.into()]);
    }
    let switches = [
        (record.function, "--function"),
        (record.nolineno, "--nolineno"),
        (record.sampling.full_filenames, "--full-filenames"),
        (record.sampling.idle, "--idle"),
    ];
    options.extend(given(&switches));
    typed.splice(2..2, options);
    let mut plan = torchspy(typed)?;
    if let Plan::Record(plan) = &mut plan {
        plan.drawing.py_spy = Some(PySpyForm {
            processes: record.sampling.subprocesses,
            threads: record.threads,
            full_filenames: record.sampling.full_filenames,
        });
    }
    Ok(plan)
}

/// A line of torchspy, with what py-spy does where nothing else is said: neither native frames nor
/// child processes.
fn words(command: &str, sampling: &PySpySampling) -> Vec<OsString> {
    let mut words = vec!["torchspy".into(), command.into()];
    words.extend(["--rate".into(), OsString::from(&sampling.rate)]);
    if let Some(pid) = sampling.pid {
        words.extend(["--pid".into(), pid.to_string().into()]);
    }
    words.extend(given(&[
        (sampling.native, "--native"),
        (!sampling.native, "--no-native"),
        (!sampling.subprocesses, "--no-subprocesses"),
        (sampling.gil, "--gil"),
        (sampling.nonblocking, "--nonblocking"),
    ]));
    if !sampling.program.is_empty() {
        words.push("--".into());
        words.extend(sampling.program.iter().cloned());
    }
    words
}

fn given(switches: &[(bool, &str)]) -> Vec<OsString> {
    let given = switches.iter().filter(|(is, _)| *is);
    given.map(|(_, name)| (*name).into()).collect()
}

fn torchspy(words: Vec<OsString>) -> Result<Plan, Failure> {
    let arguments = Arguments::try_parse_from(words).map_err(|error| {
        let text = error.to_string();
        let cause = text.lines().next().unwrap_or_default();
        let cause = cause.trim_start_matches("error: ").to_owned();
        Failure::usage(
            cause,
            "py-spy record --help and py-spy top --help show the options",
        )
    })?;
    Plan::new(arguments)
}
