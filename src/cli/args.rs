//! Arguments as typed. They go no further than [`plan`](super::plan).

use super::formats::{self, Format, extensions};
use super::transport::PROGRAM;
use crate::analysis::job::mesh::Mesh;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// A sampling profiler for PyTorch trainers: merged Python and native stacks, read from outside.
#[derive(Debug, Parser)]
#[command(
    name = "torchspy",
    version,
    after_help = AFTER_HELP,
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Subcommands,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Subcommands {
    /// Sample a program that torchspy starts, or one that runs
    ///
    /// Writes a recording (.tspy) and a page for a browser (.html), and prints a summary.
    #[command(after_help = RECORD_AFTER_HELP)]
    Record(RecordArguments),
    /// Print the summary of a recording
    #[command(after_help = REPORT_AFTER_HELP)]
    Report(ReportArguments),
    /// Turn a recording into a page, a flamegraph, a trace, a table, or another format
    #[command(
        after_help = CONVERT_AFTER_HELP,
        mut_arg("output", |output| output.required(true))
    )]
    Convert(ConvertArguments),
    /// Make a page of what there is so far of a recording that is still being written
    ///
    /// Without -o, the page has the recording's name with .snapshot.html.
    #[command(after_help = SNAPSHOT_AFTER_HELP)]
    Snapshot(SnapshotArguments),
    /// Send recordings to object storage that could not be sent when they were made
    #[command(after_help = SEND_AFTER_HELP)]
    Send(SendArguments),
    /// Make recorders begin that wait for it: record --trigger file:DIR
    ///
    /// Recorders on all hosts that see the folder begin within seconds.
    #[command(after_help = TRIGGER_AFTER_HELP)]
    Trigger(TriggerArguments),
    /// Show recordings in a browser, from a server on this machine
    ///
    /// Of a folder it lists all; a recording that grows is followed; an interval is loaded in full
    /// detail.
    #[command(after_help = VIEW_AFTER_HELP)]
    View(ViewArguments),
    /// Compare two recordings, or two sets of them: did it help?
    #[command(after_help = DIFF_AFTER_HELP)]
    Diff(DiffArguments),
    /// Compare runs on different numbers of ranks: how much faster is it with more?
    #[command(after_help = SCALING_AFTER_HELP)]
    Scaling(ScalingArguments),
    /// Show what every thread does right now: for a job that hangs
    #[command(after_help = DUMP_AFTER_HELP)]
    Dump(DumpArguments),
    /// Look at a job every few seconds, and dump it when it hangs
    ///
    /// A hang is a wait that nobody ends: for a collective, a lock or the DataLoader, while no
    /// thread of the job works. Evaluation, checkpoints, compilation, pauses and debuggers are
    /// none.
    #[command(after_help = WATCH_AFTER_HELP)]
    Watch(WatchArguments),
    /// Watch a program as it runs, in the terminal
    #[command(after_help = TOP_AFTER_HELP)]
    Top(TopArguments),
    /// Sample all trainers of this machine for as long as it runs, and serve figures to Prometheus
    ///
    /// It finds trainers by itself, those that start later as well. Without root it finds those of
    /// its user.
    #[command(after_help = AGENT_AFTER_HELP)]
    Agent(AgentArguments),
    /// Print the rules by which functions are attributed to phases, activities, operators, waits
    #[command(after_help = RULES_AFTER_HELP)]
    Rules(RulesArguments),
    /// Print what a recording holds
    #[command(after_help = INSPECT_AFTER_HELP)]
    Inspect(InspectArguments),
    /// Check what may be sampled here, and what to do where it may not
    #[command(after_help = DOCTOR_AFTER_HELP)]
    Doctor(DoctorArguments),
    /// Print shell completions
    #[command(after_help = COMPLETIONS_AFTER_HELP)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the options that files and the environment set
    #[command(after_help = CONFIG_AFTER_HELP)]
    Config {
        /// Only what counts for this command
        command: Option<String>,
    },
    /// Make a link py-spy in a folder, for programs that start py-spy
    ///
    /// Called by this name torchspy takes py-spy's options, and its dump and raw stacks are as
    /// py-spy's.
    #[command(name = "install-py-spy", after_help = INSTALL_PY_SPY_AFTER_HELP)]
    InstallPySpy(InstallPySpyArguments),
    /// Write man pages, one for torchspy and one for each command
    #[command(after_help = MAN_AFTER_HELP)]
    Man(ManArguments),
}

const AFTER_HELP: &str = "\
Examples:
  torchspy record -- python train.py
  torchspy dump --pid 4242 --tree";

/// A pid, in decimal or, as py-spy takes it, in hexadecimal.
pub(super) fn parse_pid(text: &str) -> Result<i32, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let pid = match digits {
        Some(digits) => i32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match pid {
        Ok(pid) if pid > 0 => Ok(pid),
        _ => Err("a pid is a whole number above 0".to_owned()),
    }
}

const RECORD_AFTER_HELP: &str = "\
A launched program keeps its standard input and output, and torchspy ends with its exit status.
Ctrl-C reaches the program itself; a second one ends the recording alone.

Examples:
  torchspy record -- python train.py
  torchspy record --pid 4242 --duration 30s -o run.tspy -o run.speedscope.json
  srun torchspy record -o 'runs/{job}/{host}-{rank}.tspy' -- python train.py";

#[derive(Debug, Args)]
pub(crate) struct RecordArguments {
    /// Sample this process instead of starting one
    #[arg(short, long, value_name = "PID", value_parser = parse_pid, conflicts_with = "command")]
    pub(crate) pid: Option<i32>,
    /// End the recording after this time: 30s, 2m, 1.5 (seconds), unlimited. The program goes on
    #[arg(short, long, value_name = "TIME", allow_negative_numbers = true)]
    pub(crate) duration: Option<String>,
    #[arg(
        short,
        long,
        value_name = "FILE",
        help = format!(
            "Output file, by extension: {}; may be given more than once. {{job}} {{host}} {{rank}} \
             {{local_rank}} {{world_size}} {{node}} {{pid}} {{time}} stand for what they name",
            extensions(Format::asked_for())
        )
    )]
    pub(crate) output: Vec<PathBuf>,
    /// Format of the output, whatever its extension; without -o, of the file written next to the
    /// recording
    #[arg(short, long, value_parser = formats::names())]
    pub(crate) format: Option<String>,
    /// Replace output files that are there already
    #[arg(long)]
    pub(crate) force: bool,
    /// Where recordings wait for object storage: without it, ~/.local/state/torchspy/spool
    #[arg(long, value_name = "DIR")]
    pub(crate) spool: Option<PathBuf>,
    /// Rewrite the page each TIME while recording (5s at least; less often where that would take
    /// more than 2 % of a CPU)
    #[arg(long, value_name = "TIME")]
    pub(crate) snapshot: Option<String>,
    /// Open the page in a browser at the end (.html, which is written by default)
    #[arg(long)]
    pub(crate) open: bool,
    /// Record only these ranks of a job: 0,8-15, every:64, random:1%. Others run without torchspy
    #[arg(long, value_name = "RANKS")]
    pub(crate) ranks: Option<String>,
    /// Record only when something happens; each time makes a recording of its own. file:DIR:
    /// torchspy trigger DIR. slow, slow:4: steps get slower than their median by 4 deviations.
    /// gpu:30: GPU utilization falls below 30 %. May be repeated
    #[arg(
        long,
        value_name = "WHEN",
        conflicts_with_all = ["duration", "snapshot", "force"]
    )]
    pub(crate) trigger: Vec<String>,
    /// Length of a recording that a trigger makes
    #[arg(long, value_name = "TIME", requires = "trigger", default_value = "60s")]
    pub(crate) trigger_for: String,
    /// Switch torch.profiler on once, for this time, when the launched program trains: calls and
    /// shapes of operators, kernels. It slows the program down, and one that ends in that time may
    /// crash after its last line
    #[arg(
        long,
        value_name = "TIME",
        conflicts_with_all = ["pid", "trigger", "trace_steps"]
    )]
    pub(crate) trace: Option<String>,
    /// The same for this number of steps
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["pid", "trigger"]
    )]
    pub(crate) trace_steps: Option<u32>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArguments,
    #[command(flatten)]
    pub(crate) drawing: DrawingArguments,
    /// py-spy's: threads are always drawn separately
    #[arg(short = 't', long = "threads", hide = true)]
    pub(crate) thread_ids: bool,
    #[command(flatten)]
    pub(crate) attribution: AttributionArguments,
    #[command(flatten)]
    pub(crate) confidential: ConfidentialArguments,
    /// The program to start, and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// How to sample.
#[derive(Debug, Args)]
pub(crate) struct SamplingArguments {
    /// Samples per second
    #[arg(
        short,
        long,
        value_name = "HZ",
        default_value_t = 100.0,
        allow_negative_numbers = true
    )]
    pub(crate) rate: f64,
    /// Sample native frames (the default)
    #[arg(short, long, overrides_with = "no_native")]
    pub(crate) native: bool,
    /// Sample Python frames only
    #[arg(long)]
    pub(crate) no_native: bool,
    /// Sample only threads whose name matches
    #[arg(long = "thread-name", value_name = "REGEX")]
    pub(crate) threads: Option<String>,
    /// Sample only threads that hold the GIL
    #[arg(short, long)]
    pub(crate) gil: bool,
    /// Sample child processes, too (the default)
    #[arg(short, long, overrides_with = "no_subprocesses")]
    pub(crate) subprocesses: bool,
    /// Child processes whose threads may be stopped; others are read only while they sleep
    #[arg(long, value_name = "WHICH", default_value = "python")]
    pub(crate) children: ChildrenName,
    /// Do not sample child processes: --children none
    #[arg(long)]
    pub(crate) no_subprocesses: bool,
    /// Never stop a thread: Python frames are checked against torn reads, native ones come from
    /// sleeping threads
    #[arg(long)]
    pub(crate) nonblocking: bool,
    /// How running threads are read
    #[arg(long, value_name = "HOW", default_value = "ptrace")]
    pub(crate) engine: EngineName,
    /// Share of a running thread's time that stops may take, in percent, or `off`
    #[arg(long, value_name = "PERCENT", default_value = "2")]
    pub(crate) max_stopped: String,
    /// Record these GPUs: all, none, or a list by number or UUID; without it, those that the
    /// sampled processes use
    #[arg(long, value_name = "all|none|LIST")]
    pub(crate) gpu: Option<String>,
    /// Do not ask NCCL which ranks are behind when nothing moves for long (its RAS socket on this
    /// machine)
    #[arg(long)]
    pub(crate) no_ras: bool,
    /// Keep passwords, tokens and keys in command lines: without it they are replaced by <redacted>
    #[arg(long)]
    pub(crate) no_redact: bool,
    /// Path of NVIDIA's libnvidia-ml.so.1, where the loader does not find it
    #[arg(long, value_name = "PATH")]
    pub(crate) nvml_lib: Option<PathBuf>,
}

const AGENT_AFTER_HELP: &str = "\
The series are at http://ADDRESS/metrics. Ctrl-C or SIGTERM ends it; the trainers go on.

Examples:
  torchspy agent
  torchspy agent --listen 0.0.0.0:9850 --ring /var/tmp/torchspy --pyroscope http://pyroscope:4040";

#[derive(Debug, Args)]
pub(crate) struct AgentArguments {
    /// Where Prometheus finds the series; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9850")]
    pub(crate) listen: String,
    /// Samples per second
    #[arg(
        short,
        long,
        value_name = "HZ",
        default_value_t = 19.0,
        allow_negative_numbers = true
    )]
    pub(crate) rate: f64,
    /// How often figures are renewed (1s at least)
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub(crate) every: String,
    /// Only trainers of this job: a Slurm job's id, or torchrun's --rdzv-id
    #[arg(long, value_name = "ID")]
    pub(crate) job: Option<String>,
    /// Sample at most this many trainers, or launchers of several, and show at most as many ranks
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(crate) max_trainers: u16,
    /// Drop the series of a rank this long after its end
    #[arg(long, value_name = "TIME", default_value = "5m")]
    pub(crate) keep: String,
    /// The shortest time without a step or a move that may be a hang
    #[arg(long, value_name = "TIME", default_value = "5m")]
    pub(crate) hang_after: String,
    /// Keep recordings of the last minutes in this folder, and dumps of hangs
    #[arg(long, value_name = "DIR")]
    pub(crate) ring: Option<PathBuf>,
    /// Length of the recordings that are kept
    #[arg(long, value_name = "N", requires = "ring", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=1440))]
    pub(crate) ring_minutes: u64,
    /// Size of the recordings that are kept: older ones are removed above it
    #[arg(long, value_name = "MB", requires = "ring", default_value_t = 1000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ring_mb: u64,
    /// Send profiles to this Pyroscope each 15 s: http://HOST:4040
    #[arg(long, value_name = "URL")]
    pub(crate) pyroscope: Option<String>,
    /// Send profiles to this receiver of OTLP each 15 s, http://HOST:4318 (experimental: the
    /// protocol's profiles are not stable)
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,
    /// End after this time
    #[arg(short, long, value_name = "TIME")]
    pub(crate) duration: Option<String>,
    /// Never stop a thread: Python frames are checked against torn reads, native ones come from
    /// sleeping threads
    #[arg(long)]
    pub(crate) nonblocking: bool,
    /// How running threads are read
    #[arg(long, value_name = "HOW", default_value = "ptrace")]
    pub(crate) engine: EngineName,
    /// Share of a running thread's time that stops may take, in percent, or `off`
    #[arg(long, value_name = "PERCENT", default_value = "2")]
    pub(crate) max_stopped: String,
    /// Measure these GPUs: all, none, or a list by number or UUID; without it, those that the
    /// sampled processes use
    #[arg(long, value_name = "all|none|LIST")]
    pub(crate) gpu: Option<String>,
    /// Path of NVIDIA's libnvidia-ml.so.1, where the loader does not find it
    #[arg(long, value_name = "PATH")]
    pub(crate) nvml_lib: Option<PathBuf>,
    /// Do not ask NCCL how many collectives the ranks have launched when nothing moves for long
    #[arg(long)]
    pub(crate) no_ras: bool,
    /// Keep passwords, tokens and keys in command lines
    #[arg(long)]
    pub(crate) no_redact: bool,
    #[command(flatten)]
    pub(crate) attribution: AttributionArguments,
}

const TOP_AFTER_HELP: &str = "\
Keys: ? shows them all; q quits. The output of a program that torchspy starts goes to a file, torchspy-*.log.

Examples:
  torchspy top --pid 4242
  torchspy top -- python train.py";

#[derive(Debug, Args)]
pub(crate) struct TopArguments {
    /// Watch this process instead of starting one
    #[arg(short, long, value_name = "PID", value_parser = parse_pid, conflicts_with = "command")]
    pub(crate) pid: Option<i32>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArguments,
    #[command(flatten)]
    pub(crate) attribution: AttributionArguments,
    /// py-spy's: idle threads are always shown
    #[arg(short, long, hide = true)]
    pub(crate) idle: bool,
    /// The program to start, and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct AttributionArguments {
    /// Show a function as a phase of its own, such as loss=train.py:Net.loss; may be given more
    /// than once
    #[arg(long, value_name = "NAME=FILE:FUNCTION")]
    pub(crate) region: Vec<String>,
    /// What functions of your own mean: rows in TOML that come before torchspy's own (see torchspy
    /// rules)
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ConfidentialArguments {
    /// Replace names of your own files, functions, arguments and so on by hashes. With a KEY,
    /// hashes can be compared only with those of the same KEY, and names cannot be guessed without
    /// it
    #[arg(
        long,
        value_name = "KEY",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
    pub(crate) confidential: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DrawingArguments {
    /// Draw the dispatcher's and the bindings' own frames, too
    #[arg(long)]
    pub(crate) plumbing: bool,
    /// In folded stacks only Python frames, in py-spy's own form
    #[arg(long)]
    pub(crate) python_only: bool,
    /// Draw forward passes by function, or by nn.Module instead of the functions that call them
    #[arg(long, value_name = "WHAT", default_value = "function")]
    pub(crate) by: ByName,
    /// Colour flamegraphs by the kind of code, or by how idle the GPU was at the time
    #[arg(long, value_name = "WHAT", default_value = "code")]
    pub(crate) color: ColorName,
    /// Draw the waits of every thread, not of training threads only
    #[arg(short, long)]
    pub(crate) idle: bool,
    /// Draw Python functions by their first line, not by the line that runs
    #[arg(short = 'F', long)]
    pub(crate) function: bool,
    /// Draw Python functions without line numbers
    #[arg(long)]
    pub(crate) nolineno: bool,
    /// Draw full paths of Python files
    #[arg(long)]
    pub(crate) full_filenames: bool,
    /// Put the source text of your own files into the page, with times beside their lines
    #[arg(long)]
    pub(crate) source: bool,
    /// What files that the page names open in: vscode, idea, vim, or github:URL@REVISION
    #[arg(long, value_name = "EDITOR")]
    pub(crate) editor: Option<String>,
}

/// Where what is made of a recording goes, and as what.
#[derive(Debug, Args)]
pub(crate) struct OutputArguments {
    #[arg(
        short,
        long,
        value_name = "OUT",
        help = format!(
            "Output file, by extension: {}; `-` is standard output",
            extensions(Format::converted())
        )
    )]
    pub(crate) output: Option<PathBuf>,
    /// Replace output files that are there already
    #[arg(long)]
    pub(crate) force: bool,
    /// Open the output at the end, with what the desktop opens such a file with
    #[arg(long)]
    pub(crate) open: bool,
    /// Format, whatever the extension
    #[arg(short, long, value_parser = formats::names())]
    pub(crate) format: Option<String>,
}

/// Which time of a recording is used.
#[derive(Debug, Args)]
pub(crate) struct IntervalArguments {
    /// Leave out what came before this time since the start: 90s, 1m30s, 1.5 (seconds)
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<String>,
    /// Leave out what came after this time since the start
    #[arg(long, value_name = "TIME")]
    pub(crate) to: Option<String>,
}

const REPORT_AFTER_HELP: &str = "\
Examples:
  torchspy report run.tspy
  torchspy report run.tspy --by op --top 30
  torchspy report --trace-file trace.json.gz   # calls, shapes and kernels of torch.profiler
  torchspy report runs/42                      # all ranks of a job: which one is late?
  torchspy report runs/42 --mlflow http://127.0.0.1:5000";

#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    /// The recording; or the folder of all recordings of a job
    #[arg(value_name = "FILE|DIR", required_unless_present = "trace_file")]
    pub(crate) file: Option<PathBuf>,
    /// A trace of torch.profiler (.json or .json.gz), alone or beside a recording: calls and shapes
    /// of operators, kernels, copies
    #[arg(long, value_name = "FILE")]
    pub(crate) trace_file: Option<PathBuf>,
    /// The trace of this rank, of those that record --trace has put into the recording
    #[arg(
        long,
        value_name = "RANK",
        conflicts_with = "trace_file",
        requires = "file"
    )]
    pub(crate) trace_rank: Option<u32>,
    /// Started by `record --trace`: print what its recording keeps of the trace
    #[arg(long, hide = true, requires = "trace_file", conflicts_with_all = ["file", "json", "csv"])]
    pub(crate) reduced: bool,
    /// Print JSON, by the schema in docs/schema
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the page, as HTML: timeline, flamegraph and tables of any interval; of a job, heatmap
    /// of ranks and steps
    #[arg(long, conflicts_with_all = ["json", "csv", "itwinai", "full", "top", "by"])]
    pub(crate) html: bool,
    /// Print all rows of one table as CSV: functions, operators, modules, waits and others
    #[arg(long, value_name = "TABLE", conflicts_with_all = ["json", "itwinai", "full", "top", "by"])]
    pub(crate) csv: Option<String>,
    /// Print computation versus everything else, as itwinai defines them
    #[arg(long)]
    pub(crate) itwinai: bool,
    /// Print every table, not only what fits a screen
    #[arg(long, conflicts_with = "json")]
    pub(crate) full: bool,
    /// Rows of each table (default 10). Implies --full
    #[arg(long, value_name = "N", conflicts_with = "json")]
    pub(crate) top: Option<usize>,
    /// Leave out what came before the end of the Nth step
    #[arg(long, value_name = "N", conflicts_with_all = ["from", "to"])]
    pub(crate) skip_steps: Option<u64>,
    /// Report on this many steps, and leave out what came after them
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..),
        conflicts_with_all = ["from", "to"]
    )]
    pub(crate) steps: Option<u64>,
    /// Sizes of a job's parallel dimensions, outermost first, such as dp=16,pp=4,tp=8: stages of a
    /// pipeline are compared with themselves
    #[arg(long, value_name = "NAME=SIZE,...", value_parser = Mesh::parse)]
    pub(crate) mesh: Option<Mesh>,
    #[command(flatten)]
    pub(crate) interval: IntervalArguments,
    /// Print only this, and all of it
    #[arg(long, value_name = "WHAT", conflicts_with = "json")]
    pub(crate) by: Option<ReportByName>,
    /// Append the report as Markdown to the summary of a GitHub Actions job ($GITHUB_STEP_SUMMARY),
    /// too
    #[arg(long)]
    pub(crate) github_summary: bool,
    #[command(flatten)]
    pub(crate) mlflow: MlflowArguments,
    #[command(flatten)]
    pub(crate) attribution: AttributionArguments,
    #[command(flatten)]
    pub(crate) confidential: ConfidentialArguments,
}

/// Where a run is logged.
#[derive(Debug, Args)]
pub(crate) struct MlflowArguments {
    /// Log the run to this MLflow server, too, as itwinai does: a run with a child for each rank,
    /// with the page and the recordings
    #[arg(long, value_name = "URI")]
    pub(crate) mlflow: Option<String>,
    /// The experiment; without it MLFLOW_EXPERIMENT_NAME, else torchspy
    #[arg(long, value_name = "NAME", requires = "mlflow")]
    pub(crate) mlflow_experiment: Option<String>,
    /// The run; without it MLFLOW_RUN_NAME, else the name of the recording or folder
    #[arg(long, value_name = "NAME", requires = "mlflow")]
    pub(crate) mlflow_run: Option<String>,
}

const CONVERT_AFTER_HELP: &str = "\
Examples:
  torchspy convert run.tspy -o run.speedscope.json
  torchspy convert run.tspy -o modules.svg --by module
  torchspy convert runs/42 -o job.html         # all ranks of a job";

#[derive(Debug, Args)]
pub(crate) struct ConvertArguments {
    /// The recording; or the folder of all recordings of a job, for a page of the job
    #[arg(value_name = "FILE|DIR")]
    pub(crate) file: PathBuf,
    /// A trace of torch.profiler (.json or .json.gz) of the same run, to be drawn beside it
    #[arg(long, value_name = "FILE")]
    pub(crate) trace_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
    #[command(flatten)]
    pub(crate) interval: IntervalArguments,
    /// Of a job: sizes of its parallel dimensions, as report has them
    #[arg(long, value_name = "NAME=SIZE,...", value_parser = Mesh::parse)]
    pub(crate) mesh: Option<Mesh>,
    /// Draw only threads whose name matches
    #[arg(long = "thread-name", value_name = "REGEX")]
    pub(crate) threads: Option<String>,
    /// Draw only samples from windows in which the GPU was idle for 90 % or more
    #[arg(long)]
    pub(crate) gpu_idle: bool,
    #[command(flatten)]
    pub(crate) attribution: AttributionArguments,
    #[command(flatten)]
    pub(crate) confidential: ConfidentialArguments,
    #[command(flatten)]
    pub(crate) drawing: DrawingArguments,
}

const TRIGGER_AFTER_HELP: &str = "\
Examples:
  torchspy record --trigger file:runs/42 --pid 4242
  torchspy trigger runs/42";

#[derive(Debug, Args)]
pub(crate) struct TriggerArguments {
    /// The folder that the recorders watch
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

const SEND_AFTER_HELP: &str = "\
Examples:
  torchspy send
  torchspy send --spool /scratch/spool";

#[derive(Debug, Args)]
pub(crate) struct SendArguments {
    /// The folder where recordings wait: without it, ~/.local/state/torchspy/spool
    #[arg(long, value_name = "DIR")]
    pub(crate) spool: Option<PathBuf>,
}

const SNAPSHOT_AFTER_HELP: &str = "\
The recording goes on, and torchspy record writes its own outputs at its end; record --snapshot TIME rewrites its page as it goes.

Examples:
  torchspy snapshot 4242
  torchspy snapshot run.tspy -o now.html --open";

#[derive(Debug, Args)]
pub(crate) struct SnapshotArguments {
    /// The process that is recorded or the torchspy that records it, by pid; or the recording
    #[arg(value_name = "PID|FILE")]
    pub(crate) of: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
    #[command(flatten)]
    pub(crate) interval: IntervalArguments,
    /// Started by `record --snapshot`: run when no other program wants a CPU, and end with it
    #[arg(long, hide = true)]
    pub(crate) child: bool,
    #[command(flatten)]
    pub(crate) attribution: AttributionArguments,
    #[command(flatten)]
    pub(crate) confidential: ConfidentialArguments,
    #[command(flatten)]
    pub(crate) drawing: DrawingArguments,
}

const VIEW_AFTER_HELP: &str = "\
Only browsers on this machine reach it (127.0.0.1), and only with the token in the address that it prints. Ctrl-C ends it.

Examples:
  torchspy view run.tspy
  torchspy view runs --port 8787 --no-open";

#[derive(Debug, Args)]
pub(crate) struct ViewArguments {
    /// The recording, or a folder of recordings
    #[arg(value_name = "FILE|DIR")]
    pub(crate) path: PathBuf,
    /// Listen on this port of 127.0.0.1; without it, on a free one
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) port: u16,
    /// Open a browser (the default at a desktop's terminal)
    #[arg(long, overrides_with = "no_open")]
    pub(crate) open: bool,
    /// Open no browser
    #[arg(long)]
    pub(crate) no_open: bool,
    #[command(flatten)]
    pub(crate) attribution: AttributionArguments,
}

const DIFF_AFTER_HELP: &str = "\
Two single runs cannot show how much the machine itself varies from run to run. Several of each, recorded in turns
(A1 B1 A2 B2 A3 B3), can.

Examples:
  torchspy diff before.tspy after.tspy
  torchspy diff before.tspy after.tspy -o diff.svg
  torchspy diff --a before-1.tspy before-2.tspy --b after-1.tspy after-2.tspy";

#[derive(Debug, Args)]
pub(crate) struct DiffArguments {
    /// The recordings: A, and B, which is measured against it
    #[arg(value_name = "FILE", conflicts_with_all = ["a", "b"])]
    pub(crate) files: Vec<PathBuf>,
    /// Recordings of A, pooled
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "b")]
    pub(crate) a: Vec<PathBuf>,
    /// Recordings of B, pooled
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "a")]
    pub(crate) b: Vec<PathBuf>,
    /// Output file, by extension: .html (a page) .svg (a differential flamegraph) .folded (two
    /// columns) .json .txt; may be given more than once
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: Vec<PathBuf>,
    /// Replace output files that are there already
    #[arg(long)]
    pub(crate) force: bool,
    /// Print JSON, by the schema in docs/schema
    #[arg(long)]
    pub(crate) json: bool,
    /// Rows of each table
    #[arg(long, value_name = "N", default_value_t = 10, conflicts_with = "json")]
    pub(crate) top: usize,
    /// Compare this rank; default is the first of both
    #[arg(long, value_name = "N")]
    pub(crate) rank: Option<u32>,
    /// How much run times scatter on this machine, as a standard deviation in percent; used where
    /// no side has several runs to measure it
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    pub(crate) run_to_run: f64,
    /// Draw forward passes by function, or by nn.Module instead of the functions that call them
    #[arg(long, value_name = "WHAT", default_value = "function")]
    pub(crate) by: ByName,
    /// Draw the dispatcher's and the bindings' own frames, too
    #[arg(long)]
    pub(crate) plumbing: bool,
    #[command(flatten)]
    pub(crate) attribution: AttributionArguments,
    #[command(flatten)]
    pub(crate) confidential: ConfidentialArguments,
}

const SCALING_AFTER_HELP: &str = "\
Runs of the same strategy and number of ranks are repetitions: they show how much run times scatter.

Examples:
  torchspy scaling runs/1 runs/2 runs/4 runs/8
  torchspy scaling runs/* -o scaling.html
  torchspy scaling runs/* --batch rank --csv points";

#[derive(Debug, Args)]
pub(crate) struct ScalingArguments {
    /// The runs: each a folder of all recordings of a job, or a recording
    #[arg(value_name = "DIR|FILE", required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// Output file, by extension: .html (a page with plots) .json .txt; may be given more than once
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: Vec<PathBuf>,
    /// Replace output files that are there already
    #[arg(long)]
    pub(crate) force: bool,
    /// Print JSON, by the schema in docs/schema
    #[arg(long)]
    pub(crate) json: bool,
    /// Print a table as CSV: points or fits
    #[arg(long, value_name = "TABLE", conflicts_with = "json")]
    pub(crate) csv: Option<String>,
    /// What is compared; without it epochs, if all runs have complete ones, else steps
    #[arg(long, value_name = "WHAT")]
    pub(crate) per: Option<PerName>,
    /// Which batch has the same size in all runs: that of each rank, or that of all ranks together;
    /// without it samples are counted, where a DataLoader was seen
    #[arg(long, value_name = "WHICH")]
    pub(crate) batch: Option<BatchName>,
    /// How much run times scatter on this machine, as a standard deviation in percent; used where
    /// no size has several runs to measure it
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    pub(crate) run_to_run: f64,
    #[command(flatten)]
    pub(crate) attribution: AttributionArguments,
    #[command(flatten)]
    pub(crate) confidential: ConfidentialArguments,
}

/// What is compared between runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PerName {
    /// Complete epochs
    Epoch,
    /// Steps, without warm-up
    Step,
}

/// Which batch has the same size in all runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BatchName {
    /// That of each rank
    Rank,
    /// That of all ranks together
    Global,
}

const DUMP_AFTER_HELP: &str = "\
Sleeping threads are read as they are; running ones are stopped for as long as a copy takes.

Examples:
  torchspy dump --pid 4242
  torchspy dump --pid 4242 --tree                  the launcher's pid: all ranks and their workers
  torchspy dump --pid 4242 --repeat 5 --every 1s   a hang is what does not move
  torchspy dump --pid 4242 --memory                what holds the memory of tensors, by module
  torchspy dump --hosts node001,node002            all ranks of a job, by ssh: which rank is odd, and why
  torchspy dump --job 4711                         the same on the nodes of a Slurm job
  torchspy dump --hosts @pods --via 'kubectl exec {host} --'";

#[derive(Debug, Args)]
pub(crate) struct DumpArguments {
    /// The process; may be given more than once
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pub(crate) pid: Vec<i32>,
    #[command(flatten)]
    pub(crate) job: JobArguments,
    /// Include all its descendants: ranks and DataLoader workers
    #[arg(short, long, visible_alias = "subprocesses", visible_short_alias = 's')]
    pub(crate) tree: bool,
    /// Show the variables of Python frames
    #[arg(short, long, action = ArgAction::Count)]
    pub(crate) locals: u8,
    /// Show what holds the memory of tensors instead of stacks: parameters, gradients, optimizer
    /// state and buffers of each module; nothing is stopped
    #[arg(long, conflicts_with_all = ["locals", "repeat"])]
    pub(crate) memory: bool,
    /// Print JSON, by the schema in docs/src/json.md
    #[arg(short, long)]
    pub(crate) json: bool,
    /// Native frames, too (the default)
    #[arg(short, long, overrides_with = "no_native")]
    pub(crate) native: bool,
    /// Python frames only
    #[arg(long)]
    pub(crate) no_native: bool,
    /// Never stop a thread: of those that run, Python frames are read alone
    #[arg(long)]
    pub(crate) nonblocking: bool,
    /// Do not ask NCCL how many collectives each rank has launched (its RAS socket on this machine)
    #[arg(long)]
    pub(crate) no_ras: bool,
    /// Show passwords, tokens and keys in command lines and variables: without it they are replaced
    /// by <redacted>
    #[arg(long)]
    pub(crate) no_redact: bool,
    /// What functions of your own mean: rows in TOML that come before torchspy's own (see torchspy
    /// rules)
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
    /// Take this many snapshots (100 at most), and show what moved in between
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) repeat: Option<u32>,
    /// Time between two snapshots: 1s, 500ms
    #[arg(long, value_name = "TIME", default_value = "1s", requires = "repeat")]
    pub(crate) every: String,
}

const WATCH_AFTER_HELP: &str = "\
A dump is two files, NAME.txt and NAME.json. CMD is run by sh, with their paths in TORCHSPY_DUMP and TORCHSPY_DUMP_JSON, the reason in \
TORCHSPY_HANG and the pid in TORCHSPY_PID (with --job that of one of its trainers). It is run, too, if the dump could not be written: the paths are empty then. It ends with the job; with --once after the first hang, with status 1.

Examples:
  torchspy watch --pid 4242                      the launcher's pid: all ranks and their workers
  torchspy watch --pid 4242 --after 10m --on-hang 'mail -s hang me@example.org < $TORCHSPY_DUMP'
  torchspy watch --pid 4242 --once --on-hang 'kill $TORCHSPY_PID'
  torchspy watch --job 4711                      all trainers of this job on this machine
  torchspy watch --pid 4242 --hosts node001,node002,node003     a job on several machines, watched on one of them";

#[derive(Debug, Args)]
pub(crate) struct WatchArguments {
    /// The trainer, or the launcher of several, with all descendants; may be given more than once
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pub(crate) pid: Vec<i32>,
    #[command(flatten)]
    pub(crate) machines: MachineArguments,
    /// The shortest time without a step or a move that may be a hang
    #[arg(long, value_name = "TIME", default_value = "5m")]
    pub(crate) after: String,
    /// The same in usual steps: the longer of both counts
    #[arg(long, value_name = "N", default_value_t = 20.0)]
    pub(crate) times: f64,
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub(crate) every: String,
    /// End after this time
    #[arg(short, long, value_name = "TIME")]
    pub(crate) duration: Option<String>,
    /// End with the first hang, with status 1
    #[arg(long)]
    pub(crate) once: bool,
    /// Name of the dumps: NAME.txt and NAME.json. Without it one by pid and time
    #[arg(short, long, value_name = "NAME")]
    pub(crate) output: Option<PathBuf>,
    /// Run this when the job hangs, after its dump was written
    #[arg(long, value_name = "CMD")]
    pub(crate) on_hang: Option<String>,
    /// Never stop a thread
    #[arg(long)]
    pub(crate) nonblocking: bool,
    /// Show passwords, tokens and keys in command lines
    #[arg(long)]
    pub(crate) no_redact: bool,
    /// What functions of your own mean: rows in TOML that come before torchspy's own
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
}

/// The machines of a job, and how they are asked.
#[derive(Debug, Args)]
pub(crate) struct MachineArguments {
    /// Only trainers of this job: a Slurm job's id, torchrun's --rdzv-id, or a folder with its
    /// recordings. Without --hosts, on all nodes of that Slurm job, or on the machines of these
    /// recordings; but on this machine alone for dump --all-trainers and for watch without --pid
    #[arg(long, value_name = "ID|DIR")]
    pub(crate) job: Option<String>,
    /// All trainers on these machines, asked at the same time; or @FILE with their names
    #[arg(long, value_name = "HOST,HOST")]
    pub(crate) hosts: Option<String>,
    /// Command that runs another on a host, which is appended to it: {host} is replaced. Without it
    /// ssh, or srun for --job
    #[arg(long, value_name = "COMMAND")]
    pub(crate) via: Option<String>,
    /// torchspy on these machines
    #[arg(long, value_name = "PATH", default_value = PROGRAM)]
    pub(crate) program: String,
    /// How long a machine may take: those that do not answer by then are named
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub(crate) timeout: String,
}

/// Ranks on one machine or on many.
#[derive(Debug, Args)]
pub(crate) struct JobArguments {
    /// All trainers on this machine, those of the user, with their workers
    #[arg(long)]
    pub(crate) all_trainers: bool,
    #[command(flatten)]
    pub(crate) machines: MachineArguments,
    /// What was kept: outputs of dump --json, or dumps of torch's flight recorder, or folders with
    /// them
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) from: Vec<PathBuf>,
}

const RULES_AFTER_HELP: &str = "\
Examples:
  torchspy rules optimizer
  torchspy rules --of libtorch_cpu.so:at::_ops::item::call
  torchspy rules --of company/loader.py:MyLoader.__next__ --rules mine.toml
  torchspy rules --toml > mine.toml
  torchspy report run.tspy --rules mine.toml";

#[derive(Debug, Args)]
pub(crate) struct RulesArguments {
    /// Print only rows that have this in them
    #[arg(value_name = "PATTERN")]
    pub(crate) pattern: Option<String>,
    /// Print what one function is, and which rows say so: FILE.py:FUNCTION, LIBRARY:SYMBOL, or a
    /// symbol alone
    #[arg(long, value_name = "FUNCTION", conflicts_with = "pattern")]
    pub(crate) of: Option<String>,
    /// Print torchspy's own rules as TOML, as a start for a file of yours
    #[arg(long, conflicts_with_all = ["pattern", "of", "rules"])]
    pub(crate) toml: bool,
    /// Print the rows of this file, too
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
}

const INSPECT_AFTER_HELP: &str = "\
Examples:
  torchspy inspect run.tspy
  torchspy inspect run.tspy --samples";

#[derive(Debug, Args)]
pub(crate) struct InspectArguments {
    /// The recording
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Print every sample with its stack, and every reading of a counter
    #[arg(long)]
    pub(crate) samples: bool,
}

const DOCTOR_AFTER_HELP: &str = "\
Examples:
  torchspy doctor
  torchspy doctor --pid 4242";

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Check this process, too
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pub(crate) pid: Option<i32>,
}

const COMPLETIONS_AFTER_HELP: &str = "\
Examples:
  torchspy completions bash > ~/.local/share/bash-completion/completions/torchspy
  torchspy completions fish > ~/.config/fish/completions/torchspy.fish";

const INSTALL_PY_SPY_AFTER_HELP: &str = "\
Examples:
  torchspy install-py-spy ~/.local/bin
  torchspy install-py-spy venv/bin --force";

#[derive(Debug, Args)]
pub(crate) struct InstallPySpyArguments {
    /// The folder, one that PATH names; it is made if it is missing
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// Replace a py-spy that is there and is no link to torchspy
    #[arg(long)]
    pub(crate) force: bool,
}

const CONFIG_AFTER_HELP: &str = "\
A file torchspy.toml, here or in a folder above:
  rate = 50            # of every command that has --rate
  [record]             # of record alone
  output = \"runs/{job}/{host}-{rank}.tspy\"

In pyproject.toml the tables are [tool.torchspy] and [tool.torchspy.record]. TORCHSPY_RATE and
TORCHSPY_RECORD_RATE are stronger than files, the command line is stronger than both.

Examples:
  torchspy config
  torchspy config record";

const MAN_AFTER_HELP: &str = "\
Examples:
  torchspy man -o ~/.local/share/man/man1
  torchspy man -o man --force";

#[derive(Debug, Args)]
pub(crate) struct ManArguments {
    /// Folder for torchspy.1, torchspy-record.1 and so on; it is made if it is missing
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// Replace pages that are there already
    #[arg(long)]
    pub(crate) force: bool,
}

/// What colours mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorName {
    /// Kinds of code
    Code,
    /// How idle the process's GPU was at the time
    Gpu,
}

/// Which child processes are sampled, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ChildrenName {
    /// Those that run Python
    Python,
    /// All of them
    All,
    /// None: child processes are not sampled at all
    None,
}

/// How running threads are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// perf where the kernel allows it in full, and as long as it has room for it; else ptrace
    Auto,
    /// Each is stopped for some 60 us
    Ptrace,
    /// The kernel copies registers and stack (perf_event_open), and nothing is stopped
    Perf,
}

/// By what is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ByName {
    /// Functions
    Function,
    /// nn.Modules
    Module,
}

/// What a report is about alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportByName {
    /// Operators, and nodes of backward
    Op,
    /// The tree of nn.Modules, and nodes of backward by module
    Module,
    /// Phases by activity, and per step
    Phase,
    /// Steps, one by one
    Step,
    /// Functions and lines
    Line,
    /// What the training thread waited for, and collectives
    Wait,
    /// Lines and operators that raised the host's memory, and its peak
    Memory,
    /// Operators by shapes of their inputs (--trace-file)
    Shape,
    /// Kernels and copies of devices (--trace-file)
    Kernel,
}

pub(crate) use clap_complete::Shell;
