//! Validated plans of commands, complete and free of clap.

use super::agent_plan::AgentPlan;
use super::args::{
    Arguments, AttributionArguments, ByName, ChildrenName, ColorName, ConvertArguments,
    DrawingArguments, EngineName, IntervalArguments, RecordArguments, ReportArguments,
    ReportByName, SamplingArguments, Shell, SnapshotArguments, Subcommands, TopArguments,
};
use super::commands::install_py_spy::InstallPySpyPlan;
use super::commands::py_spy_dump::PySpyDumpPlan;
use super::diff_plan::DiffPlan;
use super::dump_plan::DumpPlan;
use super::failure::Failure;
use super::formats::{self, Format};
use super::github_summary;
use super::hints;
use super::job_plan::{JobConvertPlan, JobPlan};
use super::mlflow::MlflowPlan;
use super::monitor::Conditions;
use super::objects::address::{self, Address};
use super::option_values::{
    parse_duration, parse_duration_of, parse_editor, parse_gpu, parse_max_stopped, parse_ranks,
    parse_record_rate, parse_regex, parse_snapshot, parse_trace, parse_trigger, redaction,
};
use super::output_names::{OutputFile, named_output, parse_outputs};
use super::output_pattern;
use super::regions;
use super::rules::Rules;
use super::scaling_plan::ScalingPlan;
use super::trace_plan::{self, ReportTable, TracePlan};
use super::watch_plan::WatchPlan;
use super::window;
use crate::analysis::progress::window::StepRange;
use crate::gpu::select::GpuChoice;
use crate::model::region::Region;
use crate::os::access;
use crate::os::perf_event::{self, Scope};
use crate::os::permissions::Remedy;
use crate::report::flamegraph::Colours;
use crate::report::folded::PySpyForm;
use crate::report::page::Editor;
use crate::report::text::{self, Detail, TextOptions};
use crate::report::view::{By, Idle, ViewOptions};
use crate::sampling::session::{Engine, IdleThreads, SEGMENT, SessionOptions};
use crate::trace::TraceSummary;
use regex::Regex;
use std::ffi::OsString;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The length of a segment of `top`: how often the view gets new samples.
const LIVE_SEGMENT: Duration = Duration::from_millis(400);

#[derive(Debug)]
pub(crate) enum Plan {
    Agent(Box<AgentPlan>),
    Record(Box<RecordPlan>),
    Report(ReportPlan),
    ReportTrace(TracePlan),
    ReportJob(JobPlan),
    Convert(ConvertPlan),
    ConvertJob(JobConvertPlan),
    Snapshot(SnapshotPlan),
    Send(SendPlan),
    Trigger(PathBuf),
    View(ViewPlan),
    Diff(DiffPlan),
    Scaling(ScalingPlan),
    Dump(DumpPlan),
    /// Under py-spy's name.
    PySpyDump(PySpyDumpPlan),
    InstallPySpy(InstallPySpyPlan),
    Watch(WatchPlan),
    Top(TopPlan),
    Rules(RulesPlan),
    Inspect(InspectPlan),
    Doctor(DoctorPlan),
    Completions(Shell),
    /// Of one command, or of all.
    Config(Option<String>),
    Man(ManPlan),
}

/// What to sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A command to be started; never empty.
    Launch(Vec<OsString>),
    /// A process that runs.
    Attach(i32),
}

/// Selection and style of what is drawn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drawing {
    /// Dispatcher and bindings, too.
    pub(crate) plumbing: bool,
    /// Functions or modules.
    pub(crate) by: By,
    /// Waits of every thread.
    pub(crate) idle: bool,
    /// Folded stacks: only Python frames, in py-spy's form.
    pub(crate) python_only: bool,
    /// Folded stacks exactly as py-spy writes them.
    pub(crate) py_spy: Option<PySpyForm>,
    /// Python functions by their first line.
    pub(crate) first_lines: bool,
    pub(crate) no_lines: bool,
    /// Paths of Python files as they are.
    pub(crate) full_files: bool,
    /// Only threads whose label matches.
    pub(crate) threads: Option<Regex>,
    /// What colours of flamegraphs mean.
    pub(crate) colours: Colours,
    /// The page: with the text of the user's own files.
    pub(crate) source: bool,
    /// The page: what files open in.
    pub(crate) editor: Option<Editor>,
    /// A trace of torch.profiler, once it is read.
    pub(crate) trace: Option<Arc<TraceSummary>>,
}

/// When recordings begin, and the length of each.
#[derive(Clone, Debug)]
pub(crate) struct Trigger {
    /// By a file in this folder. Its name may have facts in braces.
    pub(crate) folder: Option<PathBuf>,
    /// By what the process does.
    pub(crate) conditions: Conditions,
    pub(crate) length: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct RecordPlan {
    pub(crate) target: Target,
    pub(crate) options: SessionOptions,
    pub(crate) duration: Option<Duration>,
    /// Files by name; empty: a recording and a file beside it, under names of torchspy's own.
    pub(crate) outputs: Vec<OutputFile>,
    /// What the file beside a recording is.
    pub(crate) beside: Format,
    /// Files that are there are replaced.
    pub(crate) force: bool,
    /// Where a recording waits to be sent to object storage; `None`: the user's own.
    pub(crate) spool: Option<PathBuf>,
    /// The page is opened at the end.
    pub(crate) open: bool,
    /// NCCL is asked when nothing moves for long.
    pub(crate) ras: bool,
    pub(crate) snapshot: Option<SnapshotEvery>,
    /// `None`: recording begins at once.
    pub(crate) trigger: Option<Trigger>,
    /// torch.profiler is switched on once.
    pub(crate) trace: Option<window::Length>,
    pub(crate) drawing: Drawing,
    pub(crate) regions: Vec<Region>,
    pub(crate) rules: Rules,
    /// The key of hashes that replace names; `None`: names stay.
    pub(crate) confidential: Option<String>,
}

/// The page is rewritten while recording.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotEvery {
    pub(crate) every: Duration,
    /// Options that the page depends on, as they are typed.
    pub(crate) arguments: Vec<OsString>,
}

#[derive(Debug)]
pub(crate) struct TopPlan {
    pub(crate) target: Target,
    pub(crate) options: SessionOptions,
    /// NCCL is asked when nothing moves for long.
    pub(crate) ras: bool,
    pub(crate) regions: Vec<Region>,
    pub(crate) rules: Rules,
}

#[derive(Debug)]
pub(crate) struct ReportPlan {
    pub(crate) file: PathBuf,
    pub(crate) regions: Vec<Region>,
    pub(crate) rules: Rules,
    /// The key of hashes that replace names; `None`: names stay.
    pub(crate) confidential: Option<String>,
    pub(crate) json: bool,
    pub(crate) html: bool,
    /// A table, printed alone as CSV.
    pub(crate) csv: Option<ReportTable>,
    /// A trace of torch.profiler beside the recording.
    pub(crate) trace: Option<PathBuf>,
    /// The rank whose trace is shown, of those in the recording; `None`: the first.
    pub(crate) trace_rank: Option<u32>,
    /// What of the text is printed.
    pub(crate) text: TextOptions,
    /// `None`: the whole recording.
    pub(crate) steps: Option<StepRange>,
    /// Start and end of what is reported on, ns since the start.
    pub(crate) interval: Option<(u64, u64)>,
    /// The run is logged there, too.
    pub(crate) mlflow: Option<MlflowPlan>,
    /// The file to which the report is appended as Markdown.
    pub(crate) github_summary: Option<PathBuf>,
}

#[derive(Debug)]
pub(crate) struct ConvertPlan {
    pub(crate) file: PathBuf,
    /// A trace of torch.profiler beside the recording.
    pub(crate) trace: Option<PathBuf>,
    pub(crate) regions: Vec<Region>,
    pub(crate) rules: Rules,
    /// The key of hashes that replace names; `None`: names stay.
    pub(crate) confidential: Option<String>,
    /// `None`: standard output.
    pub(crate) output: Option<PathBuf>,
    /// A file that is there is replaced.
    pub(crate) force: bool,
    /// The output is opened at the end.
    pub(crate) open: bool,
    pub(crate) format: Format,
    pub(crate) drawing: Drawing,
    /// Start and end of what is converted, ns since the start; `None`: all.
    pub(crate) interval: Option<(u64, u64)>,
    /// Only samples from windows in which the GPU was idle.
    pub(crate) gpu_idle: bool,
}

/// What a snapshot is of.
#[derive(Debug)]
pub(crate) enum SnapshotOf {
    /// A process that is recorded, or that records.
    Process(i32),
    File(PathBuf),
}

#[derive(Debug)]
pub(crate) struct SnapshotPlan {
    pub(crate) of: SnapshotOf,
    /// All but the file, and the output where `names_output` is not set.
    pub(crate) convert: ConvertPlan,
    pub(crate) names_output: bool,
    /// A recorder started it.
    pub(crate) is_child: bool,
}

#[derive(Debug)]
pub(crate) struct ViewPlan {
    /// A recording, or a folder of them.
    pub(crate) path: PathBuf,
    /// 0: a free one.
    pub(crate) port: u16,
    /// `None`: where there is a desktop.
    pub(crate) open: Option<bool>,
    pub(crate) regions: Vec<Region>,
    pub(crate) rules: Rules,
}

#[derive(Debug)]
pub(crate) struct SendPlan {
    /// Where recordings wait; `None`: the user's own.
    pub(crate) spool: Option<PathBuf>,
}

#[derive(Debug)]
pub(crate) struct RulesPlan {
    /// `None`: all rows.
    pub(crate) pattern: Option<String>,
    /// Explains this function and the rows that match it.
    pub(crate) of: Option<String>,
    /// The rules files themselves.
    pub(crate) toml: bool,
    pub(crate) rules: Rules,
}

#[derive(Debug)]
pub(crate) struct InspectPlan {
    pub(crate) file: PathBuf,
    pub(crate) samples: bool,
}

#[derive(Debug)]
pub(crate) struct DoctorPlan {
    pub(crate) pid: Option<i32>,
}

#[derive(Debug)]
pub(crate) struct ManPlan {
    pub(crate) folder: PathBuf,
    /// Whether pages that are there already may be replaced.
    pub(crate) force: bool,
}

impl Plan {
    /// Validates what clap cannot.
    pub(crate) fn new(arguments: Arguments) -> Result<Self, Failure> {
        Ok(match arguments.command {
            Subcommands::Record(arguments) => Plan::Record(Box::new(RecordPlan::new(arguments)?)),
            Subcommands::Report(arguments) => report(arguments)?,
            Subcommands::Convert(arguments) if is_job(&arguments.file) => {
                Plan::ConvertJob(JobConvertPlan::new(arguments)?)
            }
            Subcommands::Convert(arguments) => Plan::Convert(ConvertPlan::new(arguments)?),
            Subcommands::View(arguments) => Plan::View(ViewPlan {
                path: arguments.path,
                port: arguments.port,
                open: match (arguments.open, arguments.no_open) {
                    (true, _) => Some(true),
                    (_, true) => Some(false),
                    _ => None,
                },
                regions: regions::parse(&arguments.attribution.region)?,
                rules: Rules::read(arguments.attribution.rules.as_deref())?,
            }),
            Subcommands::Snapshot(arguments) => Plan::Snapshot(SnapshotPlan::new(arguments)?),
            Subcommands::Send(arguments) => Plan::Send(SendPlan {
                spool: arguments.spool,
            }),
            Subcommands::Trigger(arguments) => Plan::Trigger(arguments.folder),
            Subcommands::Diff(arguments) => Plan::Diff(DiffPlan::new(arguments)?),
            Subcommands::Scaling(arguments) => Plan::Scaling(ScalingPlan::new(arguments)?),
            Subcommands::Dump(arguments) => Plan::Dump(DumpPlan::new(&arguments)?),
            Subcommands::Watch(arguments) => Plan::Watch(WatchPlan::new(arguments)?),
            Subcommands::Agent(arguments) => Plan::Agent(Box::new(AgentPlan::new(arguments)?)),
            Subcommands::Top(arguments) => Plan::Top(TopPlan::new(arguments)?),
            Subcommands::Rules(arguments) => Plan::Rules(RulesPlan {
                rules: Rules::read(arguments.rules.as_deref())?,
                pattern: arguments.pattern,
                of: arguments.of,
                toml: arguments.toml,
            }),
            Subcommands::Inspect(arguments) => Plan::Inspect(InspectPlan {
                file: arguments.file,
                samples: arguments.samples,
            }),
            Subcommands::Doctor(arguments) => Plan::Doctor(DoctorPlan { pid: arguments.pid }),
            Subcommands::Completions { shell } => Plan::Completions(shell),
            Subcommands::Config { command } => Plan::Config(command),
            Subcommands::InstallPySpy(arguments) => Plan::InstallPySpy(InstallPySpyPlan {
                folder: arguments.folder,
                force: arguments.force,
            }),
            Subcommands::Man(arguments) => Plan::Man(ManPlan {
                folder: arguments.output,
                force: arguments.force,
            }),
        })
    }
}

impl Plan {
    /// Recordings that are read, and folders of them.
    pub(crate) fn inputs(&mut self) -> Vec<&mut PathBuf> {
        match self {
            Plan::Report(plan) => iter::once(&mut plan.file).chain(&mut plan.trace).collect(),
            Plan::ReportTrace(plan) => vec![&mut plan.file],
            Plan::ReportJob(plan) => vec![&mut plan.folder],
            Plan::Convert(plan) => iter::once(&mut plan.file).chain(&mut plan.trace).collect(),
            Plan::ConvertJob(plan) => vec![&mut plan.job.folder],
            Plan::View(plan) => vec![&mut plan.path],
            Plan::Inspect(plan) => vec![&mut plan.file],
            Plan::Diff(plan) => plan.a.iter_mut().chain(&mut plan.b).collect(),
            Plan::Scaling(plan) => plan.runs.iter_mut().map(|run| &mut run.folder).collect(),
            _ => Vec::new(),
        }
    }
}

/// The plan of `report`: of a recording, of a job's, or of a trace alone.
fn report(mut arguments: ReportArguments) -> Result<Plan, Failure> {
    let (file, trace) = match (arguments.file.take(), arguments.trace_file.take()) {
        (None, trace) => {
            let plan = TracePlan::new(trace.unwrap_or_default(), &arguments)?;
            return Ok(Plan::ReportTrace(plan));
        }
        (Some(file), trace) => (file, trace),
    };
    if trace.is_some() {
        trace_plan::refuse_beside(&arguments, is_job(&file))?;
    }
    if arguments.trace_rank.is_some() && (is_job(&file) || arguments.html) {
        return Err(Failure::usage(
            "--trace-rank is for the tables of one recording",
            "torchspy report FILE --trace-rank N",
        ));
    }
    if is_job(&file) {
        return Ok(Plan::ReportJob(JobPlan::new(file, arguments)?));
    }
    if arguments.mesh.is_some() {
        return Err(Failure::usage(
            format!("--mesh is of a job, and {} is no folder", file.display()),
            "torchspy report DIR for all recordings of a job",
        ));
    }
    Ok(Plan::Report(ReportPlan {
        regions: regions::parse(&arguments.attribution.region)?,
        rules: Rules::read(arguments.attribution.rules.as_deref())?,
        file,
        json: arguments.json,
        html: arguments.html,
        interval: interval_of(&arguments.interval)?,
        confidential: arguments.confidential.confidential,
        mlflow: MlflowPlan::new(arguments.mlflow)?,
        github_summary: match arguments.github_summary {
            true => Some(github_summary::path_of_step()?),
            false => None,
        },
        csv: arguments
            .csv
            .as_deref()
            .map(trace_plan::table)
            .transpose()?,
        trace_rank: arguments.trace_rank,
        trace,
        text: TextOptions {
            // A number of rows implies that the tables are wanted.
            detail: match arguments.full || arguments.top.is_some() {
                true => Detail::Full,
                false => Detail::Brief,
            },
            itwinai: arguments.itwinai,
            rows: arguments.top.unwrap_or(TextOptions::default().rows),
            by: arguments.by.map(|by| match by {
                ReportByName::Op => text::By::Operator,
                ReportByName::Module => text::By::Module,
                ReportByName::Phase => text::By::Phase,
                ReportByName::Step => text::By::Step,
                ReportByName::Line => text::By::Line,
                ReportByName::Wait => text::By::Wait,
                ReportByName::Memory => text::By::Memory,
                ReportByName::Shape => text::By::Shape,
                ReportByName::Kernel => text::By::Kernel,
            }),
            ..TextOptions::default()
        },
        steps: (arguments.skip_steps.is_some() || arguments.steps.is_some()).then(|| StepRange {
            skip: arguments.skip_steps.unwrap_or(0),
            count: arguments.steps,
        }),
    }))
}

/// Whether an argument is the recordings of a job, not one recording.
fn is_job(argument: &Path) -> bool {
    argument.is_dir() || Address::is_folder(argument)
}

impl RecordPlan {
    fn new(arguments: RecordArguments) -> Result<Self, Failure> {
        let confidential = arguments.confidential.confidential;
        refuse_open_names(confidential.as_ref(), &arguments.drawing)?;
        let mut drawing = Drawing::new(&arguments.drawing, None)?;
        // py-spy's raw format has native frames only if they are requested.
        drawing.python_only |=
            arguments.format.as_deref() == Some("raw") && !arguments.sampling.native;
        let format = arguments.format.as_deref().map(Format::named).transpose()?;
        let rules = Rules::read(arguments.attribution.rules.as_deref())?;
        let outputs = match format {
            None => parse_outputs(arguments.output)?,
            Some(format) => named_output(arguments.output, format)?,
        };
        output_pattern::check(&outputs)?;
        address::check(&outputs)?;
        let beside = format.unwrap_or(Format::Page);
        let is_page = |output: &OutputFile| output.format == Format::Page;
        let has_page = match outputs.is_empty() {
            true => beside == Format::Page,
            false => outputs.iter().any(is_page),
        };
        if arguments.open && !has_page {
            return Err(Failure::usage(
                "--open opens the page, and none is written",
                "add -o FILE.html",
            ));
        }
        let snapshot = match arguments.snapshot.as_deref() {
            None => None,
            Some(_) if !has_page => {
                return Err(Failure::usage(
                    "--snapshot rewrites the page, and none is written",
                    "add -o FILE.html",
                ));
            }
            Some(text) => Some(SnapshotEvery {
                every: parse_snapshot(text)?,
                arguments: page_arguments(
                    &arguments.drawing,
                    &arguments.attribution,
                    confidential.as_deref(),
                ),
            }),
        };
        let trigger = parse_trigger(&arguments.trigger, &arguments.trigger_for)?;
        if let Some(folder) = trigger.as_ref().and_then(|each| each.folder.as_ref()) {
            output_pattern::check_path(folder)?;
        }
        let ras = !arguments.sampling.no_ras;
        let options = SessionOptions {
            ranks: arguments.ranks.as_deref().map(parse_ranks).transpose()?,
            ..session_options(arguments.sampling, &rules)?
        };
        let needs_gpu = trigger
            .as_ref()
            .is_some_and(|trigger| trigger.conditions.gpu_below.is_some());
        if needs_gpu && options.gpu.choice == GpuChoice::None {
            return Err(Failure::usage(
                "--trigger gpu needs the GPU's utilization",
                "leave --gpu none out",
            ));
        }
        Ok(Self {
            snapshot,
            trigger,
            trace: parse_trace(arguments.trace.as_deref(), arguments.trace_steps)?,
            ras,
            target: Target::new(("record", "record"), arguments.pid, arguments.command)?,
            options,
            duration: arguments
                .duration
                .as_deref()
                .map(parse_duration)
                .transpose()?
                .flatten(),
            outputs,
            beside,
            force: arguments.force,
            spool: arguments.spool,
            open: arguments.open,
            drawing,
            regions: regions::parse(&arguments.attribution.region)?,
            rules,
            confidential,
        })
    }
}

/// Options of `record` that its page depends on, for a process that renders it.
fn page_arguments(
    drawing: &DrawingArguments,
    attribution: &AttributionArguments,
    confidential: Option<&str>,
) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    match confidential {
        None => {}
        Some("") => words.push("--confidential".into()),
        Some(key) => words.push(format!("--confidential={key}").into()),
    }
    if drawing.source {
        words.push("--source".into());
    }
    if let Some(editor) = &drawing.editor {
        words.extend(["--editor".into(), editor.into()]);
    }
    if let Some(rules) = &attribution.rules {
        words.extend(["--rules".into(), rules.into()]);
    }
    words
}

impl TopPlan {
    fn new(arguments: TopArguments) -> Result<Self, Failure> {
        let rules = Rules::read(arguments.attribution.rules.as_deref())?;
        let ras = !arguments.sampling.no_ras;
        let mut options = session_options(arguments.sampling, &rules)?;
        options.segment = LIVE_SEGMENT;
        Ok(Self {
            ras,
            target: Target::new(("top", "watch"), arguments.pid, arguments.command)?,
            options,
            regions: regions::parse(&arguments.attribution.region)?,
            rules,
        })
    }
}

impl Target {
    fn new(
        (subcommand, verb): (&str, &str),
        pid: Option<i32>,
        command: Vec<OsString>,
    ) -> Result<Self, Failure> {
        match (pid, command) {
            (Some(pid), _) => Ok(Target::Attach(pid)),
            (None, command) if !command.is_empty() => Ok(Target::Launch(command)),
            (None, _) => Err(Failure::usage(
                format!("nothing to {verb}: neither a command nor --pid is given"),
                format!(
                    "torchspy {subcommand} -- python train.py, or torchspy {subcommand} --pid PID"
                ),
            )),
        }
    }
}

fn interval_of(arguments: &IntervalArguments) -> Result<Option<(u64, u64)>, Failure> {
    interval(arguments.from.as_deref(), arguments.to.as_deref())
}

/// `--from` and `--to`.
pub(super) fn interval(
    from: Option<&str>,
    to: Option<&str>,
) -> Result<Option<(u64, u64)>, Failure> {
    let ns = |option: &str, text: &str| -> Result<u64, Failure> {
        if matches!(text, "0" | "0s") {
            return Ok(0);
        }
        let time = parse_duration_of(option, text)?;
        Ok(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    };
    if from.is_none() && to.is_none() {
        return Ok(None);
    }
    let from_ns = from.map_or(Ok(0), |text| ns("--from", text))?;
    let to_ns = to.map_or(Ok(u64::MAX), |text| ns("--to", text))?;
    if to_ns <= from_ns {
        return Err(Failure::usage(
            "--to is not later than --from",
            "both are times since the start of the recording: --from 10s --to 1m30s",
        ));
    }
    Ok(Some((from_ns, to_ns)))
}

fn session_options(arguments: SamplingArguments, rules: &Rules) -> Result<SessionOptions, Failure> {
    Ok(SessionOptions {
        rate_hz: parse_record_rate(arguments.rate, arguments.nonblocking, arguments.no_native)?,
        native: !arguments.no_native,
        nonblocking: arguments.nonblocking,
        engine: engine(arguments.engine)?,
        gil_only: arguments.gil,
        threads: parse_regex(arguments.threads.as_deref())?,
        ranks: None,
        subprocesses: !arguments.no_subprocesses && arguments.children != ChildrenName::None,
        stop_any_child: arguments.children == ChildrenName::All,
        max_stopped: parse_max_stopped(&arguments.max_stopped)?,
        once: false,
        // A notebook's kernel, or a shell, may have started torchspy, which is no part of it.
        more_roots: Vec::new(),
        leave_out: i32::try_from(std::process::id()).into_iter().collect(),
        redaction: redaction(arguments.no_redact),
        rules: rules.set,
        gpu: parse_gpu(arguments.gpu.as_deref(), arguments.nvml_lib)?,
        segment: SEGMENT,
        idle_threads: IdleThreads::Close,
    })
}

/// What `--engine` stands for on this machine.
pub(super) fn engine(name: EngineName) -> Result<Engine, Failure> {
    match (name, perf_event::scope()) {
        (EngineName::Ptrace, _) => Ok(Engine::Ptrace),
        (EngineName::Auto, Ok(scope @ Scope::All)) => Ok(Engine::Perf {
            scope,
            or_stops: access::try_stop_own_child().is_ok(),
        }),
        (EngineName::Auto, _) => Ok(Engine::Ptrace),
        (EngineName::Perf, Ok(scope)) => Ok(Engine::Perf {
            scope,
            or_stops: false,
        }),
        (EngineName::Perf, Err(error)) => Err(Failure::message(format!(
            "--engine perf: the kernel does not let torchspy open perf events: {error}"
        ))
        .hint(match error.kind() {
            std::io::ErrorKind::Unsupported => {
                "another kernel, or with short stops: --engine ptrace".to_owned()
            }
            _ => format!(
                "{}\nor with short stops: --engine ptrace",
                hints::of_remedy(Remedy::PerfEvents)
            ),
        })),
    }
}

impl ConvertPlan {
    fn new(arguments: ConvertArguments) -> Result<Self, Failure> {
        let output = arguments.output.output.clone().ok_or_else(|| {
            Failure::usage("no output is named", "name one: -o run.html, or -o -")
        })?;
        let to_stdout = output == Path::new("-");
        let format = match arguments.output.format.as_deref() {
            Some(name) => Format::named(name)?,
            None if to_stdout => {
                return Err(Failure::usage(
                    "standard output has no extension that names the format",
                    format!("add --format, one of: {}", formats::streamed()),
                ));
            }
            None => Format::of_path(&output)?,
        };
        if arguments.mesh.is_some() {
            return Err(Failure::usage(
                "--mesh is of a job, and this is one recording",
                "name the folder of the job's recordings",
            ));
        }
        if arguments.output.open && to_stdout {
            return Err(Failure::usage(
                "--open opens a file, and the output is standard output",
                "name a file: -o run.html --open",
            ));
        }
        if format == Format::Parquet && to_stdout {
            return Err(Failure::usage(
                "Parquet is two files: samples and their stacks",
                "name the first: -o run.parquet; the other is run.stacks.parquet",
            ));
        }
        if format == Format::Recording {
            return Err(Failure::usage(
                "a recording cannot be converted into a recording",
                format!(
                    "cp copies it; formats to convert to: {}",
                    formats::extensions(Format::converted())
                ),
            ));
        }
        if let Some((option, formats)) = without_effect(&arguments, format) {
            return Err(Failure::usage(
                format!("{option} changes nothing in a .{}", format.extension()),
                format!("it works with {}", formats::extensions(formats)),
            ));
        }
        let confidential = arguments.confidential.confidential;
        refuse_open_names(confidential.as_ref(), &arguments.drawing)?;
        if arguments.trace_file.is_some() && confidential.is_some() {
            return Err(trace_plan::refused("--confidential"));
        }
        Ok(Self {
            regions: regions::parse(&arguments.attribution.region)?,
            rules: Rules::read(arguments.attribution.rules.as_deref())?,
            confidential,
            file: arguments.file,
            trace: arguments.trace_file,
            output: (!to_stdout).then_some(output),
            force: arguments.output.force,
            open: arguments.output.open,
            format,
            interval: interval_of(&arguments.interval)?,
            gpu_idle: arguments.gpu_idle,
            drawing: Drawing::new(
                &arguments.drawing,
                parse_regex(arguments.threads.as_deref())?,
            )?,
        })
    }
}

/// Source text and links to files name what `--confidential` hides.
fn refuse_open_names(
    confidential: Option<&String>,
    drawing: &DrawingArguments,
) -> Result<(), Failure> {
    let option = match drawing {
        DrawingArguments { source: true, .. } => "--source",
        DrawingArguments {
            editor: Some(_), ..
        } => "--editor",
        _ => return Ok(()),
    };
    match confidential {
        Some(_) => Err(Failure::usage(
            format!("{option} puts your own names into the page, and --confidential hides them"),
            "leave one of the two out",
        )),
        None => Ok(()),
    }
}

impl SnapshotPlan {
    fn new(arguments: SnapshotArguments) -> Result<Self, Failure> {
        let pid = arguments.of.to_str().and_then(|text| text.parse().ok());
        let mut output = arguments.output;
        let names_output = output.output.is_some();
        if !names_output {
            // Named when the recording is found.
            output.output = Some(PathBuf::new());
            let page = Format::Page.extension().to_owned();
            output.format.get_or_insert(page);
        }
        let convert = ConvertPlan::new(ConvertArguments {
            file: arguments.of.clone(),
            trace_file: None,
            output,
            interval: arguments.interval,
            threads: None,
            gpu_idle: false,
            mesh: None,
            attribution: arguments.attribution,
            confidential: arguments.confidential,
            drawing: arguments.drawing,
        })?;
        Ok(Self {
            of: pid.map_or(SnapshotOf::File(arguments.of), SnapshotOf::Process),
            convert,
            names_output,
            is_child: arguments.child,
        })
    }
}

/// The first option that has no effect in this format, and the formats in which it has one.
fn without_effect(
    arguments: &ConvertArguments,
    format: Format,
) -> Option<(&'static str, impl Iterator<Item = Format>)> {
    let drawing = &arguments.drawing;
    let draws: fn(Format) -> bool = Format::draws;
    let given = [
        ("--gpu-idle", arguments.gpu_idle, draws),
        ("--thread-name", arguments.threads.is_some(), draws),
        ("--plumbing", drawing.plumbing, draws),
        ("--by module", matches!(drawing.by, ByName::Module), draws),
        ("--idle", drawing.idle, draws),
        ("--function", drawing.function, draws),
        ("--nolineno", drawing.nolineno, draws),
        ("--full-filenames", drawing.full_filenames, draws),
        ("--source", drawing.source, |format| format == Format::Page),
        (
            "--trace-file",
            arguments.trace_file.is_some(),
            Format::takes_trace,
        ),
        ("--editor", drawing.editor.is_some(), |format| {
            format == Format::Page
        }),
        ("--python-only", drawing.python_only, |format| {
            format == Format::Folded
        }),
        (
            "--color gpu",
            matches!(drawing.color, ColorName::Gpu),
            |format| format == Format::Flamegraph,
        ),
    ];
    let mut given = given.into_iter();
    let (option, _, knows) = given.find(|&(_, is_given, knows)| is_given && !knows(format))?;
    Some((
        option,
        Format::converted().filter(move |&format| knows(format)),
    ))
}

impl Drawing {
    fn new(arguments: &DrawingArguments, threads: Option<Regex>) -> Result<Self, Failure> {
        Ok(Self {
            plumbing: arguments.plumbing,
            python_only: arguments.python_only,
            py_spy: None,
            first_lines: arguments.function,
            no_lines: arguments.nolineno,
            full_files: arguments.full_filenames,
            by: match arguments.by {
                ByName::Function => By::Function,
                ByName::Module => By::Module,
            },
            idle: arguments.idle,
            colours: match arguments.color {
                ColorName::Code => Colours::Code,
                ColorName::Gpu => Colours::Gpu,
            },
            threads,
            source: arguments.source,
            editor: arguments.editor.as_deref().map(parse_editor).transpose()?,
            trace: None,
        })
    }

    /// The same for what draws stacks.
    pub(crate) fn view(&self) -> ViewOptions {
        ViewOptions {
            threads: self.threads.clone(),
            plumbing: self.plumbing,
            lines: !self.first_lines,
            line_numbers: !self.no_lines,
            full_files: self.full_files,
            by: self.by,
            idle: match (self.idle, self.py_spy) {
                (true, _) => Idle::Everywhere,
                (false, None) => Idle::TrainingThread,
                (false, Some(_)) => Idle::Nowhere,
            },
            ..ViewOptions::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn plan(line: &str) -> Result<Plan, Failure> {
        Plan::new(Arguments::try_parse_from(line.split(' ')).unwrap())
    }

    fn record(line: &str) -> RecordPlan {
        match plan(&format!("torchspy record {line}")).unwrap() {
            Plan::Record(plan) => *plan,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn defaults_of_record() {
        let plan = record("-- python train.py --rate 7");
        let command = ["python", "train.py", "--rate", "7"].map(OsString::from);
        assert_eq!(plan.target, Target::Launch(command.to_vec()));
        assert_eq!(plan.options.rate_hz, 100.0);
        assert_eq!(plan.options.max_stopped, 0.02);
        assert!(plan.options.native && plan.options.subprocesses);
        assert!(!plan.options.nonblocking && !plan.options.gil_only);
        assert!(plan.outputs.is_empty() && plan.duration.is_none());
    }

    #[test]
    fn the_last_of_native_and_no_native_counts() {
        assert!(!record("--no-native -- x").options.native);
        assert!(record("--no-native --native -- x").options.native);
        assert!(!record("--native --no-native -- x").options.native);
    }

    #[test]
    fn max_stopped() {
        assert_eq!(record("--max-stopped 0.5 -p 1").options.max_stopped, 0.005);
        assert_eq!(
            record("--max-stopped off -p 1").options.max_stopped,
            f64::INFINITY
        );
    }

    #[test]
    fn formats_by_extension() {
        let formats: Vec<Format> =
            record("-o a.tspy -o a.svg -o a.speedscope.json -o a.json -o a.folded -o a.txt -p 1")
                .outputs
                .iter()
                .map(|output| output.format)
                .collect();
        use Format::{Flamegraph, Folded, Json, Recording, Speedscope, Text};
        assert_eq!(
            formats,
            [Recording, Flamegraph, Speedscope, Json, Folded, Text]
        );
    }

    #[test]
    fn python_frames_alone_are_read_more_often() {
        let plan = record("--rate 100000 --nonblocking --no-native -p 1");
        assert_eq!(plan.options.rate_hz, 100_000.0);
    }

    #[test]
    fn every_usage_error_has_status_2_and_a_hint() {
        for line in [
            "record",
            "record --rate 0 -- x",
            "record --ranks 5-3 -- x",
            "record --ranks random:1 -- x",
            "record --rate nan -- x",
            "record --rate 1e9 -- x",
            "record --rate 20000 --nonblocking -- x",
            "record --rate 20000 --no-native -- x",
            "record --rate 200000 --nonblocking --no-native -- x",
            "record --duration soon -- x",
            "record --thread-name ( -- x",
            "record --max-stopped 0 -- x",
            "record --max-stopped 101 -- x",
            "record -o x.png -- x",
            "record -o x -- x",
            "record -o {rnk}.tspy -- x",
            "record -o {rank.tspy -- x",
            "record -o a.svg -o a.svg -- x",
            "record -o a.tspy -o b.tspy -- x",
            "convert a.tspy -o b.tspy",
            "convert a.tspy -o -",
            "convert a.tspy -o a.json --thread-name x",
            "convert a.tspy -o a.csv --gpu-idle",
            "convert a.tspy -o a.parquet --by module",
            "convert a.tspy -o a.txt --idle",
            "convert a.tspy -o a.svg --python-only",
            "convert a.tspy -o a.svg --source",
            "convert a.tspy -o a.html --editor ed",
            "convert a.tspy -o a.html --editor github:http://x/y@main",
            "convert a.tspy -o a.html --editor github:https://x/y",
            "convert a.tspy -o a.folded --color gpu",
            "record --open -o x.tspy -- x",
            "record --snapshot 30s -o x.tspy -- x",
            "record --snapshot 1s -- x",
            "record --snapshot often -- x",
            "record --trace soon -- x",
            "record --trace 50ms -- x",
            "record --trace 31s -- x",
            "record --trace-steps 0 -- x",
            "record --trigger step:4 -- x",
            "record --trigger file: -- x",
            "record --trigger file:{rnk} -- x",
            "record --trigger file:a --trigger file:b -- x",
            "record --trigger slow:0 -- x",
            "record --trigger slow:soon -- x",
            "record --trigger gpu -- x",
            "record --trigger gpu:101 -- x",
            "record --trigger gpu:20 --gpu none -- x",
            "record --trigger file:a --trigger-for 0 -- x",
            "snapshot 4242 -o x.tspy",
            "snapshot 4242 -o -",
            "convert a.tspy -o - -f html --open",
            "report a.tspy --from 5s --to 4s",
            "report a.tspy --csv no_table",
            "report . --trace-rank 1",
            "report a.tspy --trace-rank 1 --html",
            "convert a.tspy -o a.svg --trace-file t.json",
            "convert a.tspy -o a.html --trace-file t.json --confidential",
            "report a.tspy --trace-file t.json --csv nothing",
            "report --trace-file t.json --by module",
            "report --trace-file t.json --steps 3",
            "report --trace-file t.json --csv operators",
            "report a.tspy --to 0",
            "report a.tspy --from soon",
            "convert a.tspy -o a.svg --from 5s --to 4s",
            "snapshot 4242 --from soon",
            "convert a.tspy -o a.html --confidential --source",
            "snapshot 4242 --confidential --source",
            "convert a.tspy -o a.html --confidential=k --editor vim",
            "record --confidential --source -- x",
            "diff",
            "diff a.tspy",
            "diff a.tspy b.tspy c.tspy",
            "diff a.tspy b.tspy -o c.tspy",
            "diff a.tspy b.tspy -o c.speedscope.json",
            "diff a.tspy b.tspy -o c",
            "diff a.tspy b.tspy --run-to-run 101",
            "diff a.tspy b.tspy --run-to-run nan",
        ] {
            let failure = plan(&format!("torchspy {line}")).unwrap_err();
            assert_eq!(failure.status, 2, "{line}");
            assert!(failure.hint.is_some(), "{line}");
        }
    }
}
