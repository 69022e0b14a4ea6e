//! Summaries of the counter tracks of devices and of the host: means over windows, and what was not
//! measured.
//!
//! Of a window that extends past the end of the recording the part within counts. Without a window
//! there is no figure: gaps are not filled.

mod spans;

pub use spans::{
    Span, every, natural, of_kind, of_pid, points, series, series_of_sum, spans, tracks_of,
};

use crate::model::gpu_name::visible_devices;
use crate::model::ids::{GpuId, ProcessId, TrackId};
use crate::model::profile::Profile;
use crate::model::track::{GpuClock, GpuInfo, THROTTLE_REASONS, TrackInfo, TrackKind};
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use spans::is_amount;
use std::ops::Range;

/// Maximum number of devices and gaps that are reported: no machine has more, but a damaged
/// recording may.
const MAX_DEVICES: usize = 256;
const MAX_GAPS: usize = 256;

/// A counter track's mean, and how well it covers the recording.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    pub track: TrackId,
    pub kind: TrackKind,
    /// Mean over its windows, in the unit of [`natural`]; amounts are per second.
    pub mean: f64,
    /// Lowest and highest value of a window.
    pub low: f64,
    pub high: f64,
    /// Sum of amounts (energy, CPU time, bytes); 0 for others.
    pub total: f64,
    /// Time that its windows cover, ns.
    pub covered_ns: u64,
    /// Median length of the windows; 0 if values are read at points in time.
    pub window_ns: u64,
}

/// A process that uses a device.
#[derive(Clone, Debug, JsonSchema, PartialEq, Eq, Serialize)]
#[schemars(rename = "User")]
pub struct DeviceProcess {
    /// Its pid, as the driver sees it.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// Whether it is a process of the recording.
    #[serde(rename = "sampled", serialize_with = "is_known")]
    #[schemars(with = "bool")]
    pub process: Option<ProcessId>,
    /// Its rank.
    pub rank: Option<u32>,
    /// Peak device memory.
    pub memory_bytes: Option<u64>,
    /// Source: `driver`, or `visible_devices` if only its environment names the device.
    #[serde(rename = "known_by", serialize_with = "known_by")]
    #[schemars(with = "String")]
    pub hinted: bool,
}

#[allow(clippy::ref_option, reason = "serde hands it over so")]
fn is_known<S: Serializer>(process: &Option<ProcessId>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(process.is_some())
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over so")]
fn known_by<S: Serializer>(hinted: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    let by = if *hinted { "visible_devices" } else { "driver" };
    serializer.serialize_str(by)
}

/// What is missing for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The counter tracks; empty for all of them.
    pub kinds: Vec<TrackKind>,
    /// Start of the gap, CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// End of the gap; 0 for the end of the recording.
    pub end_ns: u64,
    /// The reason, for people.
    pub reason: String,
}

/// A device over the recording.
#[derive(Clone, Debug)]
pub struct Device {
    pub id: GpuId,
    pub info: GpuInfo,
    /// Its figures, in the order of [`TrackKind::ALL`], without those that were not measured.
    pub figures: Vec<Figure>,
    /// Who used it: sampled processes first.
    pub processes: Vec<DeviceProcess>,
    /// Share of the time with a reading in which each reason (a bit of [`THROTTLE_REASONS`]) held
    /// clocks down; `None` without any reading.
    pub throttled: Option<Vec<(u64, f64)>>,
    /// Relation of its driver's clock to CLOCK_MONOTONIC.
    pub clock: Option<GpuClock>,
    pub missing: Vec<Missing>,
}

#[derive(Clone, Debug)]
pub struct HostProcess {
    pub pid: i32,
    pub name: String,
    /// The process of the recording.
    pub process: Option<ProcessId>,
    pub figures: Vec<Figure>,
}

/// All counter tracks of a recording.
#[derive(Clone, Debug, Default)]
pub struct TrackSummary {
    /// Devices that were recorded, by number.
    pub devices: Vec<Device>,
    /// Devices that no sampled process used.
    pub unused: Vec<GpuInfo>,
    /// Why there is no device, or what is missing for all of them.
    pub missing: Vec<String>,
    pub processes: Vec<HostProcess>,
    /// Figures of the host itself: its network.
    pub host: Vec<Figure>,
}

impl Device {
    /// A figure of it; `None` where it was not measured.
    pub fn figure(&self, kind: TrackKind) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.kind == kind)
    }

    /// The mean of a figure over a time, CLOCK_MONOTONIC; `None` where it was not measured then.
    pub fn mean(&self, profile: &Profile, kind: TrackKind, time: Range<u64>) -> Option<f64> {
        let (mut sum, mut length_ns) = (0.0, 0.0);
        for span in spans(profile, self.figure(kind)?.track) {
            let end_ns = span.end_ns.min(time.end);
            let within = end_ns.saturating_sub(span.start_ns.max(time.start));
            sum += span.value * within as f64;
            length_ns += within as f64;
        }
        (length_ns > 0.0).then(|| sum / length_ns)
    }

    /// Mean power, W: from the energy counter if there is one, since that misses nothing between
    /// two readings.
    pub fn power_w(&self) -> Option<f64> {
        let figure = self
            .figure(TrackKind::Energy)
            .or(self.figure(TrackKind::Power));
        figure.map(|figure| figure.mean)
    }

    /// Energy, J, and the time that it was measured over, ns.
    pub fn energy_j(&self) -> Option<(f64, u64)> {
        let figure = self.figure(TrackKind::Energy)?;
        Some((figure.total, figure.covered_ns))
    }
}

/// Summarizes all counter tracks of a profile.
pub fn summarize(profile: &Profile) -> TrackSummary {
    let tracks = &profile.sideband.tracks;
    let index = Index::new(profile);
    let mut summary = TrackSummary::default();
    for (at, info) in tracks.gpus.iter().enumerate().take(MAX_DEVICES) {
        if info.recorded {
            let id = GpuId::from_index(at);
            summary.devices.push(device(profile, &index, id, info));
        } else {
            summary.unused.push(info.clone());
        }
    }
    summary
        .devices
        .sort_by_key(|device| (device.info.index, device.info.mig));
    for gap in tracks.gaps.iter().filter(|gap| gap.gpu.is_none()) {
        if summary.missing.len() < MAX_GAPS && !summary.missing.contains(&gap.reason) {
            summary.missing.push(gap.reason.clone());
        }
    }
    let mut places: FxHashMap<i32, usize> = FxHashMap::default();
    let lasting = index
        .of(None)
        .iter()
        .filter(|(_, track)| !track.kind.is_occasional());
    for &(id, track) in lasting {
        let Some(figure) = figure(profile, id, track) else {
            continue;
        };
        if track.pid == 0 {
            summary.host.push(figure);
            continue;
        }
        // The worker's readings, whether the host was read or not.
        if track.kind.is_of_allocator() && !places.contains_key(&track.pid) {
            continue;
        }
        let known = &mut summary.processes;
        let place = *places.entry(track.pid).or_insert_with(|| {
            known.push(HostProcess {
                pid: track.pid,
                name: track.process.clone(),
                process: index.processes.get(&track.pid).copied(),
                figures: Vec::new(),
            });
            known.len() - 1
        });
        if let Some(process) = known.get_mut(place) {
            process.figures.push(figure);
        }
    }
    summary
}

/// Counter tracks by device, and processes by pid; of a reused pid the latest.
struct Index<'p> {
    tracks: FxHashMap<Option<GpuId>, Vec<(TrackId, &'p TrackInfo)>>,
    processes: FxHashMap<i32, ProcessId>,
}

impl<'p> Index<'p> {
    fn new(profile: &'p Profile) -> Self {
        let mut tracks: FxHashMap<_, Vec<_>> = FxHashMap::default();
        for (at, track) in profile.sideband.tracks.tracks.iter().enumerate() {
            let own = tracks.entry(track.gpu).or_default();
            own.push((TrackId::from_index(at), track));
        }
        let processes = profile.processes.iter().enumerate();
        Self {
            tracks,
            processes: processes
                .map(|(at, process)| (process.info.pid, ProcessId::from_index(at)))
                .collect(),
        }
    }

    fn of(&self, gpu: Option<GpuId>) -> &[(TrackId, &'p TrackInfo)] {
        self.tracks.get(&gpu).map_or(&[], Vec::as_slice)
    }
}

fn figure(profile: &Profile, id: TrackId, track: &TrackInfo) -> Option<Figure> {
    let spans = spans(profile, id);
    let (mut sum, mut weight) = (0.0, 0.0);
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for span in &spans {
        let length = (span.end_ns - span.start_ns) as f64 / 1e9;
        sum += span.value * length;
        weight += length;
        low = low.min(span.value);
        high = high.max(span.value);
    }
    if weight <= 0.0 {
        return None;
    }
    let mut windows: Vec<u64> = points(profile, id)
        .iter()
        .map(|point| point.end_ns.saturating_sub(point.start_ns))
        .collect();
    windows.sort_unstable();
    Some(Figure {
        track: id,
        kind: track.kind,
        mean: sum / weight,
        low,
        high,
        total: if is_amount(track.kind) { sum } else { 0.0 },
        covered_ns: covered(&spans),
        window_ns: windows.get(windows.len() / 2).copied().unwrap_or(0),
    })
}

/// Time covered by spans that may overlap, ns.
fn covered(spans: &[Span]) -> u64 {
    let mut starts: Vec<(u64, u64)> = spans.iter().map(|s| (s.start_ns, s.end_ns)).collect();
    starts.sort_unstable();
    let (mut total, mut until) = (0, 0);
    for (start, end) in starts {
        total += end.saturating_sub(start.max(until));
        until = until.max(end);
    }
    total
}

fn device(profile: &Profile, index: &Index<'_>, id: GpuId, info: &GpuInfo) -> Device {
    let own = index.of(Some(id));
    let mut figures: Vec<Figure> = own
        .iter()
        .filter(|(_, track)| track.pid == 0 && track.kind != TrackKind::Throttle)
        .filter_map(|&(track_id, track)| figure(profile, track_id, track))
        .collect();
    figures.sort_by_key(|figure| figure.kind);
    let throttle = own
        .iter()
        .find(|(_, track)| track.kind == TrackKind::Throttle);
    Device {
        id,
        info: info.clone(),
        figures,
        processes: device_processes(profile, index, id, info),
        throttled: throttle.and_then(|&(track, _)| throttled(profile, track)),
        clock: profile
            .sideband
            .tracks
            .clocks
            .iter()
            .rev()
            .find(|clock| clock.gpu == id)
            .cloned(),
        missing: missing(profile, id),
    }
}

fn throttled(profile: &Profile, track: TrackId) -> Option<Vec<(u64, f64)>> {
    let spans = spans(profile, track);
    let length = |span: &Span| (span.end_ns - span.start_ns) as f64;
    let all: f64 = spans.iter().map(length).sum();
    if all <= 0.0 {
        return None;
    }
    let held = |bit: u64| -> f64 {
        let with = spans.iter().filter(|span| span.bits & bit != 0);
        with.map(length).sum::<f64>() / all
    };
    Some(
        THROTTLE_REASONS
            .into_iter()
            .map(|(bit, _)| (bit, held(bit)))
            .filter(|(_, share)| *share > 0.0)
            .collect(),
    )
}

fn device_processes(
    profile: &Profile,
    index: &Index<'_>,
    id: GpuId,
    info: &GpuInfo,
) -> Vec<DeviceProcess> {
    let mut listed: Vec<DeviceProcess> = index
        .of(Some(id))
        .iter()
        .filter(|(_, track)| track.kind == TrackKind::ProcessMemory)
        .map(|&(track_id, track)| {
            let values = points(profile, track_id).iter().map(|point| point.value);
            let process = index.processes.get(&track.pid).copied();
            DeviceProcess {
                pid: track.pid,
                name: track.process.clone(),
                process,
                rank: process.and_then(|process| profile.pid_and_rank(process).1),
                memory_bytes: values.max().filter(|&bytes| bytes > 0),
                hinted: false,
            }
        })
        .collect();
    // In a container the driver reports pids of the host; then only the environment shows which
    // processes use the device.
    if !listed.iter().any(|process| process.process.is_some()) {
        listed.extend(hinted(profile, info));
    }
    listed.sort_by_key(|process| (process.process.is_none(), process.process, process.pid));
    listed
}

fn hinted(profile: &Profile, info: &GpuInfo) -> Vec<DeviceProcess> {
    let mut found = Vec::new();
    for (index, process) in profile.processes.iter().enumerate() {
        let visible = process
            .info
            .environment
            .iter()
            .find(|(name, _)| name == "CUDA_VISIBLE_DEVICES");
        let names = visible_devices(visible.map(|(_, value)| value.as_str()));
        let may = names.is_none_or(|names| names.iter().any(|name| name.is_of(info)));
        if process.info.has_cuda && may {
            found.push(DeviceProcess {
                pid: process.info.pid,
                name: process
                    .info
                    .exe
                    .rsplit('/')
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
                process: Some(ProcessId::from_index(index)),
                rank: process.role.rank(),
                memory_bytes: None,
                hinted: true,
            });
        }
    }
    found
}

/// Gaps of a device: those with the same cause and time are merged, and each permanent cause is
/// listed once.
fn missing(profile: &Profile, id: GpuId) -> Vec<Missing> {
    let mut all: Vec<Missing> = Vec::new();
    for gap in profile
        .sideband
        .tracks
        .gaps
        .iter()
        .filter(|gap| gap.gpu == Some(id))
    {
        let outside =
            gap.start_ns >= profile.end_ns || (gap.end_ns > 0 && gap.end_ns <= profile.start_ns);
        if outside {
            continue;
        }
        let is_full = all.len() >= MAX_GAPS;
        let same = all.iter_mut().find(|known| {
            known.reason == gap.reason
                && gap.kind.is_some() != known.kinds.is_empty()
                && match gap.end_ns {
                    0 => known.end_ns == 0,
                    end_ns => {
                        known.end_ns > 0 && gap.start_ns <= known.end_ns && end_ns >= known.start_ns
                    }
                }
        });
        match same {
            Some(known) => {
                known.kinds.extend(gap.kind);
                known.kinds.sort_unstable();
                known.kinds.dedup();
                known.start_ns = known.start_ns.min(gap.start_ns);
                known.end_ns = known.end_ns.max(gap.end_ns);
            }
            None if is_full => {}
            None => all.push(Missing {
                kinds: gap.kind.into_iter().collect(),
                start_ns: gap.start_ns,
                end_ns: gap.end_ns,
                reason: gap.reason.clone(),
            }),
        }
    }
    all
}
