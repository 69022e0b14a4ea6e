//! What the rules in force say of each code object, asked once.

use crate::model::code::CodeInfo;
use crate::model::ids::CodeId;
use crate::torch::rules::progress::is_library;
use crate::torch::rules::{ModuleCall, RuleSet, Trains};

/// What a code object is to the parts of the worker that look for objects on frames.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CodeFacts {
    pub(super) trains: Trains,
    pub(super) module_call: ModuleCall,
    /// Its first parameter is the code object to compile.
    pub(super) takes_code: bool,
    pub(super) is_library: bool,
    /// The body of a module.
    pub(super) is_module: bool,
}

/// The rules, and what they said, by [`CodeId`].
pub(super) struct CodeRules {
    rules: &'static RuleSet,
    known: Vec<CodeFacts>,
}

impl CodeRules {
    pub(super) fn new(rules: &'static RuleSet) -> Self {
        Self {
            rules,
            known: Vec::new(),
        }
    }

    /// The facts of a code object; `codes` are all that the session has.
    pub(super) fn of(&mut self, id: CodeId, codes: &[CodeInfo]) -> CodeFacts {
        for code in codes.get(self.known.len()..).unwrap_or(&[]) {
            let said = self.rules.python(&code.file, &code.name);
            self.known.push(CodeFacts {
                trains: said.trains,
                module_call: said.module_call,
                takes_code: said.takes_code,
                is_library: is_library(&code.file),
                is_module: code.name == "<module>",
            });
        }
        self.known.get(id.index()).copied().unwrap_or_default()
    }

    /// Those that were asked for so far.
    pub(super) fn known(&self) -> &[CodeFacts] {
        &self.known
    }
}
