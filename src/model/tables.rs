//! The tables that samples point into. Session, segment and recording have the same.

use super::code::CodeInfo;
use super::frame::Frame;
use super::ids::{CodeId, CounterId, ModuleId, NnModuleId, StackId, ThreadId};
use super::interner::Interner;
use super::module::ModuleInfo;
use super::nn_module::NnModuleInfo;
use super::process::{ProcessInfo, ThreadInfo};
use super::progress::CounterInfo;
use super::stack_table::StackTable;
use std::collections::BTreeMap;

/// All that has ids.
///
/// There are two kinds. The ids of a segment count from 0 in each segment, so that it can be read
/// without any other. Those of a session, or of a recording, are of all of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tables {
    /// Processes by [`ProcessId`](super::ids::ProcessId).
    pub processes: Vec<ProcessInfo>,
    /// Threads. Those of a segment or recording have the ids from 0 on. A session forgets those
    /// that have ended: some programs start twenty a second, for days.
    pub threads: BTreeMap<ThreadId, ThreadInfo>,
    /// ELF files and other memory with code.
    pub modules: Interner<ModuleId, ModuleInfo>,
    /// Python code objects.
    pub codes: Interner<CodeId, CodeInfo>,
    /// `nn.Module`s whose calls are among the frames.
    pub nn_modules: Interner<NnModuleId, NnModuleInfo>,
    /// Counters of progress.
    pub counters: Interner<CounterId, CounterInfo>,
    /// Frames and stacks.
    pub stacks: StackTable<Frame>,
}

impl Tables {
    /// Forgets all frames and stacks but those of `live`, and gives these their new ids: memory
    /// stays bounded however long a session runs. Samples that are not in `live` must have been
    /// written before. Ids that do not exist become `None`.
    pub fn forget_stacks_except<'s>(
        &mut self,
        live: impl IntoIterator<Item = &'s mut Option<StackId>>,
    ) {
        let old = std::mem::take(&mut self.stacks);
        for stack in live {
            let known = stack.filter(|stack| stack.index() < old.stacks().len());
            let frames: Vec<Frame> = old
                .root_to_leaf(known)
                .into_iter()
                .map(|frame| *old.frame(frame))
                .collect();
            *stack = self.stacks.intern(frames);
        }
    }
}
