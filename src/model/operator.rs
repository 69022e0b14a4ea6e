//! What functions tell of operators: the parts of a stack from which an operator table is made.

/// What one function tells of the operators that run in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum OperatorMark {
    /// Nothing.
    #[default]
    None,
    /// It is an operator's entry, or one of its wrappers: `aten::add`, as torch.profiler calls it.
    Operator(String),
    /// It calls a kernel that was registered by another library than torch. The operator's name is
    /// in no symbol: the kernel gives it.
    LibraryKernel(
        /// The kernel's name, where the glue's own symbol tells it; else it is the nearest function
        /// of the same library that this one calls.
        Option<String>,
    ),
    /// It calls a kernel written in Python: the nearest Python function that is not torch's own,
    /// among those it calls.
    PythonKernel,
    /// A node of autograd's graph at work: `ConvolutionBackward0`.
    Node(String),
    /// The backward engine: what it calls is no part of an operator that called it.
    Engine,
    /// The call of an `nn.Module`: the Python function that it calls is the module's own.
    ModuleCall,
}

/// By what an operator was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NamedBy {
    /// By its own name, as torch registered it.
    Schema,
    /// By the function that does its work: no symbol holds the operator's name.
    Kernel,
}

impl NamedBy {
    /// The stable name, as it stands in JSON.
    pub fn name(self) -> &'static str {
        match self {
            NamedBy::Schema => "schema",
            NamedBy::Kernel => "kernel",
        }
    }
}
