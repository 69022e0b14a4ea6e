//! Which functions of trainers built upon torch belong to which phase.
//!
//! What they call of torch's (modules, the autograd engine, optimizers, loaders) has rows of its own in
//! [`phases`](super::phases); here is what they do around it.

use super::phases::PhaseMark::{Around, Strong, Weak};
use super::phases::{PhaseRule, rule};
use crate::model::category::Phase;

/// Python frames; first match. Source: Lightning 2.6.6 (`pytorch_lightning` is the same code under its older name), Transformers
/// 5.23.0, Accelerate 1.15.0, safetensors 0.6 and later.
pub const FRAMEWORK_PHASES: &[PhaseRule] = &[
    // loops/optimization/automatic.py:116: the optimizer's step calls this closure, which runs training_step and backward. What of it
    // is in no phase of its own is the user's step, and not the optimizer's.
    rule(
        "lightning/pytorch/loops/optimization/automatic.py",
        "closure",
        Strong(Phase::User),
    ),
    rule(
        "pytorch_lightning/loops/optimization/automatic.py",
        "closure",
        Strong(Phase::User),
    ),
    // Input: fetchers and the combined loader ask the DataLoader for batches, one ahead.
    rule(
        "lightning/pytorch/loops/fetchers.py",
        "*",
        Weak(Phase::Input),
    ),
    rule(
        "pytorch_lightning/loops/fetchers.py",
        "*",
        Weak(Phase::Input),
    ),
    rule(
        "lightning/pytorch/utilities/combined_loader.py",
        "*",
        Weak(Phase::Input),
    ),
    rule(
        "pytorch_lightning/utilities/combined_loader.py",
        "*",
        Weak(Phase::Input),
    ),
    // data_loader.py: DataLoaderShard.__iter__ and others are generators around the DataLoader, and move batches to the device.
    rule("accelerate/data_loader.py", "*", Weak(Phase::Input)),
    // optimizer.py, scheduler.py: what they do around torch's own, with each step (1.15 looks for an installed package every time).
    rule("accelerate/optimizer.py", "step", Strong(Phase::Optimizer)),
    rule(
        "accelerate/optimizer.py",
        "zero_grad",
        Strong(Phase::Optimizer),
    ),
    rule("accelerate/scheduler.py", "step", Strong(Phase::Optimizer)),
    // Checkpoints: what is gathered for them, and written by other means than torch.save.
    rule(
        "lightning/pytorch/trainer/trainer.py",
        "save_checkpoint",
        Strong(Phase::Checkpoint),
    ),
    rule(
        "pytorch_lightning/trainer/trainer.py",
        "save_checkpoint",
        Strong(Phase::Checkpoint),
    ),
    rule(
        "trainer/connectors/checkpoint_connector.py",
        "*",
        Weak(Phase::Checkpoint),
    ),
    // Older ones are deleted when a new one is written: lightning/fabric/plugins/io/torch_io.py `remove_checkpoint`,
    // transformers/trainer_utils.py `rotate_checkpoints`.
    rule("plugins/io/torch_io.py", "*", Weak(Phase::Checkpoint)),
    rule(
        "transformers/trainer_utils.py",
        "rotate_checkpoints",
        Strong(Phase::Checkpoint),
    ),
    rule(
        "transformers/trainer.py",
        "_save_checkpoint",
        Strong(Phase::Checkpoint),
    ),
    rule(
        "transformers/trainer.py",
        "save_model",
        Strong(Phase::Checkpoint),
    ),
    rule(
        "transformers/trainer.py",
        "_load_from_checkpoint",
        Strong(Phase::Checkpoint),
    ),
    rule(
        "transformers/modeling_utils.py",
        "save_pretrained",
        Strong(Phase::Checkpoint),
    ),
    rule("safetensors/torch.py", "*", Weak(Phase::Checkpoint)),
    // All else of theirs: loops, hooks, callbacks, loggers, metrics.
    rule("lightning/", "*", Around(Phase::Framework)),
    rule("lightning_fabric/", "*", Around(Phase::Framework)),
    rule("pytorch_lightning/", "*", Around(Phase::Framework)),
    rule("transformers/trainer.py", "*", Around(Phase::Framework)),
    rule(
        "transformers/trainer_callback.py",
        "*",
        Around(Phase::Framework),
    ),
    rule(
        "transformers/trainer_pt_utils.py",
        "*",
        Around(Phase::Framework),
    ),
    rule(
        "transformers/trainer_utils.py",
        "*",
        Around(Phase::Framework),
    ),
    rule(
        "transformers/training_args.py",
        "*",
        Around(Phase::Framework),
    ),
    rule("transformers/integrations/", "*", Around(Phase::Framework)),
    rule("accelerate/", "*", Around(Phase::Framework)),
];
