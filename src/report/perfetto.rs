//! A trace for Perfetto's viewer: stacks of threads as slices, and counter tracks of GPUs and host
//! as counters, on one time axis.
//!
//! Slices are those of [`slices`](super::slices). A counter holds its value from the start of its
//! window on, which is how Perfetto draws them. A gap of a counter track is drawn as a slice, since
//! a counter cannot be absent.

use super::counters;
use super::label::{self, SHORT};
use super::proto::Message;
use super::slices::slices;
use super::view::{View, ViewOptions};
use crate::model::ids::GpuId;
use crate::model::profile::Profile;
use crate::model::track::TrackKind;
use rustc_hash::{FxHashMap, FxHashSet};
use std::io::{self, Write};

/// Numbers of fields (perfetto's protos/perfetto/trace: trace_packet.proto, track_event/*.proto,
/// interned_data/*.proto).
mod fields {
    pub(super) const TRACE_PACKET: u64 = 1;
    pub(super) mod packet {
        pub(crate) const TIMESTAMP: u64 = 8;
        pub(crate) const SEQUENCE: u64 = 10;
        pub(crate) const TRACK_EVENT: u64 = 11;
        pub(crate) const INTERNED: u64 = 12;
        pub(crate) const FLAGS: u64 = 13;
        pub(crate) const TRACK_DESCRIPTOR: u64 = 60;
    }
    pub(super) mod track {
        pub(crate) const UUID: u64 = 1;
        pub(crate) const NAME: u64 = 2;
        pub(crate) const PROCESS: u64 = 3;
        pub(crate) const THREAD: u64 = 4;
        pub(crate) const PARENT: u64 = 5;
        pub(crate) const COUNTER: u64 = 8;
        pub(crate) const PID: u64 = 1;
        pub(crate) const TID: u64 = 2;
        pub(crate) const THREAD_NAME: u64 = 5;
        pub(crate) const PROCESS_NAME: u64 = 6;
        pub(crate) const UNIT_NAME: u64 = 6;
    }
    pub(super) mod event {
        pub(crate) const TYPE: u64 = 9;
        pub(crate) const NAME_ID: u64 = 10;
        pub(crate) const TRACK: u64 = 11;
        pub(crate) const DOUBLE: u64 = 44;
        pub(crate) const NAMES: u64 = 2;
        pub(crate) const ID: u64 = 1;
        pub(crate) const NAME: u64 = 2;
    }
}
use fields::{TRACE_PACKET, event, packet, track};

const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const COUNTER: u64 = 4;
/// Clears the interned values; what follows needs interned values.
const CLEARED: u64 = 1;
const NEEDS: u64 = 2;

/// Writes a profile as a trace. Its times begin with the recording.
///
/// # Errors
/// Where `out` cannot be written.
pub fn render(profile: &Profile, options: &ViewOptions, out: &mut dyn Write) -> io::Result<()> {
    let mut trace = Trace {
        profile,
        out,
        names: FxHashMap::default(),
        tracks: 0,
        started: false,
    };
    trace.threads(&View::new(profile, options))?;
    trace.counter_tracks()?;
    trace.gaps()
}

struct Trace<'p, 'o> {
    profile: &'p Profile,
    out: &'o mut dyn Write,
    names: FxHashMap<String, u64>,
    tracks: u64,
    started: bool,
}

impl Trace<'_, '_> {
    fn packet(&mut self, content: Message) -> io::Result<()> {
        let flags = if self.started { NEEDS } else { CLEARED };
        self.started = true;
        let content = content
            .number(packet::SEQUENCE, 1)
            .number(packet::FLAGS, flags);
        let framed = Message::default().message(TRACE_PACKET, &content);
        self.out.write_all(framed.bytes())
    }

    /// A new track with this content.
    fn track(&mut self, content: Message) -> io::Result<u64> {
        self.tracks += 1;
        let uuid = self.tracks;
        let content = content.number(track::UUID, uuid);
        self.packet(Message::default().message(packet::TRACK_DESCRIPTOR, &content))?;
        Ok(uuid)
    }

    fn since_start(&self, ns: u64) -> u64 {
        ns.saturating_sub(self.profile.start_ns)
    }

    fn event(&mut self, ns: u64, content: &Message) -> io::Result<()> {
        let timestamp = self.since_start(ns);
        self.packet(
            Message::default()
                .number(packet::TIMESTAMP, timestamp)
                .message(packet::TRACK_EVENT, content),
        )
    }

    fn begin(&mut self, track: u64, ns: u64, name: &str) -> io::Result<()> {
        let known = self.names.get(name).copied();
        let id = known.unwrap_or(self.names.len() as u64 + 1);
        let content = Message::default()
            .number(event::TYPE, SLICE_BEGIN)
            .number(event::TRACK, track)
            .number(event::NAME_ID, id);
        if known.is_some() {
            return self.event(ns, &content);
        }
        self.names.insert(name.to_owned(), id);
        let entry = Message::default()
            .number(event::ID, id)
            .text(event::NAME, name);
        let interned = Message::default().message(event::NAMES, &entry);
        let timestamp = self.since_start(ns);
        self.packet(
            Message::default()
                .number(packet::TIMESTAMP, timestamp)
                .message(packet::INTERNED, &interned)
                .message(packet::TRACK_EVENT, &content),
        )
    }

    fn end(&mut self, track: u64, ns: u64) -> io::Result<()> {
        let content = Message::default()
            .number(event::TYPE, SLICE_END)
            .number(event::TRACK, track);
        self.event(ns, &content)
    }

    fn threads(&mut self, view: &View<'_>) -> io::Result<()> {
        let tracks = self.thread_tracks(view)?;
        slices(view, |edge| {
            let Some(&track) = tracks.get(edge.root) else {
                return Ok(());
            };
            match edge.begins {
                Some(shown) => self.begin(track, edge.ns, &view.label(shown)),
                None => self.end(track, edge.ns),
            }
        })
    }

    /// A track for each thread, below one for its process.
    fn thread_tracks(&mut self, view: &View<'_>) -> io::Result<Vec<u64>> {
        let labels = label::process_labels(self.profile);
        let mut processes = FxHashSet::default();
        let mut tracks = Vec::new();
        for root in view.roots() {
            let (pid, tid) = (
                u64::from(root.pid.unsigned_abs()),
                u64::from(root.tid.unsigned_abs()),
            );
            if processes.insert(root.process) {
                let name = labels.get(root.process.index()).map_or("", String::as_str);
                let process = Message::default()
                    .number(track::PID, pid)
                    .text(track::PROCESS_NAME, name);
                self.track(Message::default().message(track::PROCESS, &process))?;
            }
            let thread = Message::default()
                .number(track::PID, pid)
                .number(track::TID, tid)
                .text(track::THREAD_NAME, &root.label);
            tracks.push(self.track(Message::default().message(track::THREAD, &thread))?);
        }
        Ok(tracks)
    }

    /// A counter for each counter track, below a track for its device or the host.
    fn counter_tracks(&mut self) -> io::Result<()> {
        let profile = self.profile;
        let mut parents: FxHashMap<Option<GpuId>, u64> = FxHashMap::default();
        let mut uuids: Vec<u64> = Vec::new();
        for counter_track in &profile.sideband.tracks.tracks {
            let parent = match parents.get(&counter_track.gpu) {
                Some(&known) => known,
                None => {
                    let name = counters::device_name(profile, counter_track.gpu);
                    let uuid = self.track(Message::default().text(track::NAME, &name))?;
                    parents.insert(counter_track.gpu, uuid);
                    uuid
                }
            };
            let counter =
                Message::default().text(track::UNIT_NAME, counters::unit(counter_track.kind));
            let content = Message::default()
                .text(track::NAME, &counters::name(counter_track))
                .number(track::PARENT, parent)
                .message(track::COUNTER, &counter);
            uuids.push(self.track(content)?);
        }
        for point in &profile.sideband.tracks.points {
            let (Some(counter_track), Some(&track)) = (
                counters::shown(profile, point),
                uuids.get(point.track.index()),
            ) else {
                continue;
            };
            let content = Message::default()
                .number(event::TYPE, COUNTER)
                .number(event::TRACK, track)
                .double(event::DOUBLE, counters::value(counter_track.kind, point));
            self.event(point.start_ns, &content)?;
        }
        Ok(())
    }

    fn gaps(&mut self) -> io::Result<()> {
        let profile = self.profile;
        for gap in &profile.sideband.tracks.gaps {
            let end_ns = match gap.end_ns {
                0 => profile.end_ns,
                end_ns => end_ns.min(profile.end_ns),
            };
            let start_ns = gap.start_ns.max(profile.start_ns);
            if start_ns >= end_ns {
                continue;
            }
            let what = gap.kind.map_or("all of it", TrackKind::name);
            let reason = label::clean(&gap.reason, SHORT * 2);
            let name = format!("not measured: {what} ({reason})");
            let device = counters::device_name(profile, gap.gpu);
            // Gaps overlap: each has a track of its own.
            let track =
                self.track(Message::default().text(track::NAME, &format!("{device}, missing")))?;
            self.begin(track, start_ns, &name)?;
            self.end(track, end_ns)?;
        }
        Ok(())
    }
}
