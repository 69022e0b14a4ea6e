//! Memory of tensors by who holds it: parameters, gradients, optimizer state and buffers of the
//! modules of one process.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// What a tensor is to its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Holding {
    /// A parameter of a module, or of an optimizer's groups.
    Parameters,
    /// `grad` of a parameter. A step may free it: zero means that there was none at that moment.
    Gradients,
    /// A tensor of an optimizer's `state`.
    OptimizerState,
    /// A buffer of a module.
    Buffers,
}

impl Holding {
    /// All of them, in the order of the tables.
    pub const ALL: [Self; 4] = [
        Self::Parameters,
        Self::Gradients,
        Self::OptimizerState,
        Self::Buffers,
    ];

    /// The stable name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parameters => "parameters",
            Self::Gradients => "gradients",
            Self::OptimizerState => "optimizer_state",
            Self::Buffers => "buffers",
        }
    }
}

/// Tensors of one kind, type and device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldPart {
    pub holding: Holding,
    /// Type of the elements: `float32`.
    pub dtype: Cow<'static, str>,
    /// `cpu`, `cuda:0`, `meta` (which takes no memory).
    pub device: String,
    /// Bytes of their storages, each byte counted for its first tensor only.
    pub bytes: u64,
    /// Number of tensors, without those that share all their bytes with an earlier one.
    pub tensors: u64,
}

/// A module with what it holds itself, or the parameters that only an optimizer holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldModule {
    /// Index of the module that contains it, which comes before it.
    pub parent: Option<usize>,
    /// The name that its parent has for it; of a root the variable that leads to it. Empty for what
    /// a wrapper wraps.
    pub name: String,
    /// Its class; empty if it is not a module.
    pub class: String,
    /// Its own tensors, without those of its parts.
    pub parts: Vec<HeldPart>,
}

/// A tensor whose bytes were counted for an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedTensor {
    /// Its path: `lm_head.weight`.
    pub name: String,
    /// The path of the one that it was counted for; `None` if it lies in the bytes of several.
    pub counted_as: Option<String>,
}

/// Tensors of a kind that were found and not read, for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadTensors {
    pub holding: Holding,
    pub reason: Cow<'static, str>,
    pub tensors: u64,
    /// The path of the first.
    pub first: String,
}

/// What the modules and optimizers of a process hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Parents before their parts.
    pub modules: Vec<HeldModule>,
    /// Classes of the optimizers that were found.
    pub optimizers: Vec<String>,
    /// The first of the shared tensors, and how many there are.
    pub shared: Vec<SharedTensor>,
    pub shared_tensors: u64,
    /// Bytes of the storages that none of the tensors covers: of a larger buffer that they are
    /// views of.
    pub uncovered_bytes: u64,
    pub unread: Vec<UnreadTensors>,
    /// Why not all objects were visited: the figures are then a part of the whole.
    pub cut: Option<Cow<'static, str>>,
    /// How long it took to read, ns.
    pub read_ns: u64,
}

impl Held {
    /// Whether all objects were visited, and all tensors read.
    pub fn is_whole(&self) -> bool {
        self.cut.is_none() && self.unread.is_empty()
    }

    /// Sums over all modules, by kind, type and device, in this order.
    pub fn totals(&self) -> Vec<HeldPart> {
        let mut totals = Vec::new();
        for part in self.modules.iter().flat_map(|module| &module.parts) {
            add_part(&mut totals, part);
        }
        totals.sort_by(|one, other| {
            let key = |part: &HeldPart| (part.holding, part.device.clone(), part.dtype.clone());
            key(one).cmp(&key(other))
        });
        totals
    }
}

/// Adds to the part of the same kind, type and device.
pub fn add_part(parts: &mut Vec<HeldPart>, part: &HeldPart) {
    let is_same = |each: &&mut HeldPart| {
        (each.holding, &each.dtype, &each.device) == (part.holding, &part.dtype, &part.device)
    };
    match parts.iter_mut().find(is_same) {
        Some(known) => {
            known.bytes = known.bytes.saturating_add(part.bytes);
            known.tensors += part.tensors;
        }
        None => parts.push(part.clone()),
    }
}

/// Version of the text of [`KeptHeld`].
const VERSION: u32 = 1;
/// Maximum length of the text, bytes: it is a part of a segment.
const MOST_TEXT: usize = 4 << 20;
/// More is not plausible, and leaves room to add.
const MOST_BYTES: u64 = 1 << 42;

/// What a recording keeps of a process's modules and optimizers; the last one counts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeptHeld {
    version: u32,
    /// When it was read, CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Or why it was not, in a few words.
    pub result: Result<Held, String>,
}

impl KeptHeld {
    /// The text that [`KeptHeld::parse`] reads.
    pub fn text(time_ns: u64, result: Result<&Held, &str>) -> String {
        let kept = |result| Self {
            version: VERSION,
            time_ns,
            result,
        };
        let result = result.cloned().map_err(str::to_owned);
        let text = serde_json::to_string(&kept(result)).unwrap_or_default();
        if text.len() <= MOST_TEXT {
            return text;
        }
        let why = "it has more modules than a recording holds; dump --memory lists them".to_owned();
        serde_json::to_string(&kept(Err(why))).unwrap_or_default()
    }

    /// `None` for what is damaged, or of another version.
    pub fn parse(text: &str) -> Option<Self> {
        let kept: Self = serde_json::from_str(text).ok()?;
        let is_plausible = |part: &HeldPart| part.bytes <= MOST_BYTES && part.tensors <= MOST_BYTES;
        let is_sound = |held: &Held| {
            let mut modules = held.modules.iter().enumerate();
            modules.all(|(at, module)| {
                module.parent.is_none_or(|parent| parent < at)
                    && module.parts.iter().all(is_plausible)
            })
        };
        let is_valid = kept.result.as_ref().map_or(true, is_sound);
        (kept.version == VERSION && is_valid).then_some(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back_and_has_to_fit_together() {
        let part = HeldPart {
            holding: Holding::Buffers,
            dtype: "float32".into(),
            device: "cpu".to_owned(),
            bytes: 64,
            tensors: 2,
        };
        let module = |parent| HeldModule {
            parent,
            parts: vec![part.clone()],
            ..HeldModule::default()
        };
        let mut held = Held {
            modules: vec![module(None), module(Some(0))],
            ..Held::default()
        };
        let kept = KeptHeld::parse(&KeptHeld::text(7, Ok(&held))).unwrap();
        assert_eq!((kept.time_ns, kept.result.as_ref()), (7, Ok(&held)));
        held.modules[0].parent = Some(1);
        assert!(KeptHeld::parse(&KeptHeld::text(7, Ok(&held))).is_none());
        held.modules[0].parent = None;
        held.modules[0].parts[0].bytes = u64::MAX;
        assert!(KeptHeld::parse(&KeptHeld::text(7, Ok(&held))).is_none());
        let why = KeptHeld::parse(&KeptHeld::text(7, Err("why"))).unwrap();
        assert_eq!(why.result, Err("why".to_owned()));
        assert!(KeptHeld::parse("{").is_none());
    }
}
