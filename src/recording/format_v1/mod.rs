//! Versions 1 and 2 of the format: the content of the header block and of a segment's payload.
//! Version 2 adds a table of `nn.Module`s after all others, frames that mark a module's call or the
//! code that is compiled; counters of progress, their readings, and conditions; and the user's
//! regions after the rest of the header. Counter tracks of devices and processes come after all of
//! that, and may be missing: an older reader ignores them. Further counts of the sampler come after
//! them, and then counter tracks of kinds that the first readers of tracks do not know.
//!
//! The payload is zstd over postcard over columns, each column of a table in a run of its own.
//! Everything in it is untrusted input when it is read: sizes are bounded before they are used,
//! and ids are checked once, here.

mod codes;
mod column;
mod columns;
mod compress;
mod rows;
mod samples;
mod stacks;
mod tables;
mod tracks;
mod validate;

#[cfg(test)]
mod tests;

pub(super) use column::Corrupt;

use crate::model::ids::ThreadId;
use crate::model::region::{MAX_FUNCTIONS, Region};
use crate::model::run::RunInfo;
use crate::model::segment::Segment;
use crate::model::sideband::Sideband;
use crate::model::stack_table::StackTable;
use crate::model::tables::Tables;
use crate::model::track::{CounterTracks, TrackMerger};
use column::{ColumnReader, ColumnWriter};
use compress::Compressor;
use rows::{Rows, WireCounts};
use samples::SampleColumns;
use serde::{Deserialize, Serialize};
use stacks::{FrameColumns, Named, StackColumns};
use tables::{CodeColumns, NnModuleColumns, ProgressColumns, SymbolColumns, ThreadColumns};
use tracks::WireTracks;

/// Most bytes of a segment's payload, before compression and after.
pub(super) const MAX_PAYLOAD: usize = 64 << 20;

/// No segment compresses better than this, past [`RATIO_FREE`] bytes: a bound on the work that a
/// small file can cause.
const MAX_RATIO: usize = 512;
const RATIO_FREE: usize = 64 << 10;

#[derive(Serialize, Deserialize)]
struct WireSegment<C> {
    index: u64,
    start_ns: u64,
    end_ns: u64,
    last: bool,
    processes: Rows<C>,
    threads: ThreadColumns<C>,
    modules: Rows<C>,
    symbols: SymbolColumns<C>,
    codes: CodeColumns<C>,
    frames: FrameColumns<C>,
    stacks: StackColumns<C>,
    samples: SampleColumns<C>,
    quality: Rows<C>,
    clocks: Rows<C>,
    losses: Rows<C>,
}

/// A segment from version 2 on.
#[derive(Serialize, Deserialize)]
struct WireSegment2<C> {
    first: WireSegment<C>,
    nn_modules: NnModuleColumns<C>,
    counters: Rows<C>,
    points: ProgressColumns<C>,
    conditions: Rows<C>,
}

/// Maximum length of a decompressed payload of `compressed` bytes.
fn believable_length(compressed: usize) -> usize {
    MAX_PAYLOAD.min(
        compressed
            .saturating_mul(MAX_RATIO)
            .saturating_add(RATIO_FREE),
    )
}

/// The header block of `run`, and behind it the user's regions, `NAME=FILE:FUNCTION`.
pub(super) fn encode_run(run: &RunInfo) -> Result<Vec<u8>, Corrupt> {
    let regions: Vec<String> = run
        .regions
        .iter()
        .take(MAX_FUNCTIONS)
        .map(ToString::to_string)
        .collect();
    // What comes after the regions is not read by versions that do not know it.
    match run.session {
        Some(session) => postcard::to_stdvec(&(run, regions, session)),
        None => postcard::to_stdvec(&(run, regions)),
    }
    .map_err(|_| Corrupt("the header cannot be written"))
}

/// Decodes the result of [`encode_run`]. Invalid regions are dropped.
pub(super) fn decode_run(block: &[u8]) -> Result<RunInfo, Corrupt> {
    let damaged = |_| Corrupt("the header is damaged");
    let (mut run, rest): (RunInfo, _) = postcard::take_from_bytes(block).map_err(damaged)?;
    // Version 1 ends here.
    if !rest.is_empty() {
        let (regions, rest): (Vec<String>, _) = postcard::take_from_bytes(rest).map_err(damaged)?;
        let regions = regions.iter().take(MAX_FUNCTIONS);
        run.regions = regions
            .filter_map(|text| Region::parse(text).ok())
            .collect();
        if !rest.is_empty() {
            run.session = Some(postcard::from_bytes(rest).map_err(damaged)?);
        }
    }
    Ok(run)
}

/// Encodes segments one after another, with buffers that are kept.
pub(super) struct Encoder {
    compressor: Compressor,
}

impl Encoder {
    /// # Errors
    /// Where zstd gets no memory.
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            compressor: Compressor::new()?,
        })
    }

    /// Appends the compressed payload of `segment` to `out`; returns its length before compression.
    pub(super) fn encode(
        &mut self,
        segment: &Segment,
        out: &mut Vec<u8>,
    ) -> Result<usize, Corrupt> {
        validate::validate(segment)?;
        let (start, sideband) = (out.len(), &segment.sideband);
        let wire = WireSegment2 {
            first: wire_of(segment)?,
            nn_modules: NnModuleColumns::encode(segment.tables.nn_modules.iter())?,
            counters: Rows::encode(&segment.tables.counters)?,
            points: ProgressColumns::encode(sideband.points.iter())?,
            conditions: Rows::encode(&sideband.conditions)?,
        };
        let counts = WireCounts::of(&sideband.quality);
        let later = sideband.tracks.only(true);
        let length = if later.tracks.is_empty() {
            let tracks = WireTracks::encode(&sideband.tracks)?;
            self.compressor.append(&(wire, tracks, counts), out)?
        } else {
            let first = CounterTracks {
                clocks: sideband.tracks.clocks.clone(),
                gaps: sideband.tracks.gaps.clone(),
                ..sideband.tracks.only(false)
            };
            let (tracks, later) = (WireTracks::encode(&first)?, WireTracks::encode(&later)?);
            self.compressor
                .append(&(wire, tracks, counts, later), out)?
        };
        let compressed = out.len() - start;
        if compressed > MAX_PAYLOAD || length > believable_length(compressed) {
            return Err(Corrupt("it is too large"));
        }
        Ok(length)
    }
}

fn wire_of(segment: &Segment) -> Result<WireSegment<ColumnWriter>, Corrupt> {
    let (tables, sideband) = (&segment.tables, &segment.sideband);
    Ok(WireSegment {
        index: segment.index,
        start_ns: segment.start_ns,
        end_ns: segment.end_ns,
        last: segment.last,
        processes: Rows::encode(&tables.processes)?,
        threads: ThreadColumns::encode(tables.threads.values(), segment.end_ns)?,
        modules: Rows::encode(&tables.modules)?,
        symbols: SymbolColumns::encode(segment.symbols.iter())?,
        codes: CodeColumns::encode(tables.codes.iter())?,
        frames: FrameColumns::encode(
            tables.stacks.frames(),
            Named {
                codes: &tables.codes,
                symbols: &segment.symbols,
            },
        )?,
        stacks: StackColumns::encode(tables.stacks.stacks(), tables.stacks.frames().len())?,
        samples: SampleColumns::encode(&segment.samples, segment.start_ns)?,
        quality: Rows::encode(std::slice::from_ref(&sideband.quality))?,
        clocks: Rows::encode(&sideband.clocks)?,
        losses: Rows::encode(&sideband.losses)?,
    })
}

/// Decompresses segments one after another, with buffers that are kept.
pub(super) struct Decoder {
    version: u32,
    decompressor: zstd::bulk::Decompressor<'static>,
    raw: Vec<u8>,
}

impl Decoder {
    /// For segments of a file of `version`.
    ///
    /// # Errors
    /// Where zstd gets no memory.
    pub(super) fn new(version: u32) -> std::io::Result<Self> {
        Ok(Self {
            version,
            decompressor: zstd::bulk::Decompressor::new()?,
            raw: Vec::new(),
        })
    }

    /// The segment of a payload that declares to be `raw_length` bytes once decompressed. Valid in
    /// all its ids.
    pub(super) fn decode(&mut self, payload: &[u8], raw_length: usize) -> Result<Segment, Corrupt> {
        if raw_length > believable_length(payload.len()) {
            return Err(Corrupt("it declares an absurd length"));
        }
        if self.raw.len() < raw_length {
            self.raw.resize(raw_length, 0);
        }
        let raw = &mut self.raw[..raw_length];
        match self.decompressor.decompress_to_buffer(payload, raw) {
            Ok(length) if length == raw_length => {}
            _ => return Err(Corrupt("it cannot be decompressed")),
        }
        let damaged = |_| Corrupt("its tables are damaged");
        let segment = if self.version == 1 {
            segment_of(postcard::from_bytes(raw).map_err(damaged)?)?
        } else {
            let (wire, mut rest): (WireSegment2<ColumnReader<'_>>, _) =
                postcard::take_from_bytes(raw).map_err(damaged)?;
            let mut segment = segment_of(wire.first)?;
            segment.tables.nn_modules = wire.nn_modules.decode()?.into();
            segment.tables.counters = wire.counters.decode()?.into();
            let sideband = &mut segment.sideband;
            sideband.points = wire.points.decode()?;
            sideband.conditions = wire.conditions.decode()?;
            if !rest.is_empty() {
                let tracks: WireTracks<ColumnReader<'_>>;
                (tracks, rest) = postcard::take_from_bytes(rest).map_err(damaged)?;
                sideband.tracks = tracks.decode()?;
            }
            if !rest.is_empty() {
                let counts: WireCounts;
                (counts, rest) = postcard::take_from_bytes(rest).map_err(damaged)?;
                counts.fill(&mut sideband.quality);
            }
            if !rest.is_empty()
                && let Some(later) = later_tracks(rest)
            {
                let mut both = TrackMerger::default();
                both.add(&sideband.tracks);
                both.add(&later);
                sideband.tracks = both.finish();
            }
            segment
        };
        validate::validate(&segment)?;
        Ok(segment)
    }
}

/// Tracks of later kinds; `None` where a kind is later still.
fn later_tracks(bytes: &[u8]) -> Option<CounterTracks> {
    let tracks: WireTracks<ColumnReader<'_>> = postcard::from_bytes(bytes).ok()?;
    let tracks = tracks.decode().ok()?;
    validate::validate_tracks(&tracks).ok()?;
    Some(tracks)
}

fn segment_of(wire: WireSegment<ColumnReader<'_>>) -> Result<Segment, Corrupt> {
    let codes = wire.codes.decode()?;
    let symbols = wire.symbols.decode()?;
    let frames = wire.frames.decode(Named {
        codes: &codes,
        symbols: &symbols,
    })?;
    let stacks = wire.stacks.decode(frames.len())?;
    let threads = wire.threads.decode(wire.end_ns)?;
    Ok(Segment {
        index: wire.index,
        start_ns: wire.start_ns,
        end_ns: wire.end_ns,
        tables: Tables {
            processes: wire.processes.decode()?,
            threads: (0..).map(ThreadId).zip(threads).collect(),
            modules: wire.modules.decode()?.into(),
            codes: codes.into(),
            stacks: StackTable::from_parts(frames, stacks),
            ..Tables::default()
        },
        symbols,
        samples: wire.samples.decode(wire.start_ns)?,
        sideband: Sideband {
            quality: wire.quality.decode()?.pop().unwrap_or_default(),
            clocks: wire.clocks.decode()?,
            losses: wire.losses.decode()?,
            ..Sideband::default()
        },
        last: wire.last,
    })
}
