//! What functions tell of torch.compile: of the compiler at work, and of the code that it made.

/// What one function tells of torch.compile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum CompileMark {
    /// Nothing.
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
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GraphBreak {
    /// The function, by its (from Python 3.11 on: qualified) name.
    pub function: String,
    /// The line.
    pub line: u32,
}

/// A stage of compilation, from Python code to a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CompileStage {
    /// Dynamo: from bytecode to a graph; guards.
    Dynamo,
    /// AOTAutograd: the graph of backward, decompositions, functionalization.
    AotAutograd,
    /// Inductor: passes over the graph, lowering, scheduling, code.
    Inductor,
    /// C++ or Triton compilers, and the wait for their processes.
    Build,
    /// Something else while compiling.
    Other,
}

impl CompileStage {
    /// Every stage, in its order.
    pub const ALL: [CompileStage; 5] = [
        CompileStage::Dynamo,
        CompileStage::AotAutograd,
        CompileStage::Inductor,
        CompileStage::Build,
        CompileStage::Other,
    ];

    /// The stable name, as it stands in JSON.
    pub fn name(self) -> &'static str {
        match self {
            CompileStage::Dynamo => "dynamo",
            CompileStage::AotAutograd => "aot_autograd",
            CompileStage::Inductor => "inductor",
            CompileStage::Build => "build",
            CompileStage::Other => "other",
        }
    }
}
