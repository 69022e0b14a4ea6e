//! Shapes and launches that are known to be slow, with the time that they took in the trace.
//!
//! Statements are made of measured times alone: how fast other shapes would be is not estimated.

use super::TraceSummary;
use serde::Deserialize;

/// A statement below this share of the device's time is not made.
const WORTH: f64 = 0.02;
/// Elements of 16 bit whose number fills 16 bytes. NVIDIA, "Matrix Multiplication Background User's
/// Guide", section 3.1 (Tensor Core requirements): until cuBLAS 10.2 tensor cores are used only if
/// all dimensions are multiples of 16 bytes, later most efficiently then.
const ALIGNED: u64 = 8;

/// A statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Matrix products and convolutions of 16 bit with a dimension that is no multiple of 8; those
    /// with one row are not among them.
    Unaligned(Slow),
    /// Matrix products with one row: each weight is read for that row alone, so that reading memory
    /// bounds them (the same guide, section 2: arithmetic intensity).
    OneRow(Slow),
    /// Kernels that take less time than the call that launches them, and idle time in which the
    /// next launch had not ended. A CUDA graph (PyTorch, "Accelerating PyTorch with CUDA Graphs",
    /// 2021) can save at most all idle time; fusing also spares reading and writing memory.
    ShortKernels {
        device: u64,
        short: u64,
        kernels: u64,
        not_launched_ns: u64,
        idle_ns: u64,
        window_ns: u64,
    },
}

/// Time of slow shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slow {
    /// Index into [`TraceSummary::host_keys`]: the shape with the most time.
    pub key: u32,
    pub shapes: u64,
    pub calls: u64,
    /// Time of devices in what these calls launched.
    pub device_ns: u64,
    /// Of this time of devices in all.
    pub of_ns: u64,
}

/// The statements about a trace.
pub fn advice(trace: &TraceSummary) -> Vec<Advice> {
    let mut found = Vec::new();
    found.extend(
        slow(trace, |product, types| {
            let is_half = |kind: &String| matches!(kind.as_str(), "c10::Half" | "c10::BFloat16");
            let is_unaligned = |dim: &u64| !dim.is_multiple_of(ALIGNED);
            types.iter().any(is_half) && !has_one_row(product) && product.iter().any(is_unaligned)
        })
        .map(Advice::Unaligned),
    );
    found.extend(slow(trace, |product, _| has_one_row(product)).map(Advice::OneRow));
    for device in &trace.devices {
        let window_ns = device.window.1 - device.window.0;
        let is_worth = device.not_launched_ns as f64 >= WORTH * window_ns as f64;
        if is_worth && device.short_kernels > 0 {
            found.push(Advice::ShortKernels {
                device: device.device,
                short: device.short_kernels,
                kernels: device.known_calls,
                not_launched_ns: device.not_launched_ns,
                idle_ns: device.idle_ns,
                window_ns,
            });
        }
    }
    found
}

/// Whether it is a matrix product with one row, which reading memory bounds whatever its other
/// dimensions are.
fn has_one_row(product: &[u64]) -> bool {
    matches!(product, [1, _, _])
}

/// The time of products that `is_slow` picks by their dimensions and types.
fn slow(trace: &TraceSummary, is_slow: impl Fn(&[u64], &[String]) -> bool) -> Option<Slow> {
    let kernels = trace.kernels.iter().map(|kernel| kernel.total_ns);
    let of_ns = kernels.fold(0, u64::saturating_add);
    let mut sum = Slow {
        key: 0,
        shapes: 0,
        calls: 0,
        device_ns: 0,
        of_ns,
    };
    let mut most_ns = 0;
    for (index, key) in trace.host_keys.iter().enumerate() {
        let Some(&device_ns) = trace.device_ns.get(&(index as u32)) else {
            continue;
        };
        let types: Vec<String> = serde_json::from_str(&key.types).unwrap_or_default();
        let Some(product) = product(&key.name, &key.shapes) else {
            continue;
        };
        if !is_slow(&product, &types) {
            continue;
        }
        sum.shapes += 1;
        let calls = trace.host.get(index).map_or(0, |times| times.calls);
        sum.calls = sum.calls.saturating_add(calls);
        sum.device_ns = sum.device_ns.saturating_add(device_ns);
        if device_ns > most_ns {
            (most_ns, sum.key) = (device_ns, index as u32);
        }
    }
    (sum.device_ns as f64 > WORTH * of_ns as f64).then_some(sum)
}

/// A shape; lists of tensors have none.
#[derive(Deserialize)]
#[serde(untagged)]
enum Shape {
    Tensor(Vec<u64>),
    Other(serde::de::IgnoredAny),
}

/// Rows, columns and inner dimension of a matrix product; of a convolution, its channels. `None`
/// for other operators, and for those that leave the product to another one that they call.
/// Arguments: `native_functions.yaml` of pytorch.
fn product(name: &str, shapes: &str) -> Option<Vec<u64>> {
    let first = match name {
        "aten::mm" | "aten::bmm" | "aten::_scaled_mm" => 0,
        "aten::addmm" | "aten::baddbmm" | "aten::_addmm_activation" => 1,
        "aten::cudnn_convolution" | "aten::miopen_convolution" => 0,
        _ => return None,
    };
    let shapes: Vec<Shape> = serde_json::from_str(shapes).ok()?;
    let shape = |index: usize| match shapes.get(index) {
        Some(Shape::Tensor(dims)) => Some(dims.as_slice()),
        _ => None,
    };
    let (a, b) = (shape(first)?, shape(first + 1)?);
    if name.ends_with("convolution") {
        // Input [N, C, …], weight [C out, C in, …].
        return Some(vec![*b.first()?, *b.get(1)?]);
    }
    match (a, b) {
        ([.., rows, inner], [.., _, columns]) => Some(vec![*rows, *columns, *inner]),
        _ => None,
    }
}
