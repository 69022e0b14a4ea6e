//! The rows of a rules file as they are written.

use super::words::{CompileWord, PhaseMark, Written};
use crate::model::category::{Activity, FrameKind, Phase};
use crate::model::collective::{Backend, Issuer};
use crate::model::input::InputPart;
use crate::model::wait::WaitPart;
use crate::torch::rules::syscalls::Wait;
use serde::Deserialize;
use serde::de::value::StrDeserializer;
use serde::de::{Deserializer, Error, IntoDeserializer, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use toml::Spanned;

/// A family of native modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Library {
    /// libtorch and its parts.
    Torch,
    /// The interpreter and its C modules.
    Python,
    /// The C library, the C++ runtime, the loader, the vDSO.
    System,
    #[serde(rename = "openmp")]
    OpenMp,
    Blas,
    /// CUDA runtime, driver and libraries.
    Cuda,
    Nccl,
    /// MPI and network libraries under collectives.
    Fabric,
    /// Memory without a file.
    Anonymous,
    /// C++ that inductor wrote and compiled.
    Inductor,
    Other,
}

/// A Python function's role in calling a module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModuleCall {
    /// None.
    #[default]
    No,
    /// It is the call; its first variable is the module.
    Outer,
    /// The same before torch 2.1; later called by the above. Its first variable is the module, or a
    /// cell with it.
    Inner,
}

/// What a Python function shows about the thread that runs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trains {
    #[default]
    No,
    /// It trains or evaluates.
    Yes,
    /// It prepares data for another process.
    Feeds,
}

/// The role of a Python file if a thread sleeps below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PythonWait {
    /// A sleep below it waits for another thread or process through a queue, lock or pipe.
    Queue,
    CallerDecides,
    None,
}

/// Functions that later stages search stacks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Special {
    No,
    /// The root of a DataLoader worker.
    WorkerLoop,
    /// Where a thread calls the backward engine, and waits for it.
    EngineCall,
    /// The root of an engine thread.
    EngineThread,
    /// Where a thread hands nodes to the engine's threads, or takes the next one and waits for it.
    EngineQueue,
    /// The root of a thread that only watches collectives.
    Watchdog,
    /// The end of the process: its libraries are unloaded.
    Exit,
}

/// The role of a native class in finding the activity, if it names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Part {
    Through,
    Interpreter,
    Loading,
    TorchOther,
    CudaOther,
    Anonymous,
    Foreign,
}

/// How an operator is derived from a Python function's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PythonOperator {
    ModuleCall,
}

/// How an operator is derived from a native function's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OperatorForm {
    /// The rest, up to `::`, is the C++ name of an overload.
    Entry,
    /// The last part is the C++ name of an overload.
    Overload,
    /// The last part is a wrapper's name.
    Wrapper,
    /// The last part is the name of a collective and a dispatch key.
    Collective,
    /// The part before `::apply` is a node's name.
    Node,
    Engine,
    /// Glue that calls a kernel, whose template arguments may name it. Only outside of torch's own
    /// libraries.
    Glue,
    /// Glue that calls a kernel in Python.
    PythonGlue,
}

/// The part of a name that is the collective's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CollectiveForm {
    Last,
    /// The rest after the pattern, if it has no further part.
    Follows,
}

/// Paths that cannot be written as a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PathForm {
    Inductor,
}

/// Symbols that cannot be written as a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SymbolForm {
    StaticMkl,
}

/// One value, or a list of them.
fn many<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    struct OneOrMany<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrMany<T> {
        type Value = Vec<T>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a string, or a list of strings")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
            let from: StrDeserializer<'_, E> = text.into_deserializer();
            Ok(vec![T::deserialize(from)?])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut all = Vec::new();
            while let Some(each) = list.next_element()? {
                all.push(each);
            }
            Ok(all)
        }
    }

    from.deserialize_any(OneOrMany(PhantomData))
}

/// A text with a static lifetime, like rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lasting(pub(super) &'static str);

impl<'de> Deserialize<'de> for Lasting {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from).map(|text| Lasting(String::leak(text)))
    }
}

/// A file of rules.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RulesFile {
    pub(super) version: Option<u32>,
    pub(super) class: BTreeMap<String, Spanned<ClassRow>>,
    pub(super) family: Vec<Spanned<FamilyRow>>,
    pub(super) python: Vec<Spanned<PythonRow>>,
    pub(super) native: Vec<Spanned<NativeRow>>,
    pub(super) own: Vec<Spanned<OwnRow>>,
    pub(super) thread: Vec<ThreadRow>,
    pub(super) collective: Vec<CollectiveRow>,
    pub(super) call: Vec<CallRow>,
}

/// Defines a row: fields that are lists, fields that are values, and the row's source.
macro_rules! row {
    ($(#[$doc:meta])* $name:ident { $([$list:ident: $of:ty],)* $($value:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct $name {
            $(#[serde(default, deserialize_with = "many")] pub(super) $list: Vec<$of>,)*
            $(pub(super) $value: $type,)*
            #[serde(rename = "source")]
            _source: Option<String>,
            #[serde(rename = "since")]
            _since: Option<String>,
        }
    };
}

row!(
    /// The head of python.toml explains the fields.
    PythonRow {
        [file: String],
        [package: String],
        [library: String],
        [function: String],
        form: Option<PathForm>,
        kind: Option<Written<FrameKind>>,
        plumbing: Option<bool>,
        phase: Option<Written<PhaseMark>>,
        asleep: Option<PythonWait>,
        special: Option<Special>,
        operator: Option<PythonOperator>,
        module_call: Option<ModuleCall>,
        compile: Option<Written<CompileWord>>,
        takes_code: Option<bool>,
        wait: Option<Written<WaitPart>>,
        collective: Option<CollectiveForm>,
        issuer: Option<Written<Issuer>>,
        input: Option<Written<InputPart>>,
        trains: Option<Trains>,
    }
);

row!(
    /// The head of native.toml explains the fields.
    NativeRow {
        [family: Library],
        [file: String],
        [start: String],
        [is: String],
        [has: String],
        form: Option<SymbolForm>,
        class: Option<Spanned<String>>,
        phase: Option<Written<PhaseMark>>,
        special: Option<Special>,
        operator: Option<OperatorForm>,
        wait: Option<Written<WaitPart>>,
        collective: Option<CollectiveForm>,
        backend: Option<Written<Backend>>,
        issuer: Option<Written<Issuer>>,
        input: Option<Written<InputPart>>,
    }
);

row!(
    /// A class of native functions.
    ClassRow {
        kind: Written<FrameKind>,
        plumbing: Option<bool>,
        running: Option<Written<Activity>>,
        asleep: Option<Written<Activity>>,
        part: Option<Part>,
        waits: Option<Wait>,
    }
);

row!(
    /// Files of a family of libraries.
    FamilyRow {
        [files: String],
        name: Library,
        folder: Option<String>,
        class: Option<Spanned<String>>,
    }
);

row!(
    /// The user's own functions, by name.
    OwnRow {
        [word: String],
        [name: String],
        phase: Option<Written<PhaseMark>>,
        input: Option<Written<InputPart>>,
    }
);

row!(
    /// Threads, by the prefix of their name.
    ThreadRow {
        [start: String],
        phase: Option<Written<Phase>>,
        backend: Option<Written<Backend>>,
    }
);

row!(
    /// Collectives, by the prefix of a function's name.
    CollectiveRow {
        [start: String],
        name: Lasting,
    }
);

row!(
    /// The call that a source line contains for an operator.
    CallRow {
        [operator: String],
        call: String,
    }
);
