//! Operators of a trace.

use super::{in_steps, per_step};
use crate::analysis::diff::student::t95;
use crate::analysis::scaling::mean::Estimate;
use crate::report::table::{Column, In, Kind};
use crate::trace::{HostKey, HostKind, TimeSpread, TraceSummary};
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// An operator as torch.profiler saw it. Times are those of a process that it slowed down.
#[derive(Clone, Debug, Default, JsonSchema, Serialize)]
pub struct TracedOperator {
    /// `aten::mm`.
    pub name: String,
    /// `operator` (nodes of autograd's graph as well), `annotation` (`record_function`, optimizers
    /// and others) or `runtime` (calls of CUDA).
    pub kind: &'static str,
    /// Overloads of one name that only call each other are one call, as in `key_averages()`.
    pub calls: u64,
    /// `calls_in_steps` over whole steps; null without any.
    pub calls_per_step: Option<f64>,
    /// Time on the host in which it was innermost.
    pub self_s: f64,
    /// Time on the host in which it was on the stack; once where it calls itself.
    pub total_s: f64,
    /// Time of devices in kernels and copies that it launched itself; null without devices.
    pub device_s: Option<f64>,
    /// Shapes of inputs, by argument; null where these are summed, or were not recorded.
    pub shapes: Option<String>,
    /// Types of inputs, by argument.
    pub types: Option<String>,
    /// Of `calls`, those that began in whole steps; null without any.
    pub calls_in_steps: Option<u64>,
    /// Of `self_s`, that of `calls_in_steps`.
    pub self_in_steps_s: Option<f64>,
    /// Of `total_s`, that of `calls_in_steps`.
    pub total_in_steps_s: Option<f64>,
    /// Of `device_s`, that of what was launched in whole steps.
    pub device_in_steps_s: Option<f64>,
    /// `self_in_steps_s` over whole steps, ms, with the interval of the mean by how much they
    /// differ; without interval where that is not known, as of a single step.
    pub self_ms_per_step: Option<Estimate>,
    /// The same of `total_in_steps_s`.
    pub total_ms_per_step: Option<Estimate>,
}

type Col = Column<TracedOperator>;

// Text shows what is of whole steps, if there are any.
const CALLS: Col = Col::new(Kind::Count, "calls", "calls", |row| {
    row.calls_in_steps.unwrap_or(row.calls).into()
})
.width(8)
.only(In::Text)
.adds_up();
const PER_STEP: Col = Col::new(Kind::Number, "calls_per_step", "/step", |row| {
    row.calls_per_step.into()
})
.width(8)
.adds_up();
const SELF: Col = Col::new(Kind::Milliseconds, "self_s", "self ms", |row| {
    (shown_self_s(row) * 1e3).into()
})
.only(In::Text)
.adds_up();
const TOTAL: Col = Col::new(Kind::Milliseconds, "total_s", "total ms", |row| {
    (row.total_in_steps_s.unwrap_or(row.total_s) * 1e3).into()
})
.only(In::Text);
const DEVICE: Col = Col::new(Kind::Milliseconds, "device_s", "device ms", |row| {
    let device_s = row.device_in_steps_s.or(row.device_s);
    device_s.map(|device_s| device_s * 1e3).into()
})
.width(10)
.only(In::Text)
.adds_up();
const SHOWN: Col = Col::words("operator", |row| match row.kind {
    "annotation" => format!("annotation: {}", row.name).into(),
    _ => (&row.name).into(),
});
const ALL_CALLS: Col = Col::data(Kind::Count, "calls", |row| row.calls.into());
const NAME: Col = Col::data(Kind::Text, "name", |row| (&row.name).into());
const KIND: Col = Col::data(Kind::Text, "kind", |row| row.kind.into());
const SELF_S: Col = Col::data(Kind::Seconds, "self_s", |row| row.self_s.into());
const TOTAL_S: Col = Col::data(Kind::Seconds, "total_s", |row| row.total_s.into());
const DEVICE_S: Col = Col::data(Kind::Seconds, "device_s", |row| row.device_s.into());
const STEP_CALLS: Col = Col::data(Kind::Count, "calls_in_steps", |row| {
    row.calls_in_steps.into()
});
const STEP_SELF_S: Col = Col::data(Kind::Seconds, "self_in_steps_s", |row| {
    row.self_in_steps_s.into()
});
const STEP_TOTAL_S: Col = Col::data(Kind::Seconds, "total_in_steps_s", |row| {
    row.total_in_steps_s.into()
});
const STEP_DEVICE_S: Col = Col::data(Kind::Seconds, "device_in_steps_s", |row| {
    row.device_in_steps_s.into()
});
const STEP_SELF_MS: Col = Col::data(Kind::Milliseconds, "self_ms_per_step", |row| {
    row.self_ms_per_step.map(|it| it.value).into()
});
const STEP_SELF_MS_LOW: Col = Col::data(Kind::Milliseconds, "self_ms_per_step_low", |row| {
    row.self_ms_per_step.and_then(|it| it.low).into()
});
const STEP_SELF_MS_HIGH: Col = Col::data(Kind::Milliseconds, "self_ms_per_step_high", |row| {
    row.self_ms_per_step.and_then(|it| it.high).into()
});
const STEP_TOTAL_MS: Col = Col::data(Kind::Milliseconds, "total_ms_per_step", |row| {
    row.total_ms_per_step.map(|it| it.value).into()
});
const STEP_TOTAL_MS_LOW: Col = Col::data(Kind::Milliseconds, "total_ms_per_step_low", |row| {
    row.total_ms_per_step.and_then(|it| it.low).into()
});
const STEP_TOTAL_MS_HIGH: Col = Col::data(Kind::Milliseconds, "total_ms_per_step_high", |row| {
    row.total_ms_per_step.and_then(|it| it.high).into()
});

/// Summed over shapes.
pub const OPERATORS: &[Col] = &[
    CALLS,
    ALL_CALLS,
    PER_STEP,
    SELF,
    TOTAL,
    DEVICE,
    SHOWN,
    NAME,
    KIND,
    SELF_S,
    TOTAL_S,
    DEVICE_S,
    STEP_CALLS,
    STEP_SELF_S,
    STEP_TOTAL_S,
    STEP_DEVICE_S,
    STEP_SELF_MS,
    STEP_SELF_MS_LOW,
    STEP_SELF_MS_HIGH,
    STEP_TOTAL_MS,
    STEP_TOTAL_MS_LOW,
    STEP_TOTAL_MS_HIGH,
];

/// By shapes and types.
pub const SHAPES: &[Col] = &[
    CALLS,
    ALL_CALLS,
    PER_STEP,
    SELF,
    TOTAL,
    DEVICE,
    SHOWN,
    NAME,
    KIND,
    SELF_S,
    TOTAL_S,
    DEVICE_S,
    Col::data(Kind::Text, "shapes", |row| row.shapes.as_ref().into()),
    Col::data(Kind::Text, "types", |row| row.types.as_ref().into()),
    STEP_CALLS,
    STEP_SELF_S,
    STEP_TOTAL_S,
    STEP_DEVICE_S,
    STEP_SELF_MS,
    STEP_SELF_MS_LOW,
    STEP_SELF_MS_HIGH,
    STEP_TOTAL_MS,
    STEP_TOTAL_MS_LOW,
    STEP_TOTAL_MS_HIGH,
];

/// `float [8,16] [16]`: inputs that are tensors, with their types.
pub(crate) fn shown_shapes(row: &TracedOperator) -> String {
    let shapes = row.shapes.as_deref().unwrap_or_default();
    let types = row.types.as_deref().unwrap_or_default();
    let types: Vec<String> = serde_json::from_str(types).unwrap_or_default();
    let Ok(shapes) = serde_json::from_str::<Vec<serde_json::Value>>(shapes) else {
        return shapes.to_owned();
    };
    let mut shown: Vec<String> = Vec::new();
    let mut last_type = "";
    for (index, shape) in shapes.iter().enumerate() {
        let kind = types.get(index).map_or("", String::as_str);
        let is_empty = shape.as_array().is_none_or(Vec::is_empty);
        if is_empty && matches!(kind, "" | "Scalar" | "ScalarList") {
            continue;
        }
        // A type that is repeated is said once.
        shown.push(match kind == last_type || kind.is_empty() {
            true => shape.to_string(),
            false => format!("{kind} {shape}"),
        });
        last_type = kind;
    }
    shown.join(" ")
}

/// Operators, annotations and calls of CUDA by name, by descending own time: that of whole steps,
/// if there are any.
pub fn operators(trace: &TraceSummary) -> Vec<TracedOperator> {
    let mut rows: BTreeMap<(&str, HostKind), Group> = BTreeMap::new();
    let spreads = trace.spreads.as_ref().map(|spreads| &spreads.by_name);
    for (index, key) in trace.host_keys.iter().enumerate() {
        let Some(mut each) = row(trace, index, key) else {
            continue;
        };
        // Calls with other shapes may be within each other.
        if let Some(times) = trace.host.get(index) {
            each.total_s = times.outer_ns as f64 / 1e9;
            each.total_in_steps_s = in_steps(trace, times.outer_in_steps_ns as f64 / 1e9);
        }
        (each.shapes, each.types) = (None, None);
        let group = rows.entry((&key.name, key.kind)).or_default();
        group.add(each, spreads, index);
    }
    sorted(trace, rows.into_values())
}

/// The same by shapes and types of inputs.
pub fn shapes(trace: &TraceSummary) -> Vec<TracedOperator> {
    let mut rows: BTreeMap<(&str, HostKind, &str, &str), Group> = BTreeMap::new();
    let spreads = trace.spreads.as_ref().map(|spreads| &spreads.by_shape);
    for (index, key) in trace.host_keys.iter().enumerate() {
        let Some(each) = row(trace, index, key) else {
            continue;
        };
        // Keys are distinguished by the arguments of collectives as well.
        let group = rows.entry((&key.name, key.kind, &key.shapes, &key.types));
        group.or_default().add(each, spreads, index);
    }
    sorted(trace, rows.into_values())
}

/// Keys that are one row.
#[derive(Default)]
struct Group {
    row: Option<TracedOperator>,
    spread: Option<TimeSpread>,
}

impl Group {
    fn add(
        &mut self,
        each: TracedOperator,
        spreads: Option<&BTreeMap<u32, TimeSpread>>,
        index: usize,
    ) {
        let spread = spreads.and_then(|spreads| spreads.get(&(index as u32)));
        self.spread = self.spread.or(spread.copied());
        match &mut self.row {
            Some(row) => add(row, &each),
            None => self.row = Some(each),
        }
    }
}

fn sorted(trace: &TraceSummary, groups: impl Iterator<Item = Group>) -> Vec<TracedOperator> {
    let steps = trace.steps.whole.len() as f64;
    // Half an interval of a mean, in standard deviations of a step: `t95` is too slow for each row.
    let is_known = trace.spreads.is_some() && steps > 1.0;
    let half_width = is_known.then(|| t95(steps - 1.0) / steps.sqrt());
    let per_step = |in_steps_s: Option<f64>, sd_ns: u64| {
        let value = in_steps_s? * 1e3 / steps;
        let half = half_width.map(|half| half * sd_ns as f64 / 1e6);
        Some(Estimate {
            value,
            low: half.map(|half| (value - half).max(0.0)),
            high: half.map(|half| value + half),
        })
    };
    let rows = groups.filter_map(|group| {
        let row = group.row?;
        // A row without a spread is in no step: 0 in each.
        let spread = group.spread.unwrap_or_default();
        Some(TracedOperator {
            self_ms_per_step: per_step(row.self_in_steps_s, spread.self_sd_ns),
            total_ms_per_step: per_step(row.total_in_steps_s, spread.total_sd_ns),
            ..row
        })
    });
    let mut rows: Vec<TracedOperator> = rows.collect();
    let ns = |seconds: f64| (seconds * 1e9) as u64;
    rows.sort_by_key(|row| Reverse((ns(shown_self_s(row)), ns(row.self_s), row.calls)));
    rows
}

fn shown_self_s(row: &TracedOperator) -> f64 {
    row.self_in_steps_s.unwrap_or(row.self_s)
}

fn add(row: &mut TracedOperator, other: &TracedOperator) {
    row.calls = row.calls.saturating_add(other.calls);
    row.self_s += other.self_s;
    row.total_s += other.total_s;
    let sum = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a + b);
    row.calls_per_step = sum(row.calls_per_step, other.calls_per_step);
    row.device_s = sum(row.device_s, other.device_s);
    let calls = row.calls_in_steps.zip(other.calls_in_steps);
    row.calls_in_steps = calls.map(|(calls, more)| calls.saturating_add(more));
    row.self_in_steps_s = sum(row.self_in_steps_s, other.self_in_steps_s);
    row.total_in_steps_s = sum(row.total_in_steps_s, other.total_in_steps_s);
    row.device_in_steps_s = sum(row.device_in_steps_s, other.device_in_steps_s);
}

/// `None` for steps, which contain all others.
fn row(trace: &TraceSummary, index: usize, key: &HostKey) -> Option<TracedOperator> {
    let times = trace.host.get(index).filter(|times| times.calls > 0)?;
    if key.name.starts_with("ProfilerStep#") {
        return None;
    }
    let text = |text: &String| Some(text).filter(|text| !text.is_empty()).cloned();
    let has_devices = !trace.devices.is_empty();
    let of_devices = |times: &FxHashMap<u32, u64>| {
        let ns = times.get(&(index as u32)).copied().unwrap_or(0);
        has_devices.then_some(ns as f64 / 1e9)
    };
    Some(TracedOperator {
        name: key.name.clone(),
        kind: match key.kind {
            HostKind::Operator => "operator",
            HostKind::Annotation => "annotation",
            HostKind::Runtime => "runtime",
        },
        calls: times.calls,
        calls_per_step: per_step(trace, times.calls_in_steps),
        self_s: times.self_ns as f64 / 1e9,
        total_s: times.total_ns as f64 / 1e9,
        device_s: of_devices(&trace.device_ns),
        shapes: text(&key.shapes),
        types: text(&key.types),
        calls_in_steps: in_steps(trace, times.calls_in_steps),
        self_in_steps_s: in_steps(trace, times.self_in_steps_ns as f64 / 1e9),
        total_in_steps_s: in_steps(trace, times.total_in_steps_ns as f64 / 1e9),
        device_in_steps_s: in_steps(trace, of_devices(&trace.device_in_steps_ns)).flatten(),
        // Of all keys of a row together.
        self_ms_per_step: None,
        total_ms_per_step: None,
    })
}
