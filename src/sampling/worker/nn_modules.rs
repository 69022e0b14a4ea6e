//! Which modules' calls the Python frames of a sample are.

use super::{Scratch, Worker};
use crate::model::code::CodeInfo;
use crate::model::frame::Frame;
use crate::model::ids::{CodeId, NnModuleId};
use crate::model::nn_module::NnModuleInfo;
use crate::recording::compact::SessionTables;
use crate::sampling::raw::RawSample;
use crate::torch::probe::ProbeFrame;
use crate::torch::rules::modules::{ModuleCall, module_call};
use rustc_hash::FxHashMap;

/// Modules of a session past which no new one is told apart.
const MAX_MODULES: usize = 1 << 18;

/// What the worker knows of modules over all processes.
#[derive(Default)]
pub(super) struct NnModuleCalls {
    /// By [`CodeId`].
    calls: Vec<ModuleCall>,
    ids: FxHashMap<NnModuleInfo, NnModuleId>,
    frames: Vec<ProbeFrame>,
    found: Vec<(usize, NnModuleId)>,
}

impl NnModuleCalls {
    /// How the code object takes part in calling a module.
    fn call(&mut self, id: CodeId, codes: &[CodeInfo]) -> ModuleCall {
        for code in codes.get(self.calls.len()..).unwrap_or(&[]) {
            self.calls.push(module_call(&code.file, &code.name));
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
                Frame::Python { code, .. } => calls.call(code, &self.tables.codes),
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
            let (tables, ids) = (&mut self.tables, &mut calls.ids);
            probe.find(
                &calls.frames,
                is_whole,
                &image.memory,
                |info| nn_module_id(ids, tables, info),
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

fn nn_module_id(
    ids: &mut FxHashMap<NnModuleInfo, NnModuleId>,
    tables: &mut SessionTables,
    info: &NnModuleInfo,
) -> Option<NnModuleId> {
    if let Some(&id) = ids.get(info) {
        return Some(id);
    }
    if ids.len() >= MAX_MODULES {
        return None;
    }
    let id = NnModuleId::from_index(tables.nn_modules.len());
    tables.nn_modules.push(info.clone());
    ids.insert(info.clone(), id);
    Some(id)
}
