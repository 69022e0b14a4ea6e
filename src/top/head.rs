//! The lines above the table: the command, progress, the sampler's cost, devices, and the verdict.

use super::Status;
use super::rows::rate;
use super::state::State;
use crate::analysis::progress::StepUnit;
use crate::live::Live;
use crate::live::store::{KEPT_NS, LiveDevice, LiveProcess};
use crate::model::progress::CounterKind;
use crate::model::track::SHARE_ONE;
use crate::report::command::shown_command;
use crate::report::label::counted;
use crate::report::text::format::{count, printable, short_time};
use crate::report::text::role;
use crate::report::text::tracks::{bytes, sparkline};

/// Columns of a sparkline.
const SPARK: usize = 30;

/// What kind of line it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Title,
    Plain,
    Device,
    Verdict,
    /// A warning.
    Alert,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub kind: Kind,
    pub text: String,
    /// Whether it is dropped first if there is no room.
    pub spare: bool,
}

/// The lines, for a screen of `width` columns.
pub fn head(live: &Live, status: &Status, state: &State, width: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut line = |kind, text: String, spare| lines.push(Line { kind, text, spare });
    let process = live.shown(state.process);
    let mark = match (&status.ended, state.paused) {
        (Some(_), _) => "  ENDED",
        (None, true) => "  PAUSED",
        (None, false) => "",
    };
    let room = width.saturating_sub("torchspy  ".len() + mark.len());
    let command = shown_command(&live.run.command, room);
    line(Kind::Title, format!("torchspy  {command}{mark}"), false);
    line(Kind::Plain, facts(live, status, process), false);
    if let Some(text) = process.and_then(progress) {
        line(Kind::Plain, text, false);
    }
    line(Kind::Plain, sampler(live, status), true);
    for device in &live.devices {
        line(Kind::Device, device_line(live, device), false);
    }
    if let (true, Some(why)) = (live.devices.is_empty(), &live.no_device) {
        line(Kind::Plain, format!("no GPU: {}", printable(why)), true);
    }
    if let Some(verdict) = &live.outlook.verdict {
        let mut texts = wrapped(&format!("VERDICT {verdict}"), width);
        // Always two lines, so that the table does not move when the verdict changes.
        texts.resize(texts.len().max(2), String::new());
        for (index, text) in texts.into_iter().enumerate() {
            line(Kind::Verdict, text, index > 0);
        }
    }
    for text in status.nccl_ras.iter().flat_map(|text| wrapped(text, width)) {
        line(Kind::Alert, text, false);
    }
    if let Some(file) = &status.recording {
        line(
            Kind::Alert,
            format!("recording into {file} (r ends it)"),
            false,
        );
    }
    if let Some(ended) = &status.ended {
        line(
            Kind::Alert,
            format!("{ended}; this is what was seen last (q quits)"),
            false,
        );
    }
    lines
}

/// `text` in lines of `width` columns, those after the first indented.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    const INDENT: &str = "        ";
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let is_empty = line.trim().is_empty();
        if !is_empty && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::replace(&mut line, INDENT.to_owned()));
        } else if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

fn facts(live: &Live, status: &Status, process: Option<&LiveProcess>) -> String {
    let mut facts = Vec::new();
    match process {
        Some(process) => {
            facts.push(format!("{} pid {}", role(process.role), process.info.pid));
            if !process.info.python.is_empty() {
                facts.push(format!("Python {}", printable(&process.info.python)));
            }
            match (process.info.has_torch, process.info.torch.is_empty()) {
                (_, false) => facts.push(format!("torch {}", printable(&process.info.torch))),
                (true, true) => facts.push("torch".to_owned()),
                (false, true) => {}
            }
        }
        None => facts.push(format!("pid {}", live.run.pid)),
    }
    facts.insert(1, clock(status.sampler.elapsed.as_secs()));
    facts.push(counted(status.sampler.threads as u64, "thread"));
    if status.sampler.processes > 1 {
        facts.push(counted(status.sampler.processes as u64, "process"));
    }
    facts.join(" | ")
}

/// `01:02:03`.
fn clock(seconds: u64) -> String {
    format!(
        "{:02}:{:02}:{:02}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// Steps, batches and epochs, if they can be read.
fn progress(process: &LiveProcess) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(pace) = &process.pace {
        let unit = match pace.unit {
            StepUnit::Optimizer => "steps/s",
            StepUnit::Batch => "batches/s",
        };
        let mut text = format!("{} {unit}", rate(pace.steps_per_s));
        if pace.steps_per_s > 0.0 {
            let mean_ns = (1e9 / pace.steps_per_s) as u64;
            let p95 = pace.p95_ns.map(short_time);
            let p95 = p95.map_or_else(String::new, |p95| format!(", p95 {p95}"));
            text.push_str(&format!(" ({}{p95})", short_time(mean_ns)));
        }
        parts.push(text);
        if let Some(samples) = pace.samples_per_s {
            parts.push(format!("{} samples/s", rate(samples)));
        }
    }
    let newest = |kind: CounterKind| {
        let of_kind = process
            .counters
            .iter()
            .filter(|((each, _), _)| *each == kind);
        of_kind
            .max_by_key(|(_, counter)| counter.changed_ns)
            .map(|(_, counter)| counter.value)
    };
    let named = [
        (CounterKind::TrainerSteps, "step"),
        (CounterKind::LightningSteps, "step"),
        (CounterKind::LightningEpochs, "epochs done"),
        (CounterKind::Batches, "batch of this pass"),
    ];
    for (kind, name) in named {
        if let Some(value) = newest(kind) {
            parts.push(format!("{name} {}", count(value)));
        }
    }
    (!parts.is_empty()).then(|| parts.join(" | "))
}

fn sampler(live: &Live, status: &Status) -> String {
    let asked = live.run.rate_hz;
    let reached = status.sampler.rate_hz.min(live.outlook.rate_hz.max(0.0));
    let mut text = format!("sampler {asked:.0} Hz");
    if live.outlook.rate_hz > 0.0 {
        if reached < 0.9 * asked {
            text = format!("sampler {:.0} of {asked:.0} Hz", live.outlook.rate_hz);
        }
        text.push_str(&format!(
            " | itself {:.1} % of a core | target stopped {:.2} %",
            live.outlook.own_cpu * 100.0,
            live.outlook.stopped * 100.0
        ));
    }
    if status.sampler.over_budget {
        text.push_str(" | backing off");
    }
    text
}

/// `GPU 0  87 % ▁▂▅▇  312 W  41 of 80 GB  NVIDIA H100`.
fn device_line(live: &Live, device: &LiveDevice) -> String {
    let from_ns = live.end_ns.saturating_sub(KEPT_NS);
    let slot_ns = KEPT_NS / SPARK as u64;
    let mut slots = vec![(0_u64, 0_u64); SPARK];
    for &(end_ns, share) in &device.utilization {
        let at = end_ns.saturating_sub(from_ns).saturating_sub(1) / slot_ns;
        if let Some((sum, number)) = slots.get_mut(at as usize) {
            *sum = sum.saturating_add(share);
            *number += 1;
        }
    }
    let values: Vec<Option<f64>> = slots
        .into_iter()
        .map(|(sum, number)| (number > 0).then(|| sum as f64 / number as f64 / SHARE_ONE as f64))
        .collect();
    let last = device.utilization.back().map(|&(_, share)| share);
    let utilization = last.map_or_else(
        || "n/a".to_owned(),
        |share| format!("{:.0} %", share as f64 / SHARE_ONE as f64 * 100.0),
    );
    let mut text = format!(
        "GPU {:<3} {utilization:>5} {}",
        device.info.label(),
        sparkline(&values, 1.0)
    );
    if let Some(power) = device.power_mw {
        text.push_str(&format!("  {:.0} W", power as f64 / 1e3));
    }
    if let Some(memory) = device.memory {
        text.push_str(&format!("  {}", bytes(memory as f64)));
        if device.info.memory_bytes > 0 {
            text.push_str(&format!(" of {}", bytes(device.info.memory_bytes as f64)));
        }
    }
    format!("{text}  {}", printable(&device.info.name))
}
