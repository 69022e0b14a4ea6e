//! Which code objects the frames of a compiler are compiling.

use super::{Scratch, Worker};
use crate::memory::Memory;
use crate::model::frame::Frame;
use crate::model::ids::CodeId;
use crate::python::layout::objects::CELL_CONTENTS;
use crate::sampling::raw::RawSample;

/// Maximum depth of nested compilations. Torch itself never nests them.
const MAX_NESTED: usize = 8;

impl Worker {
    /// Finds the frames in `scratch.python` that were called with code to compile, and that code;
    /// writes both to `scratch.compiled`.
    pub(super) fn find_compiled(&mut self, raw: &RawSample, scratch: &mut Scratch) {
        scratch.compiled.clear();
        for (index, named) in scratch.python.iter().enumerate() {
            let Frame::Python { code, .. } = *named else {
                continue;
            };
            if !self.code_rules.of(code, &self.tables.codes).takes_code {
                continue;
            }
            let subject = raw.python.frames.get(index).map(|frame| frame.first_local);
            if let Some(subject) = subject.filter(|&object| object != 0)
                && let Some(compiled) = self.subject(raw, subject)
            {
                scratch.compiled.push((index, compiled));
            }
            if scratch.compiled.len() >= MAX_NESTED {
                return;
            }
        }
    }

    /// The code object at `object`, or in the cell there. It lives as long as the compiler's frame,
    /// which may have ended since the capture.
    fn subject(&mut self, raw: &RawSample, object: u64) -> Option<CodeId> {
        let image = self.images.get_mut(&raw.process)?;
        let codes = image.codes.as_mut()?;
        let content = image
            .memory
            .read_u64(object.wrapping_add(CELL_CONTENTS.into()));
        let known = &mut self.tables.codes;
        [Some(object), content.ok()]
            .into_iter()
            .flatten()
            .filter(|address| *address != 0 && address.is_multiple_of(8))
            .find_map(|address| {
                codes.resolve(&[address], &image.memory, |info| known.intern(info));
                codes.get(address).ok().map(|code| code.id)
            })
    }
}
