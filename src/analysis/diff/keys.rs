//! The parts of a run that are compared, under names that mean the same in another run.

use crate::model::category::{Activity, Phase, SummaryRow};
use crate::model::ids::{FunctionId, StackId};
use crate::model::profile::{Function, Profile};
use crate::model::text::package_path;
use rustc_hash::{FxHashMap, FxHashSet};

/// Maximum depth of modules that are distinguished.
const MAX_DEPTH: usize = 64;

/// A part of a run. Parts of two runs correspond if their keys are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// The complete step.
    Step,
    Row(SummaryRow),
    /// One of torchspy's phases.
    Phase(Phase),
    /// A region defined by the user.
    Region(String),
    Activity(Activity),
    /// An `nn.Module` in forward, including all below it.
    Module {
        /// Class of the outermost module.
        root: String,
        /// Number among the outermost modules of that class, from 0.
        number: u32,
        /// Path in it; empty for the outermost module.
        path: String,
    },
    /// The own time of an `nn.Module` in forward.
    ModuleSelf {
        /// Class of the outermost module.
        root: String,
        /// Number among the outermost modules of that class, from 0.
        number: u32,
        /// Path in it; empty for the outermost module.
        path: String,
    },
    /// The own time of an operator.
    Operator(String),
    /// A line of the user's own code, including what it calls up to other code of the user's.
    Line {
        /// File, as [`FileNames`] has it.
        file: String,
        function: String,
        /// Line, counted from the function's first line, so that edits above the function do not
        /// matter.
        offset: i64,
    },
    /// A Python function, with the native code that it calls.
    Function {
        /// File, as [`FileNames`] has it.
        file: String,
        /// Qualified name.
        name: String,
    },
    /// The own time of a native function.
    Native {
        /// Library, by file name.
        library: String,
        /// Demangled name, or a text that says that there is none.
        name: String,
    },
}

impl Key {
    /// The stable name of the kind of part, as in JSON.
    pub fn kind(&self) -> &'static str {
        match self {
            Key::Step => "step",
            Key::Row(_) => "row",
            Key::Phase(_) | Key::Region(_) => "phase",
            Key::Activity(_) => "activity",
            Key::Module { .. } => "module",
            Key::ModuleSelf { .. } => "module_self",
            Key::Operator(_) => "operator",
            Key::Line { .. } => "line",
            Key::Function { .. } => "function",
            Key::Native { .. } => "native",
        }
    }
}

/// Facts about a part besides its key, from the last run of B that has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Class of a module.
    pub class: String,
    /// Path of the source file.
    pub file: String,
    /// Source line: the first of a function.
    pub line: u32,
    /// A short form of a native name.
    pub short_name: String,
}

/// All keys of a comparison, by number.
#[derive(Debug, Default)]
pub(super) struct Keys {
    numbers: FxHashMap<Key, usize>,
    pub(super) list: Vec<(Key, About)>,
}

impl Keys {
    /// Parts that exist in every run come first, the step before all others.
    pub(super) fn new() -> Self {
        let mut keys = Self::default();
        keys.number(Key::Step, About::default);
        for &row in SummaryRow::ALL {
            keys.number(Key::Row(row), About::default);
        }
        for &phase in Phase::ALL {
            keys.number(Key::Phase(phase), About::default);
        }
        for &activity in Activity::ALL {
            keys.number(Key::Activity(activity), About::default);
        }
        keys
    }

    /// The number of the step.
    pub(super) const STEP: usize = 0;

    pub(super) fn of_row(row: SummaryRow) -> usize {
        1 + row as usize
    }

    pub(super) fn of_phase(phase: Phase) -> usize {
        1 + SummaryRow::ALL.len() + phase as usize
    }

    pub(super) fn of_activity(activity: Activity) -> usize {
        1 + SummaryRow::ALL.len() + Phase::ALL.len() + activity as usize
    }

    /// Number of parts that exist in every run.
    pub(super) fn fixed() -> usize {
        1 + SummaryRow::ALL.len() + Phase::ALL.len() + Activity::ALL.len()
    }

    fn number(&mut self, key: Key, about: impl FnOnce() -> About) -> usize {
        if let Some(&known) = self.numbers.get(&key) {
            if let Some((_, old)) = self.list.get_mut(known) {
                *old = about();
            }
            return known;
        }
        let number = self.list.len();
        self.list.push((key.clone(), about()));
        self.numbers.insert(key, number);
        number
    }

    /// The parts that a stack in a phase belongs to, each once.
    pub(super) fn of_stack(
        &mut self,
        profile: &Profile,
        names: &FileNames,
        stack: StackId,
        phase: Phase,
    ) -> Vec<usize> {
        let mut found = Vec::new();
        if phase == Phase::Forward {
            self.modules(profile, stack, &mut found);
        }
        if phase.region().is_some() {
            let name = profile.phase_name(phase).to_owned();
            found.push(self.number(Key::Region(name), About::default));
        }
        if let Some(site) = profile.facts.own_operator(Some(stack)) {
            let name = profile.facts.names.get(site.name).to_owned();
            found.push(self.number(Key::Operator(name), About::default));
        }
        let facts = profile.facts.of(Some(stack));
        let function = |id: FunctionId| profile.function(id);
        if let Some(leaf) = facts.python_leaf.and_then(|(id, _)| function(id)) {
            let key = Key::Function {
                file: names.name(&leaf.file),
                name: leaf.name.clone(),
            };
            found.push(self.number(key, || place(leaf, leaf.first_line)));
        }
        if let Some((id, line)) = facts.user_line
            && let Some(function) = function(id)
        {
            let key = Key::Line {
                file: names.name(&function.file),
                function: function.name.clone(),
                offset: i64::from(line) - i64::from(function.first_line),
            };
            found.push(self.number(key, || place(function, line)));
        }
        if let Some(native) = facts.native_leaf.and_then(function) {
            found.push(self.native(native));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn modules(&mut self, profile: &Profile, stack: StackId, found: &mut Vec<usize>) {
        let mut innermost = true;
        for id in profile.facts.modules(Some(stack)) {
            let Some(info) = profile.nn_module(id) else {
                continue;
            };
            let about = |class: &str| About {
                class: class.to_owned(),
                ..About::default()
            };
            if innermost {
                innermost = false;
                let key = Key::ModuleSelf {
                    root: info.root.clone(),
                    number: info.number,
                    path: info.path.clone(),
                };
                found.push(self.number(key, || about(&info.class)));
            }
            let dots = info.path.match_indices('.').map(|(at, _)| at);
            let inner = (!info.path.is_empty()).then_some(info.path.len());
            for end in std::iter::once(0).chain(dots).chain(inner).take(MAX_DEPTH) {
                let path = info.path.get(..end).unwrap_or_default();
                let key = Key::Module {
                    root: info.root.clone(),
                    number: info.number,
                    path: path.to_owned(),
                };
                // For the modules that contain it only the path is known here; their class is known
                // from calls of their own.
                let number = match (end == info.path.len(), self.numbers.get(&key).copied()) {
                    (false, Some(known)) => known,
                    (false, None) => self.number(key, About::default),
                    (true, _) => self.number(key, || about(&info.class)),
                };
                found.push(number);
            }
        }
    }

    fn native(&mut self, function: &Function) -> usize {
        let library = function.file.rsplit('/').next().unwrap_or_default();
        // An address is meaningless in another run.
        let name = match function.name.contains("+0x") {
            true => "(no name)",
            false => function.name.as_str(),
        };
        let key = Key::Native {
            library: library.to_owned(),
            name: name.to_owned(),
        };
        self.number(key, || About {
            file: function.file.clone(),
            short_name: match name {
                "(no name)" => name.to_owned(),
                _ => function.short_name.clone(),
            },
            ..About::default()
        })
    }
}

fn place(function: &Function, line: u32) -> About {
    About {
        file: function.file.clone(),
        line,
        ..About::default()
    }
}

/// Names of source files that hold in both sides of a comparison: a package's file from the package
/// on; a file of the user's by its complete path if both sides have it, else by its file name, as
/// for two checkouts of one script.
#[derive(Debug, Default)]
pub(crate) struct FileNames {
    shared: FxHashSet<String>,
}

impl FileNames {
    /// For the runs of A and of B.
    pub(crate) fn new<'p>(
        a: impl IntoIterator<Item = &'p Profile>,
        b: impl IntoIterator<Item = &'p Profile>,
    ) -> Self {
        let (a, b) = (files(a), files(b));
        Self {
            shared: a.intersection(&b).map(|&file| file.to_owned()).collect(),
        }
    }

    pub(crate) fn name(&self, file: &str) -> String {
        let package = package_path(file);
        if package.len() < file.len() || self.shared.contains(file) {
            return package.to_owned();
        }
        file.rsplit('/').next().unwrap_or(file).to_owned()
    }
}

fn files<'p>(profiles: impl IntoIterator<Item = &'p Profile>) -> FxHashSet<&'p str> {
    profiles
        .into_iter()
        .flat_map(|profile| &profile.functions)
        .filter(|function| function.is_python)
        .map(|function| function.file.as_str())
        .collect()
}

/// The name of a function in both sides of a comparison, for drawings.
pub(crate) fn function_name(profile: &Profile, names: &FileNames, id: FunctionId) -> String {
    match profile.function(id) {
        Some(function) if function.is_python => {
            format!("{}\0{}", function.name, names.name(&function.file))
        }
        Some(function) => function.short_name.clone(),
        None => String::new(),
    }
}
