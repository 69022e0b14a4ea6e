//! Facts that `resolve` determines once per stack: analyses group by them and sum; none matches a
//! name again.
//!
//! Facts that also depend on a thread's state, activity or system call are kept with the
//! [sample](super::profile::ProfileSample).

use super::collective::{Backend, CollectiveCall};
use super::ids::{
    ChainId, CollectiveId, FrameId, FunctionId, NameId, NnModuleId, StackId, ThreadId,
};
use super::interner::Interner;
use super::operator::NamedBy;
use super::stack_table::StackTable;
use super::wait::WaitKind;
use rustc_hash::FxHashMap;
use std::hash::Hash;

/// A line of a Python function.
pub type Line = (FunctionId, u32);

/// What a sample waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wait {
    pub kind: WaitKind,
    /// Label, as printed in reports: `torch.cuda.synchronize()`.
    pub label: NameId,
}

/// An operator on a stack, and its call site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OperatorSite {
    /// `aten::add`.
    pub name: NameId,
    pub named_by: NamedBy,
    /// The node of autograd's graph that called it: `ConvolutionBackward0`.
    pub node: Option<NameId>,
    /// The class of the innermost `nn.Module` that called it, by the name of its `forward`.
    pub module: Option<NameId>,
    /// The nearest line of the user's own code around it.
    pub line: Option<Line>,
}

/// Facts about one stack, whatever its thread's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackFacts {
    /// The line of the user's own code nearest to the leaf.
    pub user_line: Option<Line>,
    /// The line of a package's code nearest to the leaf: neither torch's plumbing nor Python's own
    /// library.
    pub package_line: Option<Line>,
    /// The line of the Python function nearest to the leaf.
    pub python_leaf: Option<Line>,
    /// The line of the user's own code that called the outermost engine of backward; without one,
    /// as `user_line`.
    pub backward_line: Option<Line>,
    /// The native function that own time goes to: the nearest to the leaf with a name. `None` where
    /// the leaf is Python.
    pub native_leaf: Option<FunctionId>,
    /// The innermost of the operators on it, of [`Facts::operator_chains`].
    pub operators: Option<ChainId>,
    /// Whether the innermost operator is the one at work: no node of backward runs inside it.
    pub is_in_operator: bool,
    /// The innermost of the nodes of autograd's graph on it, of [`Facts::node_chains`].
    pub nodes: Option<ChainId>,
    /// The innermost of the `nn.Module`s on it, of [`Facts::module_chains`].
    pub modules: Option<ChainId>,
    pub has_openmp: bool,
    pub has_nccl: bool,
    /// It is one of a thread that only watches collectives.
    pub is_watchdog: bool,
    /// It waits in a DataLoader's queue, or takes a batch out of it.
    pub is_in_loader_queue: bool,
}

impl StackFacts {
    /// The nearest line of the user's own code, else of a package's, else of any.
    pub fn line(&self) -> Option<Line> {
        self.user_line.or(self.package_line).or(self.python_leaf)
    }
}

/// Strings, each once.
#[derive(Clone, Debug, Default)]
pub struct Names(Interner<NameId, String>);

impl Names {
    /// The id of a name, new or known.
    pub fn intern(&mut self, name: &str) -> NameId {
        self.0.intern(name)
    }

    /// Changes every string; ids stay.
    pub fn replace(&mut self, mut new: impl FnMut(&str) -> String) {
        for name in self.0.values_mut() {
            *name = new(name);
        }
    }

    pub fn all(&self) -> &[String] {
        &self.0
    }

    pub fn get(&self, id: NameId) -> &str {
        self.0.get(id.index()).map_or("", String::as_str)
    }
}

/// Facts about all stacks and samples. Operators, nodes and modules of a stack are chains from the
/// innermost outward, which many stacks share.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// By [`StackId`] of the profile's stacks.
    pub stacks: Vec<StackFacts>,
    /// Operators, nodes, classes, and labels of waits.
    pub names: Names,
    pub operator_chains: StackTable<OperatorSite, ChainId>,
    pub node_chains: StackTable<NameId, ChainId>,
    pub module_chains: StackTable<NnModuleId, ChainId>,
    /// Collectives by [`CollectiveId`].
    pub collectives: Interner<CollectiveId, CollectiveCall>,
    /// The collective backend that a thread works for, by [`ThreadId`].
    pub backends: Vec<Option<Backend>>,
    /// Names of the system calls that samples were in, by number.
    pub system_calls: FxHashMap<u32, &'static str>,
}

impl Facts {
    /// The facts of a stack; the default without one.
    pub fn of(&self, stack: Option<StackId>) -> StackFacts {
        let known = stack.and_then(|stack| self.stacks.get(stack.index()));
        known.copied().unwrap_or_default()
    }

    pub fn line(&self, stack: Option<StackId>) -> Option<Line> {
        self.of(stack).line()
    }

    /// The operators of a stack, innermost first; a recursive operator occurs several times.
    pub fn operators(&self, stack: Option<StackId>) -> impl Iterator<Item = &OperatorSite> {
        chain(&self.operator_chains, self.of(stack).operators)
    }

    /// The operators of a chain, innermost first.
    pub fn operators_from(&self, chain_id: ChainId) -> impl Iterator<Item = &OperatorSite> {
        chain(&self.operator_chains, Some(chain_id))
    }

    /// The operator that a stack's own time is spent in.
    pub fn own_operator(&self, stack: Option<StackId>) -> Option<&OperatorSite> {
        let is_own = self.of(stack).is_in_operator;
        self.operators(stack).next().filter(|_| is_own)
    }

    /// The nodes of autograd's graph on a stack, innermost first; a recursive node occurs several
    /// times.
    pub fn nodes(&self, stack: Option<StackId>) -> impl Iterator<Item = NameId> {
        chain(&self.node_chains, self.of(stack).nodes).copied()
    }

    /// The `nn.Module`s that a stack is in, innermost first.
    pub fn modules(&self, stack: Option<StackId>) -> impl Iterator<Item = NnModuleId> {
        chain(&self.module_chains, self.of(stack).modules).copied()
    }

    /// The `nn.Module`s of a chain, innermost first.
    pub fn modules_from(&self, chain_id: ChainId) -> impl Iterator<Item = NnModuleId> {
        chain(&self.module_chains, Some(chain_id)).copied()
    }

    pub fn collective(&self, id: Option<CollectiveId>) -> Option<CollectiveCall> {
        self.collectives.get(id?.index()).copied()
    }

    pub fn backend(&self, thread: ThreadId) -> Option<Backend> {
        self.backends.get(thread.index()).copied().flatten()
    }
}

fn chain<F: Clone + Eq + Hash>(
    table: &StackTable<F, ChainId>,
    innermost: Option<ChainId>,
) -> impl Iterator<Item = &F> {
    table
        .leaf_to_root(innermost)
        .map(|frame: FrameId| table.frame(frame))
}
