//! One event of a trace, as torch's profiler (Kineto) writes it.
//!
//! Fields: `output_json.cpp` of pytorch/kineto for those of devices and of the CUDA runtime,
//! `torch/csrc/profiler/collection.cpp` and `profiler_kineto.cpp` of pytorch for those of
//! operators. Every field may be missing or of another type.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;

type Field<'a> = Option<&'a RawValue>;

/// The fields of an event that are used.
#[derive(Deserialize)]
pub(super) struct Event<'a> {
    #[serde(borrow)]
    pub(super) ph: Field<'a>,
    #[serde(borrow)]
    pub(super) cat: Field<'a>,
    #[serde(borrow)]
    pub(super) name: Field<'a>,
    #[serde(borrow)]
    pub(super) pid: Field<'a>,
    #[serde(borrow)]
    pub(super) tid: Field<'a>,
    /// µs.
    #[serde(borrow)]
    pub(super) ts: Field<'a>,
    /// µs.
    #[serde(borrow)]
    pub(super) dur: Field<'a>,
    #[serde(borrow)]
    pub(super) args: Field<'a>,
}

/// The arguments of an event that are used.
#[derive(Default, Deserialize)]
pub(super) struct Args<'a> {
    #[serde(borrow, rename = "Input Dims")]
    pub(super) dims: Field<'a>,
    /// `Input type` since torch 1.13, `Input Type` before.
    #[serde(borrow, rename = "Input type", alias = "Input Type")]
    pub(super) types: Field<'a>,
    #[serde(borrow)]
    pub(super) correlation: Field<'a>,
    #[serde(borrow)]
    pub(super) device: Field<'a>,
    #[serde(borrow)]
    pub(super) stream: Field<'a>,
    #[serde(borrow)]
    pub(super) grid: Field<'a>,
    #[serde(borrow)]
    pub(super) block: Field<'a>,
    #[serde(borrow)]
    pub(super) bytes: Field<'a>,
    #[serde(borrow, rename = "Collective name")]
    pub(super) collective: Field<'a>,
    #[serde(borrow, rename = "In msg nelems")]
    pub(super) elements_in: Field<'a>,
    #[serde(borrow, rename = "Out msg nelems")]
    pub(super) elements_out: Field<'a>,
    #[serde(borrow, rename = "Group size")]
    pub(super) group_size: Field<'a>,
    #[serde(borrow)]
    pub(super) dtype: Field<'a>,
    #[serde(borrow, rename = "Process Group Description")]
    pub(super) group: Field<'a>,
}

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Category {
    Host(HostKind),
    Device(DeviceKind),
}

/// What a span on a thread of the host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum HostKind {
    /// An operator, or a node of autograd's graph.
    Operator,
    /// `record_function`, a step, what optimizers and process groups mark.
    Annotation,
    /// A call of the CUDA (HIP) runtime or driver.
    Runtime,
}

/// What a device did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DeviceKind {
    Kernel,
    Copy,
    /// A memset.
    Set,
}

/// The category of an event by its `cat`; `None` for what is not used. The words of torch before
/// 1.12 begin with a capital.
pub(super) fn category(cat: &str) -> Option<Category> {
    Some(match cat {
        "cpu_op" | "Operator" => Category::Host(HostKind::Operator),
        "user_annotation" => Category::Host(HostKind::Annotation),
        "cuda_runtime" | "cuda_driver" | "Runtime" => Category::Host(HostKind::Runtime),
        "kernel" | "Kernel" => Category::Device(DeviceKind::Kernel),
        "gpu_memcpy" | "Memcpy" => Category::Device(DeviceKind::Copy),
        "gpu_memset" | "Memset" => Category::Device(DeviceKind::Set),
        _ => return None,
    })
}

/// A string; `None` for other types.
pub(super) fn text<'a>(field: Field<'a>) -> Option<Cow<'a, str>> {
    let quoted = field?.get();
    let inner = quoted.strip_prefix('"')?.strip_suffix('"')?;
    match inner.contains('\\') {
        false => Some(Cow::Borrowed(inner)),
        true => serde_json::from_str(quoted).ok().map(Cow::Owned),
    }
}

/// A value as it is written, without quotes.
pub(super) fn written<'a>(field: Field<'a>) -> &'a str {
    field.map_or("", |raw| raw.get().trim_matches('"'))
}

/// A whole number that is not negative, quoted or not.
pub(super) fn whole(field: Field<'_>) -> Option<u64> {
    let digits = written(field);
    let (before, _) = digits.split_once('.').unwrap_or((digits, ""));
    before.parse().ok()
}

/// µs as ns. Exact: a double has no room for ns since 1970, which traces of torch before 2.4 have.
pub(super) fn nanoseconds(field: Field<'_>) -> Option<u64> {
    let digits = written(field);
    let (us, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if us.is_empty() || !is_plain(us) || !is_plain(fraction) {
        // `1e3`: nobody writes that.
        let us = digits.parse::<f64>().ok()?;
        let ns = us * 1e3;
        return (ns.is_finite() && (0.0..MOST_NS as f64).contains(&ns)).then_some(ns as u64);
    }
    let fraction = fraction.get(..3).unwrap_or(fraction);
    let scale = 10_u64.pow(3 - fraction.len() as u32);
    let part = match fraction {
        "" => 0,
        digits => digits.parse::<u64>().ok()? * scale,
    };
    let ns = us
        .parse::<u64>()
        .ok()?
        .checked_mul(1000)?
        .checked_add(part)?;
    (ns < MOST_NS).then_some(ns)
}

/// A time above this, some 146 years, is none.
const MOST_NS: u64 = 1 << 62;
