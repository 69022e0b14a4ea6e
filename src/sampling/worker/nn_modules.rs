//! Which Python frames of a sample are calls of modules.

use super::{Scratch, Worker};
use crate::model::frame::Frame;
use crate::model::ids::NnModuleId;
use crate::sampling::raw::RawSample;
use crate::torch::probe::ProbeFrame;
use crate::torch::rules::ModuleCall;

/// Maximum number of modules per session; further modules get no id of their own.
const MAX_MODULES: usize = 1 << 18;

/// What the worker knows of modules over all processes.
#[derive(Default)]
pub(super) struct NnModuleCalls {
    frames: Vec<ProbeFrame>,
    found: Vec<(usize, NnModuleId)>,
}

impl Worker {
    /// Copies the frames of `scratch.python` to `scratch.marked`, run by run. Before each frame it
    /// adds the named blocks that the frame is in; after each call of a module, towards the root,
    /// it adds the module; after each frame of a compiler, the code that is compiled. Frames are
    /// missing where `is_complete` is false. Returns whether there may be calls of modules.
    pub(super) fn mark_nn_modules(
        &mut self,
        raw: &RawSample,
        is_complete: bool,
        scratch: &mut Scratch,
    ) -> bool {
        let mut calls = std::mem::take(&mut self.calls);
        calls.found.clear();
        calls.frames.clear();
        let mut has_calls = false;
        for (frame, named) in raw.python.frames.iter().zip(&scratch.python) {
            let call = match *named {
                Frame::Python { code, .. } => {
                    self.code_rules.of(code, &self.tables.codes).module_call
                }
                _ => ModuleCall::No,
            };
            has_calls |= call != ModuleCall::No;
            calls.frames.push(ProbeFrame {
                first_local: frame.first_local,
                call,
            });
        }
        if has_calls
            && let Some(image) = self.images.get_mut(&raw.process)
            && let Some(probe) = image.nn_modules.as_mut()
        {
            let known = &mut self.tables.nn_modules;
            probe.find(
                &calls.frames,
                is_complete,
                &image.memory,
                |info| known.intern_below(MAX_MODULES, info),
                &mut calls.found,
            );
        }
        scratch.marked.clear();
        scratch.runs.clear();
        // Calls were found from the root on; runs begin at the leaf.
        let mut found = calls.found.iter().rev().peekable();
        for run in &raw.python.runs {
            let start = scratch.marked.len();
            for index in run.range() {
                if let Some(&frame) = scratch.python.get(index) {
                    self.push_regions(raw.process, frame, &mut scratch.marked);
                    scratch.marked.push(frame);
                }
                if let Some(&&(_, id)) = found.peek().filter(|(at, _)| *at == index) {
                    scratch.marked.push(Frame::NnModule(id));
                    found.next();
                }
                let compiled = scratch.compiled.iter().find(|(at, _)| *at == index);
                scratch
                    .marked
                    .extend(compiled.map(|&(_, code)| Frame::Compiles(code)));
            }
            scratch.runs.push(start..scratch.marked.len());
        }
        self.calls = calls;
        has_calls
    }
}
