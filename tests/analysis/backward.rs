//! Backward: nodes under the line that called it, whose forward made them, and forward that is
//! computed again.

use crate::analysis_builder::*;
use serde_json::Value;
use torchspy::analysis::analyze;
use torchspy::analysis::backward::BackwardTable;
use torchspy::analysis::forward::ForwardOrigin;
use torchspy::model::category::Phase as P;
use torchspy::model::nn_module::NnModuleInfo;
use torchspy::model::profile::Profile;
use torchspy::report::json::render_json;
use torchspy::report::text::{TextOptions, render_summary};

const MODULE: &str = "torch/nn/modules/module.py";
const CHECKPOINT: &str = "torch/utils/checkpoint.py";

fn module(path: &str, class: &str) -> NnModuleInfo {
    NnModuleInfo {
        root: "Net".to_owned(),
        number: 0,
        path: path.to_owned(),
        class: class.to_owned(),
        training: Some(true),
    }
}

fn operator(name: &str) -> F {
    torch(&format!("at::_ops::{name}::call(at::Tensor const&)"))
}

fn node(name: &str) -> F {
    torch(&format!(
        "torch::autograd::generated::{name}::apply(std::vector<at::Tensor>&&)"
    ))
}

fn kernel() -> F {
    torch("at::native::add(at::Tensor const&)")
}

/// The call of a module, from the script on, and what it calls.
fn forward(info: &NnModuleInfo, more: &[F]) -> Vec<F> {
    let mut frames = vec![user("<module>", 90), user("main", 41)];
    frames.extend(called(info));
    frames.extend_from_slice(more);
    frames
}

fn called(info: &NnModuleInfo) -> [F; 3] {
    [
        F::Module(info.clone()),
        lib(MODULE, "Module._call_impl"),
        user(&format!("{}.forward", info.class), 20),
    ]
}

/// The line that calls backward, down to the engine.
fn calls_backward() -> Vec<F> {
    vec![
        user("<module>", 90),
        user("main", 57),
        lib("torch/_tensor.py", "Tensor.backward"),
        lib("torch/autograd/__init__.py", "backward"),
        lib("torch/autograd/graph.py", "_engine_run_backward"),
        torch("torch::autograd::python::PythonEngine::execute(int)"),
    ]
}

fn engine() -> F {
    torch(
        "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)",
    )
}

/// In the caller's thread, as on a CPU.
fn backward(more: &[F]) -> Vec<F> {
    let mut frames = calls_backward();
    frames.push(engine());
    frames.extend_from_slice(more);
    frames
}

fn table(profile: &Profile) -> BackwardTable {
    analyze(profile).primary().unwrap().backward.clone()
}

fn origin(table: &BackwardTable, name: &str) -> ForwardOrigin {
    let found = table.nodes.iter().find(|node| node.name == name);
    found
        .unwrap_or_else(|| panic!("no {name}: {table:?}"))
        .origin
        .clone()
}

#[test]
fn nodes_find_the_module_that_made_them_where_that_can_be_told() {
    let mut builder = Builder::trainer();
    let running = |builder: &mut Builder, ticks, frames: &[F]| {
        builder.ticks(0, ticks, S::Running, frames);
    };
    let conv = |path: &str| module(path, "Conv2d");
    let convolution = [operator("conv2d"), operator("convolution"), kernel()];
    running(&mut builder, 20, &forward(&conv("a"), &convolution));
    running(&mut builder, 20, &forward(&conv("b"), &convolution));
    running(
        &mut builder,
        40,
        &forward(&module("fc", "Linear"), &[operator("addmm")]),
    );
    running(
        &mut builder,
        40,
        &forward(&module("act", "ReLU"), &[operator("relu")]),
    );
    running(
        &mut builder,
        1,
        &forward(&module("", "Net"), &[operator("relu_")]),
    );
    running(
        &mut builder,
        29,
        &forward(&module("n", "Norm"), &[operator("norm")]),
    );
    let loss = [
        user("<module>", 90),
        user("main", 44),
        operator("_log_softmax"),
    ];
    running(&mut builder, 30, &loss);
    for (name, ticks) in [
        ("ConvolutionBackward0", 50),
        ("AddmmBackward0", 30),
        ("ReluBackward0", 20),
        ("NormBackward0", 5),
        ("LogSoftmaxBackward0", 4),
        ("TBackward0", 1),
    ] {
        running(&mut builder, ticks, &backward(&[node(name), kernel()]));
    }
    running(&mut builder, 10, &backward(&[]));
    let profile = builder.profile();
    let table = table(&profile);
    assert_eq!(
        origin(&table, "ConvolutionBackward0"),
        ForwardOrigin::Class("Conv2d".to_owned())
    );
    let ForwardOrigin::Module { id, class } = origin(&table, "AddmmBackward0") else {
        panic!("{table:?}");
    };
    assert_eq!(
        (profile.nn_modules[id.index()].path.as_str(), &*class),
        ("fc", "Linear")
    );
    let several = ["Net", "ReLU"].map(str::to_owned).to_vec();
    assert_eq!(
        origin(&table, "ReluBackward0"),
        ForwardOrigin::Several(several)
    );
    assert_eq!(origin(&table, "NormBackward0"), ForwardOrigin::Seldom);
    assert_eq!(
        origin(&table, "LogSoftmaxBackward0"),
        ForwardOrigin::Outside
    );
    assert_eq!(origin(&table, "TBackward0"), ForwardOrigin::NotSeen);

    assert_eq!(table.total_ns, 120 * TICK_NS);
    assert_eq!(table.outside_ns, 10 * TICK_NS);
    assert_eq!(table.unmatched_ns, 30 * TICK_NS);
    let matched: u64 = table.modules.iter().map(|each| each.ns).sum();
    assert_eq!(
        matched + table.unmatched_ns + table.outside_ns,
        table.total_ns
    );
    assert_eq!(table.modules[0].ns, 50 * TICK_NS);
    assert!((table.share.value - 0.4).abs() < 1e-9);
    let [line] = &table.lines[..] else {
        panic!("{table:?}");
    };
    assert_eq!(line.line.unwrap().1, 57);

    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    for says in [
        "BACKWARD, wall time",
        "train.py:57 main",
        "ConvolutionBackward0 < Conv2d",
        "AddmmBackward0 < fc (Linear)",
        "ReluBackward0 < Net or ReLU",
        "of all Conv2d",
        "in no node",
        "of unknown modules: 0.30 s, 25 % of backward",
    ] {
        assert!(text.contains(says), "{says} is missing: {text}");
    }
    let json = render_json(&profile, &analyze(&profile)).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    let rows = json["backward"]["nodes"].as_array().unwrap();
    assert_eq!(rows[0]["matched"], "class");
    assert_eq!(
        (&rows[1]["matched"], &rows[1]["path"]),
        (&"module".into(), &"fc".into())
    );
    assert!((json["backward"]["unmatched_s"].as_f64().unwrap() - 0.3).abs() < 1e-9);
}

/// On a GPU the engine's thread works and the caller sleeps: nodes stand below the caller's line
/// all the same.
#[test]
fn work_of_an_engine_thread_hangs_below_the_line_that_waits() {
    let mut builder = Builder::trainer();
    let autograd = builder.thread(0, 101, "pt_autograd_0", false);
    let mut waits = calls_backward();
    waits.push(libc("pthread_cond_wait"));
    builder.ticks(0, 40, S::Futex, &waits);
    let root = torch("torch::autograd::Engine::thread_init(int)");
    let main = torch(
        "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)",
    );
    let works = [
        root.clone(),
        main.clone(),
        engine(),
        node("MmBackward0"),
        kernel(),
    ];
    builder.ticks(autograd, 30, S::Running, &works);
    // A hook of the checkpoint's that runs there is no backward.
    let again = [
        root,
        main,
        engine(),
        node("AddBackward0"),
        lib(CHECKPOINT, "_checkpoint_hook.__init__.<locals>.unpack_hook"),
        lib(CHECKPOINT, "recompute_fn"),
        lib(MODULE, "Module._call_impl"),
    ];
    builder.ticks(autograd, 5, S::Running, &again);
    let profile = builder.profile();
    let table = table(&profile);
    assert_eq!(table.total_ns, 35 * TICK_NS);
    assert_eq!(
        (table.nodes[0].name.as_str(), table.nodes[0].self_ns),
        ("MmBackward0", 30 * TICK_NS)
    );
    assert_eq!(table.lines[0].line.unwrap().1, 57);
    assert_eq!(table.outside_ns, 5 * TICK_NS);
    assert_eq!(table.recompute[0].ns, 5 * TICK_NS);
}

#[test]
fn a_function_of_the_user_s_own_has_its_class() {
    let mut builder = Builder::trainer();
    let apply = torch("torch::autograd::PyNode::apply(std::vector<at::Tensor>&&)");
    let python = lib("torch/autograd/function.py", "BackwardCFunction.apply");
    let more = [
        apply.clone(),
        python.clone(),
        user("Quantize.backward", 33),
        kernel(),
    ];
    builder.ticks(0, 3, S::Running, &backward(&more));
    builder.ticks(0, 2, S::Running, &backward(&[apply, python]));
    let names: Vec<String> = table(&builder.profile())
        .nodes
        .into_iter()
        .map(|node| node.name)
        .collect();
    assert_eq!(names, ["QuantizeBackward", "autograd.Function in Python"]);
}

fn phase_of(frames: &[F]) -> P {
    let mut builder = Builder::trainer();
    builder.ticks(0, 1, S::Running, frames);
    builder.profile().samples[0].phase
}

#[test]
fn forward_that_is_computed_again_is_recompute() {
    let block = module("", "Block");
    let py_node = torch("torch::autograd::PyNode::apply(std::vector<at::Tensor>&&)");
    let unpack = lib(CHECKPOINT, "_checkpoint_hook.__init__.<locals>.unpack_hook");
    let recompute = lib(CHECKPOINT, "recompute_fn");
    let reentrant = lib(CHECKPOINT, "CheckpointFunction.backward");
    let with = |first: &[F], more: &[F]| backward(&[first, more].concat());

    // Not reentrant: a saved tensor is unpacked.
    let first = [node("MmBackward0"), unpack, recompute];
    assert_eq!(phase_of(&with(&first, &[])), P::Recompute);
    assert_eq!(phase_of(&with(&first, &called(&block))), P::Recompute);
    let inner = [&called(&block)[..], &[kernel()]].concat();
    assert_eq!(phase_of(&with(&first, &inner)), P::Recompute);
    // What is compiled there is compiled.
    let compiler = [lib("torch/_dynamo/convert_frame.py", "_compile")];
    assert_eq!(phase_of(&with(&first, &compiler)), P::Compile);

    // Reentrant: a node runs forward, then a backward of its own.
    let first = [py_node.clone(), reentrant];
    assert_eq!(phase_of(&with(&first, &called(&block))), P::Recompute);
    let again = [
        lib("torch/autograd/__init__.py", "backward"),
        lib("torch/autograd/graph.py", "_engine_run_backward"),
        engine(),
    ];
    assert_eq!(
        phase_of(&with(
            &first,
            &[&again[..], &[node("MmBackward0")]].concat()
        )),
        P::Backward
    );
    // A module that a node of that inner backward calls is forward, whatever it is for.
    let strange = [&again[..], &[py_node], &called(&block)[..]].concat();
    assert_eq!(phase_of(&with(&first, &strange)), P::Forward);

    // The first forward of a checkpointed block is forward.
    let checkpoint = [
        lib(CHECKPOINT, "checkpoint"),
        lib(CHECKPOINT, "CheckpointFunction.forward"),
    ];
    let first = forward(&block, &[&checkpoint[..], &called(&block)[..]].concat());
    assert_eq!(phase_of(&first), P::Forward);
}

fn net(root: &str, class: &str) -> NnModuleInfo {
    NnModuleInfo {
        root: root.to_owned(),
        number: 0,
        path: class.to_lowercase(),
        class: class.to_owned(),
        training: Some(true),
    }
}

/// A pass from this line on, by ticks of nodes.
fn pass(builder: &mut Builder, line: u32, nodes: &[(&str, u64)]) {
    builder.ticks(0, 1, S::Running, &[user("main", line - 1)]);
    for &(name, ticks) in nodes {
        let mut frames = backward(&[node(name), kernel()]);
        frames[1] = user("main", line);
        // Each tick is a sample of its own.
        for _ in 0..ticks {
            builder.ticks(0, 1, S::Running, &frames);
        }
    }
}

fn gan() -> Builder {
    let mut builder = Builder::trainer();
    for (root, class, called) in [
        ("Critic", "Conv2d", "convolution"),
        ("Maker", "ConvTranspose2d", "convolution"),
        ("Critic", "BatchNorm2d", "native_batch_norm"),
        ("Maker", "BatchNorm2d", "native_batch_norm"),
        ("Critic", "Sigmoid", "sigmoid"),
        ("Maker", "Tanh", "tanh"),
    ] {
        let frames = forward(&net(root, class), &[operator(called), kernel()]);
        builder.ticks(0, 30, S::Running, &frames);
    }
    builder
}

/// The two nets of a GAN have the same kinds of nodes: lines, and the order of nodes within a pass,
/// tell them apart.
#[test]
fn nets_are_told_apart_by_lines_and_by_the_order_of_a_pass() {
    const CONV: &str = "ConvolutionBackward0";
    const NORM: &str = "NativeBatchNormBackward0";
    let mut builder = gan();
    for _ in 0..10 {
        // Of the critic alone.
        pass(&mut builder, 60, &[("SigmoidBackward0", 1), (CONV, 4)]);
        // Through the critic into the other net.
        let through = [
            (CONV, 2),
            ("SigmoidBackward0", 1),
            (NORM, 1),
            ("TanhBackward0", 1),
            (CONV, 3),
        ];
        pass(&mut builder, 70, &through);
    }
    let profile = builder.profile();
    let table = table(&profile);
    let of = |class: &str| {
        let found = table.modules.iter().find(|module| module.class == class);
        found.map_or(0, |module| module.ns / TICK_NS)
    };
    assert_eq!(of("Conv2d of Critic"), 60, "{:?}", table.modules);
    assert_eq!(of("ConvTranspose2d of Maker"), 30, "{:?}", table.modules);
    // Between the last node that only the one has and the first that only the other has.
    assert_eq!(of("BatchNorm2d of Critic or Maker"), 10);
    assert_eq!(table.unmatched_ns, 0);
    let matched: u64 = table.modules.iter().map(|each| each.ns).sum();
    assert_eq!(matched + table.outside_ns, table.total_ns);

    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    for says in [
        "ConvolutionBackward0 < Conv2d of Critic or C",
        "of all ConvTranspose2d of Maker",
    ] {
        assert!(text.contains(says), "{says} is missing: {text}");
    }
    assert!(!text.contains("of unknown modules"), "{text}");
}

/// Where nets take turns within a pass, their order tells nothing; a short stretch does not show
/// that one is missing.
#[test]
fn nets_that_take_turns_are_told_by_class_alone() {
    let mut builder = gan();
    for _ in 0..10 {
        let turns = [
            ("SigmoidBackward0", 1),
            ("TanhBackward0", 1),
            ("ConvolutionBackward0", 2),
            ("SigmoidBackward0", 1),
        ];
        pass(&mut builder, 70, &turns);
    }
    pass(&mut builder, 80, &[("ConvolutionBackward0", 5)]);
    let table = table(&builder.profile());
    let found = table
        .modules
        .iter()
        .find(|module| module.ns == 25 * TICK_NS);
    assert_eq!(
        found.map(|module| module.class.as_str()),
        Some("Conv2d of Critic or ConvTranspose2d of Maker"),
        "{:?}",
        table.modules
    );
}
