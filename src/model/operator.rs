//! Operators: what a function's rules define for the operator table.

use super::named::named;

/// What a function's rules define for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum OperatorMark {
    #[default]
    None,
    /// It is an operator's entry, or one of its wrappers: `aten::add`, as in torch.profiler.
    Operator(String),
    /// It calls a kernel that was registered by another library than torch. No symbol has the
    /// operator's name: the kernel's is used.
    LibraryKernel(
        /// The kernel's name, if the glue's own symbol contains it; else it is the nearest function
        /// of the same library that this one calls.
        Option<String>,
    ),
    /// It calls a kernel written in Python: the nearest Python function that is not torch's own,
    /// among those it calls.
    PythonKernel,
    /// A node of autograd's graph at work: `ConvolutionBackward0`.
    Node(String),
    /// The backward engine: what it calls does not belong to an operator that called it.
    Engine,
    /// The call of an `nn.Module`: the Python function that it calls is the module's own.
    ModuleCall,
}

named!(
    /// Source of an operator's name.
    NamedBy {
        /// By its own name, as torch registered it.
        Schema = "schema",
        /// The function that does its work: no symbol has the operator's name.
        Kernel = "kernel",
    }
);
