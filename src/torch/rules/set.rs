//! The rules, read and indexed.

use super::collectives::plain;
use super::listing::line_of;
use super::native::{NativeClass, class_of};
use super::prefixes::Prefixes;
use super::rows::{
    CallRow, CollectiveForm, CollectiveRow, FamilyRow, NativeRow, OperatorForm, OwnRow, PythonRow,
    RulesFile, ThreadRow,
};
use super::words::PhaseMark;
use crate::model::category::Phase;
use crate::model::collective::Backend;
use crate::model::compile::{CompileMark, Subject};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::OnceLock;
use toml::Spanned;

/// The built-in files, by name, in their order.
pub const SOURCES: &[(&str, &str)] = &[
    ("python.toml", include_str!("python.toml")),
    ("native.toml", include_str!("native.toml")),
    ("input.toml", include_str!("input.toml")),
];

/// Why a file is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RulesError {
    /// The line, from 1.
    pub line: usize,
    pub message: String,
}

impl RulesError {
    fn at(text: &str, span: Option<Range<usize>>, message: impl Into<String>) -> Self {
        Self {
            line: line_of(text, &span.unwrap_or_default()),
            message: message.into(),
        }
    }
}

/// The rules, indexed.
#[derive(Debug, Default)]
pub struct RuleSet {
    /// Version of the built-in rules.
    pub version: u32,
    /// Number of rows that the user added.
    pub added: usize,
    pub(super) python: Vec<PythonRow>,
    /// Number of first rows that are the user's.
    pub(super) added_python: usize,
    pub(super) files: Prefixes<usize>,
    pub(super) packages: Prefixes<usize>,
    pub(super) libraries: Prefixes<usize>,
    pub(super) path_forms: Vec<usize>,
    pub(super) native: Vec<NativeRow>,
    /// See `added_python`.
    pub(super) added_native: usize,
    /// The class of each row.
    pub(super) native_classes: Vec<Option<NativeClass>>,
    pub(super) starts: Prefixes<usize>,
    pub(super) names: FxHashMap<String, Vec<usize>>,
    pub(super) contained: Vec<(String, usize)>,
    /// Rows for every function of a library.
    pub(super) whole_files: Prefixes<usize>,
    pub(super) symbol_forms: Vec<usize>,
    pub(super) families: Vec<FamilyRow>,
    pub(super) family_classes: Vec<Option<NativeClass>>,
    pub(super) family_files: Prefixes<usize>,
    pub(super) own: Vec<OwnRow>,
    threads: Vec<ThreadRow>,
    pub(super) collectives: Vec<CollectiveRow>,
    calls: Vec<CallRow>,
}

impl RuleSet {
    /// The built-in rules, read on first use.
    pub fn built_in() -> &'static RuleSet {
        static RULES: OnceLock<RuleSet> = OnceLock::new();
        // A test checks that they can be read.
        RULES.get_or_init(|| Self::read(None).unwrap_or_default())
    }

    /// The rules of `text`, followed by the built-in ones.
    ///
    /// # Errors
    /// The first line of `text` that is not valid in a rules file.
    pub fn with(text: &str) -> Result<RuleSet, RulesError> {
        Self::read(Some(text))
    }

    fn read(added: Option<&str>) -> Result<RuleSet, RulesError> {
        let mut set = RuleSet::default();
        let mut classes = FxHashMap::default();
        let texts = added
            .into_iter()
            .chain(SOURCES.iter().map(|&(_, text)| text));
        let mut files = Vec::new();
        for text in texts {
            let file: RulesFile = toml::from_str(text)
                .map_err(|error| RulesError::at(text, error.span(), error.message()))?;
            files.push((text, file));
        }
        // Built-in files come first: the user's file must not give one of their names another
        // meaning.
        for (text, file) in files.iter().rev() {
            for (name, row) in &file.class {
                let error = |message: &str| RulesError::at(text, Some(row.span()), message);
                let class = class_of(row.get_ref()).map_err(error)?;
                let known = classes.insert(name.clone(), class);
                if known.is_some_and(|known| known != class) {
                    return Err(error(&format!(
                        "class `{name}` is torchspy's own, with another meaning: give yours a name that is not taken"
                    )));
                }
            }
        }
        for (text, file) in files {
            set.take(file, &classes)
                .map_err(|(span, message)| RulesError::at(text, Some(span), message))?;
            if added == Some(text) {
                set.added_python = set.python.len();
                set.added_native = set.native.len();
                set.added = set.rows();
            }
        }
        set.index();
        Ok(set)
    }

    fn rows(&self) -> usize {
        self.python.len()
            + self.native.len()
            + self.families.len()
            + self.own.len()
            + self.threads.len()
            + self.collectives.len()
            + self.calls.len()
    }

    fn take(
        &mut self,
        file: RulesFile,
        classes: &FxHashMap<String, NativeClass>,
    ) -> Result<(), Misfit> {
        let class = |name: &Option<Spanned<String>>| match name {
            None => Ok(None),
            Some(name) => match classes.get(name.get_ref()) {
                Some(&class) => Ok(Some(class)),
                None => {
                    let mut known: Vec<&str> = classes.keys().map(String::as_str).collect();
                    known.sort_unstable();
                    let (word, known) = (name.get_ref(), known.join(", "));
                    let message = format!("unknown class `{word}`, expected one of: {known}");
                    Err((name.span(), message))
                }
            },
        };
        for row in file.python {
            let (span, row) = parted(row);
            check_python(&row).map_err(|message| (span, message.to_owned()))?;
            self.python.push(row);
        }
        for row in file.native {
            let (span, row) = parted(row);
            check_native(&row).map_err(|message| (span, message.to_owned()))?;
            self.native_classes.push(class(&row.class)?);
            self.native.push(row);
        }
        for row in file.family {
            let row = row.into_inner();
            self.family_classes.push(class(&row.class)?);
            self.families.push(row);
        }
        self.version = file.version.unwrap_or(self.version);
        for row in file.own {
            let (span, row) = parted(row);
            check_own(&row).map_err(|message| (span, message.to_owned()))?;
            self.own.push(row);
        }
        self.threads.extend(file.thread);
        for mut row in file.collective {
            for start in &mut row.start {
                *start = plain(start);
            }
            self.collectives.push(row);
        }
        self.calls.extend(file.call);
        Ok(())
    }

    fn index(&mut self) {
        let python = || self.python.iter().enumerate();
        let any = |text: &String| {
            if text == "*" {
                String::new()
            } else {
                text.clone()
            }
        };
        let index = |of: fn(&PythonRow) -> &Vec<String>| -> Prefixes<usize> {
            python()
                .flat_map(|(at, row)| of(row).iter().map(move |text| (any(text), at)))
                .collect()
        };
        self.files = index(|row| &row.file);
        self.packages = index(|row| &row.package);
        self.libraries = index(|row| &row.library);
        self.path_forms = python()
            .filter(|(_, row)| row.form.is_some())
            .map(|(at, _)| at)
            .collect();
        let (mut starts, mut whole_files) = (Vec::new(), Vec::new());
        for (at, row) in self.native.iter().enumerate() {
            starts.extend(row.start.iter().map(|text| (text.clone(), at)));
            for text in &row.is {
                self.names.entry(text.clone()).or_default().push(at);
            }
            self.contained
                .extend(row.has.iter().map(|text| (text.clone(), at)));
            if row.form.is_some() {
                self.symbol_forms.push(at);
            }
            if !row.names_symbols() {
                whole_files.extend(row.file.iter().map(|text| (text.clone(), at)));
            }
        }
        self.starts = starts.into_iter().collect();
        self.whole_files = whole_files.into_iter().collect();
        let families = self.families.iter().enumerate();
        self.family_files = families
            .flat_map(|(at, row)| row.files.iter().map(move |text| (text.clone(), at)))
            .collect();
    }

    /// The phase that a thread's name implies.
    pub fn thread_phase(&self, name: &str) -> Option<Phase> {
        self.thread(name, |row| row.phase.as_ref().map(|phase| phase.0))
    }

    /// The only backend of collectives with threads of such a name.
    pub fn thread_backend(&self, name: &str) -> Option<Backend> {
        self.thread(name, |row| row.backend.as_ref().map(|backend| backend.0))
    }

    fn thread<T>(&self, name: &str, of: impl Fn(&ThreadRow) -> Option<T>) -> Option<T> {
        let rows = self.thread_rows(name);
        rows.filter_map(|at| self.threads.get(at)).find_map(of)
    }

    /// The rows for a thread's name, in order.
    pub fn thread_rows(&self, name: &str) -> impl Iterator<Item = usize> {
        let is = move |row: &ThreadRow| row.start.iter().any(|start| name.starts_with(start));
        let rows = self.threads.iter().enumerate();
        rows.filter(move |(_, row)| is(row)).map(|(at, _)| at)
    }

    /// The call that a source line contains for an operator; the operator's own name without a row.
    pub fn operator_call<'s>(&'s self, operator: &'s str) -> &'s str {
        let row = self.call_row(operator).and_then(|at| self.calls.get(at));
        row.map_or(operator, |row| row.call.as_str())
    }

    /// The row with the call of an operator.
    pub fn call_row(&self, operator: &str) -> Option<usize> {
        let is = |row: &CallRow| row.operator.iter().any(|each| each == operator);
        self.calls.iter().position(is)
    }

    /// The phase mark of the user's own batch-making functions of this name, and its row.
    pub(super) fn own_phase(&self, last: &str) -> Option<(usize, PhaseMark)> {
        let rows = self.own.iter().enumerate();
        let mut rows = rows.filter(|(_, row)| row.is_named(last));
        rows.find_map(|(at, row)| Some((at, row.phase.as_ref()?.0)))
    }
}

/// The subject of the compilation of a Python function with this `mark`.
pub fn subject(mark: CompileMark, function: &str) -> Subject {
    match mark {
        CompileMark::Wrapper => Subject::Wrapper,
        CompileMark::Resumed(place) => Subject::Rest(place),
        _ => Subject::Function(function.to_owned()),
    }
}

/// An error in the row in these bytes.
type Misfit = (Range<usize>, String);

fn parted<T>(row: Spanned<T>) -> (Range<usize>, T) {
    (row.span(), row.into_inner())
}

fn check_python(row: &PythonRow) -> Result<(), &'static str> {
    let ways = [
        !row.file.is_empty(),
        !row.package.is_empty(),
        !row.library.is_empty(),
        row.form.is_some(),
    ];
    match ways.into_iter().filter(|&way| way).count() {
        1 => {}
        0 => return Err("a row of [[python]] needs `file`, `package` or `library`"),
        _ => return Err("a row of [[python]] has one of `file`, `package`, `library` and `form`"),
    }
    match row.collective {
        Some(CollectiveForm::Follows) => Err(
            "a row of [[python]] has no pattern that a collective may follow: collective = \"last\"",
        ),
        _ => Ok(()),
    }
}

fn check_native(row: &NativeRow) -> Result<(), &'static str> {
    if !row.names_symbols() && row.file.is_empty() {
        return Err("a row of [[native]] needs `start`, `is`, `has` or `file`");
    }
    if row.start.is_empty() && row.collective == Some(CollectiveForm::Follows) {
        return Err(
            "collective = \"follows\" needs `start`: what follows that in the function's name tells the collective; without it \"last\" \
             takes the last part of the name",
        );
    }
    if row.start.is_empty() && row.operator == Some(OperatorForm::Entry) {
        return Err(
            "operator = \"entry\" needs `start`: what follows that in the function's name is the operator",
        );
    }
    Ok(())
}

fn check_own(row: &OwnRow) -> Result<(), &'static str> {
    match row
        .word
        .iter()
        .chain(&row.name)
        .any(|name| name.contains('.'))
    {
        true => Err(
            "`word` and `name` of [[own]] are of the last part of a function's name, which has no dot; `function` of [[python]] \
             may be Class.function",
        ),
        false => Ok(()),
    }
}
