//! Which code a compiler's frames are at work on.

use super::{Scratch, Worker};
use crate::memory::Memory;
use crate::model::code::CodeInfo;
use crate::model::frame::Frame;
use crate::model::ids::CodeId;
use crate::python::layout::objects::CELL_CONTENTS;
use crate::sampling::raw::RawSample;
use crate::torch::rules::RuleSet;

/// Compilations within one another that are followed. Torch itself never nests them.
const MAX_NESTED: usize = 8;

/// Which code objects are functions of a compiler that are given the code to compile, by [`CodeId`].
#[derive(Default)]
pub(super) struct Compilers(Vec<bool>);

impl Compilers {
    pub(super) fn takes_code(&mut self, id: CodeId, codes: &[CodeInfo], rules: &RuleSet) -> bool {
        for code in codes.get(self.0.len()..).unwrap_or(&[]) {
            self.0.push(rules.python(&code.file, &code.name).takes_code);
        }
        self.0.get(id.index()).copied().unwrap_or_default()
    }
}

impl Worker {
    /// Puts into `scratch.compiled` which of the frames in `scratch.python` were given code to compile, and which code.
    pub(super) fn find_compiled(&mut self, raw: &RawSample, scratch: &mut Scratch) {
        scratch.compiled.clear();
        for (index, named) in scratch.python.iter().enumerate() {
            let Frame::Python { code, .. } = *named else {
                continue;
            };
            let codes = &self.tables.codes;
            if !self.compilers.takes_code(code, codes, self.rules) {
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

    /// The code object at `object`, or in the cell there. It lives as long as the compiler's frame does, which may have ended since.
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
