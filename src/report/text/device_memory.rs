//! Device memory that torch's allocator held.

use super::format::{count, counted, percent, printable};
use super::memory::{FAR_S, span};
use super::sentence;
use super::tracks::bytes;
use crate::analysis::Analysis;
use crate::analysis::device_memory::{DeviceMemory, unread};
use crate::model::profile::Profile;
use crate::report::label::process_labels;

/// Most devices, and most in brief.
const MOST: usize = 16;
const MOST_BRIEF: usize = 2;

/// A sentence for each device of each process; `is_brief`: only where the driver had no memory
/// left, or will have none.
pub(super) fn device_memory(
    out: &mut String,
    profile: &Profile,
    analysis: &Analysis,
    is_brief: bool,
) {
    let labels = process_labels(profile);
    let near = |device: &DeviceMemory| device.seconds_left.filter(|left| left.value <= FAR_S);
    let is_shown = |device: &&DeviceMemory| !is_brief || is_short(device) || near(device).is_some();
    let shown: Vec<&DeviceMemory> = analysis.device_memory.iter().filter(is_shown).collect();
    let most = if is_brief { MOST_BRIEF } else { MOST };
    for (number, device) in shown.iter().take(most).enumerate() {
        if number == 0 {
            out.push('\n');
        }
        let label = device
            .process
            .and_then(|process| labels.get(process.index()));
        let who = label.map_or_else(|| format!("pid {}", device.pid), String::clone);
        if !is_brief {
            sentence(out, "MEMORY  ", &held(device, &who));
        }
        if is_short(device) {
            sentence(out, "MEMORY  ", &refused(device, &who));
        }
        if let Some(left) = near(device) {
            let time = |seconds: f64| span(seconds.min(FAR_S));
            let text = format!(
                "{who} on cuda:{}: at this rate the device has no memory left {} after the end of the recording ({} to {})",
                device.device,
                time(left.value),
                time(left.low),
                time(left.high)
            );
            sentence(out, "MEMORY  ", &text);
        }
    }
    let more = shown.len().saturating_sub(most) as u64;
    if more > 0 {
        sentence(
            out,
            "MEMORY  ",
            &format!("{} more: --json", counted(more, "device")),
        );
    }
    let unread = if is_brief {
        Vec::new()
    } else {
        unread(profile)
    };
    if shown.is_empty() && !unread.is_empty() {
        out.push('\n');
    }
    for (process, why) in unread.into_iter().take(MOST) {
        let label = labels.get(process.index());
        let who = label.map_or("a process", String::as_str);
        let text = format!(
            "{who}: its allocator of device memory was not read: {}",
            printable(why)
        );
        sentence(out, "MEMORY  ", &text);
    }
}

fn is_short(device: &DeviceMemory) -> bool {
    device.retries > 0 || device.failures > 0
}

/// `rank 0 on cuda:0: tensors had at most 1.9 GB, and torch's allocator held 2.5 GB; …`.
fn held(device: &DeviceMemory, who: &str) -> String {
    let size = |all: u64| bytes(all as f64);
    let mut text = format!(
        "{who} on cuda:{}: tensors had at most {}; torch's allocator held at most {}",
        device.device,
        size(device.peak_bytes),
        size(device.reserved_peak_bytes),
    );
    if device.inactive_split_share >= 0.01 {
        text.push_str(&format!(
            ", and {} of it was free between tensors at one time ({})",
            percent(device.inactive_split_share),
            size(device.inactive_split_peak_bytes)
        ));
    }
    if let Some(beside) = device.beside_bytes {
        text.push_str(&format!(
            "; {} more of the process is not the allocator's (CUDA's context and kernels, NCCL)",
            size(beside)
        ));
    }
    text
}

/// `rank 0 on cuda:0: 3 allocations found no memory on the device, …`.
fn refused(device: &DeviceMemory, who: &str) -> String {
    let allocations = |count: u64| counted(count, "allocation");
    let what = match (device.retries, device.failures) {
        (0, failed) => format!("{} failed for lack of memory", allocations(failed)),
        (retries, failed) => {
            let failed = match failed {
                0 => "none failed".to_owned(),
                failed => format!("{} failed", count(failed)),
            };
            format!(
                "{} found no memory on the device; torch's allocator gave its free segments back, which waits for the device, and tried again: {failed}",
                allocations(retries)
            )
        }
    };
    format!("{who} on cuda:{}: {what}", device.device)
}
