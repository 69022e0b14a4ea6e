//! Splits a Chrome trace into its events and top-level values, without holding it as a whole.
//!
//! Formats: an object whose `traceEvents` is an array of events, or that array alone ("Trace Event
//! Format", Google, 2016). Only brackets and strings are followed here, so that an event that is
//! damaged costs that event alone, and a file may end anywhere.

use std::io::{self, Read};
use std::ops::Range;

/// Bytes that are read at a time.
const CHUNK: u64 = 256 << 10;
/// Maximum length of an event or value, bytes. Kineto's events have some hundred; lists of many
/// tensors have some thousand.
const MOST_BYTES: usize = 1 << 20;

/// A part of a trace, as JSON.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'b> {
    Event(&'b [u8]),
    /// A top-level value: its key, in quotes, and the value.
    Value(Vec<u8>, &'b [u8]),
    /// An event or value of more than [`MOST_BYTES`], which was skipped.
    TooLong,
}

/// Why there are no more parts.
#[derive(Debug)]
pub(super) enum End {
    /// The trace is complete.
    Complete,
    /// The file ends inside of the trace.
    Cut,
    /// What follows is no trace.
    NotJson,
    Unreadable(io::Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    /// Within the top-level object.
    Object,
    /// Within the array of events; whether that is in an object.
    Events(bool),
}

/// Reads parts one by one.
pub(super) struct Splitter<R> {
    reader: R,
    buffer: Vec<u8>,
    /// What of the buffer has been handed out.
    at: usize,
    state: State,
    /// Bytes that have left the buffer.
    passed: u64,
    /// What ended the file before its end; bytes before it are still in the buffer.
    failed: Option<io::Error>,
}

impl<R: Read> Splitter<R> {
    pub(super) fn new(reader: R) -> Self {
        Self {
            reader,
            buffer: Vec::new(),
            at: 0,
            state: State::Start,
            passed: 0,
            failed: None,
        }
    }

    /// Bytes of JSON before the next part.
    pub(super) fn offset(&self) -> u64 {
        self.passed + self.at as u64
    }

    /// The next part.
    ///
    /// # Errors
    /// At the end, with what ends it.
    pub(super) fn next(&mut self) -> Result<Piece<'_>, End> {
        loop {
            match (self.state, self.skip_blank()?) {
                (State::Start, b'{') => self.enter(State::Object),
                (State::Start, b'[') => self.enter(State::Events(false)),
                (State::Object, b'}') | (State::Events(false), b']') => return Err(End::Complete),
                (State::Events(true), b']') => self.enter(State::Object),
                (State::Events(_), _) => {
                    let value = self.value()?;
                    return Ok(match value {
                        Some(range) => Piece::Event(self.slice(range)),
                        None => Piece::TooLong,
                    });
                }
                (State::Object, b'"') => {
                    let range = self.value()?;
                    let key = range.map_or_else(Vec::new, |range| self.slice(range).to_vec());
                    if self.skip_blank()? == b'[' && key == b"\"traceEvents\"" {
                        self.enter(State::Events(true));
                        continue;
                    }
                    let value = self.value()?;
                    return Ok(match value {
                        Some(range) => Piece::Value(key, self.slice(range)),
                        None => Piece::TooLong,
                    });
                }
                (State::Start | State::Object, _) => return Err(End::NotJson),
            }
        }
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.at += 1;
    }

    fn slice(&self, range: Range<usize>) -> &[u8] {
        self.buffer.get(range).unwrap_or_default()
    }

    /// The next byte that is neither white space nor a separator, nor a byte order mark.
    fn skip_blank(&mut self) -> Result<u8, End> {
        loop {
            let rest = self.buffer.get(self.at..).unwrap_or_default();
            let is_blank = |byte: &u8| {
                byte.is_ascii_whitespace() || b",:".contains(byte) || b"\xef\xbb\xbf".contains(byte)
            };
            if let Some(found) = rest.iter().position(|byte| !is_blank(byte)) {
                self.at += found;
                return Ok(rest[found]);
            }
            self.passed += self.buffer.len() as u64;
            self.buffer.clear();
            self.at = 0;
            self.fill()?;
        }
    }

    /// The range of the value that begins here; `None` if it was too long.
    fn value(&mut self) -> Result<Option<Range<usize>>, End> {
        // What is handed out leaves the buffer when half of it is that.
        if self.at > self.buffer.len() / 2 {
            self.passed += self.at as u64;
            self.buffer.drain(..self.at);
            self.at = 0;
        }
        let mut start = Some(self.at);
        let mut scan = Scan::default();
        let mut next = self.at;
        loop {
            let rest = self.buffer.get(next..).unwrap_or_default();
            if let Some(length) = scan.ends_after(rest) {
                self.at = next + length;
                return Ok(start.map(|start| start..self.at));
            }
            next = self.buffer.len();
            if start.is_none_or(|start| next - start > MOST_BYTES) {
                start = None;
                self.passed += next as u64;
                self.buffer.clear();
                (next, self.at) = (0, 0);
            }
            self.fill()?;
        }
    }

    /// Appends to the buffer.
    fn fill(&mut self) -> Result<(), End> {
        if let Some(error) = self.failed.take() {
            return Err(match error.kind() {
                // The decompressor's word for a file that ends early.
                io::ErrorKind::UnexpectedEof => End::Cut,
                _ => End::Unreadable(error),
            });
        }
        let before = self.buffer.len();
        let read = self
            .reader
            .by_ref()
            .take(CHUNK)
            .read_to_end(&mut self.buffer);
        self.failed = read.err();
        match self.buffer.len() > before {
            true => Ok(()),
            false if self.failed.is_some() => self.fill(),
            false => Err(End::Cut),
        }
    }
}

/// Where in a value a scan is.
#[derive(Default)]
struct Scan {
    depth: u64,
    is_string: bool,
    is_escaped: bool,
    is_bare: bool,
}

impl Scan {
    /// The length of the value's part in `bytes` if it ends there.
    fn ends_after(&mut self, bytes: &[u8]) -> Option<usize> {
        for (index, &byte) in bytes.iter().enumerate() {
            if self.is_string {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    // JSON has no line ends in strings: a quote is missing or one too many.
                    b'"' | b'\n' => self.is_string = false,
                    _ => {}
                }
                if !self.is_string && self.depth == 0 {
                    return Some(index + 1);
                }
                continue;
            }
            match byte {
                // A number or a word ends before what follows.
                b',' | b'}' | b']' | b'\n' if self.is_bare => return Some(index),
                b'"' => self.is_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(index + 1);
                    }
                }
                _ => self.is_bare = self.depth == 0,
            }
        }
        None
    }
}
