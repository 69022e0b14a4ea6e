//! Operators of a trace.

use super::per_step;
use crate::report::table::{Column, In, Kind};
use crate::trace::{HostKey, HostKind, TraceSummary};
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
    /// Over whole steps; null without any.
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
}

type Col = Column<TracedOperator>;

const CALLS: Col = Col::new(Kind::Count, "calls", "calls", |row| row.calls.into())
    .width(8)
    .adds_up();
const PER_STEP: Col = Col::new(Kind::Number, "calls_per_step", "/step", |row| {
    row.calls_per_step.into()
})
.width(8)
.adds_up();
const SELF: Col = Col::new(Kind::Milliseconds, "self_s", "self ms", |row| {
    (row.self_s * 1e3).into()
})
.only(In::Text)
.adds_up();
const TOTAL: Col = Col::new(Kind::Milliseconds, "total_s", "total ms", |row| {
    (row.total_s * 1e3).into()
})
.only(In::Text);
const DEVICE: Col = Col::new(Kind::Milliseconds, "device_s", "device ms", |row| {
    row.device_s.map(|device_s| device_s * 1e3).into()
})
.width(10)
.only(In::Text)
.adds_up();
const SHOWN: Col = Col::words("operator", |row| match row.kind {
    "annotation" => format!("annotation: {}", row.name).into(),
    _ => (&row.name).into(),
});
const NAME: Col = Col::data(Kind::Text, "name", |row| (&row.name).into());
const KIND: Col = Col::data(Kind::Text, "kind", |row| row.kind.into());
const SELF_S: Col = Col::data(Kind::Seconds, "self_s", |row| row.self_s.into());
const TOTAL_S: Col = Col::data(Kind::Seconds, "total_s", |row| row.total_s.into());
const DEVICE_S: Col = Col::data(Kind::Seconds, "device_s", |row| row.device_s.into());

/// Summed over shapes.
pub const OPERATORS: &[Col] = &[
    CALLS, PER_STEP, SELF, TOTAL, DEVICE, SHOWN, NAME, KIND, SELF_S, TOTAL_S, DEVICE_S,
];

/// By shapes and types.
pub const SHAPES: &[Col] = &[
    CALLS,
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

/// Operators, annotations and calls of CUDA by name, by descending own time.
pub fn operators(trace: &TraceSummary) -> Vec<TracedOperator> {
    let mut rows: BTreeMap<(&str, HostKind), TracedOperator> = BTreeMap::new();
    for (index, key) in trace.host_keys.iter().enumerate() {
        let each = row(trace, index, key);
        let Some(each) = each else {
            continue;
        };
        rows.entry((&key.name, key.kind))
            .and_modify(|row| add(row, &each))
            .or_insert(TracedOperator {
                shapes: None,
                types: None,
                ..each.clone()
            });
    }
    sorted(rows.into_values().collect())
}

/// The same by shapes and types of inputs.
pub fn shapes(trace: &TraceSummary) -> Vec<TracedOperator> {
    let mut rows: BTreeMap<(&str, HostKind, &str, &str), TracedOperator> = BTreeMap::new();
    for (index, key) in trace.host_keys.iter().enumerate() {
        let Some(each) = row(trace, index, key) else {
            continue;
        };
        // Keys are distinguished by the arguments of collectives as well.
        rows.entry((&key.name, key.kind, &key.shapes, &key.types))
            .and_modify(|row| add(row, &each))
            .or_insert(each);
    }
    sorted(rows.into_values().collect())
}

fn sorted(mut rows: Vec<TracedOperator>) -> Vec<TracedOperator> {
    rows.sort_by_key(|row| (Reverse((row.self_s * 1e9) as u64), Reverse(row.calls)));
    rows
}

fn add(row: &mut TracedOperator, other: &TracedOperator) {
    row.calls += other.calls;
    row.self_s += other.self_s;
    row.total_s += other.total_s;
    let sum = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a + b);
    row.calls_per_step = sum(row.calls_per_step, other.calls_per_step);
    row.device_s = sum(row.device_s, other.device_s);
}

/// `None` for steps, which contain all others.
fn row(trace: &TraceSummary, index: usize, key: &HostKey) -> Option<TracedOperator> {
    let times = trace.host.get(index).filter(|times| times.calls > 0)?;
    if key.name.starts_with("ProfilerStep#") {
        return None;
    }
    let text = |text: &String| Some(text).filter(|text| !text.is_empty()).cloned();
    let device_ns = trace.device_ns.get(&(index as u32));
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
        device_s: (!trace.devices.is_empty()).then(|| device_ns.copied().unwrap_or(0) as f64 / 1e9),
        shapes: text(&key.shapes),
        types: text(&key.types),
    })
}
