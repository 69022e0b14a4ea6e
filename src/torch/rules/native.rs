//! The rules for native functions.

use super::matching::{Explanation, Matching};
use super::operators::native_mark;
use super::paths::is_of_inductor;
use super::rows::{
    ClassRow, CollectiveForm, Library, ModuleCall, NativeRow, Part, PythonWait, Special,
    SymbolForm, Trains,
};
use super::syscalls::Wait;
use super::words::PhaseMark;
use super::{FunctionRules, RuleSet};
use crate::model::category::{Activity, FrameKind};
use crate::model::collective::CollectivePart;
use crate::model::compile::CompileMark;
use crate::model::input::InputPart;
use crate::model::module::ModuleKind;
use crate::model::operator::OperatorMark;
use crate::model::text::file_name;
use crate::model::wait::WaitPart;
use crate::torch::classify::FunctionClass;
use crate::torch::symbol_name::SymbolName;

/// A frame's effect on the activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameRole {
    /// Its work is known; `asleep` if a sleep below it has a meaning of its own.
    Known {
        /// The activity while the thread runs.
        active: Activity,
        /// The activity while the thread sleeps; `None` if the system call decides.
        asleep: Option<Activity>,
    },
    /// The interpreter: Python, and the search ends at the next Python frame towards the root.
    Interpreter,
    /// The caller decides. With a wait if the name alone implies one.
    Through(Option<Wait>),
    /// Torch's own code without a row.
    TorchOther,
    /// CUDA's own code without a row.
    CudaOther,
    /// Code without name and file.
    Anonymous,
    /// Named code without a rule.
    Foreign,
    /// A library is being loaded: whatever it calls belongs to that.
    Loading,
    Python,
    /// A marker, which is not code.
    Marker,
}

/// Classification of a native function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NativeClass {
    pub role: FrameRole,
    pub kind: FrameKind,
    /// Whether it only forwards a call.
    pub plumbing: bool,
}

/// A function of a file without a family.
const FOREIGN: NativeClass = NativeClass {
    role: FrameRole::Foreign,
    kind: FrameKind::Native,
    plumbing: false,
};

/// The class that a row defines.
pub(super) fn class_of(row: &ClassRow) -> Result<NativeClass, &'static str> {
    let role = match (&row.running, row.part) {
        (Some(active), None) => FrameRole::Known {
            active: active.0,
            asleep: row.asleep.as_ref().map(|asleep| asleep.0),
        },
        (None, Some(part)) => match part {
            Part::Through => FrameRole::Through(row.waits),
            Part::Interpreter => FrameRole::Interpreter,
            Part::Loading => FrameRole::Loading,
            Part::TorchOther => FrameRole::TorchOther,
            Part::CudaOther => FrameRole::CudaOther,
            Part::Anonymous => FrameRole::Anonymous,
            Part::Foreign => FrameRole::Foreign,
        },
        _ => return Err("a class has either `running` or `part`"),
    };
    Ok(NativeClass {
        role,
        kind: row.kind.0,
        plumbing: row.plumbing.unwrap_or(false),
    })
}

impl NativeRow {
    /// Whether it matches some functions of a library and not all.
    pub(super) fn names_symbols(&self) -> bool {
        !(self.start.is_empty() && self.is.is_empty() && self.has.is_empty()) || self.form.is_some()
    }
}

/// A native function, as rows match it.
#[derive(Clone, Copy)]
struct Symbol<'f> {
    family: Library,
    path: &'f str,
    name: Option<SymbolName<'f>>,
}

impl RuleSet {
    /// The rules for a native function, by its module and its demangled name, if it has one.
    pub fn native(&self, kind: ModuleKind, path: &str, name: Option<&str>) -> FunctionRules {
        self.explain_native(kind, path, name).rules
    }

    /// The same, with the rows that they come from.
    pub fn explain_native(&self, kind: ModuleKind, path: &str, name: Option<&str>) -> Explanation {
        let (family, family_row) = self.family_by_row(kind, path);
        let symbol = Symbol {
            family,
            path,
            name: name.map(SymbolName::parse),
        };
        let found = self.native_rows(symbol);
        let rows = Matching::new("native", &self.native, &found, self.added_native);
        let class = rows
            .first_where("class", true, |at, _| {
                self.native_classes.get(at).copied().flatten()
            })
            .or_else(|| {
                let (at, class) = self.family_class(family)?;
                rows.decided("class", "family", at);
                Some(class)
            })
            .unwrap_or(FOREIGN);
        let mark = rows.first("phase", |row| Some(row.phase.as_ref()?.0));
        let operator = rows.first("operator", |row| Some((row, row.operator?)));
        let operator = operator.zip(symbol.name).map(|((row, form), name)| {
            let start = row
                .start
                .iter()
                .find(|start| name.qualified.starts_with(start.as_str()));
            native_mark(symbol.family, name, form, start.map_or(0, String::len))
        });
        let collective = rows.first("collective", |row| Some((row, row.collective?)));
        let special = rows.first("special", |row| row.special);
        let special = special.unwrap_or(Special::No);
        let rules = FunctionRules {
            class: FunctionClass {
                kind: class.kind,
                plumbing: class.plumbing,
                role: class.role,
                mark: mark.filter(|&mark| mark != PhaseMark::None),
                wait: PythonWait::None,
                special,
                makes_batch: false,
            },
            operator: operator.unwrap_or(OperatorMark::None),
            compile: CompileMark::None,
            wait: rows
                .first("wait", |row| Some(row.wait.as_ref()?.0))
                .unwrap_or(WaitPart::None),
            collective: CollectivePart {
                name: collective
                    .and_then(|(row, form)| collective_part(row, form, symbol.name?))
                    .and_then(|part| self.collective_name(part, &rows)),
                backend: rows.first("backend", |row| Some(row.backend.as_ref()?.0)),
                issuer: rows.first("issuer", |row| Some(row.issuer.as_ref()?.0)),
                imports: false,
                watches: special == Special::Watchdog,
            },
            input: rows
                .first("input", |row| Some(row.input.as_ref()?.0))
                .unwrap_or(InputPart::None),
            module_call: ModuleCall::No,
            trains: Trains::No,
            takes_code: false,
            added: rows.has_added(),
        };
        rows.explain(rules, family_row.map(|at| ("family", at)))
    }

    /// Rows for a function, in order.
    fn native_rows(&self, symbol: Symbol<'_>) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        found.extend(self.whole_files.of(file_name(symbol.path)));
        if let Some(name) = symbol.name {
            found.extend(self.starts.of(name.qualified));
            found.extend(self.names.get(name.stem).into_iter().flatten());
            let has = self.contained.iter();
            found.extend(
                has.filter(|(text, _)| name.full.contains(text.as_str()))
                    .map(|&(_, at)| at),
            );
            let forms = self.symbol_forms.iter().filter(|&&at| {
                let form = self.native.get(at).and_then(|row| row.form);
                form == Some(SymbolForm::StaticMkl)
                    && is_static_mkl(symbol.path, name.stem)
                    && !name.full.ends_with("@plt")
            });
            found.extend(forms);
        }
        found.sort_unstable();
        found.dedup();
        found.retain(|&at| self.native.get(at).is_some_and(|row| symbol.is_in(row)));
        found
    }

    /// The family of a module.
    pub fn family(&self, kind: ModuleKind, path: &str) -> Library {
        self.family_by_row(kind, path).0
    }

    /// The family of a module, with its row.
    fn family_by_row(&self, kind: ModuleKind, path: &str) -> (Library, Option<usize>) {
        match kind {
            ModuleKind::Vdso => return (Library::System, None),
            ModuleKind::Anonymous => return (Library::Anonymous, None),
            ModuleKind::File => {}
        }
        let in_folder = self.families.iter().position(|row| {
            let folder = row.folder.as_deref();
            folder.is_some_and(|folder| path.contains(folder))
        });
        let name = file_name(path);
        if in_folder.is_none() && is_of_inductor(name) {
            return (Library::Inductor, None);
        }
        let first = in_folder.or_else(|| self.family_files.of(name).min().copied());
        let row = first.and_then(|at| self.families.get(at));
        (row.map_or(Library::Other, |row| row.name), first)
    }

    /// The class of a function of which only the library is known, with its row.
    fn family_class(&self, family: Library) -> Option<(usize, NativeClass)> {
        let rows = self.families.iter().zip(&self.family_classes).enumerate();
        let mut classes = rows.filter(|(_, (row, _))| row.name == family);
        classes.find_map(|(at, (_, class))| Some((at, (*class)?)))
    }
}

impl Symbol<'_> {
    /// Whether it is in a library of the row.
    fn is_in(self, row: &NativeRow) -> bool {
        let file = file_name(self.path);
        (row.family.is_empty() || row.family.contains(&self.family))
            && (row.file.is_empty()
                || row
                    .file
                    .iter()
                    .any(|start| file.starts_with(start.as_str())))
    }
}

/// The part of a name that names the collective.
fn collective_part<'f>(
    row: &NativeRow,
    form: CollectiveForm,
    name: SymbolName<'f>,
) -> Option<&'f str> {
    match form {
        CollectiveForm::Last => name.stem.rsplit("::").next(),
        CollectiveForm::Follows => {
            let mut starts = row.start.iter();
            let rest = starts.find_map(|start| name.stem.strip_prefix(start.as_str()))?;
            (!rest.contains(':')).then_some(rest)
        }
    }
}

/// Torch's own C++ that the rows do not cover begins with a namespace. Everything else in
/// libtorch_cpu is C: internals of MKL without a prefix (`gblock_by_k_omp`, `sgemm_t_n23`; 25,000
/// `mkl_` symbols and thousands without the prefix, nm -C libtorch_cpu 2.15.0), including FFT and
/// vector maths; except code that runs when the library is loaded.
fn is_static_mkl(module: &str, stem: &str) -> bool {
    const LOADING: [&str; 5] = [
        "_GLOBAL__",
        "__static_init",
        "__sti_",
        "_init",
        "TORCH_LIBRARY",
    ];
    file_name(module).starts_with("libtorch_cpu")
        && !stem.is_empty()
        && !stem.contains(':')
        // C++, which did not demangle.
        && !stem.starts_with("_Z")
        && !LOADING.iter().any(|start| stem.starts_with(start))
}
