//! A process as py-spy sees it.

pub use py_spy::stack_trace::{Frame, StackTrace};

/// A process as py-spy's dump heads it, and its threads: newest first.
#[derive(Clone, Debug)]
pub struct PySpyView {
    pub version: String,
    /// Path of the interpreter.
    pub executable: String,
    pub threads: Vec<StackTrace>,
    /// The tid of each, as torchspy sees it.
    pub tids: Vec<Option<i32>>,
}
