//! The tree of modules: which time is whose, and how it is shown.

use crate::analysis_builder::*;
use serde_json::Value;
use torchspy::analysis::analyze;
use torchspy::analysis::modules::{ModuleTime, ModuleTree};
use torchspy::model::nn_module::NnModuleInfo;
use torchspy::model::profile::Profile;
use torchspy::report::folded::{self, FoldedOptions};
use torchspy::report::json::render_json;
use torchspy::report::text::{TextOptions, render_summary};
use torchspy::report::view::{By, ViewOptions};

fn module(path: &str, class: &str) -> NnModuleInfo {
    NnModuleInfo {
        root: "Net".to_owned(),
        number: 0,
        path: path.to_owned(),
        class: class.to_owned(),
        training: Some(true),
    }
}

/// The script with calls of modules in each other, and what the innermost one does.
fn calls(modules: &[NnModuleInfo], more: &[F]) -> Vec<F> {
    let mut frames = vec![user("<module>", 90), user("main", 41)];
    for info in modules {
        frames.push(F::Module(info.clone()));
        frames.push(lib(
            "torch/nn/modules/module.py",
            "Module._wrapped_call_impl",
        ));
        frames.push(lib("torch/nn/modules/module.py", "Module._call_impl"));
        frames.push(user(&format!("{}.forward", info.class), 20));
    }
    frames.extend_from_slice(more);
    frames
}

fn kernel() -> F {
    torch("at::native::add(at::Tensor const&)")
}

/// 40 ticks in a convolution of an indexed layer, 30 in the net itself, 20 in its head (half of it
/// in evaluation), 10 in a loss, 50 in backward and 5 in a call of which no module is known.
fn profile() -> Profile {
    let mut builder = Builder::trainer();
    let net = module("", "Net");
    let layer = module("layers.0", "Block");
    let convolution = module("layers.0.conv", "Conv2d");
    let head = module("fc", "Linear");
    let evaluated = |info: &NnModuleInfo| NnModuleInfo {
        training: Some(false),
        ..info.clone()
    };
    let loss = NnModuleInfo {
        root: "CrossEntropyLoss".to_owned(),
        class: "CrossEntropyLoss".to_owned(),
        ..module("", "")
    };
    let deep = calls(&[net.clone(), layer, convolution], &[kernel()]);
    builder.ticks(0, 40, S::Running, &deep);
    builder.ticks(
        0,
        30,
        S::Running,
        &calls(std::slice::from_ref(&net), &[kernel()]),
    );
    builder.ticks(
        0,
        10,
        S::Running,
        &calls(&[net.clone(), head.clone()], &[kernel()]),
    );
    builder.ticks(
        0,
        10,
        S::Running,
        &calls(&[evaluated(&net), evaluated(&head)], &[kernel()]),
    );
    builder.ticks(0, 10, S::Running, &calls(&[loss], &[kernel()]));
    let backward = [
        user("<module>", 90),
        lib("torch/autograd/graph.py", "_engine_run_backward"),
        kernel(),
    ];
    builder.ticks(0, 50, S::Running, &backward);
    let unread = [
        user("<module>", 90),
        lib("torch/nn/modules/module.py", "Module._wrapped_call_impl"),
    ];
    builder.ticks(0, 5, S::Running, &unread);
    builder.profile()
}

fn tree(profile: &Profile) -> ModuleTree {
    analyze(profile).primary().unwrap().modules.clone()
}

fn ticks(ns: u64) -> u64 {
    ns / TICK_NS
}

#[test]
fn own_time_is_the_innermost_module_s_and_total_time_all_above() {
    let tree = tree(&profile());
    let rows: Vec<_> = tree
        .modules
        .iter()
        .map(|module| {
            let ModuleTime { path, class, .. } = module;
            (
                format!("{}:{path}:{class}", module.root),
                module.depth,
                ticks(module.self_ns),
                ticks(module.total_ns),
                ticks(module.eval_ns),
            )
        })
        .collect();
    let row = |name: &str, depth, own, total, eval| (name.to_owned(), depth, own, total, eval);
    assert_eq!(
        rows,
        [
            row("Net::Net", 0, 30, 90, 10),
            row("Net:layers:", 1, 0, 40, 0),
            row("Net:layers.0:Block", 2, 0, 40, 0),
            row("Net:layers.0.conv:Conv2d", 3, 40, 40, 0),
            row("Net:fc:Linear", 1, 20, 20, 10),
            row("CrossEntropyLoss::CrossEntropyLoss", 0, 10, 10, 0),
        ]
    );
    assert_eq!((ticks(tree.forward_ns), ticks(tree.unknown_ns)), (105, 5));
    let net = &tree.modules[0];
    assert!((net.total_share.value - 90.0 / 155.0).abs() < 1e-9);
    assert!((net.self_share.value - 30.0 / 155.0).abs() < 1e-9);
    assert_eq!(net.total_share.samples, 90);
}

#[test]
fn two_models_of_one_class_are_two_trees() {
    let mut builder = Builder::trainer();
    for number in 0..2 {
        let net = NnModuleInfo {
            number,
            ..module("", "Net")
        };
        builder.ticks(0, 10, S::Running, &calls(&[net], &[kernel()]));
    }
    let profile = builder.profile();
    assert_eq!(tree(&profile).modules.len(), 2);
    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    assert!(text.contains(" Net (#2)\n"), "{text}");
}

#[test]
fn the_tree_in_text() {
    let profile = profile();
    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    let (_, table) = text.split_once("\nMODULES").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    insta::assert_snapshot!(table);
    assert!(text.lines().all(|line| line.chars().count() <= 80));
}

#[test]
fn the_tree_in_json() {
    let profile = profile();
    let json: Value =
        serde_json::from_str(&render_json(&profile, &analyze(&profile)).unwrap()).unwrap();
    let forward = &json["forward"];
    assert_eq!(forward["version"], 1);
    assert_eq!(forward["forward_s"], 1.05);
    assert_eq!(forward["unread_s"], 0.05);
    assert_eq!(forward["left_out"], 0);
    let modules = &json["modules"];
    assert_eq!(modules[1]["class"], Value::Null);
    let convolution = &modules[3];
    assert_eq!(convolution["path"], "layers.0.conv");
    assert_eq!(convolution["class"], "Conv2d");
    assert_eq!(convolution["self_s"], 0.4);
    assert!(convolution["self_share"]["low"].as_f64().unwrap() > 0.0);
    let block = &forward["groups"][1];
    assert_eq!(
        (&block["path"], &block["count"]),
        (&"layers.0".into(), &1.into())
    );
    assert_eq!(forward["groups_left_out"], 0);
}

/// 48 layers, each with 2 ticks in its attention and 1 of its own; and an embedding.
fn deep() -> Profile {
    let mut builder = Builder::trainer();
    let net = module("", "Net");
    for index in 0..48 {
        let layer = module(&format!("encoder.layers.{index}"), "Block");
        let attention = module(&format!("encoder.layers.{index}.attention"), "Attention");
        let whole = [net.clone(), layer.clone(), attention];
        builder.ticks(0, 2, S::Running, &calls(&whole, &[kernel()]));
        builder.ticks(0, 1, S::Running, &calls(&[net.clone(), layer], &[kernel()]));
    }
    let embedding = module("embedding", "Embedding");
    builder.ticks(0, 6, S::Running, &calls(&[net, embedding], &[kernel()]));
    builder.profile()
}

#[test]
fn what_is_the_same_in_many_layers_is_one_row() {
    let profile = deep();
    let tree = tree(&profile);
    assert_eq!(tree.modules.len(), 1 + 2 + 48 * 2 + 1);
    let rows: Vec<_> = tree
        .groups
        .iter()
        .map(|group| {
            let time = &group.time;
            (
                format!("{}:{}", time.path, group.name),
                time.depth,
                group.count,
                ticks(time.self_ns),
                ticks(time.total_ns),
            )
        })
        .collect();
    let row = |name: &str, depth, count, own, total| (name.to_owned(), depth, count, own, total);
    assert_eq!(
        rows,
        [
            row(":Net", 0, 1, 0, 150),
            // Neither container was called.
            row("encoder.layers.*:encoder.layers.*", 1, 48, 48, 144),
            row("encoder.layers.*.attention:attention", 2, 48, 96, 96),
            row("embedding:embedding", 1, 1, 6, 6),
        ]
    );
    let attention = &tree.groups[2].time;
    assert!((attention.total_share.value - 96.0 / 150.0).abs() < 1e-9);
    assert_eq!(attention.total_share.samples, 96);
    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    assert!(
        text.contains("   encoder.layers.* (48 x Block)\n"),
        "{text}"
    );
}

fn lines(profile: &Profile, by: By) -> String {
    let options = FoldedOptions {
        view: ViewOptions {
            by,
            ..ViewOptions::default()
        },
        ..FoldedOptions::default()
    };
    let mut out = Vec::new();
    folded::render(profile, &options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn drawn_by_module_what_calls_modules_gives_way_to_them() {
    let text = lines(&profile(), By::Module);
    let convolution = text.lines().find(|line| line.contains("Conv2d")).unwrap();
    let frames: Vec<&str> = convolution.split(';').skip(1).collect();
    assert_eq!(
        frames,
        [
            "<module> (/home/u/train.py:90)",
            "main (/home/u/train.py:41)",
            "Net",
            "layers.0 (Block)",
            "layers.0.conv (Conv2d)",
            "Conv2d.forward (/home/u/train.py:20)",
            "at::native::add(at::Tensor const&) (libtorch_cpu.so) 40",
        ],
        "{text}"
    );
    assert!(text.contains(";fc (Linear, eval);"), "{text}");
    assert!(!text.contains("_call_impl"), "{text}");
}

#[test]
fn a_wrapper_is_drawn_as_its_module_once() {
    let mut builder = Builder::trainer();
    let net = module("", "Net");
    let frames = calls(&[net.clone(), net], &[kernel()]);
    builder.ticks(0, 10, S::Running, &frames);
    let profile = builder.profile();
    assert_eq!(lines(&profile, By::Module).matches(";Net;").count(), 1);
    let tree = tree(&profile);
    assert_eq!(tree.modules.len(), 1);
    assert_eq!(ticks(tree.modules[0].total_ns), 10);
}

#[test]
fn drawn_by_function_nothing_tells_of_modules() {
    let text = lines(&profile(), By::Function);
    assert!(!text.contains("nn.Module") && !text.contains("layers.0"));
    assert!(text.contains("Block.forward (/home/u/train.py:20);Conv2d.forward"));
}
