//! The head of the page's data: the report, all names, and where the columns are.

use super::columns::{Columns, Place};
use super::samples::Samples;
use super::stacks::Functions;
use super::traced::{self, Drawn};
use super::tracks::{self, Track};
use super::{Editor, PageOptions, Source};
use crate::analysis::Analysis;
use crate::analysis::gpu_overlay::{device_of, served};
use crate::analysis::memory_limits::MemoryLimit;
use crate::model::category::{Activity, FrameKind, Phase, SummaryRow};
use crate::model::frame::Partial;
use crate::model::ids::ProcessId;
use crate::model::profile::{Profile, Role};
use crate::model::track::{THROTTLE_REASONS, THROTTLE_SLOWS};
use crate::model::wait::WaitKind;
use crate::report::command::shown_command;
use crate::report::json::{Report, report};
use crate::report::label::{LONG, SHORT, clean, process_labels};
use crate::report::naming::so_far;
use crate::report::part::row_name;
use crate::report::table::{Kind, Sheet, Value};
use crate::report::tables::{TABLES, trace};
use crate::report::text::memory::end_statements;
use crate::report::text::{TextOptions, render_summary, verdict_statements};
use crate::report::view::thread_labels;
use serde::Serialize;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::io;

/// Version of the data.
const VERSION: u32 = 1;
/// Width of the command line, characters.
const COMMAND: usize = 400;
/// Rows of a table of the whole run.
const MOST_ROWS: usize = 1000;
/// Processes that memory ended, in words above the verdict.
const MOST_STATED: usize = 4;
/// Processes that memory ended.
const MOST_ENDS: usize = 64;

/// Tables of the whole run that the page does not compute for an interval.
const WHOLE: &[&str] = &[
    "operator_sites",
    "module_groups",
    "nodes",
    "backward_lines",
    "backward_modules",
    "collectives",
    "compiled",
    "graph_breaks",
    "gpu_idle",
    "energy",
    "processes",
];

#[derive(Serialize)]
struct Head<'a> {
    version: u32,
    report: Report,
    command: String,
    /// The verdict in words: what a text is about, and the text.
    verdict: Vec<(&'static str, String)>,
    /// The complete report as text.
    text: String,
    length_us: u64,
    bin_us: u64,
    samples: usize,
    /// Whether only a part of the recording is shown.
    part: bool,
    editor: &'a Option<Editor>,
    sources: &'a Option<Vec<Source>>,
    names: BTreeMap<&'static str, Vec<&'a str>>,
    row_labels: Vec<&'static str>,
    labels: Vec<String>,
    modules: Vec<Module>,
    functions: Functions,
    processes: Vec<Process>,
    threads: Vec<Thread>,
    tracks: Vec<Track>,
    throttle: Vec<(u64, &'static str)>,
    traced: Option<Drawn>,
    /// Tables of the trace.
    trace_tables: Vec<Table>,
    ends: Vec<End>,
    /// The largest part of a memory limit that was in use.
    limit_share: f64,
    tables: Vec<Table>,
    columns: BTreeMap<String, Place>,
}

#[derive(Serialize)]
struct Module {
    root: String,
    number: u32,
    path: String,
    class: String,
    evaluates: bool,
    label: String,
}

#[derive(Serialize)]
struct Process {
    pid: i32,
    label: String,
    role: &'static str,
    rank: Option<u32>,
    worker: Option<u32>,
    /// The trainer that a DataLoader worker feeds; the process itself for others.
    serves: usize,
    training_thread: Option<usize>,
    /// Into the report's `gpus`.
    gpu: Option<usize>,
    cuda: bool,
    has_steps: bool,
    primary: bool,
}

#[derive(Serialize)]
struct Thread {
    process: usize,
    tid: i32,
    label: String,
    name: String,
    role: &'static str,
    cpu_us: u64,
}

/// A process that lack of memory ended, or may have.
#[derive(Serialize)]
struct End {
    at_us: u64,
    /// Into the processes.
    process: Option<usize>,
    text: String,
}

/// A table of the whole run.
#[derive(Serialize)]
struct Table {
    name: &'static str,
    columns: Vec<(&'static str, &'static str)>,
    rows: Vec<Vec<Json>>,
    /// Rows that are left out.
    more: usize,
}

/// What the head has from elsewhere.
pub(super) struct Parts<'a> {
    pub(super) samples: &'a Samples,
    pub(super) functions: Functions,
    pub(super) tracks: Vec<Track>,
    pub(super) traced: Option<Drawn>,
    pub(super) options: &'a PageOptions,
}

/// The page's title.
pub(super) fn title(profile: &Profile) -> String {
    let command = shown_command(&profile.run.command, 60);
    clean(
        &format!("{command} on {} - torchspy", profile.run.host),
        SHORT,
    )
}

/// The head as JSON. Progress is added to the columns.
pub(super) fn head(
    profile: &Profile,
    analysis: &Analysis,
    parts: Parts<'_>,
    columns: &mut Columns,
) -> io::Result<Vec<u8>> {
    let Parts {
        samples,
        functions,
        tracks,
        traced,
        options,
    } = parts;
    let processes = processes(profile, analysis, columns);
    let names = &profile.facts.names;
    let head = Head {
        version: VERSION,
        report: without_trace(report(profile, analysis)),
        command: clean(&shown_command(&profile.run.command, COMMAND), LONG),
        verdict: verdict(profile, analysis),
        text: render_summary(profile, analysis, TextOptions::default()),
        length_us: profile
            .end_ns
            .saturating_sub(profile.start_ns)
            .div_ceil(1000),
        bin_us: samples.bin_us,
        samples: samples.len(),
        part: profile.whole_ns.is_some(),
        editor: &options.editor,
        sources: &options.sources,
        names: enumerations(profile),
        row_labels: SummaryRow::ALL.iter().map(|&row| row_name(row)).collect(),
        labels: names.all().iter().map(|name| clean(name, LONG)).collect(),
        modules: modules(profile),
        functions,
        processes,
        threads: threads(profile, analysis),
        tracks,
        throttle: reasons(),
        traced,
        trace_tables: trace_tables(profile, analysis),
        ends: ends(profile, analysis),
        limit_share: analysis
            .limits
            .iter()
            .map(MemoryLimit::share)
            .fold(0.0, f64::max),
        tables: tables(profile, analysis),
        columns: std::mem::take(&mut columns.places),
    };
    Ok(serde_json::to_vec(&head)?)
}

/// The tables of a trace are in the page once: as tables, and not all rows.
fn without_trace(mut report: Report) -> Report {
    report.traced = None;
    report
}

fn trace_tables(profile: &Profile, analysis: &Analysis) -> Vec<Table> {
    let Some(traced) = &analysis.traced else {
        return Vec::new();
    };
    let all = trace::TABLES.iter();
    let mut tables: Vec<Table> = all
        .map(|&(name, make)| table(name, &make(&traced.trace)))
        .collect();
    if let Ok(joined) = &traced.joined {
        let rows = trace::sampled_idle(profile, joined);
        tables.push(table(
            "sampled_idle",
            &Sheet::new(trace::SAMPLED_IDLE, &rows),
        ));
    }
    tables.retain(|table| !table.rows.is_empty());
    tables
}

fn ends(profile: &Profile, analysis: &Analysis) -> Vec<End> {
    let statements = end_statements(profile, analysis).into_iter();
    let ends = statements.map(|(end, text)| End {
        at_us: end.time_ns.saturating_sub(profile.start_ns) / 1000,
        process: end.process.map(|process| process.index()),
        text: clean(&text, LONG),
    });
    ends.take(MOST_ENDS).collect()
}

/// What is hashed, and what is not, in a page that others are given.
const HASHED: &str = "a confidential page (--confidential): names of your own files, functions, classes, modules, threads, arguments, \
                      hosts and regions are hashes; names of torch, installed packages and the system are kept, and so are all figures";

/// The verdict; before it, that names are hashes, and that the recording goes on.
fn verdict(profile: &Profile, analysis: &Analysis) -> Vec<(&'static str, String)> {
    let mut statements = verdict_statements(profile, analysis);
    statements.extend(traced::statement(profile, analysis).map(|text| ("TRACED", text)));
    let ended = end_statements(profile, analysis).into_iter();
    let ended: Vec<_> = ended
        .take(MOST_STATED)
        .map(|(_, text)| ("ENDED", text))
        .collect();
    statements.splice(0..0, ended);
    if let Some(text) = so_far(profile) {
        if statements.is_empty() {
            let text = "none yet: nothing trains so far".to_owned();
            statements.push(("VERDICT", text));
        }
        statements.insert(0, ("SO FAR", text));
    }
    if profile.is_confidential {
        statements.insert(0, ("HASHED", HASHED.to_owned()));
    }
    statements
}

fn enumerations(profile: &Profile) -> BTreeMap<&'static str, Vec<&str>> {
    let phases = Phase::ALL.iter().map(|&phase| profile.phase_name(phase));
    BTreeMap::from([
        ("phase", phases.collect()),
        (
            "activity",
            Activity::ALL.iter().map(|each| each.name()).collect(),
        ),
        (
            "activity_label",
            Activity::ALL.iter().map(|each| each.label()).collect(),
        ),
        (
            "row",
            SummaryRow::ALL.iter().map(|each| each.name()).collect(),
        ),
        (
            "wait",
            WaitKind::ALL.iter().map(|each| each.name()).collect(),
        ),
        (
            "kind",
            FrameKind::ALL.iter().map(|each| each.name()).collect(),
        ),
        (
            "partial",
            Partial::ALL.iter().map(|each| each.name()).collect(),
        ),
    ])
}

fn modules(profile: &Profile) -> Vec<Module> {
    let modules = profile.nn_modules.iter().map(|module| Module {
        root: clean(&module.root, LONG),
        number: module.number,
        path: clean(&module.path, LONG),
        class: clean(&module.class, LONG),
        evaluates: module.training == Some(false),
        label: clean(&module.label(), LONG),
    });
    modules.collect()
}

fn processes(profile: &Profile, analysis: &Analysis, columns: &mut Columns) -> Vec<Process> {
    let labels = process_labels(profile);
    let primary = analysis.primary().map(|process| process.process);
    let devices = &analysis.tracks.devices;
    let processes = profile.processes.iter().zip(labels).enumerate();
    let described = processes.map(|(at, (process, label))| {
        let id = ProcessId::from_index(at);
        let trains = Some(id) == primary || matches!(process.role, Role::Trainer { .. });
        let thread = process.training_thread.filter(|_| trains);
        let device = device_of(&analysis.tracks, served(profile, id)).ok();
        Process {
            pid: process.info.pid,
            label: clean(&label, LONG),
            role: process.role.name(),
            rank: process.role.rank(),
            worker: process.role.worker(),
            serves: served(profile, id).index(),
            training_thread: process.training_thread.map(|thread| thread.index()),
            gpu: device.and_then(|device| devices.iter().position(|each| each.id == device.id)),
            cuda: process.info.has_cuda,
            has_steps: thread
                .is_some_and(|thread| tracks::write_progress(profile, id, thread, columns)),
            primary: Some(id) == primary,
        }
    });
    described.collect()
}

fn threads(profile: &Profile, analysis: &Analysis) -> Vec<Thread> {
    let mut roles = vec!["thread"; profile.threads.len()];
    for thread in analysis.processes.iter().flat_map(|each| &each.threads) {
        if let Some(role) = roles.get_mut(thread.thread.index()) {
            *role = thread.role;
        }
    }
    let labels = thread_labels(profile);
    let threads = profile.threads.iter().zip(labels).zip(roles).enumerate();
    let described = threads.map(|(at, ((thread, label), role))| Thread {
        process: thread.process.index(),
        tid: thread.tid,
        label: clean(&label, LONG),
        name: clean(&thread.name, LONG),
        role,
        cpu_us: profile.thread_cpu_ns.get(at).map_or(0, |ns| ns / 1000),
    });
    described.collect()
}

/// Reasons that hold a busy device back, by bit.
fn reasons() -> Vec<(u64, &'static str)> {
    let slows = THROTTLE_REASONS.iter().copied();
    slows.filter(|(bit, _)| bit & THROTTLE_SLOWS != 0).collect()
}

fn tables(profile: &Profile, analysis: &Analysis) -> Vec<Table> {
    let whole = TABLES.iter().filter(|(name, _)| WHOLE.contains(name));
    let tables = whole.map(|&(name, make)| table(name, &make(profile, analysis)));
    tables.filter(|table| !table.rows.is_empty()).collect()
}

fn table(name: &'static str, sheet: &Sheet) -> Table {
    let rows = sheet.rows.iter().take(MOST_ROWS);
    Table {
        name,
        columns: sheet
            .columns
            .iter()
            .map(|&(key, kind)| (key, kind_name(kind)))
            .collect(),
        rows: rows.map(|row| row.iter().map(cell).collect()).collect(),
        more: sheet.rows.len().saturating_sub(MOST_ROWS),
    }
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Seconds => "seconds",
        Kind::Milliseconds => "milliseconds",
        Kind::Percent | Kind::Points => "percent",
        Kind::Share => "share",
        Kind::Count => "count",
        Kind::Id => "id",
        Kind::Number => "number",
        Kind::Text => "text",
        Kind::Place => "place",
    }
}

fn cell(value: &Value) -> Json {
    match value {
        Value::None => Json::Null,
        Value::Number(number) => json!(number),
        Value::Count(count) => json!(count),
        Value::Flag(flag) => json!(flag),
        Value::Share(share) => json!([share.value, share.low, share.high, share.samples]),
        Value::Text(text) => json!(clean(text, LONG)),
        Value::Place(file, line) => json!([clean(file, LONG), line]),
    }
}
