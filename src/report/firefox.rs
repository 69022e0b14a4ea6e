//! A profile for Firefox Profiler (profiler.firefox.com), gzipped: its processed format, as the
//! crate of samply's author writes it.
//!
//! Categories are the kinds of frames. Steps, phases and waits of training threads are markers.
//! Memory and power are counters, which the viewer accumulates and integrates; other counter tracks
//! are markers with a graph, on a thread for each device.

use super::counters;
use super::label::{self, SHORT};
use super::markers;
use super::view::{Interval, View, ViewOptions};
use crate::model::category::{Activity, FrameKind};
use crate::model::ids::GpuId;
use crate::model::profile::Profile;
use crate::model::track::{TrackKind, TrackUnit};
use flate2::{Compression, write::GzEncoder};
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CounterHandle, CpuDelta, Frame, FrameFlags, FrameInfo,
    MarkerFieldFlags, MarkerFieldFormat, MarkerGraphType, MarkerTiming, ProcessHandle,
    Profile as Processed, ReferenceTimestamp, SamplingInterval, StaticSchemaMarker,
    StaticSchemaMarkerField, StaticSchemaMarkerGraph, StringHandle, ThreadHandle, Timestamp,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::io::{self, Write};
use std::time::Duration;

/// Samples that are written at most; of longer recordings a thread's sample stands for several
/// ticks, as its weight says.
const MOST_SAMPLES: u64 = 2_000_000;

/// Writes a profile. Its times begin with the recording.
///
/// # Errors
/// Where `out` cannot be written.
pub fn render(profile: &Profile, options: &ViewOptions, out: &mut dyn Write) -> io::Result<()> {
    let view = View::new(profile, options);
    let product = match profile.run.command.is_empty() {
        true => format!("pid {}", profile.run.pid),
        false => super::command::shown_command(&profile.run.command, SHORT),
    };
    let interval = SamplingInterval::from_nanos((1e9 / profile.run.rate_hz.max(1e-3)) as u64);
    let started = Duration::from_nanos(profile.start_wall_ns());
    let mut file = File {
        profile,
        processed: Processed::new(
            &label::clean(&product, SHORT),
            ReferenceTimestamp::from_duration_since_unix_epoch(started),
            interval,
        ),
        categories: FxHashMap::default(),
    };
    file.processed.set_os_name("Linux");
    // All names are known; the viewer asks no symbol server.
    file.processed.set_symbolicated(true);
    file.threads(&view);
    file.counter_tracks();
    let mut gzip = GzEncoder::new(out, Compression::default());
    serde_json::to_writer(&mut gzip, &file.processed)?;
    gzip.finish().map(drop)
}

struct File<'p> {
    profile: &'p Profile,
    processed: Processed,
    categories: FxHashMap<FrameKind, CategoryHandle>,
}

impl File<'_> {
    fn at(&self, ns: u64) -> Timestamp {
        Timestamp::from_nanos_since_reference(ns.saturating_sub(self.profile.start_ns))
    }

    fn category(&mut self, kind: FrameKind) -> CategoryHandle {
        let processed = &mut self.processed;
        *self
            .categories
            .entry(kind)
            .or_insert_with(|| processed.add_category(kind.name(), colour(kind)))
    }

    fn threads(&mut self, view: &View<'_>) {
        let labels = label::process_labels(self.profile);
        let start = self.at(self.profile.start_ns);
        let mut processes: FxHashMap<_, ProcessHandle> = FxHashMap::default();
        let mut threads: Vec<ThreadHandle> = Vec::new();
        for root in view.roots() {
            let name = labels.get(root.process.index()).map_or("", String::as_str);
            let (pid, tid) = (root.pid.unsigned_abs(), root.tid.unsigned_abs());
            let process = *processes
                .entry(root.process)
                .or_insert_with(|| self.processed.add_process(name, pid, start));
            let thread = self
                .processed
                .add_thread(process, tid, start, root.pid == root.tid);
            self.processed.set_thread_name(thread, &root.label);
            if root.training {
                self.processed.add_initial_visible_thread(thread);
                self.processed
                    .set_thread_show_markers_in_timeline(thread, true);
                self.markers(view, root, thread);
            }
            threads.push(thread);
        }
        if let Some(&first) = threads.first() {
            self.processed.add_initial_selected_thread(first);
        }
        self.samples(view, &threads);
    }

    fn samples(&mut self, view: &View<'_>, threads: &[ThreadHandle]) {
        let ticks: u64 = view.intervals().map(|each| u64::from(each.ticks)).sum();
        let each = ticks.div_ceil(MOST_SAMPLES).max(1);
        let mut stacks = FxHashMap::default();
        for interval in view.intervals() {
            let Some(&thread) = threads.get(interval.root) else {
                continue;
            };
            let key = (interval.root, interval.stack, interval.queued);
            let stack = match stacks.get(&key) {
                Some(&known) => known,
                None => {
                    let frames = self.frames(view, interval);
                    let stack = self
                        .processed
                        .intern_stack_frames(thread, frames.into_iter());
                    stacks.insert(key, stack);
                    stack
                }
            };
            let (ticks, mut from) = (u64::from(interval.ticks), 0);
            while from < ticks {
                let weight = each.min(ticks - from);
                let ns = interval.weight_ns / ticks.max(1);
                let cpu = match is_asleep(interval.activity) {
                    true => CpuDelta::ZERO,
                    false => CpuDelta::from_nanos(ns * weight),
                };
                let at = self.at(interval.start_ns + ns * from);
                self.processed
                    .add_sample(thread, at, stack, cpu, weight as i32);
                from += weight;
            }
        }
    }

    fn frames(&mut self, view: &View<'_>, interval: Interval) -> Vec<FrameInfo> {
        let frames = view.frames(interval.stack, interval.queued).into_iter();
        frames
            .map(|frame| {
                let category = self.category(view.kind(frame.shown));
                let label = view.label(frame.shown);
                FrameInfo {
                    frame: Frame::Label(self.processed.intern_string(&label)),
                    category_pair: category.into(),
                    flags: FrameFlags::empty(),
                }
            })
            .collect()
    }

    fn markers(&mut self, view: &View<'_>, root: &super::view::Root, thread: ThreadHandle) {
        for kind in markers::Kind::ALL {
            let name = self.processed.intern_string(kind.name());
            for marker in markers::of(view, root, kind) {
                let timing =
                    MarkerTiming::Interval(self.at(marker.start_ns), self.at(marker.end_ns));
                let text = self.processed.intern_string(&marker.name);
                self.processed
                    .add_marker(thread, timing, Named { name, text });
            }
        }
    }

    fn counter_tracks(&mut self) {
        let profile = self.profile;
        let start = self.at(profile.start_ns);
        let mut devices: FxHashMap<Option<GpuId>, (ProcessHandle, ThreadHandle)> =
            FxHashMap::default();
        let mut summed: FxHashMap<usize, Summed> = FxHashMap::default();
        let energy: FxHashSet<Option<GpuId>> = (profile.sideband.tracks.tracks.iter())
            .filter(|track| track.kind == TrackKind::Energy)
            .map(|track| track.gpu)
            .collect();
        for point in &profile.sideband.tracks.points {
            let Some(track) = counters::shown(profile, point) else {
                continue;
            };
            // Numbers that no process of Linux has.
            let number = (1 << 23) + devices.len() as u32;
            let (process, thread) = *devices.entry(track.gpu).or_insert_with(|| {
                let name = counters::device_name(profile, track.gpu);
                let process = self.processed.add_process(&name, number, start);
                let thread = self.processed.add_thread(process, number, start, true);
                self.processed.set_thread_name(thread, &name);
                self.processed.add_initial_visible_thread(thread);
                (process, thread)
            });
            let name = counters::name(track);
            let (from, to) = (self.at(point.start_ns), self.at(point.end_ns));
            let Some(category) = summed_as(track.kind, energy.contains(&track.gpu)) else {
                let name = format!("{name}, {}", counters::unit(track.kind));
                let marker = Measured {
                    name: self.processed.intern_string(&name),
                    value: counters::value(track.kind, point),
                };
                let timing = MarkerTiming::Interval(from, to);
                self.processed.add_marker(thread, timing, marker);
                continue;
            };
            let own = summed.entry(point.track.index()).or_insert_with(|| {
                let counter = self.processed.add_counter(process, &name, category, &name);
                // The viewer sums what comes after the first sample.
                self.processed.add_counter_sample(counter, from, 0.0, 0);
                Summed {
                    counter,
                    value: 0.0,
                    end_ns: point.start_ns,
                }
            });
            let value = point.value as f64;
            let delta = match track.kind.unit() {
                // The viewer wants energy since the sample before, in pWh: mW times ns by 3600 s.
                TrackUnit::Milliwatts => {
                    value * point.end_ns.saturating_sub(own.end_ns) as f64 / 3600.0
                }
                TrackUnit::Millijoules => value * 1e9 / 3600.0,
                _ => value - own.value,
            };
            (own.value, own.end_ns) = (value, point.end_ns);
            let counter = own.counter;
            self.processed.add_counter_sample(counter, to, delta, 0);
        }
    }
}

/// A counter and its last point.
struct Summed {
    counter: CounterHandle,
    value: f64,
    end_ns: u64,
}

/// The category of a counter whose samples the viewer sums; `None` for what is no amount. Power is
/// integrated where the device's energy is not known.
fn summed_as(kind: TrackKind, has_energy: bool) -> Option<&'static str> {
    match kind.unit() {
        TrackUnit::Bytes => Some("Memory"),
        TrackUnit::Millijoules => Some("power"),
        TrackUnit::Milliwatts if !has_energy => Some("power"),
        _ => None,
    }
}

/// Whether a thread surely uses no CPU.
fn is_asleep(activity: Activity) -> bool {
    matches!(
        activity,
        Activity::LockWait | Activity::Sleep | Activity::Io | Activity::GilWait | Activity::CpuWait
    )
}

fn colour(kind: FrameKind) -> CategoryColor {
    match kind {
        FrameKind::PythonUser => CategoryColor::Blue,
        FrameKind::PythonTorch | FrameKind::PythonLibrary => CategoryColor::LightBlue,
        FrameKind::Aten => CategoryColor::Orange,
        FrameKind::Gemm => CategoryColor::Red,
        FrameKind::Autograd => CategoryColor::Magenta,
        FrameKind::Communication => CategoryColor::Purple,
        FrameKind::Cuda => CategoryColor::Green,
        FrameKind::DataLoader => CategoryColor::Yellow,
        FrameKind::Optimizer => CategoryColor::Brown,
        FrameKind::OpenMp => CategoryColor::LightGreen,
        FrameKind::Wait | FrameKind::Marker => CategoryColor::Gray,
        FrameKind::Interpreter | FrameKind::Plumbing | FrameKind::Native => CategoryColor::DarkGray,
    }
}

/// A step, phase or wait.
struct Named {
    name: StringHandle,
    text: StringHandle,
}

impl StaticSchemaMarker for Named {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "torchspy";
    const CHART_LABEL: Option<&'static str> = Some("{marker.data.text}");
    const TABLE_LABEL: Option<&'static str> = Some("{marker.data.text}");
    const TOOLTIP_LABEL: Option<&'static str> = Some("{marker.data.text}");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[StaticSchemaMarkerField {
        key: "text",
        label: "What",
        format: MarkerFieldFormat::String,
        flags: MarkerFieldFlags::SEARCHABLE,
    }];

    fn name(&self, _: &mut Processed) -> StringHandle {
        self.name
    }

    fn category(&self, _: &mut Processed) -> CategoryHandle {
        CategoryHandle::OTHER
    }

    fn string_field_value(&self, _: u32) -> StringHandle {
        self.text
    }

    fn number_field_value(&self, _: u32) -> f64 {
        0.0
    }
}

/// A value of a counter track.
struct Measured {
    name: StringHandle,
    value: f64,
}

impl StaticSchemaMarker for Measured {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "torchspy_counter";
    const FIELDS: &'static [StaticSchemaMarkerField] = &[StaticSchemaMarkerField {
        key: "value",
        label: "Value",
        format: MarkerFieldFormat::Decimal,
        flags: MarkerFieldFlags::empty(),
    }];
    const GRAPHS: &'static [StaticSchemaMarkerGraph] = &[StaticSchemaMarkerGraph {
        key: "value",
        graph_type: MarkerGraphType::LineFilled,
        color: None,
    }];

    fn name(&self, _: &mut Processed) -> StringHandle {
        self.name
    }

    fn category(&self, _: &mut Processed) -> CategoryHandle {
        CategoryHandle::OTHER
    }

    fn string_field_value(&self, _: u32) -> StringHandle {
        self.name
    }

    fn number_field_value(&self, _: u32) -> f64 {
        self.value
    }
}
