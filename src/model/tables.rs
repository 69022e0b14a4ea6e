//! The tables that samples refer to, common to session, segment and recording.

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

/// All values with ids.
///
/// There are two kinds. The ids of a segment count from 0 in each segment, so that it can be read
/// without any other. Those of a session, or of a recording, are valid in all of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tables {
    /// Processes by [`ProcessId`](super::ids::ProcessId).
    pub processes: Vec<ProcessInfo>,
    /// Threads. Those of a segment or recording have ids from 0 on. A session drops those that have
    /// ended: some programs start twenty per second, for days.
    pub threads: BTreeMap<ThreadId, ThreadInfo>,
    /// ELF files and other memory with code.
    pub modules: Interner<ModuleId, ModuleInfo>,
    /// Python code objects.
    pub codes: Interner<CodeId, CodeInfo>,
    /// `nn.Module`s whose calls are among the frames.
    pub nn_modules: Interner<NnModuleId, NnModuleInfo>,
    /// Counters of progress.
    pub counters: Interner<CounterId, CounterInfo>,
    pub stacks: StackTable<Frame>,
}

impl Tables {
    /// Drops all frames and stacks except those of `live`, and updates their ids: memory stays
    /// bounded however long a session runs. Samples that are not in `live` must have been written
    /// before. Ids that do not exist become `None`.
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
