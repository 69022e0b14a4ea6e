//! What is to be done: checked, complete, and free of clap.

use super::args::{
    Arguments, ByName, ChildrenName, ColorName, ConvertArguments, DrawingArguments, FormatName,
    RecordArguments, ReportByName, SamplingArguments, Shell, Subcommands, TopArguments,
};
use super::diff_plan::DiffPlan;
use super::dump_plan::DumpPlan;
use super::failure::Failure;
use super::regions;
use super::rules::Rules;
use crate::analysis::progress::window::StepRange;
use crate::gpu::collector::GpuOptions;
use crate::gpu::select::GpuChoice;
use crate::model::region::Region;
use crate::os::redaction::Redaction;
use crate::report::flamegraph::Colours;
use crate::report::tables::{self, Make};
use crate::report::text::{self, Detail, TextOptions};
use crate::report::view::By;
use crate::sampling::session::{SEGMENT, SessionOptions};
use crate::torch::rules::RuleSet;
use regex::Regex;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXTENSIONS: &str =
    ".tspy .svg .speedscope.json .folded .json .txt .csv .parquet .perfetto-trace";
/// A segment of what is watched: as often there is something new to see.
const LIVE_SEGMENT: Duration = Duration::from_millis(400);
const MAX_RATE_HZ: f64 = 10_000.0;
/// A year: longer is a slip of the finger.
const MAX_DURATION_S: f64 = 365.0 * 86_400.0;

/// One subcommand's plan.
#[derive(Debug)]
pub(crate) enum Plan {
    Record(RecordPlan),
    Report(ReportPlan),
    Convert(ConvertPlan),
    Diff(DiffPlan),
    Dump(DumpPlan),
    Top(TopPlan),
    Rules(RulesPlan),
    Inspect(InspectPlan),
    Doctor(DoctorPlan),
    Completions(Shell),
    Man(ManPlan),
}

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Format {
    Recording,
    Flamegraph,
    Speedscope,
    Folded,
    Json,
    Text,
    /// Lanes of GPUs and host.
    Csv,
    /// Code and lanes for Perfetto's viewer.
    Perfetto,
    /// A row per sample.
    Parquet,
    /// The stacks of those rows, in a file of their own.
    ParquetStacks,
}

/// Whom to sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A command to be started; never empty.
    Launch(Vec<OsString>),
    /// A process that runs.
    Attach(i32),
}

/// A file to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputFile {
    pub(crate) path: PathBuf,
    pub(crate) format: Format,
}

impl OutputFile {
    /// Its path and format, and those of the file that goes with it.
    pub(crate) fn with_stacks(path: PathBuf, format: Format) -> Vec<Self> {
        let stacks = format.stacks().map(|format| Self {
            path: path.with_extension(format.extension()),
            format,
        });
        let first = Self { path, format };
        std::iter::once(first).chain(stacks).collect()
    }
}

/// What is drawn.
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
    /// Python functions by their first line.
    pub(crate) first_lines: bool,
    /// No line numbers.
    pub(crate) no_lines: bool,
    /// Paths of Python files as they are.
    pub(crate) full_files: bool,
    /// Only threads whose label matches.
    pub(crate) threads: Option<Regex>,
    /// What colours of flamegraphs mean.
    pub(crate) colours: Colours,
}

#[derive(Debug)]
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
    pub(crate) drawing: Drawing,
    pub(crate) regions: Vec<Region>,
    pub(crate) rules: Rules,
}

#[derive(Debug)]
pub(crate) struct TopPlan {
    pub(crate) target: Target,
    pub(crate) options: SessionOptions,
    pub(crate) regions: Vec<Region>,
    pub(crate) rules: Rules,
}

#[derive(Debug)]
pub(crate) struct ReportPlan {
    pub(crate) file: PathBuf,
    pub(crate) regions: Vec<Region>,
    pub(crate) rules: Rules,
    pub(crate) json: bool,
    /// A table, printed alone as CSV.
    pub(crate) csv: Option<Make>,
    /// What of the text is printed.
    pub(crate) text: TextOptions,
    /// `None`: the whole recording.
    pub(crate) steps: Option<StepRange>,
}

#[derive(Debug)]
pub(crate) struct ConvertPlan {
    pub(crate) file: PathBuf,
    pub(crate) regions: Vec<Region>,
    pub(crate) rules: Rules,
    /// `None`: standard output.
    pub(crate) output: Option<PathBuf>,
    /// A file that is there is replaced.
    pub(crate) force: bool,
    pub(crate) format: Format,
    pub(crate) drawing: Drawing,
    /// Only what lay in windows in which the GPU was idle.
    pub(crate) gpu_idle: bool,
}

#[derive(Debug)]
pub(crate) struct RulesPlan {
    /// `None`: all rows.
    pub(crate) pattern: Option<String>,
    /// Of this function: which rows say what.
    pub(crate) of: Option<String>,
    /// The files themselves.
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
    /// Checks what clap cannot.
    pub(crate) fn new(arguments: Arguments) -> Result<Self, Failure> {
        Ok(match arguments.command {
            Subcommands::Record(arguments) => Plan::Record(RecordPlan::new(arguments)?),
            Subcommands::Report(arguments) => Plan::Report(ReportPlan {
                regions: regions::parse(&arguments.attribution.region)?,
                rules: Rules::read(arguments.attribution.rules.as_deref())?,
                file: arguments.file,
                json: arguments.json,
                csv: arguments.csv.as_deref().map(table).transpose()?,
                text: TextOptions {
                    // A number of rows is asked for by who wants the tables.
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
                    }),
                },
                steps: (arguments.skip_steps.is_some() || arguments.steps.is_some()).then(|| {
                    StepRange {
                        skip: arguments.skip_steps.unwrap_or(0),
                        count: arguments.steps,
                    }
                }),
            }),
            Subcommands::Convert(arguments) => Plan::Convert(ConvertPlan::new(arguments)?),
            Subcommands::Diff(arguments) => Plan::Diff(DiffPlan::new(arguments)?),
            Subcommands::Dump(arguments) => Plan::Dump(DumpPlan::new(&arguments)?),
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
            Subcommands::Man(arguments) => Plan::Man(ManPlan {
                folder: arguments.output,
                force: arguments.force,
            }),
        })
    }
}

impl RecordPlan {
    fn new(arguments: RecordArguments) -> Result<Self, Failure> {
        let mut drawing = Drawing::new(&arguments.drawing, None);
        // py-spy's raw format has native frames only where they are asked for.
        drawing.python_only |=
            arguments.format == Some(FormatName::Raw) && !arguments.sampling.native;
        let format = arguments.format.map(Format::named).transpose()?;
        let rules = Rules::read(arguments.attribution.rules.as_deref())?;
        Ok(Self {
            target: Target::new(("record", "record"), arguments.pid, arguments.command)?,
            options: session_options(arguments.sampling, rules.set)?,
            duration: arguments
                .duration
                .as_deref()
                .map(parse_duration)
                .transpose()?
                .flatten(),
            outputs: match format {
                None => parse_outputs(arguments.output)?,
                Some(format) => named_output(arguments.output, format)?,
            },
            beside: format.unwrap_or(Format::Flamegraph),
            force: arguments.force,
            drawing,
            regions: regions::parse(&arguments.attribution.region)?,
            rules,
        })
    }
}

impl TopPlan {
    fn new(arguments: TopArguments) -> Result<Self, Failure> {
        let rules = Rules::read(arguments.attribution.rules.as_deref())?;
        let mut options = session_options(arguments.sampling, rules.set)?;
        options.segment = LIVE_SEGMENT;
        Ok(Self {
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

/// A table by its name.
fn table(name: &str) -> Result<Make, Failure> {
    tables::named(name).ok_or_else(|| {
        let names: Vec<&str> = tables::TABLES.iter().map(|(name, _)| *name).collect();
        Failure::usage(
            format!("no table is called `{name}`"),
            format!("these are: {}", names.join(", ")),
        )
    })
}

/// `--no-redact`.
pub(super) fn redaction(is_off: bool) -> Redaction {
    match is_off {
        true => Redaction::Off,
        false => Redaction::On,
    }
}

fn session_options(
    arguments: SamplingArguments,
    rules: &'static RuleSet,
) -> Result<SessionOptions, Failure> {
    Ok(SessionOptions {
        rate_hz: parse_rate(arguments.rate)?,
        native: !arguments.no_native,
        nonblocking: arguments.nonblocking,
        gil_only: arguments.gil,
        threads: parse_regex(arguments.threads.as_deref())?,
        subprocesses: !arguments.no_subprocesses && arguments.children != ChildrenName::None,
        stop_any_child: arguments.children == ChildrenName::All,
        max_stopped: parse_max_stopped(&arguments.max_stopped)?,
        once: false,
        leave_out: Vec::new(),
        redaction: redaction(arguments.no_redact),
        gpu: parse_gpu(arguments.gpu.as_deref(), arguments.nvml_lib)?,
        rules,
        segment: SEGMENT,
    })
}

impl ConvertPlan {
    fn new(arguments: ConvertArguments) -> Result<Self, Failure> {
        let to_stdout = arguments.output == Path::new("-");
        let format = match arguments.format {
            Some(name) => Format::named(name)?,
            None if to_stdout => {
                return Err(Failure::usage(
                    "standard output has no extension to tell the format by",
                    "add --format svg, speedscope, folded, json, text, csv or perfetto",
                ));
            }
            None => Format::of_path(&arguments.output)?,
        };
        if format == Format::Parquet && to_stdout {
            return Err(Failure::usage(
                "Parquet is two files: samples and their stacks",
                "name the first: -o run.parquet; the other is run.stacks.parquet",
            ));
        }
        let draws = matches!(
            format,
            Format::Flamegraph | Format::Speedscope | Format::Folded | Format::Perfetto
        );
        if arguments.gpu_idle && !draws {
            return Err(Failure::usage(
                "--gpu-idle is about drawings",
                "it works with .svg .speedscope.json .folded .perfetto-trace; the summary has a table of idle time",
            ));
        }
        if format == Format::Recording {
            return Err(Failure::usage(
                "a recording cannot be converted into a recording",
                "cp copies it; .svg .speedscope.json .folded .json .txt .csv .parquet .perfetto-trace are formats to convert to",
            ));
        }
        Ok(Self {
            regions: regions::parse(&arguments.attribution.region)?,
            rules: Rules::read(arguments.attribution.rules.as_deref())?,
            file: arguments.file,
            output: (!to_stdout).then_some(arguments.output),
            force: arguments.force,
            format,
            gpu_idle: arguments.gpu_idle,
            drawing: Drawing::new(
                &arguments.drawing,
                parse_regex(arguments.threads.as_deref())?,
            ),
        })
    }
}

impl Drawing {
    fn new(arguments: &DrawingArguments, threads: Option<Regex>) -> Self {
        Self {
            plumbing: arguments.plumbing,
            python_only: arguments.python_only,
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
        }
    }
}

impl Format {
    fn named(name: FormatName) -> Result<Self, Failure> {
        Ok(match name {
            FormatName::Svg => Format::Flamegraph,
            FormatName::Speedscope => Format::Speedscope,
            FormatName::Folded | FormatName::Raw => Format::Folded,
            FormatName::Json => Format::Json,
            FormatName::Text => Format::Text,
            FormatName::Csv => Format::Csv,
            FormatName::Perfetto => Format::Perfetto,
            FormatName::Parquet => Format::Parquet,
            FormatName::Chrometrace => {
                return Err(Failure::usage(
                    "torchspy writes no traces of Chrome's older kind",
                    "Perfetto's viewer, ui.perfetto.dev, takes its place: -o profile.perfetto-trace",
                ));
            }
        })
    }

    /// What names of such files end in.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Format::Recording => "tspy",
            Format::Flamegraph => "svg",
            Format::Speedscope => "speedscope.json",
            Format::Folded => "folded",
            Format::Json => "json",
            Format::Text => "txt",
            Format::Csv => "csv",
            Format::Perfetto => "perfetto-trace",
            Format::Parquet => "parquet",
            Format::ParquetStacks => "stacks.parquet",
        }
    }

    /// The format of the file that goes with one of this.
    pub(crate) fn stacks(self) -> Option<Self> {
        (self == Format::Parquet).then_some(Format::ParquetStacks)
    }

    /// The format that a file's name asks for.
    pub(crate) fn of_path(path: &Path) -> Result<Self, Failure> {
        // Longer extensions first: `.speedscope.json` is also a `.json`.
        const TABLE: [(&str, Format); 9] = [
            (".speedscope.json", Format::Speedscope),
            (".tspy", Format::Recording),
            (".svg", Format::Flamegraph),
            (".folded", Format::Folded),
            (".json", Format::Json),
            (".txt", Format::Text),
            (".csv", Format::Csv),
            (".perfetto-trace", Format::Perfetto),
            (".parquet", Format::Parquet),
        ];
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let found = TABLE
            .iter()
            .find(|(extension, _)| name.ends_with(extension));
        found.map(|&(_, format)| format).ok_or_else(|| {
            Failure::usage(
                format!("{}: its extension names no format", path.display()),
                format!("the format goes by the extension: {EXTENSIONS}; or name it: --format svg"),
            )
        })
    }
}

pub(super) fn parse_outputs(paths: Vec<PathBuf>) -> Result<Vec<OutputFile>, Failure> {
    let mut outputs: Vec<OutputFile> = Vec::new();
    for path in paths {
        let format = Format::of_path(&path)?;
        if outputs.iter().any(|known| known.path == path) {
            return Err(Failure::usage(
                format!("{} is given twice", path.display()),
                "give each output once",
            ));
        }
        let is_second_recording = |known: &OutputFile| known.format == Format::Recording;
        if format == Format::Recording && outputs.iter().any(is_second_recording) {
            return Err(Failure::usage(
                "more than one recording is asked for",
                "give one .tspy file; cp copies it",
            ));
        }
        outputs.extend(OutputFile::with_stacks(path, format));
    }
    Ok(outputs)
}

/// The one output of a format that is named, and what goes with it.
fn named_output(paths: Vec<PathBuf>, format: Format) -> Result<Vec<OutputFile>, Failure> {
    if paths.len() > 1 {
        return Err(Failure::usage(
            "--format names the format of one output, and there are more",
            format!("leave it out: the format goes by the extension: {EXTENSIONS}"),
        ));
    }
    let path = paths.into_iter().next();
    Ok(path.map_or(Vec::new(), |path| OutputFile::with_stacks(path, format)))
}

fn parse_rate(rate: f64) -> Result<f64, Failure> {
    if rate > 0.0 && rate <= MAX_RATE_HZ {
        return Ok(rate);
    }
    Err(Failure::usage(
        format!("--rate {rate} is out of range"),
        format!("it is a number of samples per second, above 0 and up to {MAX_RATE_HZ}"),
    ))
}

fn parse_max_stopped(text: &str) -> Result<f64, Failure> {
    if text == "off" {
        return Ok(f64::INFINITY);
    }
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent / 100.0),
        _ => Err(Failure::usage(
            format!("--max-stopped {text} is out of range"),
            "it is a share in percent, above 0 and up to 100, or off; --nonblocking never stops anything",
        )),
    }
}

fn parse_gpu(choice: Option<&str>, library: Option<PathBuf>) -> Result<GpuOptions, Failure> {
    let choice = choice.map_or(Ok(GpuChoice::Used), GpuChoice::parse);
    let choice = choice.map_err(|word| {
        Failure::usage(
            format!("--gpu: {word}"),
            "all, none, or a list by number or UUID: 0,1 or GPU-8d2c0b1e or MIG-…; nvidia-smi -L lists them",
        )
    })?;
    if let Some(path) = library.as_ref().filter(|path| !path.is_file()) {
        return Err(Failure::usage(
            format!("--nvml-lib {}: there is no such file", path.display()),
            "give the path of libnvidia-ml.so.1; without the option the system's own is taken",
        ));
    }
    Ok(GpuOptions { choice, library })
}

/// `None`: no end.
fn parse_duration(text: &str) -> Result<Option<Duration>, Failure> {
    match text {
        "unlimited" => Ok(None),
        _ => parse_duration_of("--duration", text).map(Some),
    }
}

pub(super) fn parse_duration_of(option: &str, text: &str) -> Result<Duration, Failure> {
    match seconds(text) {
        Some(seconds) if seconds > 0.0 && seconds <= MAX_DURATION_S => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err(Failure::usage(
            format!("{option} {text} is no time"),
            "30s, 2m, 1m30s, 1h, 500ms, or a number of seconds such as 1.5",
        )),
    }
}

/// The seconds of `90`, `1.5s`, `1m30s`.
fn seconds(text: &str) -> Option<f64> {
    let is_digit = |c: char| c.is_ascii_digit() || c == '.';
    let (mut rest, mut sum) = (text.trim(), 0.0);
    loop {
        let (number, behind) = rest.split_at(rest.find(|c| !is_digit(c)).unwrap_or(rest.len()));
        let (unit, next) = behind.split_at(behind.find(is_digit).unwrap_or(behind.len()));
        let scale = match unit.trim() {
            // A number alone: in `1m30` it could be anything.
            "" if rest == text.trim() => 1.0,
            "s" | "sec" => 1.0,
            "ms" => 0.001,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        sum += number.parse::<f64>().ok()? * scale;
        if next.is_empty() {
            return Some(sum);
        }
        rest = next;
    }
}

fn parse_regex(text: Option<&str>) -> Result<Option<Regex>, Failure> {
    text.map(Regex::new).transpose().map_err(|error| {
        Failure::usage(
            format!("--threads: {error}"),
            "it is a regular expression, matched anywhere in the thread's name: 'pt_autograd|MainThread'",
        )
    })
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
            Plan::Record(plan) => plan,
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
    fn durations() {
        for (text, milliseconds) in [
            ("30s", 30_000),
            ("2m", 120_000),
            ("1.5", 1_500),
            ("1h", 3_600_000),
            ("20ms", 20),
            ("1m30s", 90_000),
            ("1h 0.5m", 3_630_000),
        ] {
            assert_eq!(
                parse_duration(text).unwrap(),
                Some(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
        for text in [
            "", "s", "0", "-1", "1d", "1m30", "m30s", "1.2.3s", "1e99", "nan", "inf",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
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
    fn every_usage_error_has_status_2_and_a_hint() {
        for line in [
            "record",
            "record --rate 0 -- x",
            "record --rate nan -- x",
            "record --rate 1e9 -- x",
            "record --duration soon -- x",
            "record --threads ( -- x",
            "record --max-stopped 0 -- x",
            "record --max-stopped 101 -- x",
            "record -o x.png -- x",
            "record -o x -- x",
            "record -o a.svg -o a.svg -- x",
            "record -o a.tspy -o b.tspy -- x",
            "convert a.tspy -o b.tspy",
            "convert a.tspy -o -",
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
