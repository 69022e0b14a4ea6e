//! From a capture to an interned stack: unwinding, code objects, merging.

use super::{Scratch, Worker};
use crate::memory::{LayeredMemory, Memory};
use crate::model::code::CodeInfo;
use crate::model::depth::{keep_ends, keep_leaf};
use crate::model::frame::{Frame, Partial, Trust};
use crate::model::ids::{CodeId, ModuleId};
use crate::model::module::ModuleInfo;
use crate::model::sample::Sample;
use crate::model::tables::Tables;
use crate::native::modules::Module;
use crate::native::unwind::{NativeFrame, UnwindEnd};
use crate::os::clock::monotonic_ns;
use crate::sampling::footprint::Footprint;
use crate::sampling::merge::{Run, merge};
use crate::sampling::raw::{NamedStack, RawSample};
use crate::sampling::symbol_loader::SymbolLoader;
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Worker {
    pub(super) fn take_sample(&mut self, raw: &RawSample) {
        if let Some(why) = raw.failure {
            let stack = self.take_missing(raw.recorded.thread, why);
            self.push(raw.recorded, stack);
            return;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let (native_end, refreshed) = self.unwind(raw, &mut scratch);
        if refreshed {
            self.note_libraries(raw.process);
        }
        let native_partial = match native_end {
            Some(UnwindEnd::Partial(why)) => Some(why),
            Some(UnwindEnd::Root) | None => None,
        };
        let lacked_register = self
            .images
            .get(&raw.process)
            .is_some_and(|image| image.unwinder.lacked_register());
        publish_needs(raw, &scratch.native, native_end, lacked_register);
        let lost_code = self.name_python(raw, &mut scratch);
        let pending = self.lacks_interpreter(raw);
        let lacks_leaf = raw.python.leaf_is_unfilled && !self.has_just_begun(raw, &scratch.native);
        let python_partial = raw
            .python_partial
            .or(lacks_leaf.then_some(Partial::PythonUnreadable))
            .or(lost_code.then_some(Partial::CodeGone))
            .or(pending.then_some(Partial::PythonPending));
        let mut runs = Vec::with_capacity(raw.python.runs.len());
        self.find_compiled(raw, &mut scratch);
        let has_calls = self.mark_nn_modules(raw, python_partial.is_none(), &mut scratch);
        let trains = self.take_progress(raw, &scratch);
        let mut ending = ending_evaluation(raw, &scratch.native);
        for (run, range) in raw.python.runs.iter().zip(&scratch.runs) {
            let frames = scratch.marked.get(range.clone()).unwrap_or(&[]);
            runs.push(Run {
                stack_address: run.stack_address.or(ending.take()),
                frames,
            });
        }
        merge(
            &scratch.recorded,
            native_partial,
            &runs,
            python_partial,
            &mut scratch.merged,
        );
        scratch.merged.retain(|frame| *frame != SHIM);
        let counts = |frame: &Frame| matches!(frame, Frame::Python { .. });
        match scratch.merged.as_slice() {
            // The native stack ended early and the Python stack did not: its root is this stack's
            // root, whatever is missing in between.
            [Frame::Truncated(_), Frame::Python { .. }, ..] if python_partial.is_none() => {
                keep_ends(&mut scratch.merged, TOO_DEEP, counts);
            }
            [Frame::Truncated(_), ..] => keep_leaf(&mut scratch.merged, counts),
            _ => keep_ends(&mut scratch.merged, TOO_DEEP, counts),
        }
        let stack = self.tables.stacks.intern(scratch.merged.iter().copied());
        self.scratch = scratch;
        if !raw.python.frames.is_empty()
            && let Some(thread) = self.tables.threads.get_mut(&raw.recorded.thread)
        {
            thread.is_python = true;
        }
        self.last_stacks.insert(raw.recorded.thread, stack);
        self.push(raw.recorded, stack);
        // What else of a training thread is looked at with each sample, or found through other
        // memory, is not in the footprint.
        let looks_elsewhere = trains || has_calls || !self.scratch.compiled.is_empty();
        let is_guessed = |frame: &NativeFrame| frame.trust != Trust::Unwound;
        let is_whole = native_partial.is_none() && python_partial.is_none() && !lacked_register;
        let is_whole = is_whole && !self.scratch.native.iter().any(is_guessed);
        if is_whole && !looks_elsewhere {
            publish_footprint(raw, &self.scratch.native);
        }
    }

    /// Unwinds the native frames of a sample into the scratch; `None` where none were captured.
    /// Also returns whether modules changed.
    fn unwind(&mut self, raw: &RawSample, scratch: &mut Scratch) -> (Option<UnwindEnd>, bool) {
        scratch.native.clear();
        scratch.recorded.clear();
        let (Some(registers), Some(image)) = (&raw.registers, self.images.get_mut(&raw.process))
        else {
            return (None, false);
        };
        let mut end = image.unwinder.unwind(
            &image.modules,
            registers,
            &raw.snapshot,
            &mut scratch.native,
        );
        let mut changed = false;
        if image.unwinder.left_known_code() {
            // The address may be in code that was mapped since: the maps are read again, unless
            // that has just been done without finding it.
            changed = image.refresh(monotonic_ns());
            if changed {
                image.modules_changed();
                end = image.unwinder.unwind(
                    &image.modules,
                    registers,
                    &raw.snapshot,
                    &mut scratch.native,
                );
            }
        }
        if end == UnwindEnd::Partial(Partial::StackUnreadable)
            && left_its_stack(&scratch.native, raw.shared.roots.reach())
        {
            end = UnwindEnd::Partial(Partial::OtherStack);
        }
        for frame in &scratch.native {
            let known = frame.module.and_then(|index| image.modules.module(index));
            let (id, bias) = match known {
                Some((module, bias)) => (
                    module_id(
                        &mut self.module_ids,
                        &mut self.tables,
                        &mut self.symbols,
                        module,
                    ),
                    bias,
                ),
                None => (unknown_module(&mut self.module_ids, &mut self.tables), 0),
            };
            let address = frame
                .address
                .with_raw(frame.address.raw().wrapping_sub(bias));
            scratch.recorded.push((
                *frame,
                Frame::Native {
                    module: id,
                    address,
                    trust: frame.trust,
                },
            ));
        }
        (Some(end), changed)
    }

    /// Whether the leaf is at the beginning of its function.
    fn has_just_begun(&self, raw: &RawSample, native: &[NativeFrame]) -> bool {
        let offset = || {
            let image = self.images.get(&raw.process)?;
            let address = native.first()?.address.raw();
            image.unwinder.offset_in_function(&image.modules, address)
        };
        offset().is_some_and(|offset| offset < BEGINNING_BYTES)
    }

    /// Resolves the Python frames of a sample into the scratch, leaf first. Returns whether any
    /// code object was freed before it was read.
    fn name_python(&mut self, raw: &RawSample, scratch: &mut Scratch) -> bool {
        scratch.python.clear();
        if raw.python.frames.is_empty() {
            return false;
        }
        let Some(image) = self.images.get_mut(&raw.process) else {
            return true;
        };
        let Some(codes) = image.codes.as_mut() else {
            return true;
        };
        let known = &mut self.tables.codes;
        let memory = LayeredMemory::new(&raw.codes, &image.memory);
        codes.resolve_frames(&raw.python.frames, &raw.snapshot, &memory, |info| {
            known.intern(info)
        });
        let mut lost = false;
        for frame in &raw.python.frames {
            scratch.python.push(match codes.get(frame.code_address) {
                Ok(code) if code.is_shim => SHIM,
                Ok(code) => Frame::Python {
                    code: code.id,
                    instruction: frame.instruction,
                    line: code.line(frame.instruction),
                },
                Err(_) => {
                    lost = true;
                    SHIM
                }
            });
        }
        lost
    }

    pub(super) fn take_named(&mut self, span: Sample, stack: &NamedStack) {
        let mut frames = Vec::with_capacity(stack.frames.len());
        for (name, file, line) in stack.frames.iter().rev() {
            let info = CodeInfo {
                name: name.clone(),
                file: file.clone(),
                first_line: 0,
                version: stack.version,
                content_hash: 0,
            };
            let code = self.tables.codes.intern(&info);
            frames.push(Frame::Python {
                code,
                instruction: Frame::NO_INSTRUCTION,
                line: *line,
            });
        }
        if let Some(thread) = self.tables.threads.get_mut(&span.thread) {
            thread.is_python = true;
        }
        let stack = self.tables.stacks.intern(frames);
        self.push(span, stack);
    }
}

/// Replaces the frames that are omitted between both ends of a deep stack.
const TOO_DEEP: Frame = Frame::Truncated(Partial::TooDeep);

/// Replaces a frame that is not shown, so that positions in runs stay valid; removed when the stack
/// is interned.
const SHIM: Frame = Frame::Python {
    code: CodeId(u32::MAX),
    instruction: 0,
    line: 0,
};

/// An evaluation has filled in its `CFrame` this many bytes of code after its start: 104 in 3.11
/// and 174 in 3.12, as gcc builds them.
const BEGINNING_BYTES: u64 = 256;

/// Maximum size of an evaluation's own part of the stack, words: 50 in 3.10 as gcc builds it.
const MAX_EVALUATION_WORDS: usize = 512;

/// The `CFrame` of the leaf's evaluation if it was already unlinked because the evaluation is about
/// to end: it is still in memory and points to the next outer one. `None` if no word has that form;
/// the leaf is then not an evaluation.
fn ending_evaluation(raw: &RawSample, native: &[NativeFrame]) -> Option<u64> {
    let outer = raw.python.ending_inside?;
    let [leaf, caller, ..] = native else {
        return None;
    };
    (leaf.stack_pointer..caller.stack_pointer)
        .step_by(8)
        .take(MAX_EVALUATION_WORDS)
        .find(|&address| raw.snapshot.read_u64(address) == Ok(outer))
}

/// Whether unwinding left the stack that it began in.
fn left_its_stack(native: &[NativeFrame], reach: u64) -> bool {
    let (Some(leaf), Some(last)) = (native.first(), native.last()) else {
        return false;
    };
    // A stack pointer below the leaf's is outside, too: the difference wraps.
    last.stack_pointer.wrapping_sub(leaf.stack_pointer) > reach
}

/// Publishes to the tracer where the stack's root is, and whether a sleeper's registers are needed.
fn publish_needs(
    raw: &RawSample,
    native: &[NativeFrame],
    end: Option<UnwindEnd>,
    lacked_register: bool,
) {
    if end.is_some() && lacked_register {
        raw.shared
            .registers_wanted
            .store(raw.slices, Ordering::Relaxed);
    }
    match end {
        Some(UnwindEnd::Root) => {
            if let Some(root) = native.last() {
                // The root's own frame, and the few bytes above it that its unwind row may read.
                raw.shared
                    .roots
                    .learn(root.stack_pointer.saturating_add(256));
            }
        }
        // Unwinding needed more stack than was copied: the next capture copies the maximum. A
        // sleeper is captured again for it, once.
        Some(UnwindEnd::Partial(Partial::StackUnreadable)) if raw.shared.roots.deepen() => {
            raw.shared.stack_wanted.store(raw.slices, Ordering::Relaxed);
        }
        _ => {}
    }
}

/// Publishes to the tracer what a sleeper's stack was found in, if it has asked for it.
fn publish_footprint(raw: &RawSample, native: &[NativeFrame]) {
    let stack = || {
        let mut stack = FxHasher::default();
        for frame in native {
            (frame.address.raw(), frame.stack_pointer).hash(&mut stack);
        }
        for frame in &raw.python.frames {
            (frame.frame_address, frame.code_address, frame.instruction).hash(&mut stack);
        }
        stack.finish()
    };
    if let Some(footprint) = Footprint::of_stack(&raw.snapshot, &raw.codes, stack) {
        raw.shared.footprint.set(raw.sleep, footprint);
    }
}

fn module_id(
    ids: &mut FxHashMap<u32, ModuleId>,
    tables: &mut Tables,
    symbols: &mut SymbolLoader,
    module: &Arc<Module>,
) -> ModuleId {
    if let Some(&id) = ids.get(&module.id()) {
        return id;
    }
    // Two processes may hold the same file in two forms (opened in one, not openable in the other).
    let id = tables.modules.intern(&module.info);
    ids.insert(module.id(), id);
    symbols.request(id, module);
    id
}

/// The module of code that is in no known executable mapping.
fn unknown_module(ids: &mut FxHashMap<u32, ModuleId>, tables: &mut Tables) -> ModuleId {
    *ids.entry(u32::MAX).or_insert_with(|| {
        tables.modules.intern(&ModuleInfo {
            kind: crate::model::module::ModuleKind::Anonymous,
            path: "[unknown]".to_owned(),
            build_id: Vec::new(),
        })
    })
}
