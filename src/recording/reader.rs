//! Reads a recording that is complete, truncated, or damaged.

use super::container::{Found, Head, KIND_SAMPLES, OLDEST_VERSION, Scanner, VERSION};
use super::format_v1::{Corrupt, Decoder, decode_run};
use super::gaps::Gaps;
use super::merge::{Merger, Refused};
use crate::model::ids::ModuleId;
use crate::model::module::SymbolInfo;
use crate::model::run::RunInfo;
use crate::model::sample::Sample;
use crate::model::seconds;
use crate::model::segment::Segment;
use crate::model::sideband::Sideband;
use crate::model::tables::Tables;
use rustc_hash::FxHashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Why a file cannot be opened as a recording.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is empty: torchspy was killed before it wrote anything, or the disk was full")]
    Empty,
    #[error("it is not a recording of torchspy{}", looks_like.map(|what| format!(": it looks like {what}")).unwrap_or_default())]
    NotARecording { looks_like: Option<&'static str> },
    #[error(
        "it is a recording of format {found}, and this torchspy reads up to format {known}: use a newer torchspy"
    )]
    NewerVersion {
        found: u32,
        /// The latest version that this torchspy reads.
        known: u32,
    },
    #[error("its header is cut or damaged")]
    HeaderCorrupt,
    #[error("its recording has only just begun: no segment is complete yet")]
    NothingYet,
}

/// Symbols by module and address.
#[derive(Clone, Debug, Default)]
pub struct SymbolTable {
    modules: FxHashMap<ModuleId, ModuleSymbols>,
    bytes: usize,
}

#[derive(Clone, Debug, Default)]
struct ModuleSymbols {
    sorted: Vec<SymbolInfo>,
    by_start: FxHashMap<u64, usize>,
}

/// How many symbols that start before an address are looked at: symbols may lie within others.
const NESTED: usize = 8;

impl SymbolTable {
    /// Adds a symbol of `module`. Where one with the same start is known, the longer one stays.
    pub(super) fn insert(&mut self, module: ModuleId, symbol: SymbolInfo) {
        let symbols = self.modules.entry(module).or_default();
        if let Some(&known) = symbols.by_start.get(&symbol.start) {
            let known = &mut symbols.sorted[known];
            if symbol.end > known.end {
                *known = SymbolInfo { module, ..symbol };
            }
            return;
        }
        self.bytes += size_of::<SymbolInfo>() + symbol.name.len() + 32;
        symbols.by_start.insert(symbol.start, symbols.sorted.len());
        symbols.sorted.push(SymbolInfo { module, ..symbol });
    }

    /// Makes the table ready for [`SymbolTable::lookup`].
    pub(super) fn sort(&mut self) {
        for symbols in self.modules.values_mut() {
            symbols.sorted.sort_by_key(|symbol| symbol.start);
            symbols.by_start = FxHashMap::default();
        }
    }

    /// Memory that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The symbol around `address`, in the file's own virtual addresses; a return address is looked
    /// up one byte before ([`CodeAddress::lookup`](crate::model::address::CodeAddress::lookup)).
    pub fn lookup(&self, module: ModuleId, address: u64) -> Option<&SymbolInfo> {
        let sorted = &self.modules.get(&module)?.sorted;
        let after = sorted.partition_point(|symbol| symbol.start <= address);
        sorted[..after]
            .iter()
            .rev()
            .take(NESTED)
            .find(|symbol| address < symbol.end)
    }

    /// All symbols, by module in no order.
    pub fn iter(&self) -> impl Iterator<Item = &SymbolInfo> {
        self.modules.values().flat_map(|symbols| &symbols.sorted)
    }

    pub fn len(&self) -> usize {
        self.modules
            .values()
            .map(|symbols| symbols.sorted.len())
            .sum()
    }

    pub fn is_empty(&self) -> bool {
        self.modules.is_empty()
    }
}

impl FromIterator<SymbolInfo> for SymbolTable {
    fn from_iter<I: IntoIterator<Item = SymbolInfo>>(symbols: I) -> Self {
        let mut table = Self::default();
        for symbol in symbols {
            table.insert(symbol.module, symbol);
        }
        table.sort();
        table
    }
}

/// A recording in memory. All ids are those of its tables, and valid.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// What it is of.
    pub run: RunInfo,
    /// What the rest points into.
    pub tables: Tables,
    pub symbols: SymbolTable,
    /// Samples by thread, then by start. The sum of all their lengths is below 2^63 ns.
    pub samples: Vec<Sample>,
    pub sideband: Sideband,
    /// What is missing of the file itself, in sentences. Empty if nothing.
    pub missing: Vec<String>,
    /// Whether it was still being written when it was read: the rest is to come.
    pub growing: bool,
    /// Start and end, CLOCK_MONOTONIC; both 0 without any segment.
    pub start_ns: u64,
    pub end_ns: u64,
    /// Times of which nothing is known, because segments or files are missing: from, to, ascending,
    /// CLOCK_MONOTONIC.
    pub gaps: Vec<(u64, u64)>,
}

/// A file of a session that wrote several, one after another.
#[derive(Debug)]
pub struct Piece<'a> {
    /// What the user calls it.
    pub name: String,
    pub file: &'a File,
    /// Whether it is being written.
    pub growing: bool,
}

impl Recording {
    /// Reads the recording at `path`. What is missing in a damaged one is listed in `missing`.
    ///
    /// # Errors
    /// [`OpenError`], if nothing can be read.
    pub fn read(path: &Path) -> Result<Self, OpenError> {
        read_from(File::open(path)?, false)
    }

    /// Reads a recording from an open file, from where it stands. `growing`: it is being written.
    /// Then a segment at its end that is not complete is neither missing nor damage.
    ///
    /// # Errors
    /// As [`Recording::read`], and [`OpenError::NothingYet`].
    pub fn read_file(file: &File, growing: bool) -> Result<Self, OpenError> {
        match read_from(file, growing) {
            Err(OpenError::Empty | OpenError::HeaderCorrupt) if growing => {
                Err(OpenError::NothingYet)
            }
            Ok(recording) if recording.growing && recording.end_ns == 0 => {
                Err(OpenError::NothingYet)
            }
            read => read,
        }
    }

    /// Reads the files of a session as one recording, in the order in which they were written. What
    /// is missing of each, and between two of them, is listed in `missing`; what a later file has
    /// of the time of earlier ones is left out.
    ///
    /// # Errors
    /// As [`Recording::read_file`], if nothing can be read of any file.
    pub fn read_pieces(pieces: &[Piece<'_>]) -> Result<Self, OpenError> {
        let (mut reading, mut missing): (Option<Reading>, _) = (None, Vec::new());
        let (mut growing, mut refused) = (false, OpenError::NothingYet);
        for piece in pieces {
            growing = piece.growing;
            let mut scanner = Scanner::new(piece.file);
            let (run, version) = match head_of(&mut scanner) {
                Ok(head) => head,
                Err(error) => {
                    missing.push(format!("{}: {error}", piece.name));
                    refused = error;
                    continue;
                }
            };
            let reading = match &mut reading {
                Some(reading) => reading.next_file(version)?,
                none => none.insert(Reading::new(Merger::new(run), version)?),
            };
            reading.read(&mut scanner);
            growing &= !reading.gaps.ended;
            let named = |what| format!("{}: {what}", piece.name);
            missing.extend(reading.missing_before().map(named));
            let sentences = reading.gaps.sentences(growing).into_iter();
            missing.extend(sentences.map(named));
        }
        let mut recording = reading.ok_or(refused)?.finish(growing);
        recording.missing = missing;
        match recording.growing && recording.end_ns == 0 {
            true => Err(OpenError::NothingYet),
            false => Ok(recording),
        }
    }

    /// Reads the facts of a run alone, which a file starts with.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn read_head(file: &File) -> Result<RunInfo, OpenError> {
        Ok(head_of(&mut Scanner::new(file))?.0)
    }

    /// Reads the first segments of a recording, `segments` at most: what it began with.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn read_start(file: &File, segments: usize) -> Result<Self, OpenError> {
        let mut scanner = Scanner::new(file);
        let (run, version) = head_of(&mut scanner)?;
        let mut reading = Reading::new(Merger::new(run), version)?;
        for _ in 0..segments {
            if !reading.read_next(&mut scanner) {
                break;
            }
        }
        Ok(reading.finish(true))
    }

    /// Reads a recording from memory.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn read_bytes(bytes: &[u8]) -> Result<Self, OpenError> {
        read_from(bytes, false)
    }
}

/// Memory that any recording may take, and how many bytes more for each byte of the file.
const FREE_BYTES: usize = 64 << 20;
const BYTES_PER_BYTE: usize = 256;

/// The facts of the run, and the version of what follows.
fn head_of(scanner: &mut Scanner<impl Read>) -> Result<(RunInfo, u32), OpenError> {
    match scanner.head()? {
        Head::Empty => Err(OpenError::Empty),
        Head::Foreign(start) => Err(OpenError::NotARecording {
            looks_like: looks_like(&start),
        }),
        Head::Damaged => Err(OpenError::HeaderCorrupt),
        Head::Recording { version, block } => match version {
            OLDEST_VERSION..=VERSION => {
                let run = decode_run(&block).map_err(|_| OpenError::HeaderCorrupt)?;
                Ok((run, version))
            }
            0 => Err(OpenError::HeaderCorrupt),
            found => Err(OpenError::NewerVersion {
                found,
                known: VERSION,
            }),
        },
    }
}

fn read_from(source: impl Read, growing: bool) -> Result<Recording, OpenError> {
    let mut scanner = Scanner::new(source);
    let (run, version) = head_of(&mut scanner)?;
    let mut reading = Reading::new(Merger::new(run), version)?;
    reading.read(&mut scanner);
    Ok(reading.finish(growing))
}

/// Segments in their order, and what is missing between them.
struct Reading {
    merger: Merger,
    decoder: Decoder,
    gaps: Gaps,
    payload_bytes: usize,
    /// The end of the files before; 0 in the first one.
    files_end_ns: u64,
    /// The end of what was read.
    end_ns: u64,
    /// Times without a segment.
    empty: Vec<(u64, u64)>,
}

impl Reading {
    fn new(merger: Merger, version: u32) -> Result<Self, OpenError> {
        Ok(Self {
            merger,
            decoder: Decoder::new(version)?,
            gaps: Gaps::default(),
            payload_bytes: 0,
            files_end_ns: 0,
            end_ns: 0,
            empty: Vec::new(),
        })
    }

    /// Goes on with the next file of the session.
    fn next_file(&mut self, version: u32) -> Result<&mut Self, OpenError> {
        self.decoder = Decoder::new(version)?;
        self.gaps = Gaps::default();
        self.files_end_ns = self.end_ns;
        Ok(self)
    }

    /// Reads the segments of a file.
    fn read(&mut self, scanner: &mut Scanner<impl Read>) {
        while self.read_next(scanner) {}
    }

    /// Reads what comes next in a file; `false` at its end.
    fn read_next(&mut self, scanner: &mut Scanner<impl Read>) -> bool {
        match scanner.next() {
            Ok(Found::Segment {
                sequence,
                kind,
                payload,
                raw_length,
            }) => self.segment(sequence, kind, payload, raw_length),
            Ok(Found::Damage { cut }) => self.damage(cut),
            Ok(Found::End) => return false,
            Err(error) => {
                self.gaps.unreadable = Some(error.to_string());
                return false;
            }
        }
        true
    }

    /// What is missing between the files before and this one: segments follow each other without a
    /// gap.
    fn missing_before(&self) -> Option<String> {
        let first_ns = self.gaps.first_ns.filter(|_| self.files_end_ns > 0)?;
        let ns = first_ns
            .checked_sub(self.files_end_ns)
            .filter(|&ns| ns > 0)?;
        Some(format!("{:.1} s before it are missing", seconds::of(ns)))
    }

    fn segment(&mut self, sequence: u64, kind: u32, payload: &[u8], raw_length: usize) {
        if kind != KIND_SAMPLES {
            self.gaps.unknown_kinds += 1;
            self.gaps.left_out += 1;
            return;
        }
        if self.gaps.next.is_some_and(|next| sequence < next) {
            self.gaps.out_of_order += 1;
            return;
        }
        self.payload_bytes = self.payload_bytes.saturating_add(payload.len());
        let most = self
            .payload_bytes
            .saturating_mul(BYTES_PER_BYTE)
            .saturating_add(FREE_BYTES);
        let decoded = self.decoder.decode(payload, raw_length);
        let Ok(segment) = decoded.and_then(|segment| in_its_place(segment, sequence)) else {
            self.gaps.damaged_at_end = true;
            return;
        };
        let (start_ns, end_ns, last) = (segment.start_ns, segment.end_ns, segment.last);
        if start_ns < self.files_end_ns {
            self.gaps.out_of_order += 1;
            return;
        }
        match self.merger.add(segment, most) {
            Ok(()) => {
                let follows = self.gaps.good(sequence, start_ns, end_ns, last);
                if !follows && self.end_ns > 0 && start_ns > self.end_ns {
                    self.empty.push((self.end_ns, start_ns));
                }
                self.end_ns = self.end_ns.max(end_ns);
            }
            Err(Refused::AbsurdTimes) => self.gaps.damaged_at_end = true,
            Err(Refused::TooMuch) => {
                self.gaps.refused += 1;
                self.gaps.left_out += 1;
            }
        }
    }

    fn damage(&mut self, cut: bool) {
        // A cut last segment is what a killed torchspy leaves behind: the end is missing, nothing
        // is corrupt.
        self.gaps.damaged_at_end |= !cut;
    }

    fn finish(self, growing: bool) -> Recording {
        let mut recording = self.merger.finish();
        recording.growing = growing && !self.gaps.ended;
        recording.missing = self.gaps.sentences(recording.growing);
        recording.gaps = self.empty;
        recording
    }
}

fn in_its_place(segment: Segment, sequence: u64) -> Result<Segment, Corrupt> {
    if segment.index == sequence {
        Ok(segment)
    } else {
        Err(Corrupt("it is in the wrong place"))
    }
}

/// What a file that starts like this is, where it is easy to know.
fn looks_like(start: &[u8]) -> Option<&'static str> {
    const KNOWN: &[(&[u8], &str)] = &[
        (b"\x7fELF", "an ELF file"),
        (b"\x1f\x8b", "a gzip file"),
        (b"\x28\xb5\x2f\xfd", "a zstd file"),
        (b"PK\x03\x04", "a zip file"),
        (b"<?xml", "XML or SVG"),
        (b"<svg", "SVG"),
        (b"{", "JSON"),
        (b"PERFILE2", "a recording of perf"),
    ];
    let known = KNOWN.iter().find(|(magic, _)| start.starts_with(magic));
    match known {
        Some((_, what)) => Some(what),
        None if start
            .iter()
            .all(|&byte| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~')) =>
        {
            Some("text")
        }
        None => None,
    }
}
