//! Idle time of devices by what the host executed. A figure that is not resolved is null.

use crate::analysis::Analysis;
use crate::analysis::gpu_overlay::account::Part;
use crate::analysis::gpu_overlay::{GpuIdle, IdleRow, Subject};
use crate::analysis::intervals::Bounds;
use crate::model::profile::Profile;
use crate::model::seconds::of as seconds;
use crate::report::table::{Column, Cut, Kind, Value};
use crate::report::text::format::place_of;
use schemars::JsonSchema;
use serde::Serialize;

/// Idle time of a device while a rank's training thread executed something.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Idle {
    /// The process.
    pub pid: i32,
    /// Its rank.
    pub rank: Option<u32>,
    /// The device, by the driver's number.
    pub gpu: u32,
    /// The number of a MIG instance.
    pub mig: Option<u32>,
    /// `all`, `phase`, `line` or `module`.
    pub kind: &'static str,
    /// The phase; the function; the module's path, or class of the outermost one.
    pub name: String,
    /// File of a line.
    pub file: Option<String>,
    /// Line.
    pub line: Option<u32>,
    /// Time on the host.
    pub host_s: f64,
    /// The part of it that windows cover.
    pub covered_s: f64,
    /// Idle time of the device at the same time, an estimate; null if it is not resolved.
    pub seconds: Option<f64>,
    /// Bounds of `seconds`.
    pub interval: Option<Bounds>,
    /// Whether its visits last for two windows or more, or a regression over windows resolved it.
    pub resolved: bool,
    /// Number of windows of that regression; null if there was no need of it, or it was refused.
    pub regression_windows: Option<usize>,
    /// Why it is not resolved by a regression, either; null if it is resolved.
    pub refused: Option<String>,
    /// Length of a window.
    pub window_ms: f64,
}

/// Why a rank has no idle times.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct NoIdle {
    /// The process.
    pub pid: i32,
    /// Its rank.
    pub rank: Option<u32>,
    pub reason: String,
}

type Col = Column<Idle>;

/// Idle time of devices.
pub const GPU_IDLE: &[Col] = &[
    Col::new(Kind::Seconds, "seconds", "idle s", |row| row.seconds.into()),
    Col::new(Kind::Seconds, "seconds_low", "least", |row| {
        row.interval.map(|of| of.low).into()
    }),
    Col::new(Kind::Seconds, "seconds_high", "most", |row| {
        row.interval.map(|of| of.high).into()
    }),
    Col::new(Kind::Seconds, "host_s", "host s", |row| row.host_s.into()),
    Col::words(" where", |row| format!(" {}", row.shown()).into()).cut(Cut::End),
    Col::data(Kind::Count, "pid", |row| row.pid.into()),
    Col::data(Kind::Count, "rank", |row| row.rank.into()),
    Col::data(Kind::Count, "gpu", |row| row.gpu.into()),
    Col::data(Kind::Count, "mig", |row| row.mig.into()),
    Col::data(Kind::Text, "kind", |row| row.kind.into()),
    Col::data(Kind::Text, "name", |row| (&row.name).into()),
    Col::data(Kind::Place, "at", |row| {
        Value::place(row.file.as_ref(), row.line)
    }),
    Col::data(Kind::Seconds, "covered_s", |row| row.covered_s.into()),
    Col::data(Kind::Text, "resolved", |row| row.resolved.into()),
    Col::data(Kind::Count, "regression_windows", |row| {
        row.regression_windows.into()
    }),
    Col::data(Kind::Text, "refused", |row| row.refused.as_ref().into()),
    Col::data(Kind::Milliseconds, "window_ms", |row| row.window_ms.into()),
];

impl Idle {
    /// What the host executed, as text.
    pub fn shown(&self) -> String {
        let what = match (self.kind, &self.file) {
            ("all", _) if self.resolved => "all of its time".to_owned(),
            ("all", _) => "all of its time: not resolved".to_owned(),
            ("module", _) => format!("module {}", self.name),
            (_, Some(file)) => format!("{} {}", place_of(file, self.line.unwrap_or(0)), self.name),
            _ => self.name.clone(),
        };
        match self.regression_windows {
            Some(count) => format!("{what} (by regression over {count} windows)"),
            None => what,
        }
    }
}

/// For all ranks, by kind and idle time.
pub fn gpu_idle(profile: &Profile, analysis: &Analysis) -> Vec<Idle> {
    let ranks = analysis.gpu_idle.iter();
    ranks
        .filter_map(|(_, idle)| idle.as_ref().ok())
        .flat_map(|idle| of_rank(profile, analysis, idle))
        .collect()
}

/// Why ranks have no idle times.
pub fn gpu_idle_missing(profile: &Profile, analysis: &Analysis) -> Vec<NoIdle> {
    let ranks = analysis.gpu_idle.iter();
    ranks
        .filter_map(|(process, idle)| {
            let (pid, rank) = profile.pid_and_rank(*process);
            Some(NoIdle {
                pid,
                rank,
                reason: idle.as_ref().err()?.to_string(),
            })
        })
        .collect()
}

/// For one rank: its total, then what is resolved, by kind and idle time.
pub fn of_rank(profile: &Profile, analysis: &Analysis, idle: &GpuIdle) -> Vec<Idle> {
    let (pid, rank) = profile.pid_and_rank(idle.process);
    let mut devices = analysis.tracks.devices.iter();
    let device = devices.find(|device| device.id == idle.gpu);
    let row = |kind, name: &str, place: Option<(&str, u32)>, part: &Part| Idle {
        pid,
        rank,
        gpu: device.map_or(0, |device| device.info.index),
        mig: device.and_then(|device| device.info.mig),
        kind,
        name: name.to_owned(),
        file: place.map(|(file, _)| file.to_owned()),
        line: place.map(|(_, line)| line),
        host_s: seconds(part.host_ns),
        covered_s: seconds(part.covered_ns),
        seconds: part.resolved.then_some(part.amount / 1e9),
        interval: part.resolved.then_some(Bounds {
            low: part.low / 1e9,
            high: part.high / 1e9,
        }),
        resolved: part.resolved,
        regression_windows: None,
        refused: None,
        window_ms: idle.window_ns as f64 / 1e6,
    };
    let mut rows = vec![row("all", "", None, &idle.all)];
    let by = |each: &IdleRow, row: Idle| Idle {
        regression_windows: each.regressed,
        refused: (!each.part.resolved).then(|| idle.refused.to_string()),
        ..row
    };
    for each in idle.rows.iter().chain(&idle.unresolved) {
        match each.subject {
            Subject::Phase(phase) => {
                rows.push(by(
                    each,
                    row("phase", profile.phase_name(phase), None, &each.part),
                ));
            }
            Subject::Line((function, line)) => {
                if let Some(function) = profile.function(function) {
                    let place = Some((function.file.as_str(), line));
                    rows.push(by(each, row("line", &function.name, place, &each.part)));
                }
            }
            Subject::Module(id) => {
                if let Some(module) = profile.nn_module(id) {
                    let name = match module.path.as_str() {
                        "" => &module.root,
                        path => path,
                    };
                    rows.push(by(each, row("module", name, None, &each.part)));
                }
            }
        }
    }
    rows
}
