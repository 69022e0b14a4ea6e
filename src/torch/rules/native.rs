//! What native functions do, by the beginning of their demangled names and by their library.

use super::libraries::Library;
use super::symbols::{GEMM, NATIVE, OMP_IDLE};
use super::syscalls::Wait;
use crate::model::category::{Activity, FrameKind};
use crate::torch::symbol_name::SymbolName;

/// How a native frame takes part in finding the activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Says {
    /// It is known what it does; `asleep` where a sleep below it means something of its own.
    Known {
        /// What it does while the thread runs.
        active: Activity,
        /// What it is about while the thread sleeps; `None` where the system call decides.
        asleep: Option<Activity>,
    },
    /// The interpreter: Python, and the search ends at the Python frame outward.
    Interpreter,
    /// Says nothing: the caller decides. With a wait that the name alone tells.
    Through(Option<Wait>),
    /// Torch's own code that no row knows.
    TorchOther,
    /// CUDA's own code that no row knows.
    CudaOther,
    /// Code without name and file.
    Anonymous,
    /// Named code that no rule knows.
    Foreign,
    /// A library is being loaded: what it calls sets that up, whatever it is called.
    Loading,
    /// A Python function.
    Python,
    /// A marker, which is no code.
    Marker,
}

/// What a rule looks at.
#[derive(Clone, Copy, Debug)]
pub enum Pattern {
    /// The qualified name begins so.
    Start(&'static str),
    /// The name without parameters and suffixes is this.
    Is(&'static str),
    /// The whole name, template arguments and parameters included, contains this.
    Has(&'static str),
}

impl Pattern {
    pub(super) fn matches(self, name: SymbolName<'_>) -> bool {
        match self {
            Pattern::Start(text) => name.qualified.starts_with(text),
            Pattern::Is(text) => name.stem == text,
            Pattern::Has(text) => name.whole.contains(text),
        }
    }
}

/// What a native function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NativeClass {
    /// Its part in finding the activity.
    pub says: Says,
    /// Its colour.
    pub kind: FrameKind,
    /// Whether it only passes a call on.
    pub plumbing: bool,
}

impl NativeClass {
    /// It says this, and is no plumbing.
    pub(super) const fn plain(says: Says, kind: FrameKind) -> Self {
        Self {
            says,
            kind,
            plumbing: false,
        }
    }

    /// It only passes a call on.
    pub(super) const fn plumbing(says: Says, kind: FrameKind) -> Self {
        Self {
            says,
            kind,
            plumbing: true,
        }
    }

    /// It is known what it does.
    pub(super) const fn known(active: Activity, asleep: Option<Activity>, kind: FrameKind) -> Self {
        Self::plain(Says::Known { active, asleep }, kind)
    }
}

/// Rows of one meaning. `libraries` is empty where the name alone is enough.
#[derive(Clone, Copy, Debug)]
pub struct NativeRule {
    /// Families in which the row holds.
    pub libraries: &'static [Library],
    /// Any of these.
    pub patterns: &'static [Pattern],
    /// The meaning.
    pub class: NativeClass,
}

/// Torch's own C++ that the tables do not know begins with a namespace. Anything else in libtorch_cpu is C, and that is
/// the unprefixed insides of MKL (`gblock_by_k_omp`, `sgemm_t_n23`; 25,000 `mkl_` symbols and thousands without the
/// prefix, nm -C libtorch_cpu 2.15.0), FFT and vector maths among them; but for what runs when the library is loaded.
fn is_static_mkl(module: &str, stem: &str) -> bool {
    const LOADING: [&str; 5] = [
        "_GLOBAL__",
        "__static_init",
        "__sti_",
        "_init",
        "TORCH_LIBRARY",
    ];
    super::libraries::file_name(module).starts_with("libtorch_cpu")
        && !stem.is_empty()
        && !stem.contains(':')
        && !LOADING.iter().any(|start| stem.starts_with(start))
}

/// The class of a native function. `name` is `None` where no symbol is known.
pub fn class(library: Library, module: &str, name: Option<&str>) -> NativeClass {
    let Some(name) = name.map(SymbolName::parse) else {
        return default_class(library);
    };
    let row = NATIVE.iter().find(|rule| {
        (rule.libraries.is_empty() || rule.libraries.contains(&library))
            && rule.patterns.iter().any(|pattern| pattern.matches(name))
    });
    match row {
        Some(rule) => rule.class,
        None if library == Library::Torch && is_static_mkl(module, name.stem) => GEMM,
        None => default_class(library),
    }
}

/// What is said of a function of which only the library is known.
fn default_class(library: Library) -> NativeClass {
    match library {
        Library::Torch => NativeClass::plain(Says::TorchOther, FrameKind::Aten),
        Library::Python => NativeClass::plain(Says::Interpreter, FrameKind::Interpreter),
        Library::System => NativeClass::plain(Says::Through(None), FrameKind::Native),
        Library::OpenMp => OMP_IDLE,
        Library::Blas => GEMM,
        Library::Inductor => super::symbols::ATEN,
        Library::Cuda => NativeClass::plain(Says::CudaOther, FrameKind::Cuda),
        Library::Nccl | Library::Fabric => super::symbols::COLLECTIVE,
        Library::Anonymous => NativeClass::plain(Says::Anonymous, FrameKind::Native),
        Library::Other => NativeClass::plain(Says::Foreign, FrameKind::Native),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Pattern::{Has, Is, Start};

    #[test]
    fn what_runs_when_torch_is_loaded_is_no_matrix_product() {
        let path = "/x/torch/lib/libtorch_cpu.so";
        for name in [
            "_GLOBAL__sub_I_RegisterCPU_0.cpp",
            "__static_initialization_and_destruction_0(int, int)",
        ] {
            assert_eq!(
                class(Library::Torch, path, Some(name)).says,
                Says::TorchOther,
                "{name}"
            );
        }
        assert_eq!(class(Library::Torch, path, Some("gblock_by_k_omp")), GEMM);
        // The same in a library that has no MKL inside.
        let other = class(
            Library::Torch,
            "/x/libtorch_python.so",
            Some("gblock_by_k_omp"),
        );
        assert_eq!(other.says, Says::TorchOther);
    }

    #[test]
    fn every_row_can_match() {
        for (index, rule) in NATIVE.iter().enumerate() {
            let library = rule.libraries.first().copied().unwrap_or(Library::Other);
            for pattern in rule.patterns {
                let (Start(text) | Is(text) | Has(text)) = *pattern;
                let name = SymbolName::parse(text);
                let first = NATIVE.iter().position(|each| {
                    (each.libraries.is_empty() || each.libraries.contains(&library))
                        && each.patterns.iter().any(|pattern| pattern.matches(name))
                });
                assert_eq!(first, Some(index), "{text} is shadowed");
            }
        }
    }
}
