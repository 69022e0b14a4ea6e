//! What the rules say of each code object, evaluated once per code object.

use crate::model::code::CodeInfo;
use crate::model::ids::CodeId;
use crate::torch::rules::progress::is_library;
use crate::torch::rules::{ModuleCall, RuleSet, Trains};

/// Facts about a code object for the parts of the worker that search frames for objects.
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

/// The rules, and their results by [`CodeId`].
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

    /// The facts that were evaluated so far.
    pub(super) fn known(&self) -> &[CodeFacts] {
        &self.known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::code::PythonVersion;

    #[test]
    fn rows_of_the_user_s_say_what_is_read() {
        let text = "[[python]]\nfile = \"acme/\"\nmodule_call = \"outer\"\ntakes_code = true\ntrains = \"yes\"";
        let codes = [CodeInfo {
            name: "Net.run".to_owned(),
            file: "/home/u/acme/net.py".to_owned(),
            first_line: 1,
            version: PythonVersion::new(3, 11),
            content_hash: 0,
        }];
        let read = |rules: &'static RuleSet| {
            let found = CodeRules::new(rules).of(CodeId::from_index(0), &codes);
            (found.trains, found.module_call, found.takes_code)
        };
        let added = Box::leak(Box::new(RuleSet::with(text).unwrap()));
        assert_eq!(read(added), (Trains::Yes, ModuleCall::Outer, true));
        let built_in = (Trains::No, ModuleCall::No, false);
        assert_eq!(read(RuleSet::built_in()), built_in);
    }
}
