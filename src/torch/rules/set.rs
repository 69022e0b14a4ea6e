//! The rules, read and indexed.

use super::native::{NativeClass, class_of};
use super::prefixes::Prefixes;
use super::rows::{
    CallRow, CollectiveRow, FamilyRow, NativeRow, OwnRow, PythonRow, RulesFile, ThreadRow,
};
use super::words::PhaseMark;
use crate::model::category::Phase;
use crate::model::collective::Backend;
use crate::model::compile::{CompileMark, Subject};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::OnceLock;
use toml::Spanned;

/// The files that are compiled in, by name, in their order.
pub const SOURCES: &[(&str, &str)] = &[
    ("python.toml", include_str!("python.toml")),
    ("native.toml", include_str!("native.toml")),
    ("input.toml", include_str!("input.toml")),
];

/// Why a file holds no rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RulesError {
    /// The line, counted from 1.
    pub line: usize,
    pub message: String,
}

impl RulesError {
    fn at(text: &str, span: Option<Range<usize>>, message: impl Into<String>) -> Self {
        let before = text
            .get(..span.map_or(0, |span| span.start))
            .unwrap_or(text);
        Self {
            line: before.matches('\n').count() + 1,
            message: message.into(),
        }
    }
}

/// The rules, indexed.
#[derive(Debug, Default)]
pub struct RuleSet {
    /// Version of the rules that are compiled in.
    pub version: u32,
    /// Rows that the user added.
    pub added: usize,
    pub(super) python: Vec<PythonRow>,
    /// So many first ones are the user's.
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
    /// The rules that are compiled in, read when they are first asked for.
    pub fn built_in() -> &'static RuleSet {
        static RULES: OnceLock<RuleSet> = OnceLock::new();
        // That they can be read is tested.
        RULES.get_or_init(|| Self::read(None).unwrap_or_default())
    }

    /// The rules of `text` before those that are compiled in.
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
        // Those that are compiled in come first: what a file may not do is give one of their names
        // another meaning.
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
        let class = |name: &Option<String>, span: &Range<usize>| match name {
            None => Ok(None),
            Some(name) => match classes.get(name) {
                Some(&class) => Ok(Some(class)),
                None => Err((span.clone(), format!("unknown class `{name}`"))),
            },
        };
        for row in file.python {
            let (span, row) = parted(row);
            check_python(&row).map_err(|message| (span, message.to_owned()))?;
            self.python.push(row);
        }
        for row in file.native {
            let (span, row) = parted(row);
            check_native(&row).map_err(|message| (span.clone(), message.to_owned()))?;
            self.native_classes.push(class(&row.class, &span)?);
            self.native.push(row);
        }
        for row in file.family {
            let (span, row) = parted(row);
            self.family_classes.push(class(&row.class, &span)?);
            self.families.push(row);
        }
        self.version = file.version.unwrap_or(self.version);
        self.own.extend(file.own);
        self.threads.extend(file.thread);
        self.collectives.extend(file.collective);
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

    /// The backend of collectives that alone has threads of such a name.
    pub fn thread_backend(&self, name: &str) -> Option<Backend> {
        self.thread(name, |row| row.backend.as_ref().map(|backend| backend.0))
    }

    fn thread<T>(&self, name: &str, of: impl Fn(&ThreadRow) -> Option<T>) -> Option<T> {
        let is = |row: &&ThreadRow| row.start.iter().any(|start| name.starts_with(start));
        self.threads.iter().filter(is).find_map(of)
    }

    /// The call that a line has for an operator; the operator's own name where no row has another.
    pub fn operator_call<'s>(&'s self, operator: &'s str) -> &'s str {
        let is = |row: &&CallRow| row.operator.iter().any(|each| each == operator);
        self.calls
            .iter()
            .find(is)
            .map_or(operator, |row| row.call.as_str())
    }

    /// How the user's own function of this name, that makes a batch, takes part in finding the
    /// phase.
    pub(super) fn own_phase(&self, name: &str) -> Option<PhaseMark> {
        let name = name.trim_start_matches('_');
        let is = |row: &&OwnRow| row.name.iter().any(|each| each == name);
        self.own
            .iter()
            .filter(is)
            .find_map(|row| Some(row.phase.as_ref()?.0))
    }
}

/// What the compilation of a Python function is of, whose part in torch.compile is `mark`.
pub fn subject(mark: CompileMark, function: &str) -> Subject {
    match mark {
        CompileMark::Wrapper => Subject::Wrapper,
        CompileMark::Resumed(place) => Subject::Rest(place),
        _ => Subject::Function(function.to_owned()),
    }
}

/// What is wrong with the row in these bytes.
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
        1 => Ok(()),
        0 => Err("a row of [[python]] needs `file`, `package` or `library`"),
        _ => Err("a row of [[python]] has one of `file`, `package`, `library` and `form`"),
    }
}

fn check_native(row: &NativeRow) -> Result<(), &'static str> {
    if row.names_symbols() || !row.file.is_empty() {
        Ok(())
    } else {
        Err("a row of [[native]] needs `start`, `is`, `has` or `file`")
    }
}
