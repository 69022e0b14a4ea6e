//! The rules for Python functions.

use super::graph_breaks::graph_break;
use super::matching::{Explanation, Matching};
use super::paths::{is_inductor_code, is_library, last_part, package_path, tails};
use super::rows::{
    ModuleCall, OwnRow, PathForm, PythonOperator, PythonRow, PythonWait, Special, Trains,
};
use super::words::{CompileWord, PhaseMark};
use super::{FrameRole, FunctionRules, RuleSet};
use crate::model::category::FrameKind;
use crate::model::collective::CollectivePart;
use crate::model::compile::CompileMark;
use crate::model::input::InputPart;
use crate::model::operator::OperatorMark;
use crate::model::wait::WaitPart;
use crate::torch::classify::FunctionClass;

/// The body of a module, which an import runs.
const BODY: &str = "<module>";

impl RuleSet {
    /// The rules for a Python function, by its file and its name (qualified from Python 3.11 on).
    pub fn python(&self, file: &str, function: &str) -> FunctionRules {
        self.explain_python(file, function).rules
    }

    /// The same, with the rows that they come from.
    pub fn explain_python(&self, file: &str, function: &str) -> Explanation {
        let last = last_part(function);
        let found = self.python_rows(file, function);
        let rows = Matching::new("python", &self.python, &found, self.added_python);
        let kind = rows
            .first("kind", |row| Some(row.kind.as_ref()?.0))
            .unwrap_or(FrameKind::PythonUser);
        let is_own = kind == FrameKind::PythonUser;
        // Rows for every function of a file do not apply to a module's body, except that it is
        // imported.
        let holds = |row: &PythonRow| last != BODY || !row.function.is_empty();
        let phase = rows.first("phase", |row| {
            let mark = row.phase.as_ref()?.0;
            (mark == PhaseMark::Import || holds(row)).then_some(mark)
        });
        let own_phase = self.own_phase(last);
        let mark = phase.filter(|&mark| mark != PhaseMark::None).or_else(|| {
            let (at, mark) = own_phase.filter(|_| is_own)?;
            rows.decided("phase", "own", at);
            Some(mark)
        });
        let rules = FunctionRules {
            class: FunctionClass {
                kind,
                plumbing: rows.first("plumbing", |row| row.plumbing).unwrap_or(false),
                role: FrameRole::Python,
                mark,
                wait: rows
                    .first_where("asleep", kind == FrameKind::PythonLibrary, |_, row| {
                        row.asleep
                    })
                    .unwrap_or(PythonWait::None),
                special: rows
                    .first("special", |row| row.special)
                    .unwrap_or(Special::No),
                makes_batch: own_phase.is_some(),
            },
            operator: match rows.first("operator", |row| row.operator) {
                Some(PythonOperator::ModuleCall) => OperatorMark::ModuleCall,
                None => OperatorMark::None,
            },
            compile: rows
                .first("compile", |row| match &row.compile.as_ref()?.0 {
                    CompileWord::Mark(mark) => Some(mark.clone()),
                    CompileWord::Resumed => graph_break(function).map(CompileMark::Resumed),
                })
                .unwrap_or_default(),
            wait: rows
                .first("wait", |row| Some(row.wait.as_ref()?.0))
                .unwrap_or(WaitPart::None),
            collective: CollectivePart {
                name: rows
                    .first("collective", |row| row.collective)
                    .and_then(|_| self.collective_name(last, &rows)),
                backend: None,
                issuer: rows.first("issuer", |row| Some(row.issuer.as_ref()?.0)),
                imports: mark == Some(PhaseMark::Import),
                watches: false,
            },
            input: self.input(&rows, last, is_own),
            module_call: rows
                .first("module_call", |row| row.module_call)
                .unwrap_or(ModuleCall::No),
            trains: rows
                .first("trains", |row| row.trains.filter(|_| holds(row)))
                .unwrap_or(Trains::No),
            takes_code: rows
                .first("takes_code", |row| row.takes_code)
                .unwrap_or(false),
            added: rows.has_added(),
        };
        let own = self.own.iter().enumerate();
        let own = own.filter(|(_, row)| is_own && (row.is_named(last) || row.has_word(last)));
        rows.explain(rules, own.map(|(at, _)| ("own", at)))
    }

    fn input(&self, rows: &Matching<'_, PythonRow>, last: &str, is_own: bool) -> InputPart {
        let by_row = rows.first_where("input", !is_own, |_, row| Some(row.input.as_ref()?.0));
        let by_word = || {
            let mut own = self.own.iter().enumerate();
            let (at, row) = own.find(|(_, row)| row.has_word(last))?;
            let part = row.input.as_ref()?.0;
            rows.decided("input", "own", at);
            Some(part)
        };
        by_row.unwrap_or_else(|| match is_own {
            true => by_word().unwrap_or(InputPart::Own),
            false => InputPart::None,
        })
    }

    /// Whether a row of `[[python]]` applies to functions of a file.
    pub fn is_for_file(&self, at: usize, file: &str) -> bool {
        self.python_file_rows(file).contains(&at)
    }

    fn python_rows(&self, file: &str, function: &str) -> Vec<usize> {
        let mut found = self.python_file_rows(file);
        found.retain(|&at| {
            let row = self.python.get(at);
            row.is_some_and(|row| {
                row.function.is_empty() || row.function.iter().any(|name| names(name, function))
            })
        });
        found
    }

    /// Rows for a file, in order.
    fn python_file_rows(&self, file: &str) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        for tail in tails(file) {
            found.extend(self.files.of(tail));
        }
        if let Some(inside) = package_path(file) {
            found.extend(self.packages.of(inside));
        }
        if is_library(file) {
            for tail in tails(file) {
                found.extend(self.libraries.of(tail));
            }
        }
        found.extend(self.path_forms.iter().filter(|&&at| {
            let form = self.python.get(at).and_then(|row| row.form);
            form == Some(PathForm::Inductor) && is_inductor_code(file)
        }));
        found.sort_unstable();
        found.dedup();
        found
    }
}

impl OwnRow {
    /// Whether it matches functions of this name.
    pub(super) fn is_named(&self, last: &str) -> bool {
        let name = last.trim_start_matches('_');
        self.name.iter().any(|each| each == name)
    }

    /// Whether this name contains one of its words.
    fn has_word(&self, last: &str) -> bool {
        let name = last.to_ascii_lowercase();
        self.word.iter().any(|word| name.contains(word.as_str()))
    }
}

/// Whether `pattern`, with as many parts as it has, is the end of a function's qualified name; the
/// prefix of that end, if a `*` follows.
fn names(pattern: &str, function: &str) -> bool {
    let (parts, is_start) = match pattern.strip_suffix('*') {
        Some(start) => (start, true),
        None => (pattern, false),
    };
    let mut dots = function.rmatch_indices('.');
    let end = match dots.nth(parts.matches('.').count()) {
        Some((at, _)) => function.get(at + 1..).unwrap_or_default(),
        None => function,
    };
    if is_start {
        end.starts_with(parts)
    } else {
        end == parts
    }
}
