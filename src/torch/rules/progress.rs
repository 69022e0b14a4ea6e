//! Where trainers count their progress: classes, the attributes that lead to a counter, and where a
//! tensor keeps its version.

use crate::model::progress::{CounterKind, facts};

/// A counter that is an int, and the attributes that lead to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterRule {
    /// The class, or a base of the class, of the object with the counter.
    pub class: &'static str,
    /// What it counts.
    pub kind: CounterKind,
    /// Attributes from the object to the int, the int's own last.
    pub path: &'static [&'static str],
}

/// Source: torch 2.0, 2.4, 2.7, 2.10 and 2.15 (torch/utils/data/dataloader.py; 2.15: `_num_yielded`
/// at 696); Lightning 2.6 (loops/training_epoch_loop.py `global_step`,
/// loops/optimization/automatic.py, loops/progress.py, loops/fit_loop.py); Transformers 5
/// (trainer.py, trainer_callback.py `TrainerState`).
pub const COUNTERS: &[CounterRule] = &[
    CounterRule {
        class: "_BaseDataLoaderIter",
        kind: CounterKind::Batches,
        path: &["_num_yielded"],
    },
    CounterRule {
        class: "Trainer",
        kind: CounterKind::TrainerSteps,
        path: &["state", "global_step"],
    },
    CounterRule {
        class: "_TrainingEpochLoop",
        kind: CounterKind::LightningSteps,
        path: &[
            "automatic_optimization",
            "optim_progress",
            "optimizer",
            "step",
            "total",
            "completed",
        ],
    },
    CounterRule {
        class: "_FitLoop",
        kind: CounterKind::LightningEpochs,
        path: &["epoch_progress", "total", "completed"],
    },
];

/// Objects with a list of iterators: class, and the attributes that lead to the list. Source:
/// Lightning 2.6 (loops/fetchers.py `_DataFetcher`, utilities/combined_loader.py `CombinedLoader`,
/// `_ModeIterator`).
pub const FETCHERS: &[(&str, &[&str])] = &[(
    "_DataFetcher",
    &["_combined_loader", "_iterator", "iterators"],
)];

/// The class that every optimizer derives from. Source: torch/optim/optimizer.py.
pub const OPTIMIZER: &str = "Optimizer";
/// Attributes of wrappers that contain the optimizer itself: Accelerate 1.15 (optimizer.py
/// `AcceleratedOptimizer`), Lightning 2.6 (core/optimizer.py `LightningOptimizer`).
pub const WRAPPED_OPTIMIZER: &[&str] = &["optimizer", "_optimizer"];
/// An optimizer's list of groups, and the key of a group's list of parameters.
pub const GROUPS: &str = "param_groups";
/// See [`GROUPS`].
pub const PARAMETERS: &str = "params";
/// An optimizer's dictionary from parameters to their states, and the key of a state's tensor that
/// counts steps. Source: torch/optim/adam.py, adamw.py, adagrad.py and others; SGD has none.
pub const STATES: &str = "state";
/// See [`STATES`].
pub const STATE_STEP: &str = "step";

/// Facts of a DataLoader's iterator, and the attributes that lead to them. Source:
/// torch/utils/data/dataloader.py, the same files.
pub const LOADER_FACTS: &[(&str, &[&str])] = &[
    (facts::BATCH_SIZE, &["_index_sampler", "batch_size"]),
    (facts::WORKERS, &["_num_workers"]),
    (facts::PIN_MEMORY, &["_pin_memory"]),
    (facts::PREFETCH, &["_prefetch_factor"]),
];
/// The attribute with the dataset.
pub const DATASET: &str = "_dataset";

/// `torch.autocast`: the class, and attributes with the type and whether it is active. Source:
/// torch/amp/autocast_mode.py.
pub const AUTOCAST: &str = "autocast";
/// See [`AUTOCAST`].
pub const AUTOCAST_TYPE: &str = "fast_dtype";
/// See [`AUTOCAST`].
pub const AUTOCAST_ENABLED: &str = "_enabled";

/// Where a parameter's tensor keeps its version: bytes from the start of `TensorImpl`, or of
/// `VersionCounter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorLayout {
    /// `version_counter_`, a pointer.
    pub counter: u32,
    /// The pointer back to the Python object: it verifies the layout.
    pub python: u32,
    /// `data_type_`, a u16.
    pub data_type: u32,
    /// `version_` in what `version_counter_` points to, a u32.
    pub version: u32,
}

/// Where a tensor's Python object may keep its pointer to the `TensorImpl`: `at::Tensor cdata`
/// (2.15), or `MaybeOwned<at::Tensor> cdata` (before). Source:
/// torch/csrc/autograd/python_variable.h `THPVariable`.
pub const TENSOR_POINTERS: [u32; 2] = [16, 24];

/// Layouts, by version. `TensorImpl` begins: virtual table, reference count (one word; two up to
/// 2.1), `storage_`, `autograd_meta_`, `extra_meta_`, `version_counter_`, `pyobj_slot_` (a pointer
/// in 2.15; before that it came after one to the interpreter), `sizes_and_strides_` (88 bytes),
/// `storage_offset_`, `numel_`, `data_type_`. Source: c10/core/TensorImpl.h,
/// c10/core/impl/PyObjectSlot.h, c10/core/impl/SizesAndStrides.h, c10/util/intrusive_ptr.h.
pub const TENSOR_LAYOUTS: [TensorLayout; 3] = [
    TensorLayout {
        counter: 40,
        python: 48,
        data_type: 160,
        version: 16,
    },
    TensorLayout {
        counter: 40,
        python: 56,
        data_type: 168,
        version: 16,
    },
    TensorLayout {
        counter: 48,
        python: 64,
        data_type: 176,
        version: 24,
    },
];

/// Types of elements by number. Source: c10/core/ScalarType.h,
/// `AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS`.
pub fn element_type(number: u16) -> Option<&'static str> {
    Some(match number {
        5 => "float16",
        6 => "float32",
        7 => "float64",
        9 => "complex64",
        15 => "bfloat16",
        23 => "float8_e5m2",
        24 => "float8_e4m3fn",
        _ => return None,
    })
}

/// Whether the file is not part of the user's program.
pub fn is_library(file: &str) -> bool {
    file.starts_with('<')
        || ["/site-packages/", "/dist-packages/", "/lib/python3"]
            .iter()
            .any(|part| file.contains(part))
}
