//! Keywords of rules: how phases, activities, waits and others are written in a row.

use crate::model::category::{Activity, FrameKind, Phase};
use crate::model::collective::{Backend, Issuer};
use crate::model::compile::{CompileMark, CompileStage};
use crate::model::input::{InputPart, InputTask};
use crate::model::wait::WaitPart;
use serde::de::{Deserialize, Deserializer, Error};

/// A frame's effect on the phase. `docs/src/attribution.md` has the order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PhaseMark {
    /// Everything that runs inside of this frame.
    Whole(Phase),
    /// This frame and what it calls, up to the next strong mark.
    Strong(Phase),
    /// Like a strong mark, but a forward inside of it belongs to it, unless a backward is in
    /// between.
    Again(Phase),
    /// Code of a file that serves a phase, but that imports run, too.
    Weak(Phase),
    /// Machinery that runs a training loop for its user: decides if nothing else does, and no code
    /// of the user's is nearer.
    Fallback(Phase),
    /// The import machinery.
    Import,
    /// Matches a weak mark's file, but runs in training.
    None,
}

/// A value that a row writes as a keyword.
pub(super) trait Word: Sized {
    /// What the keywords denote, for error messages.
    const WHAT: &'static str;

    /// The value of a keyword.
    fn parse(text: &str) -> Option<Self>;

    /// All keywords.
    fn known() -> Vec<&'static str>;

    /// All keywords, for people.
    fn expected() -> String {
        format!("one of: {}", Self::known().join(", "))
    }
}

/// A value that is parsed from its keyword.
#[derive(Clone, Debug)]
pub(super) struct Written<T>(pub(super) T);

impl<'de, T: Word> Deserialize<'de> for Written<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        T::parse(&text).map(Written).ok_or_else(|| {
            let (what, known) = (T::WHAT, T::expected());
            D::Error::custom(format!("unknown {what} `{text}`, expected {known}"))
        })
    }
}

/// Implements [`Word`] for a type with a list of values and a name of each.
macro_rules! word {
    ($name:ty, $what:literal, $all:expr) => {
        impl Word for $name {
            const WHAT: &'static str = $what;

            fn parse(text: &str) -> Option<Self> {
                $all.iter().copied().find(|each| each.name() == text)
            }

            fn known() -> Vec<&'static str> {
                $all.iter().map(|each| each.name()).collect()
            }
        }
    };
}

word!(FrameKind, "kind", FrameKind::ALL);
word!(Activity, "activity", Activity::ALL);
word!(Phase, "phase", Phase::BUILT_IN);
word!(Backend, "backend", BACKENDS);
word!(Issuer, "issuer", ISSUERS);

const BACKENDS: &[Backend] = &[Backend::Nccl, Backend::Gloo, Backend::Mpi, Backend::Ucc];

const ISSUERS: &[Issuer] = &[
    Issuer::DdpBucket,
    Issuer::DdpReducer,
    Issuer::DdpBuffers,
    Issuer::DdpStart,
    Issuer::FsdpUnshard,
    Issuer::FsdpReshard,
    Issuer::FsdpReduce,
    Issuer::SyncBatchNorm,
    Issuer::Checkpoint,
];

impl Word for PhaseMark {
    const WHAT: &'static str = "phase mark";

    fn parse(text: &str) -> Option<Self> {
        let (how, phase) = match text {
            "import" => return Some(PhaseMark::Import),
            "none" => return Some(PhaseMark::None),
            _ => text.split_once(' ')?,
        };
        let phase = Phase::parse(phase)?;
        Some(match how {
            "whole" => PhaseMark::Whole(phase),
            "strong" => PhaseMark::Strong(phase),
            "again" => PhaseMark::Again(phase),
            "weak" => PhaseMark::Weak(phase),
            "around" if phase == Phase::Framework => PhaseMark::Fallback(phase),
            _ => return None,
        })
    }

    fn known() -> Vec<&'static str> {
        vec!["whole", "strong", "again", "weak"]
    }

    fn expected() -> String {
        format!(
            "two words, as in `strong input`: the first of {}; the second a phase, of {}; or one of `around framework`, `import` and `none`",
            Self::known().join(", "),
            Phase::known().join(", "),
        )
    }
}

/// The meaning of a row for torch.compile.
#[derive(Clone, Debug)]
pub(super) enum CompileWord {
    Mark(CompileMark),
    /// The rest of a function after a graph break; the function is in its name.
    Resumed,
}

impl Word for CompileWord {
    const WHAT: &'static str = "part in torch.compile";

    fn parse(text: &str) -> Option<Self> {
        let stage = || {
            CompileStage::ALL
                .iter()
                .copied()
                .find(|each| each.name() == text)
        };
        Some(CompileWord::Mark(match text {
            "resumed" => return Some(CompileWord::Resumed),
            "between" => CompileMark::Between,
            "generated" => CompileMark::Generated,
            "graph" => CompileMark::Graph,
            "wrapper" => CompileMark::Wrapper,
            "backward" => CompileMark::Backward,
            _ => CompileMark::Stage(stage()?),
        }))
    }

    fn known() -> Vec<&'static str> {
        let own = [
            "resumed",
            "between",
            "generated",
            "graph",
            "wrapper",
            "backward",
        ];
        let stages = CompileStage::ALL.iter().map(|each| each.name());
        own.into_iter().chain(stages).collect()
    }
}

const WAITS: &[(&str, WaitPart)] = &[
    ("method", WaitPart::Method),
    ("runtime", WaitPart::Runtime),
    ("copies", WaitPart::Copies),
    ("to_device", WaitPart::ToDevice),
    ("to_host", WaitPart::ToHost),
    ("on_device", WaitPart::OnDevice),
    ("engine", WaitPart::Engine),
    ("loader", WaitPart::Loader),
    ("child", WaitPart::Child),
    ("socket", WaitPart::Socket),
    ("events", WaitPart::Events),
    ("sleep", WaitPart::Sleep),
];

impl Word for WaitPart {
    const WHAT: &'static str = "wait";

    fn parse(text: &str) -> Option<Self> {
        // Rows have a static lifetime, and so has a call that is written in one.
        if let Some(call) = text.strip_prefix("gpu ") {
            return Some(WaitPart::Gpu(String::leak(call.to_owned())));
        }
        if let Some(call) = text.strip_prefix("gpu_whole ") {
            return Some(WaitPart::GpuWhole(String::leak(call.to_owned())));
        }
        let known = WAITS.iter().find(|(word, _)| *word == text);
        known.map(|&(_, part)| part)
    }

    fn known() -> Vec<&'static str> {
        let words = WAITS.iter().map(|&(word, _)| word);
        ["gpu CALL", "gpu_whole CALL"]
            .into_iter()
            .chain(words)
            .collect()
    }
}

impl Word for InputPart {
    const WHAT: &'static str = "task of making a batch";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "fetch" => Some(InputPart::Fetch),
            "loop" => Some(InputPart::Loop),
            _ => InputTask::ALL
                .iter()
                .copied()
                .find(|task| task.name() == text)
                .map(InputPart::Task),
        }
    }

    fn known() -> Vec<&'static str> {
        let tasks = InputTask::ALL.iter().map(|task| task.name());
        ["fetch", "loop"].into_iter().chain(tasks).collect()
    }
}
