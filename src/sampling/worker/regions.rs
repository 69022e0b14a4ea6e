//! Which named blocks of the source a Python frame is in.

use super::Worker;
use crate::memory::Bytes;
use crate::model::code::{CodeInfo, RegionKind};
use crate::model::frame::Frame;
use crate::model::ids::{CodeId, ProcessId};
use crate::os::clock::wall_ns;
use crate::os::elf_file::ElfFile;
use crate::python::source_regions::{MAX_SOURCE, SourceRegion, source_regions};
use crate::sampling::keeper::age_ns;
use rustc_hash::FxHashMap;
use std::path::Path;
use std::sync::Arc;

/// The blocks of the source files and of the code objects that were seen.
#[derive(Default)]
pub(super) struct Regions {
    files: FxHashMap<String, Arc<[SourceRegion]>>,
    /// By code object; `None` where its file was not looked at yet.
    codes: Vec<Option<Box<[Block]>>>,
}

/// Of a code object: lines, and what stands for the block in stacks.
struct Block {
    lines: (u32, u32),
    id: CodeId,
}

impl Worker {
    /// Adds the blocks that `frame` is in to `out`, the innermost first, as frames of the same
    /// line.
    pub(super) fn push_regions(&mut self, process: ProcessId, frame: Frame, out: &mut Vec<Frame>) {
        let Frame::Python { code, line, .. } = frame else {
            return;
        };
        if !matches!(self.regions.codes.get(code.index()), Some(Some(_))) {
            self.find_regions(process, code);
        }
        let Some(Some(blocks)) = self.regions.codes.get(code.index()) else {
            return;
        };
        let around = blocks
            .iter()
            .filter(|block| (block.lines.0..=block.lines.1).contains(&line));
        out.extend(around.rev().map(|block| Frame::Python {
            code: block.id,
            instruction: Frame::NO_INSTRUCTION,
            line,
        }));
    }

    fn find_regions(&mut self, process: ProcessId, id: CodeId) {
        let Some(code) = self.tables.codes.get(id.index()).cloned() else {
            return;
        };
        let Some(of_file) = self.regions_of_file(process, &code.file) else {
            return;
        };
        let is_module = code.name == "<module>";
        let own = of_file
            .iter()
            .filter(|region| region.is_in(code.first_line, is_module));
        let blocks = own
            .map(|region| Block {
                lines: region.lines,
                id: self.tables.codes.intern(&CodeInfo {
                    name: region.name.clone(),
                    first_line: region.lines.0,
                    content_hash: match region.is_ours {
                        true => RegionKind::Own,
                        false => RegionKind::Torch,
                    } as u64,
                    ..code.clone()
                }),
            })
            .collect();
        let codes = &mut self.regions.codes;
        if codes.len() <= id.index() {
            codes.resize_with(id.index() + 1, || None);
        }
        if let Some(found) = codes.get_mut(id.index()) {
            *found = Some(blocks);
        }
    }

    /// The blocks of a source file: none if it changed since the process began, for its lines are
    /// then not those that run. `None` if the process has gone.
    fn regions_of_file(&mut self, process: ProcessId, file: &str) -> Option<Arc<[SourceRegion]>> {
        if let Some(known) = self.regions.files.get(file) {
            return Some(known.clone());
        }
        let info = self.tables.processes.get(process.index())?;
        let began_ns = wall_ns().saturating_sub(age_ns(info.start_ticks));
        // Code that was compiled from text has a name in brackets, not a file.
        let source = match file.starts_with('<') {
            true => None,
            false => source(info.pid, file, began_ns),
        };
        if source.is_none() && !Path::new(&format!("/proc/{}", info.pid)).exists() {
            return None;
        }
        let found: Arc<[SourceRegion]> = source
            .map_or_else(Vec::new, |source| source_regions(&source))
            .into();
        self.regions.files.insert(file.to_owned(), found.clone());
        Some(found)
    }
}

/// The text of a source file as the process sees it, unless it changed after `began_ns` (wall
/// clock).
fn source(pid: i32, file: &str, began_ns: u64) -> Option<String> {
    let path = match file.starts_with('/') {
        true => file.to_owned(),
        false => {
            let folder = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
            folder.join(file).to_str()?.to_owned()
        }
    };
    let file = ElfFile::open(pid, &path).ok()?;
    if file.size() > MAX_SOURCE || file.changed_ns() > began_ns {
        return None;
    }
    let text = file.copy(0..file.size())?;
    Some(String::from_utf8_lossy(&text).into_owned())
}
