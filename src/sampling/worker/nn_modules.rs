//! Which modules' calls the Python frames of a sample are.

use super::{Scratch, Worker};
use crate::model::code::CodeInfo;
use crate::model::frame::Frame;
use crate::model::ids::{CodeId, NnModuleId};
use crate::sampling::raw::RawSample;
use crate::torch::probe::ProbeFrame;
use crate::torch::rules::{ModuleCall, RuleSet};

/// Modules of a session past which no new one is told apart.
const MAX_MODULES: usize = 1 << 18;

/// What the worker knows of modules over all processes.
#[derive(Default)]
pub(super) struct NnModuleCalls {
    /// By [`CodeId`].
    calls: Vec<ModuleCall>,
    frames: Vec<ProbeFrame>,
    found: Vec<(usize, NnModuleId)>,
}

impl NnModuleCalls {
    /// How the code object takes part in calling a module.
    pub(super) fn call(&mut self, id: CodeId, codes: &[CodeInfo], rules: &RuleSet) -> ModuleCall {
        for code in codes.get(self.calls.len()..).unwrap_or(&[]) {
            self.calls
                .push(rules.python(&code.file, &code.name).module_call);
        }
        self.calls.get(id.index()).copied().unwrap_or_default()
    }
}

impl Worker {
    /// Puts the frames of `scratch.python` into `scratch.marked`, run by run, and behind each call of a module, towards the root,
    /// which module it is; behind each of the compiler what code it compiles. Frames are missing where `is_whole` is false.
    pub(super) fn mark_nn_modules(
        &mut self,
        raw: &RawSample,
        is_whole: bool,
        scratch: &mut Scratch,
    ) {
        let mut calls = std::mem::take(&mut self.calls);
        calls.found.clear();
        calls.frames.clear();
        let mut has_calls = false;
        for (frame, named) in raw.python.frames.iter().zip(&scratch.python) {
            let call = match *named {
                Frame::Python { code, .. } => calls.call(code, &self.tables.codes, self.rules),
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
                is_whole,
                &image.memory,
                |info| known.intern_below(MAX_MODULES, info),
                &mut calls.found,
            );
        }
        scratch.marked.clear();
        scratch.runs.clear();
        // Found outermost first: the last is the nearest to the leaf, where the frames begin.
        let mut found = calls.found.iter().rev().peekable();
        for run in &raw.python.runs {
            let start = scratch.marked.len();
            for index in run.range() {
                scratch.marked.extend(scratch.python.get(index));
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
    }
}
