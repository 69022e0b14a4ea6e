//! The recording file: writing, reading, and its text form.
//!
//! A file is a version header, the facts of the run, and then one self-contained segment after
//! another ([`crate::model::segment::Segment`]), each with its own checksum: what was written stays
//! readable whatever happens later.

mod compact;
mod container;
mod format_v1;
mod gaps;
mod merge;
pub mod reader;
mod remap;
pub mod text;
pub mod writer;

pub use compact::segment_of;
pub use merge::recording_of;
pub use reader::{OpenError, Piece, Recording, SymbolTable};
pub use text::{InspectOptions, render_text};
pub use writer::{RecordingWriter, WriteError};
