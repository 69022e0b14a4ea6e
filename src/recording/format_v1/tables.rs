//! Columns of threads, code objects, symbols and `nn.Module`s.

use super::column::{
    ColumnReader, ColumnWriter, Corrupt, TextColumn, TextReader, TextWriter, row_count,
};
use crate::model::code::{CodeInfo, PythonVersion};
use crate::model::ids::{ModuleId, ProcessId, ThreadId};
use crate::model::module::SymbolInfo;
use crate::model::nn_module::NnModuleInfo;
use crate::model::process::ThreadInfo;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most threads of a segment.
const MAX_THREADS: usize = 1 << 18;

/// Most rows of other tables of a segment.
pub(super) const MAX_ROWS: usize = 1 << 20;

/// The number of `rows`, where that many fit in a segment.
pub(super) fn count_of(rows: usize, most: usize) -> Result<u32, Corrupt> {
    if rows > most {
        return Err(Corrupt("a table is too large"));
    }
    u32::try_from(rows).map_err(|_| Corrupt("a table is too large"))
}

/// [`ThreadInfo`]s in a file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ThreadColumns<C> {
    count: u32,
    process: C,
    tid: C,
    start_ticks: C,
    name: TextColumn<C>,
    is_python: C,
    first_seen: C,
    last_seen: C,
}

impl ThreadColumns<ColumnWriter> {
    pub(super) fn encode(
        threads: &BTreeMap<ThreadId, ThreadInfo>,
        segment_end_ns: u64,
    ) -> Result<Self, Corrupt> {
        let mut columns = Self {
            count: count_of(threads.len(), MAX_THREADS)?,
            ..Self::default()
        };
        let mut names = TextWriter::default();
        for thread in threads.values() {
            columns.process.put_delta(u64::from(thread.process.0));
            columns.tid.put_delta(i64::from(thread.tid) as u64);
            columns.start_ticks.put_delta(thread.start_ticks);
            names.put(&thread.name)?;
            columns.is_python.put(u64::from(thread.is_python));
            columns.first_seen.put_delta(thread.first_seen_ns);
            columns
                .last_seen
                .put_difference(thread.last_seen_ns, segment_end_ns);
        }
        columns.name = names.finish();
        Ok(columns)
    }
}

impl ThreadColumns<ColumnReader<'_>> {
    pub(super) fn decode(
        mut self,
        segment_end_ns: u64,
    ) -> Result<BTreeMap<ThreadId, ThreadInfo>, Corrupt> {
        let count = row_count(self.count, MAX_THREADS, &[&self.process, &self.tid])?;
        let mut names = TextReader::new(self.name);
        let mut threads = BTreeMap::new();
        for id in 0..count {
            let thread = ThreadInfo {
                process: ProcessId(self.process.get_delta_as()?),
                tid: i32::try_from(self.tid.get_delta()? as i64)
                    .map_err(|_| Corrupt("a number is out of range"))?,
                start_ticks: self.start_ticks.get_delta()?,
                name: names.get()?,
                is_python: self.is_python.get()? != 0,
                first_seen_ns: self.first_seen.get_delta()?,
                last_seen_ns: self.last_seen.get_difference(segment_end_ns)?,
            };
            threads.insert(ThreadId::from_index(id), thread);
        }
        Ok(threads)
    }
}

/// [`CodeInfo`]s in a file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct CodeColumns<C> {
    count: u32,
    name: TextColumn<C>,
    file: TextColumn<C>,
    first_line: C,
    version: C,
    content_hash: C,
}

impl CodeColumns<ColumnWriter> {
    pub(super) fn encode(codes: &[CodeInfo]) -> Result<Self, Corrupt> {
        let mut columns = Self {
            count: count_of(codes.len(), MAX_ROWS)?,
            ..Self::default()
        };
        let (mut names, mut files) = (TextWriter::default(), TextWriter::default());
        for code in codes {
            names.put(&code.name)?;
            files.put(&code.file)?;
            columns.first_line.put_delta(u64::from(code.first_line));
            let version = u64::from(code.version.major) << 8 | u64::from(code.version.minor);
            columns.version.put(version);
            columns.content_hash.put_fixed(code.content_hash);
        }
        columns.name = names.finish();
        columns.file = files.finish();
        Ok(columns)
    }
}

impl CodeColumns<ColumnReader<'_>> {
    pub(super) fn decode(mut self) -> Result<Vec<CodeInfo>, Corrupt> {
        let count = row_count(self.count, MAX_ROWS, &[&self.version, &self.content_hash])?;
        let (mut names, mut files) = (TextReader::new(self.name), TextReader::new(self.file));
        let mut codes = Vec::with_capacity(count);
        for _ in 0..count {
            let version: u16 = self.version.get_as()?;
            let [major, minor] = version.to_be_bytes();
            codes.push(CodeInfo {
                name: names.get()?,
                file: files.get()?,
                first_line: self.first_line.get_delta_as()?,
                version: PythonVersion::new(major, minor),
                content_hash: self.content_hash.get_fixed()?,
            });
        }
        Ok(codes)
    }
}

/// [`SymbolInfo`]s in a file: smallest where they are sorted by module and start.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct SymbolColumns<C> {
    count: u32,
    module: C,
    start: C,
    size: C,
    name: TextColumn<C>,
}

impl SymbolColumns<ColumnWriter> {
    pub(super) fn encode(symbols: &[SymbolInfo]) -> Result<Self, Corrupt> {
        let mut columns = Self {
            count: count_of(symbols.len(), MAX_ROWS)?,
            ..Self::default()
        };
        let mut names = TextWriter::default();
        for symbol in symbols {
            columns.module.put_delta(u64::from(symbol.module.0));
            columns.start.put_delta(symbol.start);
            columns.size.put(symbol.end.saturating_sub(symbol.start));
            names.put(&symbol.name)?;
        }
        columns.name = names.finish();
        Ok(columns)
    }
}

impl SymbolColumns<ColumnReader<'_>> {
    pub(super) fn decode(mut self) -> Result<Vec<SymbolInfo>, Corrupt> {
        let count = row_count(
            self.count,
            MAX_ROWS,
            &[&self.module, &self.start, &self.size],
        )?;
        let mut names = TextReader::new(self.name);
        let mut symbols = Vec::with_capacity(count);
        for _ in 0..count {
            let module = ModuleId(self.module.get_delta_as()?);
            let start = self.start.get_delta()?;
            symbols.push(SymbolInfo {
                module,
                start,
                end: start
                    .checked_add(self.size.get()?)
                    .ok_or(Corrupt("a symbol ends past the last address"))?,
                name: names.get()?,
            });
        }
        Ok(symbols)
    }
}

/// [`NnModuleInfo`]s in a file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct NnModuleColumns<C> {
    count: u32,
    root: TextColumn<C>,
    number: C,
    path: TextColumn<C>,
    class: TextColumn<C>,
    /// 0 not read, 1 false, 2 true.
    training: C,
}

impl NnModuleColumns<ColumnWriter> {
    pub(super) fn encode(modules: &[NnModuleInfo]) -> Result<Self, Corrupt> {
        let mut columns = Self {
            count: count_of(modules.len(), MAX_ROWS)?,
            ..Self::default()
        };
        let (mut roots, mut paths) = (TextWriter::default(), TextWriter::default());
        let mut classes = TextWriter::default();
        for module in modules {
            roots.put(&module.root)?;
            columns.number.put(u64::from(module.number));
            paths.put(&module.path)?;
            classes.put(&module.class)?;
            let training = module
                .training
                .map_or(0, |training| 1 + u64::from(training));
            columns.training.put(training);
        }
        columns.root = roots.finish();
        columns.path = paths.finish();
        columns.class = classes.finish();
        Ok(columns)
    }
}

impl NnModuleColumns<ColumnReader<'_>> {
    pub(super) fn decode(mut self) -> Result<Vec<NnModuleInfo>, Corrupt> {
        let count = row_count(self.count, MAX_ROWS, &[&self.number, &self.training])?;
        let (mut roots, mut paths) = (TextReader::new(self.root), TextReader::new(self.path));
        let mut classes = TextReader::new(self.class);
        let mut modules = Vec::with_capacity(count);
        for _ in 0..count {
            modules.push(NnModuleInfo {
                root: roots.get()?,
                number: self.number.get_as()?,
                path: paths.get()?,
                class: classes.get()?,
                training: match self.training.get()? {
                    0 => None,
                    1 => Some(false),
                    2 => Some(true),
                    _ => return Err(Corrupt("an unknown code")),
                },
            });
        }
        Ok(modules)
    }
}
