//! Collectives of a trace: kernels of NCCL, and what gloo marks on the host.

use super::{in_steps, per_step};
use crate::report::table::{Column, In, Kind};
use crate::trace::{CollectiveTimes, HostKey, HostTimes, TraceSummary};
use schemars::JsonSchema;
use serde::Serialize;
use std::cmp::Reverse;

/// A collective with the same arguments.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct TracedCollective {
    /// `allreduce`, as torch names it; `gloo:all_reduce` on the host.
    pub name: String,
    /// Description of the process group.
    pub group: Option<String>,
    /// Number of ranks; null where unknown.
    pub group_size: Option<u64>,
    /// `Float`.
    pub dtype: String,
    pub calls: u64,
    /// `calls_in_steps` over whole steps; null without any.
    pub calls_per_step: Option<f64>,
    /// The larger of input and output of a call; null where the type is unknown.
    pub bytes: Option<u64>,
    /// Time of its kernels, or of gloo's span, in which it waits for other ranks as well.
    pub total_s: f64,
    /// Bytes over mean time, GB (10^9 bytes) per second.
    pub algorithm_gb_per_s: Option<f64>,
    /// The same times the share of the bytes that each link carries (nccl-tests, PERFORMANCE.md);
    /// null where the collective has no such share.
    pub bus_gb_per_s: Option<f64>,
    /// The same of the fastest call, which waited least.
    pub best_bus_gb_per_s: Option<f64>,
    /// Of `calls`, those that were launched in whole steps; null without any.
    pub calls_in_steps: Option<u64>,
    /// Of `total_s`, that of `calls_in_steps`.
    pub total_in_steps_s: Option<f64>,
}

type Col = Column<TracedCollective>;

pub const COLLECTIVES: &[Col] = &[
    // Text shows what is of whole steps, if there are any.
    Col::new(Kind::Count, "calls", "calls", |row| {
        row.calls_in_steps.unwrap_or(row.calls).into()
    })
    .only(In::Text)
    .adds_up(),
    Col::data(Kind::Count, "calls", |row| row.calls.into()),
    Col::new(Kind::Number, "calls_per_step", "/step", |row| {
        row.calls_per_step.into()
    })
    .width(7)
    .adds_up(),
    Col::new(Kind::Number, "bytes", "kB", |row| {
        row.bytes.map(|bytes| bytes as f64 / 1e3).into()
    })
    .width(8)
    .only(In::Text),
    Col::new(Kind::Milliseconds, "total_s", "ms", |row| {
        (row.total_in_steps_s.unwrap_or(row.total_s) * 1e3).into()
    })
    .width(8)
    .only(In::Text)
    .adds_up(),
    Col::new(Kind::Number, "algorithm_gb_per_s", "GB/s", |row| {
        row.algorithm_gb_per_s.into()
    })
    .width(7),
    Col::new(Kind::Number, "bus_gb_per_s", "bus", |row| {
        row.bus_gb_per_s.into()
    })
    .width(7),
    Col::new(Kind::Number, "best_bus_gb_per_s", "best", |row| {
        row.best_bus_gb_per_s.into()
    })
    .width(7),
    Col::new(Kind::Count, "group_size", "ranks", |row| {
        row.group_size.into()
    }),
    Col::words("collective", |row| {
        format!("{} {}", row.name, row.dtype).into()
    }),
    Col::data(Kind::Text, "name", |row| (&row.name).into()),
    Col::data(Kind::Text, "dtype", |row| (&row.dtype).into()),
    Col::data(Kind::Text, "group", |row| row.group.as_ref().into()),
    Col::data(Kind::Count, "bytes", |row| row.bytes.into()),
    Col::data(Kind::Seconds, "total_s", |row| row.total_s.into()),
    Col::data(Kind::Count, "calls_in_steps", |row| {
        row.calls_in_steps.into()
    }),
    Col::data(Kind::Seconds, "total_in_steps_s", |row| {
        row.total_in_steps_s.into()
    }),
];

/// Collectives by descending time.
pub fn collectives(trace: &TraceSummary) -> Vec<TracedCollective> {
    let on_devices = trace.collectives.iter();
    let mut rows: Vec<TracedCollective> = on_devices.filter_map(|each| row(trace, each)).collect();
    let on_host = trace.host_keys.iter().zip(&trace.host);
    rows.extend(on_host.filter_map(|(key, times)| of_gloo(trace, key, times)));
    let ns = |seconds: f64| (seconds * 1e9) as u64;
    rows.sort_by_key(|row| Reverse((row.total_in_steps_s.map_or(0, ns), ns(row.total_s))));
    rows
}

fn row(trace: &TraceSummary, times: &CollectiveTimes) -> Option<TracedCollective> {
    let key = trace.collective_keys.get(times.collective as usize)?;
    let elements = key.elements_in.max(key.elements_out);
    let bytes = bytes_of(&key.dtype).and_then(|bytes| elements.checked_mul(bytes));
    let mean = rate(bytes, times.total_ns as f64 / times.calls.max(1) as f64);
    let factor = bus_factor(&key.name, key.group_size);
    let bus = |rate: Option<f64>| rate.zip(factor).map(|(rate, factor)| rate * factor);
    Some(TracedCollective {
        name: key.name.clone(),
        group: Some(&key.group).filter(|group| !group.is_empty()).cloned(),
        group_size: (key.group_size > 0).then_some(key.group_size),
        dtype: key.dtype.clone(),
        calls: times.calls,
        calls_per_step: per_step(trace, times.calls_in_steps),
        bytes,
        total_s: times.total_ns as f64 / 1e9,
        algorithm_gb_per_s: mean,
        bus_gb_per_s: bus(mean),
        best_bus_gb_per_s: bus(rate(bytes, times.least_ns as f64)),
        calls_in_steps: in_steps(trace, times.calls_in_steps),
        total_in_steps_s: in_steps(trace, times.total_in_steps_ns as f64 / 1e9),
    })
}

/// `gloo:all_reduce`, which lasts from the start of the collective to its end, with the shapes of
/// its tensors (`ProcessGroupGloo.cpp` of pytorch). The size of the group is not there.
fn of_gloo(trace: &TraceSummary, key: &HostKey, times: &HostTimes) -> Option<TracedCollective> {
    let name = key.name.strip_prefix("gloo:")?;
    let shapes: Vec<Vec<u64>> = serde_json::from_str(&key.shapes).unwrap_or_default();
    let types: Vec<String> = serde_json::from_str(&key.types).unwrap_or_default();
    let mut tensors = shapes.iter().zip(&types).map(|(dims, kind)| {
        let elements = dims
            .iter()
            .try_fold(1_u64, |sum, dim| sum.checked_mul(*dim));
        elements?.checked_mul(bytes_of(kind)?)
    });
    let bytes = tensors.try_fold(0_u64, |sum, bytes| sum.checked_add(bytes?));
    let bytes = bytes.filter(|&bytes| bytes > 0);
    Some(TracedCollective {
        name: key.name.clone(),
        group: None,
        group_size: None,
        dtype: types.first().cloned().unwrap_or_default(),
        calls: times.calls,
        calls_per_step: per_step(trace, times.calls_in_steps),
        bytes,
        total_s: times.total_ns as f64 / 1e9,
        algorithm_gb_per_s: rate(bytes, times.total_ns as f64 / times.calls.max(1) as f64),
        bus_gb_per_s: None,
        best_bus_gb_per_s: None,
        calls_in_steps: in_steps(trace, times.calls_in_steps),
        total_in_steps_s: in_steps(trace, times.total_in_steps_ns as f64 / 1e9),
    })
    .filter(|_| !name.is_empty() && times.calls > 0)
}

/// GB per second: bytes per ns.
fn rate(bytes: Option<u64>, ns: f64) -> Option<f64> {
    let bytes = bytes.filter(|_| ns > 0.0)?;
    Some(bytes as f64 / ns)
}

/// Bytes of an element, by the names of `c10/core/ScalarType.h`, which collectives have, and by
/// those of C++, which operators have.
fn bytes_of(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "Byte" | "Char" | "Bool" | "Float8_e5m2" | "Float8_e4m3fn" => 1,
        "unsigned char" | "signed char" | "bool" => 1,
        "Short" | "Half" | "BFloat16" | "c10::Half" | "c10::BFloat16" => 2,
        "Int" | "Float" | "int" | "float" => 4,
        "Long" | "Double" | "ComplexFloat" | "long int" | "double" => 8,
        "ComplexDouble" => 16,
        _ => return None,
    })
}

/// What the bandwidth of a bus is of that of the algorithm, with `ranks` ranks: nccl-tests,
/// `doc/PERFORMANCE.md`. torch's names have a `_base` or `_coalesced` at their end.
fn bus_factor(name: &str, ranks: u64) -> Option<f64> {
    let name = name.replace('_', "");
    let others = (ranks > 1).then(|| (ranks - 1) as f64 / ranks as f64)?;
    let is = |part: &str| name.starts_with(part);
    if is("allreduce") {
        return Some(2.0 * others);
    }
    if is("allgather") || is("reducescatter") || is("alltoall") {
        return Some(others);
    }
    (is("broadcast") || is("reduce") || is("send") || is("recv")).then_some(1.0)
}
