//! The summary for people: plain text, 80 columns, no colour needed.

mod backward;
mod brief;
mod by_group;
mod collectives;
mod compile;
mod conditions;
mod device_memory;
pub mod diff;
mod energy;
pub(crate) mod format;
mod functions;
mod gpu_idle;
pub mod job;
pub(crate) mod memory;
mod memory_code;
mod modules;
mod operators;
mod other_jobs;
mod processes;
mod progress;
mod ras;
mod sampler;
pub mod scaling;
pub(crate) mod table;
mod tables;
pub mod trace;
pub(crate) mod tracks;
mod verdict;
mod waits;

use crate::analysis::Analysis;
use crate::analysis::summary::ProcessSummary;
use crate::analysis::verdict::Verdict;
use crate::model::profile::{Profile, Role};
use crate::model::run::RunInfo;
use crate::model::wait::WaitKind;
use crate::report::command::shown_command;
use format::{count, percent, printable, seconds};
use std::fmt::Write;
pub(crate) use tables::row_label;

/// How much to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Every table.
    #[default]
    Full,
    /// What fits a screen: the verdict, and the five most important rows of each table.
    Brief,
    /// The same with the verdict at its end, for a terminal that shows the end of the output.
    VerdictLast,
}

/// What to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextOptions {
    /// How many tables.
    pub detail: Detail,
    /// Whether computation versus other, by itwinai's definition, is included.
    pub itwinai: bool,
    /// Maximum number of rows of a table; twice as many for modules.
    pub rows: usize,
    /// Restricts the report to one subject, with more rows.
    pub by: Option<By>,
    /// Maximum number of lines of [`Detail::Brief`] and [`Detail::VerdictLast`], as far as parts
    /// may be cut.
    pub lines: usize,
}

/// The subjects that a report can be restricted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Operators and nodes of backward.
    Operator,
    /// Modules, forward and backward.
    Module,
    /// Phases by activity, and per step.
    Phase,
    Step,
    /// Functions and lines.
    Line,
    /// Waits and collectives.
    Wait,
    /// Which code raised memory, and what holds it.
    Memory,
    /// Operators by shapes of their inputs, of a trace.
    Shape,
    /// Kernels and copies of devices, of a trace.
    Kernel,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self {
            detail: Detail::Full,
            itwinai: false,
            rows: 10,
            lines: brief::LINES,
            by: None,
        }
    }
}

/// Maximum width of a line, columns; only names that cannot be cut exceed it.
pub(crate) const WIDTH: usize = 80;

/// The summary of a profile. Control characters are removed from all text of the target.
pub fn render_summary(profile: &Profile, analysis: &Analysis, options: TextOptions) -> String {
    let mut out = of_recording(profile, analysis, options);
    if let Some(traced) = &analysis.traced {
        trace::beside(&mut out, profile, traced, options);
    }
    trace::missing(&mut out, profile, analysis);
    out
}

/// The same without a trace.
pub(super) fn of_recording(profile: &Profile, analysis: &Analysis, options: TextOptions) -> String {
    if options.detail != Detail::Full && options.by.is_none() {
        return brief::brief(profile, analysis, options);
    }
    let mut out = String::new();
    head(&mut out, profile, analysis);
    if let Some(by) = options.by {
        alone(&mut out, profile, analysis, by, options.rows);
        sampler::sampler(&mut out, profile, analysis);
        return out;
    }
    memory::ends(&mut out, profile, analysis);
    verdict::verdict(&mut out, profile, analysis);
    processes::ranks(&mut out, profile, analysis, usize::MAX);
    match analysis.primary() {
        Some(process) => {
            tables::rows(&mut out, profile, process, 0.0);
            if options.itwinai {
                tables::itwinai(&mut out, process);
            }
            progress::progress(&mut out, profile, process);
            tables::matrix(&mut out, profile, process);
            waits::waits(&mut out, profile, analysis, options.rows);
            collectives::collectives(&mut out, profile, analysis, options.rows);
            modules::modules(&mut out, analysis, options.rows.saturating_mul(2));
            backward::backward(&mut out, profile, analysis, options.rows);
            compile::compile(&mut out, process, options.rows);
            operators::operators(&mut out, profile, analysis, options.rows);
            functions::functions(&mut out, profile, analysis, options.rows);
            functions::threads(&mut out, analysis, options.rows);
        }
        None => nothing_sampled(&mut out, &profile.run),
    }
    tracks::tracks(&mut out, profile, analysis);
    memory::memory(&mut out, profile, analysis, (usize::MAX, false));
    device_memory::device_memory(&mut out, profile, analysis, false);
    gpu_idle::gpu_idle(&mut out, profile, analysis, options.rows);
    energy::energy(&mut out, profile, analysis);
    processes::others(&mut out, profile, analysis);
    sampler::sampler(&mut out, profile, analysis);
    out
}

/// The verdict, statement by statement: what it is about (`WHY`; empty if that is what the one
/// before is about), and its text.
pub(crate) fn verdict_statements(
    profile: &Profile,
    analysis: &Analysis,
) -> Vec<(&'static str, String)> {
    let statements = verdict::statements(profile, analysis).into_iter();
    statements
        .map(|(word, text)| (word, printable(&text).into_owned()))
        .collect()
}

pub fn verdict_line(profile: &Profile, verdict: &Verdict) -> String {
    printable(&verdict::line(profile, verdict)).into_owned()
}

/// The complete report on one subject.
fn alone(out: &mut String, profile: &Profile, analysis: &Analysis, by: By, rows: usize) {
    const ALL: usize = usize::MAX;
    let before = out.len();
    if let Some(process) = analysis.primary() {
        match by {
            By::Operator => {
                operators::operators(out, profile, analysis, ALL);
                backward::backward(out, profile, analysis, ALL);
            }
            By::Module => {
                modules::modules(out, analysis, ALL);
                backward::backward(out, profile, analysis, ALL);
            }
            By::Phase => {
                tables::matrix(out, profile, process);
                progress::progress(out, profile, process);
            }
            By::Step => {
                progress::progress(out, profile, process);
                progress::steps(out, profile, analysis);
            }
            By::Line => functions::functions(out, profile, analysis, ALL),
            By::Wait => {
                waits::waits(out, profile, analysis, ALL);
                collectives::collectives(out, profile, analysis, ALL);
            }
            By::Memory => {
                memory::memory(out, profile, analysis, (ALL, false));
                device_memory::device_memory(out, profile, analysis, false);
                memory_code::memory(out, profile, analysis, rows);
            }
            By::Shape | By::Kernel => {}
        }
    }
    if out.len() == before && !matches!(by, By::Shape | By::Kernel) {
        out.push_str("\nNOTHING OF THIS KIND\n");
        sentence(
            out,
            "  ",
            "This recording has nothing to show in this table.",
        );
    }
}

/// Why no thread was sampled, as far as the options explain it.
fn nothing_sampled(out: &mut String, run: &RunInfo) {
    out.push_str("\nNOTHING SAMPLED\n");
    let why = match &run.threads {
        Some(pattern) => {
            format!("No thread with Python frames whose name matches /{pattern}/ was seen.")
        }
        None if run.gil_only => "No thread was seen with the GIL.".to_owned(),
        None => "No thread with Python frames was seen.".to_owned(),
    };
    sentence(out, "  ", &why);
}

/// What a reader must know before trusting the figures.
fn warnings(out: &mut String, profile: &Profile, analysis: &Analysis) {
    let quality = &analysis.quality;
    if sampler::is_short_of_cpus(quality) {
        let text = format!(
            "WARNING: this machine had no CPU to spare: torchspy waited for one {} of the time, and {} of its samples came late; {}",
            percent(quality.own_queue),
            percent(sampler::late(quality)),
            sampler::LATE
        );
        sentence(out, "", &text);
    }
    let stopped = analysis.primary().and_then(|process| {
        let waits = analysis
            .waits
            .iter()
            .find(|waits| waits.process == Some(process.process))?;
        let stopped = waits
            .kinds
            .iter()
            .find(|(kind, ..)| *kind == WaitKind::Stopped)?;
        Some(stopped.1)
    });
    // A sleep shorter than a tick is no stop by a user.
    let tick_ns = (1e9 / profile.run.rate_hz.max(1e-3)) as u64;
    if let Some(ns) = stopped.filter(|&ns| ns > 2 * tick_ns) {
        let text = format!(
            "WARNING: the training thread was stopped by a signal or a debugger for {}, which counts as idle",
            seconds(ns)
        );
        sentence(out, "", &text);
    }
}

fn head(out: &mut String, profile: &Profile, analysis: &Analysis) {
    let run = &profile.run;
    let elapsed_ns = profile.end_ns.saturating_sub(profile.start_ns);
    command(out, profile);
    let how = if run.launched { "launched" } else { "attached" };
    let mut facts = vec![
        format!("pid {}", run.pid),
        format!("host {}", printable(&run.host)),
        format!("{how}, {} recorded", seconds(elapsed_ns)),
        format!("{:.0} Hz", run.rate_hz),
    ];
    facts.push(
        if run.native {
            "native stacks"
        } else {
            "Python stacks only"
        }
        .to_owned(),
    );
    facts.extend(selection(run));
    wrapped(out, &facts, "| ");
    if let Some(process) = analysis.primary() {
        wrapped(out, &process_facts(profile, process, analysis), "| ");
        conditions::line(out, profile, process);
        let info = profile.process(process.process);
        if let Some(note) = info.map(|process| &process.info.note)
            && !note.is_empty()
        {
            sentence(out, "", note);
        }
    }
    for note in &run.notes {
        line(out, &printable(note));
    }
    warnings(out, profile, analysis);
}

fn command(out: &mut String, profile: &Profile) {
    let command = match shown_command(&profile.run.command, WIDTH) {
        command if command.is_empty() => "(no command)".to_owned(),
        command => command,
    };
    line(out, &command);
}

/// Options that restrict what a sample contains.
fn selection(run: &RunInfo) -> Vec<String> {
    let mut facts = Vec::new();
    if run.nonblocking {
        facts.push("nonblocking".to_owned());
    }
    if run.gil_only {
        facts.push("GIL holders only".to_owned());
    }
    if let Some(threads) = &run.threads {
        facts.push(format!("threads /{}/", printable(threads)));
    }
    facts
}

fn process_facts(profile: &Profile, process: &ProcessSummary, analysis: &Analysis) -> Vec<String> {
    let mut facts = Vec::new();
    if let Some(info) = profile
        .process(process.process)
        .map(|process| &process.info)
    {
        facts.push(format!("{} pid {}", role(process.role), info.pid));
        if !info.python.is_empty() {
            facts.push(format!("Python {}", printable(&info.python)));
        }
        match (info.has_torch, info.torch.is_empty()) {
            (_, false) => facts.push(format!("torch {}", printable(&info.torch))),
            (true, true) => facts.push("torch (version not read)".to_owned()),
            // Libraries are known only if native frames are read.
            (false, true) if profile.run.native => facts.push("no torch".to_owned()),
            (false, true) => {}
        }
        if info.has_cuda {
            facts.push("CUDA".to_owned());
        }
    }
    let workers = analysis
        .processes
        .iter()
        .filter(|other| matches!(other.role, Role::DataLoaderWorker { trainer, .. } if trainer == Some(process.process)))
        .count();
    if workers > 0 {
        // Every pass starts its own processes; the configured number is among the conditions.
        let noun = if workers == 1 { "process" } else { "processes" };
        facts.push(format!(
            "{} DataLoader worker {noun} seen",
            count(workers as u64)
        ));
    }
    facts
}

/// A role for people.
pub(crate) fn role(role: Role) -> String {
    match role {
        Role::Launcher => "launcher".to_owned(),
        Role::Trainer {
            rank: Some(rank),
            world_size: Some(size),
            ..
        } => format!("rank {rank}/{size}"),
        Role::Trainer {
            rank: Some(rank), ..
        } => format!("rank {rank}"),
        Role::Trainer { rank: None, .. } => "trainer".to_owned(),
        Role::DataLoaderWorker { number, .. } => format!("DataLoader worker {number}"),
        Role::Other => "process".to_owned(),
    }
}

/// Appends a line.
fn line(out: &mut String, text: &str) {
    out.push_str(text);
    while out.ends_with(' ') {
        out.pop();
    }
    out.push('\n');
}

/// Appends a text, wrapped into lines.
fn sentence(out: &mut String, indent: &str, text: &str) {
    let text = printable(text);
    let mut words = text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    words.retain(|word| !word.is_empty());
    if let Some(first) = words.first_mut() {
        first.insert_str(0, indent);
    }
    wrapped(out, &words, "");
}

/// Appends `parts` with ` ` and `separator` between them, wrapped into lines.
fn wrapped(out: &mut String, parts: &[String], separator: &str) {
    let mut width = 0;
    for (index, part) in parts.iter().enumerate() {
        let length = part.chars().count();
        if index > 0 {
            if width + 1 + separator.len() + length > WIDTH {
                out.push_str("\n  ");
                width = 2;
            } else {
                let _ = write!(out, " {separator}");
                width += 1 + separator.len();
            }
        }
        out.push_str(part);
        width += length;
    }
    out.push('\n');
}
