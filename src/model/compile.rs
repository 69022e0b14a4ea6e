//! What functions say of torch.compile: of the compiler at work, and of the code that it made.

use super::named::named;
use schemars::JsonSchema;
use serde::Serialize;

/// What one function says of torch.compile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum CompileMark {
    #[default]
    None,
    /// It is the compiler's: of this stage where it compiles, else what calls the code that was
    /// made.
    Stage(CompileStage),
    /// It is torch's, and stands between code that was made and the function that it was made from.
    Between,
    /// Code that was made, or the function of torch that calls it.
    Generated,
    /// Code of an FX graph, or the function of torch that calls it: made by the compiler where the
    /// compiler's functions call it.
    Graph,
    /// An extra function around one that could not be compiled by itself: its name says nothing.
    Wrapper,
    /// The rest of a function behind a graph break.
    Resumed(GraphBreak),
    /// The engine of backward is called: what stands on it was not called by the code outward of
    /// it.
    Backward,
    /// No function: what stands on it compiles the function of this name and place.
    Compiles(Subject),
}

/// What is compiled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A function of this (from Python 3.11 on: qualified) name, from its beginning on.
    Function(String),
    /// The rest of a function behind a graph break.
    Rest(GraphBreak),
    /// As [`CompileMark::Wrapper`].
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

/// A place at which a function was cut in two, since what is there cannot be compiled.
#[derive(Clone, Debug, JsonSchema, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[schemars(rename = "CutAt")]
pub struct GraphBreak {
    /// The function, by its (from Python 3.11 on: qualified) name.
    pub function: String,
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
