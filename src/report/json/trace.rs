//! The JSON of a trace of torch.profiler.

use crate::analysis::Analysis;
use crate::analysis::traced::{Joined, NotJoined};
use crate::model::profile::Profile;
use crate::model::seconds;
use crate::model::text::printable_json;
use crate::report::tables::trace::collectives::{TracedCollective, collectives};
use crate::report::tables::trace::devices::{TracedDevice, TracedIdle, devices, idle};
use crate::report::tables::trace::kernels::{TracedKernel, copies, kernels};
use crate::report::tables::trace::operators::{TracedOperator, operators, shapes};
use crate::report::tables::trace::{SampledIdle, sampled_idle};
use crate::trace::{StepMark, TraceSummary};
use schemars::JsonSchema;
use serde::Serialize;

/// Version of the schema. Keys are only ever added within a version.
pub const SCHEMA: u32 = 1;

/// A trace of torch.profiler, reduced. All times are those of a process that it slowed down.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct TraceReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of the torchspy that read it.
    pub torchspy: &'static str,
    /// Host name; null where the trace has none.
    pub host: Option<String>,
    /// The process, as it saw itself.
    pub pid: Option<u64>,
    pub rank: Option<u64>,
    pub world_size: Option<u64>,
    /// Wall clock at the first event, ns since 1970.
    pub started_wall_ns: u64,
    /// From the first event to the end of the last.
    pub duration_s: f64,
    /// Whole steps; null without any.
    pub steps: Option<TracedSteps>,
    /// What was not read.
    pub missing: Vec<String>,
    /// By name, by descending own time: that of whole steps, if there are any.
    pub trace_operators: Vec<TracedOperator>,
    /// By name, shapes and types of inputs, by descending own time.
    pub trace_shapes: Vec<TracedOperator>,
    /// By name and device, by descending time.
    pub trace_kernels: Vec<TracedKernel>,
    /// Copies and memsets, by name and device, by descending time.
    pub trace_copies: Vec<TracedKernel>,
    /// By arguments, by descending time.
    pub trace_collectives: Vec<TracedCollective>,
    pub trace_devices: Vec<TracedDevice>,
    /// Idle time of devices before the end of the next launch, by what the launching thread did.
    pub trace_idle: Vec<TracedIdle>,
}

/// A trace beside the recording.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct TracedBeside {
    #[serde(flatten)]
    pub trace: TraceReport,
    /// Why nothing of the recording is joined with it: `other_process` or `other_time`; null if it
    /// is.
    pub not_joined: Option<&'static str>,
    /// Index in `processes` of the traced process; null where it is not joined.
    pub process: Option<u32>,
    /// The time that both have.
    pub common_s: f64,
    /// Idle time of devices before the end of the next launch, in `common_s`.
    pub idle_s: f64,
    /// The part of `idle_s` that was sampled, by what the launching thread did.
    pub sampled_idle: Vec<SampledIdle>,
}

/// A trace beside a recording, as JSON.
pub(super) fn beside(profile: &Profile, analysis: &Analysis) -> Option<TracedBeside> {
    let traced = analysis.traced.as_ref()?;
    let joined = traced.joined.as_ref().ok();
    let position = |joined: &Joined| {
        let mut processes = analysis.processes.iter();
        processes.position(|process| process.process == joined.process)
    };
    Some(TracedBeside {
        trace: trace_report(&traced.trace),
        not_joined: traced.joined.as_ref().err().map(|why| match why {
            NotJoined::OtherProcess => "other_process",
            NotJoined::OtherTime => "other_time",
        }),
        process: joined.and_then(position).map(|index| index as u32),
        common_s: joined.map_or(0.0, |joined| seconds::of(joined.window.1 - joined.window.0)),
        idle_s: joined.map_or(0.0, |joined| seconds::of(joined.idle_ns)),
        sampled_idle: joined.map_or_else(Vec::new, |joined| sampled_idle(profile, joined)),
    })
}

/// A process of which `record --trace` has no trace.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct WithoutTrace {
    pub pid: Option<i32>,
    /// In a few words.
    pub reason: String,
}

/// Processes of which `record --trace` has no trace.
pub(super) fn without(profile: &Profile, analysis: &Analysis) -> Vec<WithoutTrace> {
    let without = analysis.without_trace.iter();
    let rows = without.map(|(process, why)| WithoutTrace {
        pid: profile.process(*process).map(|process| process.info.pid),
        reason: why.clone(),
    });
    rows.collect()
}

/// Whole steps of a trace.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct TracedSteps {
    /// `profiler`: spans `ProfilerStep#N`; `optimizer`: from one end of `Optimizer.step` to the
    /// next.
    pub marked_by: &'static str,
    pub count: u64,
    /// Mean length.
    pub mean_s: f64,
    /// Wall clock at the start of the first and the end of the last, ns since 1970.
    pub first_start_wall_ns: u64,
    pub last_end_wall_ns: u64,
    /// Whether one more, which the end of the trace cut, is left out.
    pub cut: bool,
}

/// The report of a trace.
pub fn trace_report(trace: &TraceSummary) -> TraceReport {
    let head = &trace.head;
    TraceReport {
        schema: SCHEMA,
        torchspy: env!("CARGO_PKG_VERSION"),
        host: Some(&head.host).filter(|host| !host.is_empty()).cloned(),
        pid: head.pid,
        rank: head.rank,
        world_size: head.world_size,
        started_wall_ns: head.base_ns.saturating_add(trace.window.0),
        duration_s: seconds::of(trace.window.1 - trace.window.0),
        steps: steps(trace),
        missing: trace.missing(),
        trace_operators: operators(trace),
        trace_shapes: shapes(trace),
        trace_kernels: kernels(trace),
        trace_copies: copies(trace),
        trace_collectives: collectives(trace),
        trace_devices: devices(trace),
        trace_idle: idle(trace),
    }
}

fn steps(trace: &TraceSummary) -> Option<TracedSteps> {
    let steps = &trace.steps;
    let (start, end) = steps.window()?;
    let wall_ns = |ns| trace.head.base_ns.saturating_add(ns);
    Some(TracedSteps {
        marked_by: match steps.mark {
            StepMark::None => return None,
            StepMark::Profiler => "profiler",
            StepMark::Optimizer => "optimizer",
        },
        count: steps.whole.len() as u64,
        mean_s: seconds::of(steps.mean_ns()?),
        first_start_wall_ns: wall_ns(start),
        last_end_wall_ns: wall_ns(end),
        cut: steps.cut,
    })
}

/// The JSON schema of what [`render_trace_json`] writes.
pub fn trace_schema() -> schemars::Schema {
    schemars::schema_for!(TraceReport)
}

/// [`trace_report`] as JSON text, indented, with a line feed at its end.
///
/// # Errors
/// None in practice: all values can be written as JSON.
pub fn render_trace_json(trace: &TraceSummary) -> Result<String, serde_json::Error> {
    let mut text = printable_json(&serde_json::to_string_pretty(&trace_report(trace))?);
    text.push('\n');
    Ok(text)
}
