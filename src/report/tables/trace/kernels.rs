//! Kernels, copies and memsets of a trace.

use super::{in_steps, per_step};
use crate::report::table::{Column, In, Kind, Value};
use crate::trace::{DeviceKind, KernelTimes, TraceSummary};
use schemars::JsonSchema;
use serde::Serialize;

/// What a device did, by name.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct TracedKernel {
    pub name: String,
    /// `kernel`, `copy` or `memset`.
    pub kind: &'static str,
    /// Number of the device.
    pub device: u64,
    pub calls: u64,
    /// `calls_in_steps` over whole steps; null without any.
    pub calls_per_step: Option<f64>,
    pub total_s: f64,
    /// Mean time of a call.
    pub mean_us: f64,
    /// Streams that it ran on.
    pub streams: Vec<u64>,
    /// `[512, 1, 1]`: that of the most calls on one stream.
    pub grid: Option<String>,
    /// Threads of a block in the same calls.
    pub block: Option<String>,
    /// Number of different pairs of grid and block.
    pub grids: u64,
    /// Bytes copied or set; null where unknown.
    pub bytes: Option<u64>,
    /// Mean, GB (10^9 bytes) per second of copying.
    pub gb_per_s: Option<f64>,
    /// The operator or annotation that launched the most.
    pub launched_by: Option<String>,
    /// Number of operators that launched it, distinguished by shapes.
    pub callers: u64,
    /// Of `calls`, those that were launched in whole steps; null without any.
    pub calls_in_steps: Option<u64>,
    /// Of `total_s`, that of `calls_in_steps`.
    pub total_in_steps_s: Option<f64>,
    /// Of `bytes`, those of `calls_in_steps`.
    pub bytes_in_steps: Option<u64>,
}

type Col = Column<TracedKernel>;

// Text shows what is of whole steps, if there are any.
const CALLS: Col = Col::new(Kind::Count, "calls", "calls", |row| {
    row.calls_in_steps.unwrap_or(row.calls).into()
})
.width(8)
.only(In::Text)
.adds_up();
const ALL_CALLS: Col = Col::data(Kind::Count, "calls", |row| row.calls.into());
const PER_STEP: Col = Col::new(Kind::Number, "calls_per_step", "/step", |row| {
    row.calls_per_step.into()
})
.width(8)
.adds_up();
const TOTAL: Col = Col::new(Kind::Milliseconds, "total_s", "ms", |row| {
    (row.total_in_steps_s.unwrap_or(row.total_s) * 1e3).into()
})
.only(In::Text)
.adds_up();
const TOTAL_S: Col = Col::data(Kind::Seconds, "total_s", |row| row.total_s.into());
const STEP_CALLS: Col = Col::data(Kind::Count, "calls_in_steps", |row| {
    row.calls_in_steps.into()
});
const STEP_TOTAL_S: Col = Col::data(Kind::Seconds, "total_in_steps_s", |row| {
    row.total_in_steps_s.into()
});
const MEAN: Col = Col::new(Kind::Number, "mean_us", "mean us", |row| {
    let own = row.total_in_steps_s.zip(row.calls_in_steps);
    let own = own.filter(|&(_, calls)| calls > 0);
    own.map_or(row.mean_us, |(total_s, calls)| total_s * 1e6 / calls as f64)
        .into()
})
.only(In::Text);
const MEAN_US: Col = Col::data(Kind::Number, "mean_us", |row| row.mean_us.into());
const SHOWN: Col = Col::words("kernel", |row| short_name(&row.name).into());
const NAME: Col = Col::data(Kind::Text, "name", |row| (&row.name).into());
const CALLER: Col = Col::data(Kind::Text, "launched_by", |row| {
    row.launched_by.as_ref().into()
});
const DEVICE: Col = Col::data(Kind::Id, "device", |row| row.device.into());
const STREAMS: Col = Col::data(Kind::Text, "streams", |row| {
    Value::text(&numbers(&row.streams))
});

pub const KERNELS: &[Col] = &[
    CALLS,
    ALL_CALLS,
    PER_STEP,
    TOTAL,
    MEAN,
    MEAN_US,
    SHOWN,
    NAME,
    CALLER,
    Col::data(Kind::Count, "callers", |row| row.callers.into()),
    STREAMS,
    Col::data(Kind::Text, "grid", |row| row.grid.as_ref().into()),
    Col::data(Kind::Text, "block", |row| row.block.as_ref().into()),
    Col::data(Kind::Count, "grids", |row| row.grids.into()),
    DEVICE,
    TOTAL_S,
    STEP_CALLS,
    STEP_TOTAL_S,
];

pub const COPIES: &[Col] = &[
    CALLS,
    ALL_CALLS,
    PER_STEP,
    TOTAL,
    Col::new(Kind::Number, "bytes", "MB", |row| {
        let bytes = row.bytes_in_steps.or(row.bytes);
        bytes.map(|bytes| bytes as f64 / 1e6).into()
    })
    .only(In::Text)
    .adds_up(),
    Col::new(Kind::Number, "gb_per_s", "GB/s", |row| row.gb_per_s.into()),
    SHOWN.named("copy"),
    NAME,
    Col::data(Kind::Text, "kind", |row| row.kind.into()),
    Col::data(Kind::Count, "bytes", |row| row.bytes.into()),
    CALLER,
    STREAMS,
    DEVICE,
    TOTAL_S,
    STEP_CALLS,
    STEP_TOTAL_S,
    Col::data(Kind::Count, "bytes_in_steps", |row| {
        row.bytes_in_steps.into()
    }),
];

fn numbers(streams: &[u64]) -> String {
    let streams: Vec<String> = streams.iter().map(u64::to_string).collect();
    streams.join(" ")
}

/// A kernel's name without what is the same in most: its result, arguments and namespaces.
fn short_name(name: &str) -> String {
    let mut short = name.strip_prefix("void ").unwrap_or(name).to_owned();
    for namespace in ["(anonymous namespace)::", "at::native::", "at::", "c10::"] {
        short = short.replace(namespace, "");
    }
    let mut depth = 0_u32;
    let arguments = short.find(|character| {
        match character {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == '(' && depth == 0
    });
    // The names of copies end in parentheses as well: `Memcpy DtoD (Device -> Device)`.
    let is_copy = short.starts_with("Mem");
    short.truncate(arguments.filter(|_| !is_copy).unwrap_or(short.len()));
    short
}

/// `by aten::mm, stream 7, grid [8, 1, 1], block [128, 1, 1]`.
pub(crate) fn details(row: &TracedKernel) -> String {
    let mut parts = Vec::new();
    parts.extend(row.launched_by.as_ref().map(|name| format!("by {name}")));
    parts.push(match row.streams.len() {
        1 => format!("stream {}", numbers(&row.streams)),
        _ => format!("streams {}", numbers(&row.streams)),
    });
    parts.extend(row.grid.as_ref().map(|grid| format!("grid {grid}")));
    parts.extend(row.block.as_ref().map(|block| format!("block {block}")));
    if row.grids > 1 {
        parts.push(format!("{} more", row.grids - 1));
    }
    parts.join(", ")
}

/// Kernels by descending time.
pub fn kernels(trace: &TraceSummary) -> Vec<TracedKernel> {
    trace.kernels.iter().map(|each| row(trace, each)).collect()
}

/// Copies and memsets by descending time.
pub fn copies(trace: &TraceSummary) -> Vec<TracedKernel> {
    trace.copies.iter().map(|each| row(trace, each)).collect()
}

fn row(trace: &TraceSummary, times: &KernelTimes) -> TracedKernel {
    let key = trace.device_keys.get(times.key as usize);
    let text = |of: fn(&crate::trace::DeviceKey) -> &String| {
        key.map(of).filter(|text| !text.is_empty()).cloned()
    };
    let caller = times
        .caller
        .and_then(|(key, _)| trace.host_keys.get(key as usize));
    TracedKernel {
        name: text(|key| &key.name).unwrap_or_default(),
        kind: match key.map(|key| key.kind) {
            Some(DeviceKind::Copy) => "copy",
            Some(DeviceKind::Set) => "memset",
            _ => "kernel",
        },
        device: key.map_or(0, |key| key.device),
        calls: times.calls,
        calls_per_step: per_step(trace, times.calls_in_steps),
        total_s: times.total_ns as f64 / 1e9,
        mean_us: times.total_ns as f64 / 1e3 / times.calls.max(1) as f64,
        streams: times.streams.clone(),
        grid: text(|key| &key.grid),
        block: text(|key| &key.block),
        grids: times.grids,
        bytes: (times.bytes > 0).then_some(times.bytes),
        // Bytes per ns are GB/s.
        gb_per_s: (times.bytes > 0 && times.bytes_ns > 0)
            .then(|| times.bytes as f64 / times.bytes_ns as f64),
        launched_by: caller.map(|key| key.name.clone()),
        callers: times.callers,
        calls_in_steps: in_steps(trace, times.calls_in_steps),
        total_in_steps_s: in_steps(trace, times.total_in_steps_ns as f64 / 1e9),
        bytes_in_steps: in_steps(trace, times.bytes_in_steps).filter(|_| times.bytes > 0),
    }
}
