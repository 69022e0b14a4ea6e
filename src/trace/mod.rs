//! Traces of torch.profiler, reduced to tables: what sampling cannot count.
//!
//! [`read`] takes events one by one from a file of any size and keeps some 32 bytes of each that is
//! used; [`reduce`] makes the tables. Times are those of a process that torch.profiler slowed down:
//! they are never mixed with sampled ones.

pub mod advice;
mod device;
mod event;
mod host;
mod intervals;
mod json;
pub mod kept;
pub mod on_demand;
mod reader;
mod rows;
mod spread;
mod steps;

pub use device::{CollectiveTimes, DeviceTime, KernelTimes};
pub use event::{DeviceKind, HostKind};
pub use host::HostTimes;
pub use reader::{Reading, TraceError, read};
pub use rows::{Drawn, DrawnKind, Row, RowOf, Rows};
pub use spread::{TimeSpread, TimeSpreads};
pub use steps::{StepMark, Steps};

use device::{Calls, NONE, is_communication};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// What a trace says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub host: String,
    /// The process with the most spans, as it sees itself.
    pub pid: Option<u64>,
    /// Names of its devices, by number.
    pub devices: Vec<String>,
    pub rank: Option<u64>,
    pub world_size: Option<u64>,
    /// Whether shapes were recorded; `None`: the trace does not say so.
    pub shapes: Option<bool>,
    /// CLOCK_REALTIME at time 0 of the events, ns; 0 where events have that clock themselves (torch
    /// before 2.4).
    pub base_ns: u64,
}

/// What was not read, or not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// Events that are no JSON, lack a field, or are too long.
    pub damaged: u64,
    /// Events beyond what memory is used for.
    pub not_kept: u64,
    /// Events whose shapes were not kept, because there were too many different ones.
    pub without_shapes: u64,
    /// Why the trace ends early, and after how many bytes of JSON.
    pub cut: Option<(String, u64)>,
    /// Parts that a recording had no room for, in words.
    #[serde(default)]
    pub left_out: Vec<String>,
}

/// Spans that are counted together: those of one operator with the same shapes and types.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostKey {
    pub kind: HostKind,
    pub name: String,
    /// `[[8, 16], [], []]`, as the trace has it; empty if shapes were not recorded.
    pub shapes: String,
    /// `["float", "float", "Scalar"]`.
    pub types: String,
    /// Index into [`Trace::collectives`].
    pub collective: Option<u32>,
}

/// What a device did the same way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceKey {
    pub kind: DeviceKind,
    pub name: String,
    pub device: u64,
    pub stream: u64,
    /// `[512, 1, 1]`, as the trace has it.
    pub grid: String,
    pub block: String,
    /// Index into [`Trace::collectives`].
    pub collective: Option<u32>,
}

/// The arguments of a collective, by torch's names (`record_param_comms`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Collective {
    /// `allreduce`.
    pub name: String,
    /// `Float`.
    pub dtype: String,
    pub elements_in: u64,
    pub elements_out: u64,
    /// Number of ranks; 0 where unknown.
    pub group_size: u64,
    /// `default_pg`.
    pub group: String,
}

/// A span on a thread of the host.
#[derive(Clone, Copy, Debug)]
struct Span {
    start_ns: u64,
    length_ns: u64,
    key: u32,
    /// CUPTI's correlation id; 0 for none.
    correlation: u32,
    thread: u32,
    /// Position in the file, until spans are sorted.
    order: u32,
}

/// Something that a device did.
#[derive(Clone, Copy, Debug)]
struct DeviceEvent {
    start_ns: u64,
    length_ns: u64,
    /// Of copies and memsets; 0 where unknown.
    bytes: u64,
    key: u32,
    /// CUPTI's correlation id; 0 for none.
    correlation: u32,
}

/// The used parts of a trace.
#[derive(Debug, Default)]
pub struct Trace {
    pub head: Head,
    pub losses: Losses,
    pub host_keys: Vec<HostKey>,
    pub device_keys: Vec<DeviceKey>,
    pub collectives: Vec<Collective>,
    /// tids by the numbers of threads.
    tids: Vec<Option<u64>>,
    spans: Vec<Span>,
    device_events: Vec<DeviceEvent>,
}

/// A trace, reduced.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TraceSummary {
    pub head: Head,
    pub losses: Losses,
    /// Start of the first event and end of the last, ns on the clock of the events.
    pub window: (u64, u64),
    pub steps: Steps,
    pub host_keys: Vec<HostKey>,
    /// By index of `host_keys`.
    pub host: Vec<HostTimes>,
    /// Device time by the operator that launched it, by index of `host_keys`.
    pub device_ns: FxHashMap<u32, u64>,
    /// The same of what was launched in whole steps.
    #[serde(default)]
    pub device_in_steps_ns: FxHashMap<u32, u64>,
    /// Whether times of whole steps are known: recordings of earlier versions have calls alone.
    #[serde(default)]
    pub has_step_times: bool,
    /// How much times on the host differ between whole steps; `None` in recordings of earlier
    /// versions, and where a trace has too many different calls and steps.
    #[serde(default)]
    pub spreads: Option<TimeSpreads>,
    pub device_keys: Vec<DeviceKey>,
    pub kernels: Vec<KernelTimes>,
    /// Copies and memsets.
    pub copies: Vec<KernelTimes>,
    pub collective_keys: Vec<Collective>,
    pub collectives: Vec<CollectiveTimes>,
    pub devices: Vec<DeviceTime>,
    /// Idle time of devices before the launch that ended it, by the innermost span of the thread
    /// that launched, as an index of `host_keys`; `None` for time outside of any. By descending
    /// time, ns.
    pub idle: Vec<(Option<u32>, u64)>,
    /// The same time by the thread that launched.
    pub idle_threads: Vec<IdleThread>,
    /// What is drawn of it on a time axis.
    pub rows: Rows,
}

/// Idle time of devices that a launch of one thread ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleThread {
    /// The tid as its process sees it.
    pub tid: Option<u64>,
    /// From the start of idle time to the end of the launch at most, ns, in order.
    pub gaps: Vec<(u64, u64)>,
}

/// Makes the tables of a trace.
pub fn reduce(mut trace: Trace) -> TraceSummary {
    let steps = steps::steps(&trace);
    let mut calls = Calls::new(&mut trace);
    let mut idle = host::Idle::default();
    let devices = device::devices(&trace, &calls, &steps, &mut idle);
    let (host, spreads) = host::sweep(&mut trace, &steps, &mut calls, &mut idle);
    let mut by_key: Vec<(Option<u32>, u64)> = idle
        .by_key
        .into_iter()
        .map(|(key, ns)| ((key != NONE).then_some(key), ns))
        .collect();
    by_key.sort_by_key(|&(_, ns)| std::cmp::Reverse(ns));
    let idle_threads = idle.by_thread.into_iter().map(|(thread, gaps)| IdleThread {
        tid: trace.tids.get(thread as usize).copied().flatten(),
        gaps,
    });
    let idle_threads = idle_threads.collect();
    TraceSummary {
        window: window(&trace),
        host,
        device_ns: device::by_caller(&trace, &calls, |_| true),
        device_in_steps_ns: device::by_caller(&trace, &calls, |ns| steps.has(ns)),
        has_step_times: true,
        spreads,
        kernels: device::kernels(&trace, &calls, &steps, false),
        copies: device::kernels(&trace, &calls, &steps, true),
        collectives: device::collectives(&trace, &calls, &steps),
        devices,
        idle: by_key,
        idle_threads,
        rows: rows::rows(&trace),
        steps,
        head: trace.head,
        losses: trace.losses,
        host_keys: trace.host_keys,
        device_keys: trace.device_keys,
        collective_keys: trace.collectives,
    }
}

fn window(trace: &Trace) -> (u64, u64) {
    let host = trace
        .spans
        .iter()
        .map(|span| (span.start_ns, span.length_ns));
    let device = trace.device_events.iter();
    let device = device.map(|event| (event.start_ns, event.length_ns));
    let mut window = (u64::MAX, 0);
    for (start, length) in host.chain(device) {
        window = (window.0.min(start), window.1.max(start + length));
    }
    (window.0.min(window.1), window.1)
}

impl TraceSummary {
    /// Name and kind of a drawn span of a row.
    pub fn drawn(&self, row: &Row, span: &Drawn) -> Option<(&str, DrawnKind)> {
        rows::named(self, row.of, span.key)
    }

    /// What of the rows is not drawn one by one, in words.
    pub fn not_drawn(&self) -> Vec<String> {
        let rows = &self.rows;
        let (together, grain_ns) = rows.merged();
        let mut said = Vec::new();
        if together > 0 {
            let grain_us = grain_ns as f64 / 1e3;
            said.push(format!(
                "{together} spans of the trace that are shorter than {grain_us:.1} us are drawn together with their neighbours, by the name of the longest; tables count each"
            ));
        }
        let mut count = |number: u64, what: &str| {
            if number > 0 {
                said.push(format!("{number} {what}"));
            }
        };
        count(
            rows.streams_left_out as u64,
            "streams of the trace with less time are not drawn",
        );
        count(
            rows.threads_left_out as u64,
            "threads of the trace with less time are not drawn",
        );
        count(
            rows.too_deep,
            "calls of the trace that are nested deeper than eight are not drawn",
        );
        said
    }

    /// What was not read or kept, in words.
    pub fn missing(&self) -> Vec<String> {
        let losses = &self.losses;
        let mut missing = Vec::new();
        if let Some((why, bytes)) = &losses.cut {
            let megabytes = *bytes as f64 / 1e6;
            missing.push(format!(
                "the trace is incomplete after {megabytes:.1} MB of JSON: {why}; what is before that was read"
            ));
        }
        let mut count = |number: u64, what: &str| {
            if number > 0 {
                missing.push(format!("{number} {what}"));
            }
        };
        count(losses.damaged, "damaged events were skipped");
        count(
            losses.not_kept,
            "events are not counted: the trace has more than fit into memory",
        );
        count(
            losses.without_shapes,
            "calls are counted without their shapes: there are too many, or they are too long",
        );
        let left_out = losses.left_out.iter();
        missing.extend(left_out.map(|what| {
            format!("the recording has no room for {what}: a shorter window has less")
        }));
        missing
    }
}
