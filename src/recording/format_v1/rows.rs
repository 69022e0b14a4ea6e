//! Small structures, field by field in postcard's encoding: the run, processes, modules, and the sampler's figures.
//!
//! These mirror the model on purpose. The model may change; what version 1 of the format holds may not.

use super::codes::{module_kind, module_kind_of};
use super::column::{Corrupt, bounded};
use crate::model::module::ModuleInfo;
use crate::model::process::ProcessInfo;
use crate::model::quality::{DurationHistogram, Quality};
use crate::model::region::{MAX_FUNCTIONS, Region};
use crate::model::run::{ClockPair, Loss, RunInfo};
use serde::{Deserialize, Serialize};

/// Most bytes of one table of rows. A row is at most some tens of times larger in memory than here.
pub(super) const MAX_ROW_BYTES: usize = 4 << 20;

/// Rows one after another.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Rows<B> {
    count: u32,
    bytes: B,
}

/// Bytes of rows being written.
#[derive(Debug, Default)]
pub(super) struct RowBytes(Vec<u8>);

impl Serialize for RowBytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl Rows<RowBytes> {
    /// Writes all of `items`.
    pub(super) fn encode<'t, T, W: Serialize>(
        items: &'t [T],
        wire: impl Fn(&'t T) -> W,
    ) -> Result<Self, Corrupt> {
        let mut bytes = Vec::new();
        for item in items {
            bytes = postcard::to_extend(&wire(item), bytes)
                .map_err(|_| Corrupt("a row cannot be written"))?;
        }
        if bytes.len() > MAX_ROW_BYTES {
            return Err(Corrupt("a table is too large"));
        }
        Ok(Self {
            count: u32::try_from(items.len()).map_err(|_| Corrupt("a table is too large"))?,
            bytes: RowBytes(bytes),
        })
    }
}

impl<'a> Rows<&'a [u8]> {
    /// Reads all rows.
    pub(super) fn decode<T, W: Deserialize<'a>>(
        self,
        model: impl Fn(W) -> Result<T, Corrupt>,
    ) -> Result<Vec<T>, Corrupt> {
        // Every row here has a field that takes a byte.
        if self.bytes.len() > MAX_ROW_BYTES || self.count as usize > self.bytes.len() {
            return Err(Corrupt("a table declares more rows than it has"));
        }
        let mut rows = Vec::new();
        let mut bytes = self.bytes;
        for _ in 0..self.count {
            let (row, rest) =
                postcard::take_from_bytes(bytes).map_err(|_| Corrupt("a row is no row"))?;
            rows.push(model(row)?);
            bytes = rest;
        }
        Ok(rows)
    }
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

fn borrowed(texts: &[String]) -> Vec<&str> {
    texts.iter().map(|text| bounded(text)).collect()
}

/// [`RunInfo`] in a file.
#[derive(Serialize, Deserialize)]
pub(super) struct WireRun<'a> {
    torchspy: &'a str,
    host: &'a str,
    kernel: &'a str,
    architecture: &'a str,
    cpus: u32,
    #[serde(borrow)]
    command: Vec<&'a str>,
    pid: i32,
    launched: bool,
    rate_hz: f64,
    native: bool,
    nonblocking: bool,
    gil_only: bool,
    threads: Option<&'a str>,
    max_stopped: f64,
    started_ns: u64,
    started_wall_ns: u64,
    notes: Vec<&'a str>,
}

impl<'a> WireRun<'a> {
    pub(super) fn of(run: &'a RunInfo) -> Self {
        Self {
            torchspy: bounded(&run.torchspy),
            host: bounded(&run.host),
            kernel: bounded(&run.kernel),
            architecture: bounded(&run.architecture),
            cpus: run.cpus,
            command: borrowed(&run.command),
            pid: run.pid,
            launched: run.launched,
            rate_hz: run.rate_hz,
            native: run.native,
            nonblocking: run.nonblocking,
            gil_only: run.gil_only,
            threads: run.threads.as_deref().map(bounded),
            max_stopped: run.max_stopped,
            started_ns: run.started_ns,
            started_wall_ns: run.started_wall_ns,
            notes: borrowed(&run.notes),
        }
    }

    pub(super) fn model(self) -> RunInfo {
        RunInfo {
            torchspy: self.torchspy.to_owned(),
            host: self.host.to_owned(),
            kernel: self.kernel.to_owned(),
            architecture: self.architecture.to_owned(),
            cpus: self.cpus,
            command: owned(&self.command),
            pid: self.pid,
            launched: self.launched,
            rate_hz: finite(self.rate_hz),
            native: self.native,
            nonblocking: self.nonblocking,
            gil_only: self.gil_only,
            threads: self.threads.map(str::to_owned),
            max_stopped: finite(self.max_stopped),
            started_ns: self.started_ns,
            started_wall_ns: self.started_wall_ns,
            notes: owned(&self.notes),
            regions: Vec::new(),
        }
    }
}

/// What stands behind [`WireRun`] from version 2 on: the regions that the user named, `NAME=FILE:FUNCTION`.
#[derive(Serialize, Deserialize)]
pub(super) struct WireRegions(Vec<String>);

impl WireRegions {
    pub(super) fn of(run: &RunInfo) -> Self {
        let regions = run.regions.iter().take(MAX_FUNCTIONS);
        Self(regions.map(ToString::to_string).collect())
    }

    /// Those that are regions.
    pub(super) fn model(self) -> Vec<Region> {
        self.0
            .iter()
            .take(MAX_FUNCTIONS)
            .filter_map(|text| Region::parse(text).ok())
            .collect()
    }
}

fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

/// [`ProcessInfo`] in a file.
#[derive(Serialize, Deserialize)]
pub(super) struct WireProcess<'a> {
    pid: i32,
    start_ticks: u64,
    parent_pid: i32,
    exe: &'a str,
    #[serde(borrow)]
    command: Vec<&'a str>,
    environment: Vec<(&'a str, &'a str)>,
    python: &'a str,
    torch: &'a str,
    has_torch: bool,
    has_cuda: bool,
    note: &'a str,
    first_seen_ns: u64,
    last_seen_ns: u64,
    cpu_ns: u64,
    exited: bool,
}

impl<'a> WireProcess<'a> {
    pub(super) fn of(process: &'a ProcessInfo) -> Self {
        Self {
            pid: process.pid,
            start_ticks: process.start_ticks,
            parent_pid: process.parent_pid,
            exe: bounded(&process.exe),
            command: borrowed(&process.command),
            environment: process
                .environment
                .iter()
                .map(|(name, value)| (bounded(name), bounded(value)))
                .collect(),
            python: bounded(&process.python),
            torch: bounded(&process.torch),
            has_torch: process.has_torch,
            has_cuda: process.has_cuda,
            note: bounded(&process.note),
            first_seen_ns: process.first_seen_ns,
            last_seen_ns: process.last_seen_ns,
            cpu_ns: process.cpu_ns,
            exited: process.exited,
        }
    }

    pub(super) fn model(self) -> Result<ProcessInfo, Corrupt> {
        Ok(ProcessInfo {
            pid: self.pid,
            start_ticks: self.start_ticks,
            parent_pid: self.parent_pid,
            exe: self.exe.to_owned(),
            command: owned(&self.command),
            environment: self
                .environment
                .iter()
                .map(|&(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            python: self.python.to_owned(),
            torch: self.torch.to_owned(),
            has_torch: self.has_torch,
            has_cuda: self.has_cuda,
            note: self.note.to_owned(),
            first_seen_ns: self.first_seen_ns,
            last_seen_ns: self.last_seen_ns,
            cpu_ns: self.cpu_ns,
            exited: self.exited,
        })
    }
}

/// [`ModuleInfo`] in a file.
#[derive(Serialize, Deserialize)]
pub(super) struct WireModule<'a> {
    kind: u64,
    path: &'a str,
    build_id: &'a [u8],
}

impl<'a> WireModule<'a> {
    pub(super) fn of(module: &'a ModuleInfo) -> Self {
        Self {
            kind: module_kind(module.kind),
            path: bounded(&module.path),
            build_id: &module.build_id,
        }
    }

    pub(super) fn model(self) -> Result<ModuleInfo, Corrupt> {
        Ok(ModuleInfo {
            kind: module_kind_of(self.kind)?,
            path: self.path.to_owned(),
            build_id: self.build_id.to_owned(),
        })
    }
}

/// [`Quality`] in a file.
#[derive(Serialize, Deserialize)]
pub(super) struct WireQuality {
    ticks: u64,
    late_ticks: u64,
    missed_ticks: u64,
    stop_counts: Vec<u32>,
    stop_max_ns: u64,
    stop_total_ns: u64,
    target_run_ns: u64,
    skipped_for_budget: u64,
    stop_timeouts: u64,
    torn_retries: u64,
    own_cpu_ns: u64,
    own_queue_ns: u64,
    throttled_ns: u64,
}

impl WireQuality {
    pub(super) fn of(quality: &Quality) -> Self {
        Self {
            ticks: quality.ticks,
            late_ticks: quality.late_ticks,
            missed_ticks: quality.missed_ticks,
            stop_counts: quality.stops.counts().to_vec(),
            stop_max_ns: quality.stops.max_ns(),
            stop_total_ns: quality.stops.total_ns(),
            target_run_ns: quality.target_run_ns,
            skipped_for_budget: quality.skipped_for_budget,
            stop_timeouts: quality.stop_timeouts,
            torn_retries: quality.torn_retries,
            own_cpu_ns: quality.own_cpu_ns,
            own_queue_ns: quality.own_queue_ns,
            throttled_ns: quality.throttled_ns,
        }
    }

    pub(super) fn model(self) -> Result<Quality, Corrupt> {
        Ok(Quality {
            ticks: self.ticks,
            late_ticks: self.late_ticks,
            missed_ticks: self.missed_ticks,
            stops: DurationHistogram::from_parts(
                self.stop_counts,
                self.stop_max_ns,
                self.stop_total_ns,
            ),
            target_run_ns: self.target_run_ns,
            skipped_for_budget: self.skipped_for_budget,
            stop_timeouts: self.stop_timeouts,
            torn_retries: self.torn_retries,
            own_cpu_ns: self.own_cpu_ns,
            own_queue_ns: self.own_queue_ns,
            throttled_ns: self.throttled_ns,
            ..Quality::default()
        })
    }
}

/// What stands behind [`WireQuality`], at the end of a segment: counts, of which a later torchspy may write more, and an earlier one
/// wrote fewer.
#[derive(Serialize, Deserialize)]
pub(super) struct WireCounts(Vec<u64>);

impl WireCounts {
    pub(super) fn of(quality: &Quality) -> Self {
        Self(vec![
            quality.calls_cut_short,
            quality.calls_left_running,
            quality.privileges_lost,
            quality.skipped_for_late_stop,
            quality.skipped_for_turn,
        ])
    }

    pub(super) fn fill(&self, quality: &mut Quality) {
        let count = |at: usize| self.0.get(at).copied().unwrap_or(0);
        quality.calls_cut_short = count(0);
        quality.calls_left_running = count(1);
        quality.privileges_lost = count(2);
        quality.skipped_for_late_stop = count(3);
        quality.skipped_for_turn = count(4);
    }
}

pub(super) fn wire_clock(clock: &ClockPair) -> (u64, u64) {
    (clock.monotonic_ns, clock.wall_ns)
}

pub(super) fn clock_of((monotonic_ns, wall_ns): (u64, u64)) -> Result<ClockPair, Corrupt> {
    Ok(ClockPair {
        monotonic_ns,
        wall_ns,
    })
}

pub(super) fn wire_loss(loss: &Loss) -> (u64, u64, &str) {
    (loss.time_ns, loss.samples, bounded(&loss.reason))
}

pub(super) fn loss_of((time_ns, samples, reason): (u64, u64, &str)) -> Result<Loss, Corrupt> {
    Ok(Loss {
        time_ns,
        samples,
        reason: reason.to_owned(),
    })
}
