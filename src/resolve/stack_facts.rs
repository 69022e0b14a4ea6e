//! Facts about stacks, each from its parent's facts and its own frame: one step per stack, however
//! many samples have it.

use crate::model::category::FrameKind;
use crate::model::collective::CollectivePart;
use crate::model::facts::{Facts, Line, OperatorSite, StackFacts};
use crate::model::ids::{ChainId, NameId, StackId};
use crate::model::input::{InputPart, InputTask};
use crate::model::operator::{NamedBy, OperatorMark};
use crate::model::profile::{Function, ProfileFrame};
use crate::model::stack_table::StackTable;
use crate::model::wait::WaitPart;
use crate::torch::collectives::with_leaf;
use crate::torch::rules::is_library;

/// Facts about a stack that only `resolve` uses: for frames nearer to the leaf, and for samples'
/// states.
#[derive(Clone, Copy, Default)]
pub(super) struct Inner {
    /// The class of the nearest module's call, on this side of the engine.
    class: Option<NameId>,
    /// The nearest node of autograd's graph, as its symbol has it.
    node: Option<NameId>,
    /// The next Python function is a module's own.
    module_call: bool,
    /// The next function that fits names the operator.
    kernel: bool,
    /// The next Python function that fits names the node.
    python_node: bool,
    /// Backward's engine is on it.
    in_engine: bool,
    /// `native_leaf` has a name.
    is_leaf_named: bool,
    /// Of the functions up to an import.
    pub(super) collective: CollectivePart,
    task: InputTask,
    /// The task if the user's own code is nearer to the leaf.
    task_of_own: InputTask,
}

impl Inner {
    /// The task of making a batch; of one that reads a file that, unless it only waits or hands a
    /// batch over.
    pub(super) fn task(&self, reads: bool) -> InputTask {
        match self.task {
            InputTask::Idle | InputTask::Send => self.task,
            _ if reads => InputTask::Read,
            task => task,
        }
    }
}

/// What is matched once per function.
#[derive(Clone, Copy)]
struct Traits {
    is_nccl: bool,
    is_package: bool,
    has_name: bool,
}

impl Traits {
    fn of(function: &Function) -> Self {
        let own_name = !function.name.contains("+0x") && !function.name.starts_with('[');
        Self {
            is_nccl: function.kind == FrameKind::Communication
                && (function.file.contains("libnccl")
                    || function.name.contains("ProcessGroupNCCL")),
            is_package: function.is_python && !function.plumbing && !is_library(&function.file),
            has_name: own_name && !function.plumbing,
        }
    }
}

/// Visits the stacks; a parent comes before its children.
pub(super) struct Finder<'a> {
    functions: &'a [Function],
    stacks: &'a StackTable<ProfileFrame>,
    pub(super) facts: Facts,
    pub(super) inner: Vec<Inner>,
}

impl<'a> Finder<'a> {
    /// Stacks that another stack in `first` represents are skipped.
    pub(super) fn find(
        functions: &'a [Function],
        stacks: &'a StackTable<ProfileFrame>,
        first: &[StackId],
    ) -> Self {
        let traits: Vec<Traits> = functions.iter().map(Traits::of).collect();
        let count = stacks.stacks().len();
        let mut finder = Self {
            functions,
            stacks,
            facts: Facts::default(),
            inner: Vec::with_capacity(count),
        };
        finder.facts.stacks.reserve_exact(count);
        for (at, &(parent, frame)) in stacks.stacks().iter().enumerate() {
            if first.get(at).is_some_and(|first| first.index() != at) {
                finder.facts.stacks.push(StackFacts::default());
                finder.inner.push(Inner::default());
                continue;
            }
            let frame = stacks.frame(frame);
            let (mut own, mut inner) = (finder.facts.of(parent), finder.inner(parent));
            if let Some(id) = frame.nn_module {
                let chains = &mut finder.facts.module_chains;
                let module = chains.intern_frame(id);
                own.modules = Some(chains.intern_stack(own.modules, module));
            }
            let at_function = frame.function.index();
            if let (Some(function), Some(traits)) =
                (functions.get(at_function), traits.get(at_function))
            {
                own.has_openmp |= function.kind == FrameKind::OpenMp;
                own.has_nccl |= traits.is_nccl;
                own.is_watchdog |= function.collective.watches;
                own.is_in_loader_queue |= function.wait == WaitPart::Loader;
                lines(frame, function, *traits, &mut own, &mut inner);
                input(function.input, &mut inner);
                inner.collective = with_leaf(inner.collective, function.collective);
                finder.module_class(function, &mut inner);
                finder.node(function, &mut own, &mut inner);
                finder.operator(StackId::from_index(at), function, &mut own, &mut inner);
            }
            finder.facts.stacks.push(own);
            finder.inner.push(inner);
        }
        finder
    }

    pub(super) fn inner(&self, stack: Option<StackId>) -> Inner {
        let known = stack.and_then(|stack| self.inner.get(stack.index()));
        known.copied().unwrap_or_default()
    }

    /// The Python function that a module's call calls names its class; a hook, and one without a
    /// qualified name, does not.
    fn module_class(&mut self, function: &Function, inner: &mut Inner) {
        let is_call = function.operator == OperatorMark::ModuleCall;
        if !function.is_python {
            inner.module_call |= is_call;
            return;
        }
        if inner.module_call
            && let Some(class) = method_class(&function.name, ".forward")
        {
            inner.class = Some(self.facts.names.intern(class));
        }
        inner.module_call = is_call;
    }

    fn node(&mut self, function: &Function, own: &mut StackFacts, inner: &mut Inner) {
        let Facts {
            names, node_chains, ..
        } = &mut self.facts;
        if let OperatorMark::Node(name) = &function.operator {
            inner.node = Some(names.intern(name));
            inner.python_node = name == "PyNode";
            let shown = match inner.python_node {
                true => "autograd.Function in Python",
                false => name,
            };
            let frame = node_chains.intern_frame(names.intern(shown));
            own.nodes = Some(node_chains.intern_stack(own.nodes, frame));
        } else if inner.python_node
            && function.is_python
            && let Some(class) = method_class(&function.name, ".backward")
            // `Tensor.backward` calls the engine.
            && class != "Tensor"
            && let Some(nodes) = own.nodes
        {
            // What autograd calls a node in Python: the class of the function that it runs, and
            // `Backward`.
            inner.python_node = false;
            let outward = node_chains.parent(nodes);
            let frame = node_chains.intern_frame(names.intern(&format!("{class}Backward")));
            own.nodes = Some(node_chains.intern_stack(outward, frame));
        }
    }

    fn operator(
        &mut self,
        stack: StackId,
        function: &Function,
        own: &mut StackFacts,
        inner: &mut Inner,
    ) {
        let waits_for_kernel = std::mem::take(&mut inner.kernel);
        let found = match &function.operator {
            OperatorMark::Operator(name) => Some((name.as_str(), NamedBy::Schema)),
            OperatorMark::LibraryKernel(Some(name)) => Some((name.as_str(), NamedBy::Kernel)),
            OperatorMark::LibraryKernel(None) => {
                inner.kernel = true;
                Some(("kernel without a name", NamedBy::Kernel))
            }
            OperatorMark::PythonKernel => {
                inner.kernel = true;
                None
            }
            OperatorMark::Node(_) | OperatorMark::Engine => {
                own.is_in_operator = false;
                // Modules further out only called `backward()`.
                (inner.class, inner.module_call) = (None, false);
                None
            }
            OperatorMark::None | OperatorMark::ModuleCall => {
                if waits_for_kernel {
                    self.kernel(stack, function, own, inner);
                }
                None
            }
        };
        if let Some((name, named_by)) = found {
            let site = OperatorSite {
                name: self.facts.names.intern(name),
                named_by,
                node: inner.node,
                module: inner.class,
                line: own.user_line,
            };
            self.enter(site, own.operators, own);
        }
    }

    fn enter(&mut self, site: OperatorSite, outward: Option<ChainId>, own: &mut StackFacts) {
        let chains = &mut self.facts.operator_chains;
        let frame = chains.intern_frame(site);
        own.operators = Some(chains.intern_stack(outward, frame));
        own.is_in_operator = true;
    }

    /// Whether `function` is the kernel that the glue below it calls: the operator then has its
    /// name.
    fn kernel(
        &mut self,
        stack: StackId,
        function: &Function,
        own: &mut StackFacts,
        inner: &mut Inner,
    ) {
        let Some((at, glue)) = self.glue(stack) else {
            return;
        };
        let in_python = glue.operator == OperatorMark::PythonKernel;
        let fits = match in_python {
            true => function.is_python && function.kind != FrameKind::PythonTorch,
            false => function.file == glue.file && !function.plumbing,
        };
        inner.kernel = !fits;
        // Torch's glue imports what it needs when it is first called: that is not a kernel.
        if !fits || (in_python && function.plumbing) {
            return;
        }
        let around = self.inner(Some(at));
        let site = OperatorSite {
            name: self.facts.names.intern(&function.short_name),
            named_by: NamedBy::Kernel,
            node: around.node,
            module: around.class,
            line: self.facts.of(Some(at)).user_line,
        };
        let outward = match (in_python, own.operators) {
            (false, Some(unnamed)) => self.facts.operator_chains.parent(unnamed),
            (_, operators) => operators,
        };
        self.enter(site, outward, own);
    }

    /// The nearest stack outward whose frame calls a kernel, and its function.
    fn glue(&self, stack: StackId) -> Option<(StackId, &'a Function)> {
        let mut next = self.stacks.parent(stack);
        while let Some(at) = next {
            let frame = self.stacks.leaf(at);
            let function = self.functions.get(frame.function.index())?;
            if matches!(
                function.operator,
                OperatorMark::LibraryKernel(None) | OperatorMark::PythonKernel
            ) {
                return Some((at, function));
            }
            next = self.stacks.parent(at);
        }
        None
    }
}

fn lines(
    frame: &ProfileFrame,
    function: &Function,
    traits: Traits,
    own: &mut StackFacts,
    inner: &mut Inner,
) {
    let line: Line = (frame.function, frame.line);
    let outward_line = own.user_line;
    if function.kind == FrameKind::PythonUser {
        own.user_line = Some(line);
    }
    if traits.is_package {
        own.package_line = Some(line);
    }
    if function.is_python {
        own.python_leaf = Some(line);
    }
    if !inner.in_engine {
        inner.in_engine = function.is_engine();
        own.backward_line = match inner.in_engine {
            true => outward_line,
            false => own.user_line,
        };
    }
    if function.is_python || function.kind == FrameKind::Marker {
        (own.native_leaf, inner.is_leaf_named) = (None, false);
    } else if traits.has_name || !inner.is_leaf_named {
        own.native_leaf = Some(frame.function);
        inner.is_leaf_named = traits.has_name;
    }
}

/// The nearest task; the user's own code if nothing else is between the fetch and the leaf. The
/// loop that requests batches is not the dataset.
fn input(part: InputPart, inner: &mut Inner) {
    (inner.task, inner.task_of_own) = match part {
        InputPart::Task(task) => (task, task),
        InputPart::Own => (inner.task_of_own, inner.task_of_own),
        InputPart::Fetch | InputPart::Loop => (InputTask::Other, InputTask::Dataset),
        InputPart::None => return,
    };
}

/// `Conv2d` of `Conv2d.forward`, `Net` of `main.<locals>.Net.forward`. Not known before Python
/// 3.11, which has no qualified names.
fn method_class<'n>(name: &'n str, method: &str) -> Option<&'n str> {
    let class = name.strip_suffix(method)?;
    class.rsplit('.').next().filter(|class| !class.is_empty())
}
