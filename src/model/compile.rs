//! torch.compile: what a function's rules define for the compiler and for compiled code.

use super::named::named;
use schemars::JsonSchema;
use serde::Serialize;

/// What a function's rules define for torch.compile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum CompileMark {
    #[default]
    None,
    /// It belongs to the compiler: to this stage while compiling, else it calls compiled code.
    Stage(CompileStage),
    /// It belongs to torch, between compiled code and the function that was compiled.
    Between,
    /// Compiled code, or the function of torch that calls it.
    Generated,
    /// Code of an FX graph, or the function of torch that calls it: part of the compiler if the
    /// compiler's functions call it.
    Graph,
    /// An extra function around one that could not be compiled by itself; it has no meaningful
    /// name.
    Wrapper,
    /// The rest of a function after a graph break.
    Resumed(GraphBreak),
    /// Calls the engine of backward: frames above it were not called by the code below it.
    Backward,
    /// Not a function: the frames above it compile this subject.
    Compiles(Subject),
}

/// What is compiled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A function with this name (qualified from Python 3.11 on), from its start on.
    Function(String),
    /// The rest of a function after a graph break.
    Rest(GraphBreak),
    /// As in [`CompileMark::Wrapper`].
    Wrapper,
}

impl std::fmt::Display for Subject {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Subject::Function(name) => formatter.write_str(name),
            Subject::Rest(GraphBreak { function, line }) => {
                write!(formatter, "{function} from line {line}")
            }
            Subject::Wrapper => formatter.write_str("a module as a whole"),
        }
    }
}

/// A line at which a function was split, because code there cannot be compiled.
#[derive(Clone, Debug, JsonSchema, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[schemars(rename = "CutAt")]
pub struct GraphBreak {
    /// The function, by its (from Python 3.11 on: qualified) name.
    pub function: String,
    /// Line of the function's file, from 1, at which the rest begins.
    pub line: u32,
}

named!(
    /// A stage of compilation, from Python code to a library.
    CompileStage {
        /// Dynamo: from bytecode to a graph; guards.
        Dynamo = "dynamo",
        /// AOTAutograd: the graph of backward, decompositions, functionalization.
        AotAutograd = "aot_autograd",
        /// Inductor: passes over the graph, lowering, scheduling, code.
        Inductor = "inductor",
        /// C++ or Triton compilers, and the wait for their processes.
        Build = "build",
        /// Something else while compiling.
        Other = "other",
    }
);
