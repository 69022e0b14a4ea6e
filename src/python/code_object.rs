//! Code objects: read once, kept, and checked at every use.

use super::cells::Cells;
use super::code_fields::Identity;
use super::discover::Interpreter;
use super::frames::PythonFrame;
use super::layout::{Layout, MAX_CODE};
use super::line_table::{self, LineRange};
use super::objects::{ObjectError, read_bytes_length, read_bytes_object, read_str, u32_at, u64_at};
use crate::memory::{Memory, ReadError, ReadRequest};
use crate::model::code::{CodeInfo, PythonVersion};
use crate::model::frame::Frame;
use crate::model::ids::CodeId;
use rustc_hash::FxHashMap;
use std::cell::OnceCell;

/// Maximum bytes of a name or a path.
const MAX_STRING: usize = 4096;
/// Maximum bytes of a line table.
const MAX_LINE_TABLE: usize = 1 << 20;
/// Maximum number of code objects per process; above it, those not seen for longest are dropped.
const MAX_ENTRIES: usize = 16_384;
/// Maximum bytes of line tables per process.
const MAX_TABLE_BYTES: usize = 32 << 20;

/// Why a code object could not be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    #[error(transparent)]
    Read(#[from] ReadError),
    /// There is no code object at this address any more.
    #[error("no code object there")]
    Gone,
}

impl From<ObjectError> for CodeError {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Read(error) => CodeError::Read(error),
            ObjectError::Invalid | ObjectError::TooLong => CodeError::Gone,
        }
    }
}

#[derive(Clone, Debug)]
pub struct CachedCode {
    /// Name, file and line table.
    pub info: CodeInfo,
    /// The id that the caller of [`CodeCache::resolve`] gave it.
    pub id: CodeId,
    /// Whether it is one of the interpreter's own trampolines, whose frames no Python tool shows.
    pub is_shim: bool,
    line_table: Vec<u8>,
    lines: OnceCell<Vec<LineRange>>,
}

impl CachedCode {
    /// The line of an instruction, equal to Python's own `f_lineno`; 0 if the table has none.
    pub fn line(&self, instruction: u32) -> u32 {
        if instruction == Frame::NO_INSTRUCTION {
            return self.info.first_line;
        }
        let lines = self.lines.get_or_init(|| {
            let mut lines: Vec<LineRange> = Vec::new();
            for range in
                line_table::ranges(self.info.version, &self.line_table, self.info.first_line)
            {
                match lines.last_mut() {
                    Some(last) if last.line == range.line => last.end = range.end,
                    _ => lines.push(range),
                }
            }
            lines
        });
        let index = lines.partition_point(|range| range.end <= instruction);
        lines.get(index).and_then(|range| range.line).unwrap_or(0)
    }
}

#[derive(Debug)]
struct Entry {
    identity: Box<[u8]>,
    code: Result<CachedCode, CodeError>,
    round: u64,
}

/// The code objects of one process, by address.
#[derive(Debug)]
pub struct CodeCache {
    layout: Layout,
    code_type: Option<u64>,
    identity: Identity,
    cells: Cells,
    entries: FxHashMap<u64, Entry>,
    table_bytes: usize,
    round: u64,
    scratch: Vec<u8>,
}

impl CodeCache {
    /// An empty cache for a process with this interpreter.
    pub fn new(interpreter: &Interpreter) -> Self {
        Self {
            layout: interpreter.layout,
            code_type: interpreter.code_type,
            identity: Identity::of(&interpreter.layout),
            cells: Cells::new(&interpreter.layout),
            entries: FxHashMap::default(),
            table_bytes: 0,
            round: 0,
            scratch: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Updates the cache for these code objects, which may repeat: all known ones are checked with
    /// one vectored read; a new one, or one whose address was reused, is read, and `on_new` returns
    /// its id. [`CodeCache::get`] is then valid for each until the next call.
    pub fn resolve(
        &mut self,
        addresses: &[u64],
        memory: &dyn Memory,
        on_new: impl FnMut(&CodeInfo) -> CodeId,
    ) {
        self.update_all(addresses.to_vec(), &|_| None, memory, on_new);
    }

    /// [`CodeCache::resolve`] for the code of these frames, of which `copied` may contain earlier
    /// copies. A notebook's cells are named by their numbers.
    pub fn resolve_frames(
        &mut self,
        frames: &[PythonFrame],
        copied: &dyn Memory,
        memory: &dyn Memory,
        on_new: impl FnMut(&CodeInfo) -> CodeId,
    ) {
        let globals = u64::from(self.layout.objects.frame_globals);
        let addresses = frames.iter().map(|frame| frame.code_address).collect();
        let globals_of = |code: u64| {
            let frame = frames.iter().find(|frame| frame.code_address == code)?;
            let place = frame.frame_address.wrapping_add(globals);
            let copied = copied.read_u64(place);
            copied.or_else(|_| memory.read_u64(place)).ok()
        };
        self.update_all(addresses, &globals_of, memory, on_new);
    }

    fn update_all(
        &mut self,
        mut seen: Vec<u64>,
        globals_of: &dyn Fn(u64) -> Option<u64>,
        memory: &dyn Memory,
        mut on_new: impl FnMut(&CodeInfo) -> CodeId,
    ) {
        self.round += 1;
        seen.sort_unstable();
        seen.dedup();
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.resize(seen.len() * self.identity.length, 0);
        let mut requests: Vec<_> = seen
            .iter()
            .zip(scratch.chunks_exact_mut(self.identity.length))
            .map(|(&address, buffer)| ReadRequest {
                address: self.identity.address(address),
                buffer,
                result: Ok(()),
            })
            .collect();
        memory.read_many(&mut requests);
        for (&address, request) in seen.iter().zip(&requests) {
            self.update(address, request, globals_of, memory, &mut on_new);
        }
        self.scratch = scratch;
        self.evict();
    }

    /// The code object at an address of the last [`CodeCache::resolve`].
    ///
    /// # Errors
    /// [`CodeError`] if it could not be read, or was not among them.
    pub fn get(&self, address: u64) -> Result<&CachedCode, CodeError> {
        let entry = self.entries.get(&address).ok_or(CodeError::Gone)?;
        entry.code.as_ref().map_err(|error| *error)
    }

    fn update(
        &mut self,
        address: u64,
        request: &ReadRequest<'_>,
        globals_of: &dyn Fn(u64) -> Option<u64>,
        memory: &dyn Memory,
        on_new: &mut impl FnMut(&CodeInfo) -> CodeId,
    ) {
        if let Some(entry) = self.entries.get_mut(&address)
            && request.result.is_ok()
            && *entry.identity == *request.buffer
            && entry.code.is_ok()
        {
            entry.round = self.round;
            return;
        }
        let code = match request.result {
            Ok(()) => self.read(address, request.buffer, memory).map(|mut code| {
                let file = std::mem::take(&mut code.info.file);
                code.info.file = self.cells.name(file, || globals_of(address), memory);
                code.id = on_new(&code.info);
                code
            }),
            Err(error) => Err(error.into()),
        };
        self.table_bytes += code.as_ref().map_or(0, |code| code.line_table.len());
        let entry = Entry {
            identity: request.buffer.to_vec().into_boxed_slice(),
            code,
            round: self.round,
        };
        if let Some(old) = self.entries.insert(address, entry) {
            self.table_bytes -= old.code.map_or(0, |code| code.line_table.len());
        }
    }

    fn read(
        &self,
        address: u64,
        identity: &[u8],
        memory: &dyn Memory,
    ) -> Result<CachedCode, CodeError> {
        let layout = &self.layout;
        let object_type =
            memory.read_u64(address.wrapping_add(layout.objects.type_offset().into()))?;
        if self
            .code_type
            .is_some_and(|code_type| code_type != object_type)
        {
            return Err(CodeError::Gone);
        }
        let field = |offset: u32| u64_at(identity, offset - self.identity.start);
        let first_line = u32_at(identity, layout.code.first_line - self.identity.start);
        let line_table = read_bytes_object(
            layout,
            field(layout.code.line_table),
            MAX_LINE_TABLE,
            memory,
        )?;
        let code_length = self.read_code_length(address, memory)?;
        let file = read_str(layout, field(layout.code.file), MAX_STRING, memory)?;
        let info = CodeInfo {
            name: read_str(layout, field(layout.code.name), MAX_STRING, memory)?,
            file,
            first_line,
            version: layout.version,
            content_hash: content_hash(code_length, &line_table),
        };
        // Freed during the read? Then another object is there now.
        let mut again = [0; MAX_CODE as usize];
        let again = again.get_mut(..identity.len()).ok_or(CodeError::Gone)?;
        memory.read_exact(self.identity.address(address), again)?;
        if again != identity {
            return Err(CodeError::Gone);
        }
        Ok(CachedCode {
            is_shim: is_shim(&info),
            info,
            id: CodeId(0),
            line_table,
            lines: OnceCell::new(),
        })
    }

    /// The bytecode's length: in code units from 3.11 on (`ob_size`), in bytes before (that of
    /// `co_code`).
    fn read_code_length(&self, address: u64, memory: &dyn Memory) -> Result<u64, CodeError> {
        let layout = &self.layout;
        let sized = match layout.chain {
            super::layout::FrameChain::Objects { .. } => {
                memory.read_u64(address.wrapping_add(layout.code.bytecode.into()))?
            }
            _ => address,
        };
        Ok(read_bytes_length(layout, sized, memory)?)
    }

    /// Bounds the cache: what was not seen for longest is dropped.
    fn evict(&mut self) {
        let mut keep = 1_000;
        while self.entries.len() > MAX_ENTRIES || self.table_bytes > MAX_TABLE_BYTES {
            let (round, mut freed) = (self.round, 0);
            self.entries.retain(|_, entry| {
                let stays = entry.round + keep > round;
                if !stays {
                    freed += entry.code.as_ref().map_or(0, |code| code.line_table.len());
                }
                stays
            });
            self.table_bytes -= freed;
            if keep <= 1 {
                break;
            }
            keep /= 10;
        }
    }
}

/// The interpreter's own code: an evaluation's shim (3.12 on), and the trampoline that `__init__`
/// returns to (3.13 on; `_Py_InitCleanup` in Python/specialize.c, which is called `__init__` in a
/// file called `__init__`).
fn is_shim(info: &CodeInfo) -> bool {
    let trampoline = info.version >= PythonVersion::new(3, 13)
        && info.name == "__init__"
        && info.file == "__init__";
    let nameless = info.file.is_empty() && info.name.is_empty();
    trampoline || nameless || info.file == "<shim>"
}

/// FNV-1a: the same on every machine and in every release, as recordings need it.
fn content_hash(code_length: u64, line_table: &[u8]) -> u64 {
    let length = code_length.to_le_bytes();
    length
        .iter()
        .chain(line_table)
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}
