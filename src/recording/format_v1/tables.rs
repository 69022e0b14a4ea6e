//! Columns of threads, code objects, symbols and `nn.Module`s; of values of counter tracks and
//! readings of counters.

use super::column::{ColumnReader, ColumnWriter, Corrupt};
use super::columns::{MAX_ROWS, Number, coding, column_of, columns, count_of};
use crate::model::code::CodeInfo;
use crate::model::module::SymbolInfo;
use crate::model::nn_module::NnModuleInfo;
use crate::model::process::ThreadInfo;
use crate::model::progress::ProgressPoint;
use crate::model::track::TrackPoint;
use serde::{Deserialize, Serialize};

/// Most threads of a segment.
const MAX_THREADS: usize = 1 << 18;

columns! {
    ThreadColumns of ThreadInfo, at most MAX_THREADS, given segment_end_ns;
    process: delta,
    tid: delta,
    start_ticks: delta,
    name: text,
    is_python: plain,
    first_seen_ns: delta,
    last_seen_ns: near(segment_end_ns),
}

columns! {
    CodeColumns of CodeInfo, at most MAX_ROWS;
    name: text,
    file: text,
    first_line: delta,
    version: plain,
    content_hash: fixed,
}

columns! {
    /// Smallest where they are sorted by module and start.
    SymbolColumns of SymbolInfo, at most MAX_ROWS;
    module: delta,
    start: delta,
    end: after(start),
    name: text,
}

columns! {
    NnModuleColumns of NnModuleInfo, at most MAX_ROWS;
    root: text,
    number: plain,
    path: text,
    class: text,
    training: plain,
}

columns! {
    /// From version 2 on.
    TrackColumns of TrackPoint, at most MAX_ROWS;
    track: delta,
    end_ns: delta,
    start_ns: before(end_ns),
    value: delta,
}

columns! {
    /// From version 2 on.
    ProgressColumns of ProgressPoint, at most MAX_ROWS;
    counter: delta,
    thread: delta,
    time_ns: delta,
    before_ns: before(time_ns),
    value: delta,
}
