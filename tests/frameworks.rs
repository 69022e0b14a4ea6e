//! Phases of what trainers built upon torch do around it.

mod analysis_builder;

use analysis_builder::*;
use torchspy::model::category::Phase as P;

fn phase(frames: &[F]) -> P {
    let mut stack = vec![cpython("Py_RunMain"), user("<module>", 90)];
    stack.extend_from_slice(frames);
    let mut builder = Builder::trainer();
    builder.ticks(0, 1, S::Running, &stack);
    builder.profile().samples[0].phase
}

fn closure() -> Vec<F> {
    vec![
        lib(
            "torch/optim/optimizer.py",
            "Optimizer.profile_hook_step.<locals>.wrapper",
        ),
        lib("torch/optim/adamw.py", "AdamW.step"),
        lib(
            "lightning/pytorch/loops/optimization/automatic.py",
            "Closure.__call__",
        ),
        lib(
            "lightning/pytorch/loops/optimization/automatic.py",
            "Closure.closure",
        ),
    ]
}

fn in_closure(more: &[F]) -> P {
    let mut frames = closure();
    frames.extend_from_slice(more);
    phase(&frames)
}

#[test]
fn the_closure_of_lightning_is_no_optimizer() {
    let step = user("Lit.training_step", 30);
    let call = lib("torch/nn/modules/module.py", "Module._call_impl");
    let engine = lib("torch/autograd/graph.py", "_engine_run_backward");
    let zero_grad = lib("torch/optim/optimizer.py", "Optimizer.zero_grad");
    let loss = lib("torch/nn/functional.py", "cross_entropy");
    assert_eq!(in_closure(&[step.clone(), loss]), P::User);
    assert_eq!(in_closure(&[step, call]), P::Forward);
    assert_eq!(in_closure(&[engine]), P::Backward);
    assert_eq!(in_closure(&[zero_grad]), P::Optimizer);
    // The step itself, once the closure has returned.
    let step = [
        closure()[..2].to_vec(),
        vec![lib("torch/optim/adamw.py", "adamw")],
    ]
    .concat();
    assert_eq!(phase(&step), P::Optimizer);
}

#[test]
fn fetchers_and_shards_are_input() {
    for (file, function) in [
        (
            "lightning/pytorch/loops/fetchers.py",
            "_PrefetchDataFetcher.__next__",
        ),
        (
            "pytorch_lightning/utilities/combined_loader.py",
            "CombinedLoader.__next__",
        ),
        ("accelerate/data_loader.py", "DataLoaderShard.__iter__"),
    ] {
        assert_eq!(phase(&[lib(file, function)]), P::Input, "{file}");
    }
}

#[test]
fn what_is_gathered_for_a_checkpoint_belongs_to_it() {
    let state = lib("torch/nn/modules/module.py", "Module.state_dict");
    for (file, function) in [
        (
            "lightning/pytorch/trainer/trainer.py",
            "Trainer.save_checkpoint",
        ),
        (
            "lightning/pytorch/trainer/connectors/checkpoint_connector.py",
            "_CheckpointConnector.dump_checkpoint",
        ),
        ("transformers/trainer.py", "Trainer._save_checkpoint"),
        ("safetensors/torch.py", "save_file"),
    ] {
        let frames = [lib(file, function), state.clone()];
        assert_eq!(phase(&frames), P::Checkpoint, "{file}");
    }
}

#[test]
fn what_an_import_defines_is_start_up() {
    let import = py("<frozen importlib._bootstrap>", "_find_and_load", 1);
    // The body of a class is a function by the class's name.
    for (file, function) in [
        ("torch/utils/data/dataloader.py", "DataLoader"),
        ("torch/nn/utils/clip_grad.py", "_no_grad"),
        ("accelerate/data_loader.py", "DataLoaderShard"),
        ("lightning/pytorch/loops/fetchers.py", "_DataFetcher"),
    ] {
        let frames = [import.clone(), lib(file, "<module>"), lib(file, function)];
        assert_eq!(phase(&frames), P::Startup, "{file}");
    }
}

#[test]
fn what_a_framework_does_itself_is_told_from_what_it_calls() {
    let hook = lib("lightning/pytorch/trainer/call.py", "_call_callback_hooks");
    let own = user("UntilTime.on_train_batch_end", 47);
    let other = lib("numpy/_core/numeric.py", "ones");
    assert_eq!(phase(std::slice::from_ref(&hook)), P::Framework);
    assert_eq!(phase(&[hook.clone(), other.clone()]), P::Framework);
    assert_eq!(phase(&[hook.clone(), own.clone()]), P::User);
    assert_eq!(phase(&[hook.clone(), own.clone(), other]), P::User);
    // `self.log` of a training step, in the closure, which is the user's step.
    let log = lib(
        "lightning/pytorch/trainer/connectors/logger_connector/result.py",
        "_ResultMetric.update",
    );
    assert_eq!(in_closure(&[own.clone(), log]), P::Framework);
    // What it calls of torch's is in a phase of its own.
    let call = lib("torch/nn/modules/module.py", "Module._call_impl");
    assert_eq!(phase(&[hook, call]), P::Forward);
    for file in [
        "transformers/trainer.py",
        "transformers/trainer_callback.py",
        "accelerate/accelerator.py",
        "pytorch_lightning/loops/fit_loop.py",
    ] {
        assert_eq!(phase(&[lib(file, "run")]), P::Framework, "{file}");
    }
    // A model of Transformers' is none, nor a folder of the user's that is called as a framework
    // is.
    assert_eq!(
        phase(&[lib("transformers/activations.py", "gelu")]),
        P::User
    );
    let folder = py("/home/u/lightning/train.py", "run", 3);
    assert_eq!(phase(&[folder]), P::User);
}
