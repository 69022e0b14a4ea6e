//! What functions say of operators: the parts of a stack from which an operator table is made.

use super::named::named;

/// What one function says of the operators that run in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum OperatorMark {
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

named!(
    /// By what an operator was named.
    NamedBy {
        /// By its own name, as torch registered it.
        Schema = "schema",
        /// By the function that does its work: no symbol holds the operator's name.
        Kernel = "kernel",
    }
);
