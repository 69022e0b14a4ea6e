//! Time of devices in a trace.

use crate::model::seconds;
use crate::report::table::{Column, In, Kind, Value};
use crate::trace::{DeviceTime, TraceSummary};
use schemars::JsonSchema;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A device's time in the whole steps of a trace; without steps, from its first event to its last.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct TracedDevice {
    pub device: u64,
    pub name: Option<String>,
    /// What the times below are of.
    pub window_s: f64,
    /// Kernels other than collectives.
    pub compute_s: f64,
    /// Kernels of collectives (NCCL).
    pub communication_s: f64,
    /// Both at the same time: part of `compute_s` and of `communication_s`.
    pub overlap_s: f64,
    /// Copies and memsets while no kernel ran.
    pub copies_s: f64,
    pub idle_s: f64,
    /// Idle before the end of the call that launched what came next: the host was late.
    pub idle_not_launched_s: f64,
    /// Idle after that call: launch latency, and waits of streams for each other.
    pub idle_launched_s: f64,
    /// Kernels that began in the window.
    pub kernels: u64,
    /// Per whole step; null without steps.
    pub kernels_per_step: Option<f64>,
    /// Kernels whose call is in the trace and launched nothing else: not those of a graph.
    pub kernels_with_call: u64,
    /// Of these, how many took less time than the call.
    pub shorter_than_call: u64,
    /// From the start of the call to the start of the kernel while the device was idle: median.
    pub launch_latency_us: Option<f64>,
    /// The same: 95th percentile.
    pub launch_latency_p95_us: Option<f64>,
    /// Number of kernels with a launch latency.
    pub launch_latencies: u64,
}

/// Idle time of devices before the end of the next launch, by what the launching thread did.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct TracedIdle {
    /// The innermost operator or call; null outside of any.
    pub name: Option<String>,
    pub idle_s: f64,
    /// Of all idle time before the end of the next launch.
    pub share: f64,
}

type Col = Column<TracedDevice>;
type IdleCol = Column<TracedIdle>;

pub const DEVICES: &[Col] = &[
    Col::data(Kind::Id, "device", |row| row.device.into()),
    Col::data(Kind::Text, "name", |row| row.name.as_ref().into()),
    Col::data(Kind::Seconds, "window_s", |row| row.window_s.into()),
    Col::data(Kind::Seconds, "compute_s", |row| row.compute_s.into()),
    Col::data(Kind::Seconds, "communication_s", |row| {
        row.communication_s.into()
    }),
    Col::data(Kind::Seconds, "overlap_s", |row| row.overlap_s.into()),
    Col::data(Kind::Seconds, "copies_s", |row| row.copies_s.into()),
    Col::data(Kind::Seconds, "idle_s", |row| row.idle_s.into()),
    Col::data(Kind::Seconds, "idle_not_launched_s", |row| {
        row.idle_not_launched_s.into()
    }),
    Col::data(Kind::Seconds, "idle_launched_s", |row| {
        row.idle_launched_s.into()
    }),
    Col::data(Kind::Count, "kernels", |row| row.kernels.into()),
    Col::data(Kind::Number, "kernels_per_step", |row| {
        row.kernels_per_step.into()
    }),
    Col::data(Kind::Count, "kernels_with_call", |row| {
        row.kernels_with_call.into()
    }),
    Col::data(Kind::Count, "shorter_than_call", |row| {
        row.shorter_than_call.into()
    }),
    Col::data(Kind::Number, "launch_latency_us", |row| {
        row.launch_latency_us.into()
    }),
    Col::data(Kind::Number, "launch_latency_p95_us", |row| {
        row.launch_latency_p95_us.into()
    }),
    Col::data(Kind::Count, "launch_latencies", |row| {
        row.launch_latencies.into()
    }),
];

pub const IDLE: &[IdleCol] = &[
    IdleCol::new(Kind::Milliseconds, "idle_s", "idle ms", |row| {
        (row.idle_s * 1e3).into()
    })
    .only(In::Text)
    .adds_up(),
    IdleCol::new(Kind::Percent, "share", "share", |row| row.share.into()).adds_up(),
    IdleCol::words("the launching thread was in", |row| match &row.name {
        Some(name) => name.into(),
        None => Value::text("no operator (Python)"),
    }),
    IdleCol::data(Kind::Text, "name", |row| row.name.as_ref().into()),
    IdleCol::data(Kind::Seconds, "idle_s", |row| row.idle_s.into()),
];

/// Devices by number.
pub fn devices(trace: &TraceSummary) -> Vec<TracedDevice> {
    trace.devices.iter().map(|each| row(trace, each)).collect()
}

fn row(trace: &TraceSummary, time: &DeviceTime) -> TracedDevice {
    let named = usize::try_from(time.device).ok();
    let name = named.and_then(|device| trace.head.devices.get(device));
    let steps = trace.steps.whole.len();
    let at = |share: f64| {
        let last = time.launch_ns.len().checked_sub(1)?;
        let index = (last as f64 * share).round() as usize;
        time.launch_ns.get(index).map(|&ns| ns as f64 / 1e3)
    };
    TracedDevice {
        device: time.device,
        name: name.filter(|name| !name.is_empty()).cloned(),
        window_s: seconds::of(time.window.1 - time.window.0),
        compute_s: seconds::of(time.compute_ns),
        communication_s: seconds::of(time.communication_ns),
        overlap_s: seconds::of(time.overlap_ns),
        copies_s: seconds::of(time.copies_ns),
        idle_s: seconds::of(time.idle_ns),
        idle_not_launched_s: seconds::of(time.not_launched_ns),
        idle_launched_s: seconds::of(time.launched_ns),
        kernels: time.kernels,
        kernels_per_step: (steps > 0).then(|| time.kernels as f64 / steps as f64),
        kernels_with_call: time.known_calls,
        shorter_than_call: time.short_kernels,
        launch_latency_us: at(0.5),
        launch_latency_p95_us: at(0.95),
        launch_latencies: time.launches,
    }
}

/// By descending time.
pub fn idle(trace: &TraceSummary) -> Vec<TracedIdle> {
    let mut rows: BTreeMap<Option<&str>, u64> = BTreeMap::new();
    for &(key, ns) in &trace.idle {
        let key = key.and_then(|key| trace.host_keys.get(key as usize));
        // A step is around all that the loop does.
        let name = key.map(|key| key.name.as_str());
        let name = name.filter(|name| !name.starts_with("ProfilerStep#"));
        let sum = rows.entry(name).or_default();
        *sum = sum.saturating_add(ns);
    }
    let total_ns = rows.values().map(|&ns| ns as f64).sum::<f64>().max(1.0);
    let mut rows: Vec<(Option<&str>, u64)> = rows.into_iter().collect();
    rows.sort_by_key(|&(_, ns)| Reverse(ns));
    let rows = rows.into_iter().map(|(name, ns)| TracedIdle {
        name: name.map(str::to_owned),
        idle_s: seconds::of(ns),
        share: ns as f64 / total_ns,
    });
    rows.collect()
}
