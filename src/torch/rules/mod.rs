//! Rules for functions, libraries and threads: rows of `python.toml`, `native.toml` and
//! `input.toml`, which are built in, and rows that the user adds. The heads of these files explain
//! the keys; `docs/src/attribution.md` explains their use.
//!
//! A function is matched once, and [`FunctionRules`] contains all that the rows mean for it.
//! Matching that needs more than a pattern is code here, and rows refer to it by name: operators'
//! names, graph breaks, MKL inside of libtorch.
//!
//! Besides functions: [`syscalls`] (what a system call waits for), [`modules`], [`groups`] and
//! [`progress`] (where objects of a trainer keep what the probe reads).

mod collectives;
mod graph_breaks;
pub mod groups;
mod listing;
mod matching;
pub mod modules;
mod native;
mod operators;
mod paths;
mod prefixes;
pub mod progress;
mod python;
mod rows;
mod set;
pub mod syscalls;
pub mod tensors;
#[cfg(test)]
mod tests;
mod words;

pub use listing::{Listed, SUBJECTS, listed};
pub use matching::{Decision, Explanation, RowId};
pub use native::{FrameRole, NativeClass};
pub use paths::{is_library, last_part, library_call};
pub use rows::{Library, ModuleCall, PythonWait, Special, Trains};
pub use set::{RuleSet, RulesError, SOURCES, subject};
pub use words::PhaseMark;

use crate::model::collective::CollectivePart;
use crate::model::compile::CompileMark;
use crate::model::input::InputPart;
use crate::model::operator::OperatorMark;
use crate::model::wait::WaitPart;
use crate::torch::classify::FunctionClass;

/// All rules for one function.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionRules {
    pub class: FunctionClass,
    pub operator: OperatorMark,
    pub compile: CompileMark,
    pub wait: WaitPart,
    pub collective: CollectivePart,
    pub input: InputPart,
    pub module_call: ModuleCall,
    pub trains: Trains,
    /// Whether its first parameter is the code object to compile.
    pub takes_code: bool,
    /// Whether a row that the user added matches it.
    pub added: bool,
}
