//! From the bytes of a trace to its spans and device events.

use super::event::{
    Args, Category, DeviceKind, Event, HostKind, category, nanoseconds, text, whole, written,
};
use super::json::{End, Piece, Splitter};
use super::{Collective, DeviceEvent, DeviceKey, HostKey, Span, Trace};
use flate2::read::MultiGzDecoder;
use rustc_hash::FxHashMap;
use serde_json::Value;
use std::fmt::Write;
use std::io::{self, Read};

/// Maximum number of events that are kept: with what reducing them needs, 32 bytes of the host's
/// and some 70 of those of devices, up to some 400 MB. A trace of 1 GB has 3 to 4 million in all.
const MOST_EVENTS: usize = 6_000_000;
/// Maximum memory for names, shapes and the like, bytes.
const MOST_TEXT: usize = 64 << 20;
/// What an entry of a table needs besides its text, bytes.
const ENTRY: usize = 256;
/// Shapes of one operator that are longer are not kept, bytes.
const MOST_SHAPES: usize = 4096;
/// Names that are longer are cut off. Kernels of templates have some thousand bytes.
const MOST_NAME: usize = 4096;

/// Why a file is no trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is empty")]
    Empty,
    #[error("it is not JSON")]
    NotJson,
    #[error("it has no event of torch.profiler")]
    NoEvents,
}

/// Limits of reading, for tests.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub most_events: usize,
    /// Bytes.
    pub most_text: usize,
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            most_events: MOST_EVENTS,
            most_text: MOST_TEXT,
        }
    }
}

/// Reads a trace, compressed by gzip or not. What is intact of a damaged one is read; its
/// [`super::Losses`] say what was not.
///
/// # Errors
/// If nothing of it can be used.
pub fn read(mut reader: impl Read, reading: Reading) -> Result<Trace, TraceError> {
    let mut magic = Vec::new();
    reader.by_ref().take(2).read_to_end(&mut magic)?;
    let is_compressed = magic == [0x1f, 0x8b];
    let whole = io::Cursor::new(magic).chain(reader);
    match is_compressed {
        true => collect(MultiGzDecoder::new(whole), reading),
        false => collect(whole, reading),
    }
}

fn collect(reader: impl Read, reading: Reading) -> Result<Trace, TraceError> {
    let mut splitter = Splitter::new(reader);
    let mut collector = Collector::new(reading);
    let end = loop {
        match splitter.next() {
            Ok(Piece::Event(bytes)) => collector.event(bytes),
            Ok(Piece::Value(key, value)) => collector.value(&key, value),
            Ok(Piece::TooLong) => collector.trace.losses.damaged += 1,
            Err(end) => break end,
        }
    };
    let offset = splitter.offset();
    let is_used = !collector.trace.spans.is_empty() || !collector.trace.device_events.is_empty();
    let cut = match end {
        End::Complete => None,
        End::Cut if offset == 0 => return Err(TraceError::Empty),
        End::Cut => Some("it ends there".to_owned()),
        End::NotJson if !is_used => return Err(TraceError::NotJson),
        End::NotJson => Some("what follows is not JSON".to_owned()),
        End::Unreadable(error) if !is_used => return Err(error.into()),
        End::Unreadable(error) => Some(format!("what follows cannot be read: {error}")),
    };
    if !is_used {
        return Err(TraceError::NoEvents);
    }
    collector.trace.losses.cut = cut.map(|why| (why, offset));
    Ok(collector.finish())
}

struct Collector {
    trace: Trace,
    reading: Reading,
    keys: FxHashMap<Box<str>, u32>,
    device_keys: FxHashMap<Box<str>, u32>,
    collectives: FxHashMap<Collective, u32>,
    threads: FxHashMap<Box<str>, u32>,
    /// Spans by process.
    pids: FxHashMap<u64, u64>,
    /// Memory used for names, shapes and the like, bytes.
    text: usize,
    /// Reused: what identifies a key.
    scratch: String,
}

impl Collector {
    fn new(reading: Reading) -> Self {
        Self {
            trace: Trace::default(),
            reading,
            keys: FxHashMap::default(),
            device_keys: FxHashMap::default(),
            collectives: FxHashMap::default(),
            threads: FxHashMap::default(),
            pids: FxHashMap::default(),
            text: 0,
            scratch: String::new(),
        }
    }

    fn event(&mut self, bytes: &[u8]) {
        let Ok(event) = serde_json::from_slice::<Event<'_>>(bytes) else {
            self.trace.losses.damaged += 1;
            return;
        };
        if event.ph.is_some_and(|ph| ph.get() != "\"X\"") {
            return;
        }
        let Some(category) = text(event.cat).and_then(|cat| category(&cat)) else {
            return;
        };
        if self.take(&event, category).is_none() {
            self.trace.losses.damaged += 1;
        }
    }

    /// Keeps an event; `None` if it lacks a field.
    fn take(&mut self, event: &Event<'_>, category: Category) -> Option<()> {
        let name = text(event.name)?;
        let start_ns = nanoseconds(event.ts)?;
        let length_ns = nanoseconds(event.dur)?;
        let kept = self.trace.spans.len() + self.trace.device_events.len();
        if kept >= self.reading.most_events {
            self.trace.losses.not_kept += 1;
            return Some(());
        }
        let args = event.args.map(|args| args.get());
        let args: Args<'_> = args
            .map_or(Ok(Args::default()), serde_json::from_str)
            .ok()?;
        let correlation = whole(args.correlation).and_then(|id| u32::try_from(id).ok());
        let correlation = correlation.unwrap_or(0);
        match category {
            Category::Host(kind) => {
                let pid = whole(event.pid);
                *pid.map_or(&mut 0, |pid| self.pids.entry(pid).or_default()) += 1;
                let span = Span {
                    start_ns,
                    length_ns,
                    key: self.host_key(kind, &name, &args)?,
                    correlation: match kind {
                        HostKind::Runtime => correlation,
                        _ => 0,
                    },
                    thread: self.thread(event)?,
                    order: kept as u32,
                };
                self.trace.spans.push(span);
            }
            Category::Device(kind) => {
                let device_event = DeviceEvent {
                    start_ns,
                    length_ns,
                    bytes: whole(args.bytes).unwrap_or(0),
                    key: self.device_key(kind, &name, event, &args)?,
                    correlation,
                };
                self.trace.device_events.push(device_event);
            }
        }
        Some(())
    }

    fn thread(&mut self, event: &Event<'_>) -> Option<u32> {
        self.scratch.clear();
        let (pid, tid) = (written(event.pid), written(event.tid));
        let _ = write!(self.scratch, "{} {}", cut(pid, 40), cut(tid, 40));
        if let Some(&id) = self.threads.get(self.scratch.as_str()) {
            return Some(id);
        }
        self.has_room(1)?;
        let id = self.threads.len() as u32;
        self.threads.insert(self.scratch.as_str().into(), id);
        self.trace.tids.push(whole(event.tid));
        Some(id)
    }

    /// Takes the memory for what `scratch` identifies; `None` if less than a `part` of all is left.
    fn has_room(&mut self, part: usize) -> Option<()> {
        let more = 2 * self.scratch.len() + ENTRY;
        (self.text + more <= self.reading.most_text / part).then(|| self.text += more)
    }

    fn host_key(&mut self, kind: HostKind, name: &str, args: &Args<'_>) -> Option<u32> {
        let name = cut(name, MOST_NAME);
        let collective = self.collective(args);
        let shapes = args.dims.map_or("", |dims| dims.get());
        let types = args.types.map_or("", |types| types.get());
        let all = (shapes, types, collective);
        let none = ("", "", None);
        let (found, chosen) = match shapes.len().max(types.len()) > MOST_SHAPES {
            true => (self.find(kind, name, none), none),
            // The other half is for names without shapes.
            false => match self.find(kind, name, all) {
                None if self.has_room(2).is_none() => (self.find(kind, name, none), none),
                found => (found, all),
            },
        };
        self.trace.losses.without_shapes += u64::from(chosen != all);
        if let Some(id) = found {
            return Some(id);
        }
        if chosen != all {
            self.has_room(1)?;
        }
        let id = self.trace.host_keys.len() as u32;
        self.keys.insert(self.scratch.as_str().into(), id);
        self.trace.host_keys.push(HostKey {
            kind,
            name: name.to_owned(),
            shapes: chosen.0.to_owned(),
            types: chosen.1.to_owned(),
            collective: chosen.2,
        });
        Some(id)
    }

    /// A known key. `scratch` identifies it afterwards.
    fn find(
        &mut self,
        kind: HostKind,
        name: &str,
        (shapes, types, collective): (&str, &str, Option<u32>),
    ) -> Option<u32> {
        self.scratch.clear();
        let collective = collective.map_or(-1, i64::from);
        let _ = write!(
            self.scratch,
            "{kind:?}\0{collective}\0{shapes}\0{types}\0{name}"
        );
        self.keys.get(self.scratch.as_str()).copied()
    }

    fn device_key(
        &mut self,
        kind: DeviceKind,
        name: &str,
        event: &Event<'_>,
        args: &Args<'_>,
    ) -> Option<u32> {
        let collective = self.collective(args);
        let device = whole(args.device).or_else(|| whole(event.pid)).unwrap_or(0);
        let stream = whole(args.stream).or_else(|| whole(event.tid)).unwrap_or(0);
        let name = cut(name, MOST_NAME);
        let (grid, block) = (written(args.grid), written(args.block));
        let (grid, block) = (cut(grid, 100), cut(block, 100));
        let collective_id = collective.map_or(-1, i64::from);
        self.scratch.clear();
        let _ = write!(
            self.scratch,
            "{kind:?}\0{device}\0{stream}\0{collective_id}\0{grid}\0{block}\0{name}"
        );
        if let Some(&id) = self.device_keys.get(self.scratch.as_str()) {
            return Some(id);
        }
        self.has_room(1)?;
        let id = self.trace.device_keys.len() as u32;
        self.device_keys.insert(self.scratch.as_str().into(), id);
        self.trace.device_keys.push(DeviceKey {
            kind,
            name: name.to_owned(),
            device,
            stream,
            grid: grid.to_owned(),
            block: block.to_owned(),
            collective,
        });
        Some(id)
    }

    fn collective(&mut self, args: &Args<'_>) -> Option<u32> {
        let name = text(args.collective)?;
        let short = |field| text(field).map_or_else(String::new, |text| cut(&text, 100).to_owned());
        let collective = Collective {
            name: cut(&name, 100).to_owned(),
            dtype: short(args.dtype),
            elements_in: whole(args.elements_in).unwrap_or(0),
            elements_out: whole(args.elements_out).unwrap_or(0),
            group_size: whole(args.group_size).unwrap_or(0),
            group: short(args.group),
        };
        if let Some(&id) = self.collectives.get(&collective) {
            return Some(id);
        }
        self.scratch.clear();
        self.has_room(2)?;
        let id = self.trace.collectives.len() as u32;
        self.collectives.insert(collective.clone(), id);
        self.trace.collectives.push(collective);
        Some(id)
    }

    /// A top-level value.
    fn value(&mut self, key: &[u8], value: &[u8]) {
        let head = &mut self.trace.head;
        let Ok(value) = serde_json::from_slice::<Value>(value) else {
            return;
        };
        let is_set = |value: &Value| match value.as_u64() {
            Some(number) => Some(number != 0),
            None => value.as_bool(),
        };
        match key {
            b"\"baseTimeNanoseconds\"" => head.base_ns = value.as_u64().unwrap_or(0),
            b"\"host_name\"" => {
                head.host = value.as_str().map_or("", |name| cut(name, 200)).to_owned();
            }
            b"\"record_shapes\"" => head.shapes = is_set(&value),
            b"\"deviceProperties\"" => {
                let devices = value.as_array().map_or(&[][..], Vec::as_slice);
                let names = devices.iter().map(|device| device["name"].as_str());
                head.devices = names
                    .take(256)
                    .map(|name| cut(name.unwrap_or_default(), 200).to_owned())
                    .collect();
            }
            b"\"distributedInfo\"" => {
                head.rank = value["rank"].as_u64();
                head.world_size = value["world_size"].as_u64();
            }
            _ => {}
        }
    }

    fn finish(mut self) -> Trace {
        let most = self.pids.into_iter().max_by_key(|&(_, spans)| spans);
        self.trace.head.pid = most.map(|(pid, _)| pid);
        self.trace
    }
}

/// The first bytes of a text, at most `most`.
fn cut(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}
