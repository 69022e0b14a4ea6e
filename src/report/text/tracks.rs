//! Figures of the devices and the host over the recording: a sparkline for each.

use super::format::{count, cut, percent, printable, seconds, short_time};
use super::{WIDTH, role, sentence, wrapped};
use crate::analysis::Analysis;
use crate::analysis::tracks::{
    Device, DeviceProcess, Figure, HostProcess, Missing, series, series_of_sum,
};
use crate::model::profile::Profile;
use crate::model::track::{THROTTLE_SLOWS, TrackKind, TrackUnit, throttle_names};
use crate::report::label::counted;
use std::fmt::Write;

/// Columns of a sparkline.
const COLUMNS: usize = 34;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Number of devices with sparklines; further ones get a line each, with this many figures.
const DRAWN_DEVICES: usize = 2;
const SHORT_FIGURES: usize = 2;
/// Where nothing was measured.
const NOTHING: char = '·';

/// Figures with a sparkline, and their labels. With `true` a figure that is always 0 is omitted.
const DRAWN: [(TrackKind, &str, bool); 12] = [
    (TrackKind::Utilization, "any kernel", false),
    (TrackKind::SmActive, "SM active", false),
    (TrackKind::SmOccupancy, "SM occupancy", false),
    (TrackKind::TensorActive, "tensor cores", false),
    (TrackKind::DramActive, "DRAM", false),
    (TrackKind::Power, "power", false),
    (TrackKind::MemoryUsed, "memory", false),
    (TrackKind::SmClock, "SM clock, MHz", false),
    (TrackKind::PcieReceived, "PCIe to GPU", true),
    (TrackKind::PcieSent, "PCIe from GPU", true),
    (TrackKind::NvlinkReceived, "NVLink to GPU", true),
    (TrackKind::NvlinkSent, "NVLink from", true),
];

/// Appends nothing if the recording has no counter tracks.
pub(super) fn tracks(out: &mut String, profile: &Profile, analysis: &Analysis) {
    let summary = &analysis.tracks;
    for (at, device) in summary.devices.iter().enumerate() {
        if at < DRAWN_DEVICES || summary.devices.len() <= DRAWN_DEVICES {
            draw_device(out, profile, device);
        } else {
            line_of_device(out, profile, device);
        }
    }
    if summary.devices.is_empty() {
        not_recorded(out, analysis);
    } else {
        for why in &summary.missing {
            sentence(out, "  ", &format!("not recorded: {why}"));
        }
    }
    host(out, profile, &summary.processes, &summary.host);
}

/// A line for each of the first devices; if the target uses CUDA and none was recorded, the reason.
pub(super) fn brief(out: &mut String, profile: &Profile, analysis: &Analysis, most: usize) {
    let summary = &analysis.tracks;
    if !summary.devices.is_empty() {
        out.push('\n');
    }
    for device in summary.devices.iter().take(most) {
        line_of_device(out, profile, device);
    }
    let left = summary.devices.len().saturating_sub(most);
    if left > 0 {
        sentence(out, "  ", &format!("… {} more", count(left as u64)));
    }
    let uses_cuda = analysis.primary().is_some_and(|process| process.cuda);
    if summary.devices.is_empty() && uses_cuda {
        not_recorded(out, analysis);
    }
}

/// Why no device was recorded.
fn not_recorded(out: &mut String, analysis: &Analysis) {
    let summary = &analysis.tracks;
    let why = if !summary.missing.is_empty() {
        summary.missing.join("; ")
    } else if !summary.unused.is_empty() {
        format!(
            "no sampled process used a GPU ({} here; --gpu all records them)",
            summary.unused.len()
        )
    } else {
        return;
    };
    out.push('\n');
    sentence(out, "", &format!("DEVICE not recorded: {why}"));
}

fn line_of_device(out: &mut String, profile: &Profile, device: &Device) {
    let mut parts = vec![format!("DEVICE {}", device.info.label())];
    for (kind, label, _) in DRAWN.into_iter().take(SHORT_FIGURES) {
        if let Some(figure) = device.figure(kind) {
            parts.push(format!("{label} {}", amount(kind, figure.mean)));
        }
    }
    parts.extend(device.power_w().map(|watts| format!("{watts:.0} W")));
    parts.extend(held_down(device).filter(|text| text != "unthrottled"));
    parts.extend(users(profile, device));
    wrapped(out, &parts, "| ");
    for missing in &device.missing {
        sentence(out, "  ", &missing_text(profile, missing));
    }
}

fn draw_device(out: &mut String, profile: &Profile, device: &Device) {
    let info = &device.info;
    out.push('\n');
    let mut head = vec![format!("DEVICE {}", info.label())];
    head.push(printable(&info.name).into_owned());
    if !info.driver.is_empty() {
        head.push(format!("driver {}", printable(&info.driver)));
    }
    head.extend(users(profile, device));
    wrapped(out, &head, "| ");
    let _ = writeln!(
        out,
        "  {:<14}{:>9}  {:<COLUMNS$}  {:>8} {:>8}",
        "", "mean", "over the recording", "low", "high"
    );
    for (kind, label, may_miss) in DRAWN {
        if let Some(figure) = device.figure(kind)
            && (figure.high > 0.0 || !may_miss)
        {
            row(out, profile, label, figure, top(device, figure));
        }
    }
    wrapped(out, &facts(device), "| ");
    for missing in &device.missing {
        sentence(out, "  ", &missing_text(profile, missing));
    }
}

/// The value of a full bar, if it does not depend on the values.
fn top(device: &Device, figure: &Figure) -> Option<f64> {
    match figure.kind {
        TrackKind::MemoryUsed if device.info.memory_bytes > 0 => {
            Some(device.info.memory_bytes as f64)
        }
        TrackKind::Power if device.info.power_limit_mw > 0 => {
            Some(device.info.power_limit_mw as f64 / 1e3)
        }
        kind if kind.unit() == TrackUnit::Share => Some(1.0),
        _ => None,
    }
}

fn row(out: &mut String, profile: &Profile, label: &str, figure: &Figure, top: Option<f64>) {
    let line = sparkline(
        &series(profile, figure.track, COLUMNS),
        top.unwrap_or(figure.high),
    );
    let _ = writeln!(
        out,
        "  {label:<14}{:>9}  {line:<COLUMNS$}  {:>8} {:>8}",
        amount(figure.kind, figure.mean),
        amount(figure.kind, figure.low),
        amount(figure.kind, figure.high)
    );
}

/// A bar for each value, of eight heights: the lowest is 0, the highest `top`.
pub(crate) fn sparkline(values: &[Option<f64>], top: f64) -> String {
    let bar = |value: &Option<f64>| match value {
        None => NOTHING,
        Some(value) if top > 0.0 => {
            let height = (value / top * BARS.len() as f64) as usize;
            BARS[height.min(BARS.len() - 1)]
        }
        Some(_) => BARS[0],
    };
    values.iter().map(bar).collect()
}

/// A value of a kind for people, in at most eight columns.
fn amount(kind: TrackKind, value: f64) -> String {
    match kind.unit() {
        TrackUnit::Share => format!("{:.0} %", value * 100.0),
        TrackUnit::Milliwatts | TrackUnit::Millijoules => format!("{value:.0} W"),
        TrackUnit::Bytes => bytes(value),
        TrackUnit::BytesInWindow | TrackUnit::BytesPerSecond => format!("{}/s", bytes(value)),
        TrackUnit::Megahertz | TrackUnit::Bits | TrackUnit::Number => format!("{value:.0}"),
        TrackUnit::Celsius => format!("{value:.0} C"),
        TrackUnit::NanosecondsInWindow => format!("{value:.2}"),
    }
}

/// `41 GB`, `1.2 MB`.
pub(crate) fn bytes(value: f64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let mut value = value;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if value >= 9.95 || unit == 0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

fn users(profile: &Profile, device: &Device) -> Option<String> {
    let own: Vec<String> = device
        .processes
        .iter()
        .filter_map(|process| {
            let known = profile.processes.get(process.process?.index())?;
            let memory = process.memory_bytes.map(|size| bytes(size as f64));
            let memory = memory.map_or(String::new(), |size| format!(", {size}"));
            let hint = if process.hinted {
                ", by CUDA_VISIBLE_DEVICES"
            } else {
                ""
            };
            Some(format!(
                "{} (pid {}{memory}{hint})",
                role(known.role),
                process.pid
            ))
        })
        .collect();
    (!own.is_empty()).then(|| own.join(", "))
}

fn facts(device: &Device) -> Vec<String> {
    let mut facts = Vec::new();
    if let Some((joules, covered_ns)) = device.energy_j() {
        facts.push(format!(
            "  energy {} J in {}",
            count(joules.round() as u64),
            seconds(covered_ns)
        ));
    }
    if let Some(figure) = device.figure(TrackKind::Temperature) {
        facts.push(format!("{:.0} C at most", figure.high));
    }
    facts.push(held_down(device).unwrap_or_else(|| "throttling not read".to_owned()));
    let others: Vec<&DeviceProcess> = device
        .processes
        .iter()
        .filter(|process| process.process.is_none())
        .collect();
    facts.push(match others.len() {
        0 => "other processes: none listed".to_owned(),
        _ => format!("other processes: {}", names(&others)),
    });
    let window = |kind, name: &str| {
        let figure = device.figure(kind).filter(|figure| figure.window_ns > 0);
        figure.map(|figure| format!("{name} {:.0} ms", figure.window_ns as f64 / 1e6))
    };
    let windows: Vec<String> = [
        window(TrackKind::Utilization, "any kernel"),
        window(TrackKind::SmActive, "GPM"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !windows.is_empty() {
        facts.push(format!("windows: {}", windows.join(", ")));
    }
    if let Some(clock) = &device.clock {
        facts.push(format!(
            "driver's clock: {} to {}",
            printable(&clock.clock),
            short_time(clock.error_ns)
        ));
    }
    if let Some(first) = facts.first_mut()
        && !first.starts_with(' ')
    {
        first.insert_str(0, "  ");
    }
    facts
}

/// What held clocks down while the device could have been faster; `None` if that was not read.
fn held_down(device: &Device) -> Option<String> {
    let reasons = device.throttled.as_ref()?.iter();
    let held: Vec<String> = reasons
        .filter(|(bit, _)| bit & THROTTLE_SLOWS != 0)
        .map(|(bit, share)| {
            let name: Vec<&str> = throttle_names(*bit).collect();
            format!("{} {}", name.join(" "), percent(*share))
        })
        .collect();
    Some(match held.is_empty() {
        true => "unthrottled".to_owned(),
        false => format!("THROTTLED: {}", held.join(", ")),
    })
}

fn names(processes: &[&DeviceProcess]) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<String> = processes
        .iter()
        .take(SHOWN)
        .map(|process| match process.name.as_str() {
            "" => format!("pid {}", process.pid),
            name => format!("{} (pid {})", cut(&printable(name), 20), process.pid),
        })
        .collect();
    match processes.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn missing_text(profile: &Profile, missing: &Missing) -> String {
    let since = |ns: u64| ns.saturating_sub(profile.start_ns) as f64 / 1e9;
    let kinds: Vec<&str> = missing.kinds.iter().map(|kind| kind.name()).collect();
    let what = match kinds.is_empty() {
        true => "all of it".to_owned(),
        false => kinds.join(", "),
    };
    let when = match (missing.end_ns, since(missing.start_ns)) {
        (0, from) if from < 1.0 => String::new(),
        (0, from) => format!(" from {from:.1} s on"),
        (end_ns, from) => format!(" from {from:.1} to {:.1} s", since(end_ns)),
    };
    format!("not measured{when}: {what} ({})", missing.reason)
}

/// CPU, memory, storage and network of all sampled processes together.
fn host(out: &mut String, profile: &Profile, processes: &[HostProcess], network: &[Figure]) {
    if processes.is_empty() {
        return;
    }
    let all = |kind: TrackKind| -> Vec<&Figure> {
        let figures = processes.iter().flat_map(|process| &process.figures);
        figures.filter(|figure| figure.kind == kind).collect()
    };
    let _ = writeln!(
        out,
        "\nHOST, {}",
        counted(processes.len() as u64, "process")
    );
    let rows = [
        (TrackKind::Cpu, "CPUs in use", false),
        (TrackKind::Resident, "memory (RSS)", false),
        (TrackKind::DiskRead, "disk read", true),
        (TrackKind::DiskWritten, "disk written", true),
    ];
    for (kind, label, may_miss) in rows {
        sum_row(out, profile, label, &all(kind), may_miss);
    }
    for (kind, label) in [
        (TrackKind::NetworkReceived, "network in"),
        (TrackKind::NetworkSent, "network out"),
    ] {
        let own: Vec<&Figure> = network
            .iter()
            .filter(|figure| figure.kind == kind)
            .collect();
        sum_row(out, profile, label, &own, true);
    }
}

fn sum_row(out: &mut String, profile: &Profile, label: &str, figures: &[&Figure], may_miss: bool) {
    let Some(first) = figures.first() else {
        return;
    };
    let tracks = figures.iter().map(|figure| figure.track);
    let sum = series_of_sum(profile, tracks, COLUMNS);
    let known: Vec<f64> = sum.iter().flatten().copied().collect();
    let high = known.iter().copied().fold(0.0, f64::max);
    let low = known.iter().copied().fold(f64::INFINITY, f64::min);
    if known.is_empty() || (high <= 0.0 && may_miss) {
        return;
    }
    let mean = known.iter().sum::<f64>() / known.len() as f64;
    let _ = writeln!(
        out,
        "  {label:<14}{:>9}  {:<COLUMNS$}  {:>8} {:>8}",
        amount(first.kind, mean),
        sparkline(&sum, high),
        amount(first.kind, low),
        amount(first.kind, high)
    );
}

const _: () = assert!(2 + 14 + 9 + 2 + COLUMNS + 2 + 8 + 1 + 8 <= WIDTH);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_say_what_was_measured_and_what_was_not() {
        let values = [Some(0.0), Some(0.5), Some(1.0), None, Some(2.0)];
        assert_eq!(sparkline(&values, 1.0), "▁▅█·█");
        assert_eq!(sparkline(&[Some(0.0), None], 0.0), "▁·");
        assert_eq!(bytes(41.2e9), "41 GB");
        assert_eq!(bytes(1.23e6), "1.2 MB");
        assert_eq!(bytes(999.7e6), "1.0 GB");
        assert_eq!(bytes(7.0), "7 B");
    }
}
