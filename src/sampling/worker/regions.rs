//! Which named blocks of the source a Python frame is in.

use super::Worker;
use crate::model::code::{CodeInfo, RegionKind};
use crate::model::frame::Frame;
use crate::model::ids::{CodeId, ProcessId};
use crate::os::clock::wall_ns;
use crate::sampling::keeper::age_ns;
use crate::sampling::source_reader::SourceReader;
use std::sync::Arc;

/// The blocks of the source files and of the code objects that were seen.
#[derive(Default)]
pub(super) struct Regions {
    files: SourceReader,
    /// By code object; `None` where its file was not read yet.
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
        let Some(info) = self.tables.processes.get(process.index()) else {
            return;
        };
        let began_ns = wall_ns().saturating_sub(age_ns(info.start_ticks));
        // Code that was compiled from text has a name in brackets, not a file.
        let of_file = match code.file.starts_with('<') {
            true => Some(Arc::default()),
            false => self.regions.files.regions(info.pid, &code.file, began_ns),
        };
        let Some(of_file) = of_file else {
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
}
