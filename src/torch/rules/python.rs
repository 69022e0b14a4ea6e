//! What the rules know of a Python function.

use super::graph_breaks::graph_break;
use super::paths::{is_inductor_code, is_library, last_part, package_path, tails};
use super::rows::{ModuleCall, PathForm, PythonOperator, PythonRow, PythonWait, Special, Trains};
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

/// The rows for one function, in order, and how many of them the user added.
struct Rows<'s> {
    all: Vec<&'s PythonRow>,
    added: usize,
}

impl<'s> Rows<'s> {
    /// The value of the first row that has one.
    fn first<T>(&self, of: impl Fn(&'s PythonRow) -> Option<T>) -> Option<T> {
        self.all.iter().find_map(|row| of(row))
    }

    /// The same, of rows that the user added only, unless `holds`.
    fn first_where<T>(&self, holds: bool, of: impl Fn(&'s PythonRow) -> Option<T>) -> Option<T> {
        let end = if holds { self.all.len() } else { self.added };
        self.all.iter().take(end).find_map(|row| of(row))
    }
}

impl RuleSet {
    /// What the rules know of a Python function, by its file and its (from Python 3.11 on:
    /// qualified) name.
    pub fn python(&self, file: &str, function: &str) -> FunctionRules {
        let last = last_part(function);
        let rows = self.python_rows(file, last);
        let kind = rows
            .first(|row| Some(row.kind.as_ref()?.0))
            .unwrap_or(FrameKind::PythonUser);
        let is_own = kind == FrameKind::PythonUser;
        // Rows for every function mean nothing for a module's body, but that it is imported.
        let holds = |row: &PythonRow| last != BODY || !row.function.is_empty();
        let phase = rows.first(|row| {
            let mark = row.phase.as_ref()?.0;
            (mark == PhaseMark::Import || holds(row)).then_some(mark)
        });
        let own_phase = self.own_phase(last);
        let mark = phase
            .filter(|&mark| mark != PhaseMark::None)
            .or(own_phase.filter(|_| is_own));
        FunctionRules {
            class: FunctionClass {
                kind,
                plumbing: rows.first(|row| row.plumbing).unwrap_or(false),
                role: FrameRole::Python,
                mark,
                wait: rows
                    .first_where(kind == FrameKind::PythonLibrary, |row| row.asleep)
                    .unwrap_or(PythonWait::None),
                special: rows.first(|row| row.special).unwrap_or(Special::No),
                makes_batch: own_phase.is_some(),
            },
            operator: match rows.first(|row| row.operator) {
                Some(PythonOperator::ModuleCall) => OperatorMark::ModuleCall,
                None => OperatorMark::None,
            },
            compile: rows
                .first(|row| match &row.compile.as_ref()?.0 {
                    CompileWord::Mark(mark) => Some(mark.clone()),
                    CompileWord::Resumed => graph_break(function).map(CompileMark::Resumed),
                })
                .unwrap_or_default(),
            wait: rows
                .first(|row| Some(row.wait.as_ref()?.0))
                .unwrap_or(WaitPart::None),
            collective: CollectivePart {
                name: rows
                    .first(|row| row.collective)
                    .and_then(|_| self.collective_name(last)),
                backend: None,
                issuer: rows.first(|row| Some(row.issuer.as_ref()?.0)),
                imports: mark == Some(PhaseMark::Import),
            },
            input: self.input(&rows, last, is_own),
            module_call: rows.first(|row| row.module_call).unwrap_or(ModuleCall::No),
            trains: rows
                .first(|row| row.trains.filter(|_| holds(row)))
                .unwrap_or(Trains::No),
            takes_code: rows.first(|row| row.takes_code).unwrap_or(false),
            added: rows.added > 0,
        }
    }

    fn input(&self, rows: &Rows<'_>, last: &str, is_own: bool) -> InputPart {
        let by_row = rows.first_where(!is_own, |row| Some(row.input.as_ref()?.0));
        let by_word = || {
            let name = last.to_ascii_lowercase();
            let mut own = self.own.iter();
            own.find(|row| row.word.iter().any(|word| name.contains(word.as_str())))
                .and_then(|row| Some(row.input.as_ref()?.0))
                .unwrap_or(InputPart::Own)
        };
        by_row.unwrap_or_else(|| if is_own { by_word() } else { InputPart::None })
    }

    /// The rows for a function, for tests.
    #[cfg(test)]
    pub(super) fn python_matches(&self, file: &str, function: &str) -> Vec<usize> {
        let rows = self.python_rows(file, last_part(function)).all;
        let all = self.python.iter().enumerate();
        all.filter(|(_, row)| rows.iter().any(|each| std::ptr::eq(*each, *row)))
            .map(|(at, _)| at)
            .collect()
    }

    fn python_rows(&self, file: &str, last: &str) -> Rows<'_> {
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
        found.retain(|&at| self.python.get(at).is_some_and(|row| names(row, last)));
        Rows {
            added: found.iter().filter(|&&at| at < self.added_python).count(),
            all: found.iter().filter_map(|&at| self.python.get(at)).collect(),
        }
    }
}

/// Whether a row is for functions of this name.
fn names(row: &PythonRow, last: &str) -> bool {
    row.function.is_empty()
        || row
            .function
            .iter()
            .any(|name| match name.strip_suffix('*') {
                Some(start) => last.starts_with(start),
                None => name == last,
            })
}
