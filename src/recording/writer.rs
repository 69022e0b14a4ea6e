//! Writes a recording: append-only, and complete up to the last segment whatever happens to the
//! disk.

use super::container::{SEGMENT_HEAD_LENGTH, fill_segment_head, head};
use super::format_v1::{Corrupt, Encoder, encode_run};
use crate::model::run::RunInfo;
use crate::model::segment::Segment;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};

/// Why a recording, or a segment of it, was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file cannot be created or written: no space, no permission, it exists.
    #[error("cannot write the recording: {0}")]
    Io(#[from] io::Error),
    /// An earlier write failed half way and could not be undone; what follows it would not be
    /// found.
    #[error("an earlier write to the recording failed half way; nothing can be added to it")]
    Broken,
    /// The segment is too large, or its ids do not fit together. Nothing was written.
    #[error("a segment cannot be written: {0}")]
    Segment(&'static str),
}

impl From<Corrupt> for WriteError {
    fn from(error: Corrupt) -> Self {
        Self::Segment(error.0)
    }
}

impl From<WriteError> for io::Error {
    /// Of the same kind, so that a full disk is still known as one.
    fn from(error: WriteError) -> Self {
        let kind = match &error {
            WriteError::Io(cause) => cause.kind(),
            WriteError::Broken | WriteError::Segment(_) => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

pub struct RecordingWriter {
    file: File,
    /// End of the last complete segment; `None` if the file cannot be truncated (a pipe).
    whole: Option<u64>,
    broken: bool,
    encoder: Encoder,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for RecordingWriter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("RecordingWriter")
            .field("whole", &self.whole)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

impl RecordingWriter {
    /// Writes the header to `file`, which is open for writing and empty, and continues from there.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn from_file(mut file: File, run: &RunInfo) -> Result<Self, WriteError> {
        let mut writer = Self {
            whole: file.stream_position().ok(),
            file,
            broken: false,
            encoder: Encoder::new()?,
            buffer: Vec::new(),
        };
        writer.buffer = head(&encode_run(run)?)?;
        writer.append()?;
        Ok(writer)
    }

    /// Appends a segment. After an error of the file, what was written before stays readable; where
    /// the failed part could be removed, a later segment may be tried.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write_segment(&mut self, segment: &Segment) -> Result<(), WriteError> {
        if self.broken {
            return Err(WriteError::Broken);
        }
        self.buffer.clear();
        self.buffer.resize(SEGMENT_HEAD_LENGTH, 0);
        let raw_length = self.encoder.encode(segment, &mut self.buffer)?;
        fill_segment_head(&mut self.buffer, segment.index, raw_length);
        self.append()
    }

    /// Bytes written so far; 0 where the file is a pipe.
    pub fn length(&self) -> u64 {
        self.whole.unwrap_or(0)
    }

    /// Ends the recording. Network file systems report a full disk only when a file is synced or
    /// closed.
    ///
    /// # Errors
    /// [`WriteError`], where what was written may not have reached the disk.
    pub fn finish(self) -> Result<(), WriteError> {
        match self.file.sync_data() {
            // A pipe or a terminal has no disk behind it.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            other => Ok(other?),
        }
    }

    fn append(&mut self) -> Result<(), WriteError> {
        match self.file.write_all(&self.buffer) {
            Ok(()) => {
                self.whole = self.whole.map(|whole| whole + self.buffer.len() as u64);
                Ok(())
            }
            Err(error) => {
                self.broken = !self.cut_back();
                Err(error.into())
            }
        }
    }

    /// Removes what a failed write left after the last complete segment.
    fn cut_back(&mut self) -> bool {
        let Some(whole) = self.whole else {
            return false;
        };
        self.file.set_len(whole).is_ok() && self.file.seek(SeekFrom::Start(whole)).is_ok()
    }
}
