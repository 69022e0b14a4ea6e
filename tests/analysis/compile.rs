//! torch.compile in made-up recordings: whose compilation, which stage, whose code, how often.

use crate::analysis_builder::*;
use torchspy::analysis::analyze;
use torchspy::analysis::compile::{CompileTable, CompiledFunction};
use torchspy::analysis::verdict::Cause;
use torchspy::analysis::verdict::next_step::next_step;
use torchspy::model::category::Phase as P;
use torchspy::model::compile::CompileStage;
use torchspy::model::frame::Partial;
use torchspy::model::nn_module::NnModuleInfo;
use torchspy::report::text::{TextOptions, render_summary};

const MODULE: &str = "torch/nn/modules/module.py";

fn dynamo(file: &str, function: &str) -> F {
    lib(&format!("torch/_dynamo/{file}"), function)
}

/// The script calls a compiled module.
fn calls(more: &[F]) -> Vec<F> {
    let mut frames = vec![
        user("<module>", 90),
        user("main", 41),
        lib(MODULE, "Module._call_impl"),
        dynamo(
            "eval_frame.py",
            "_TorchDynamoContext.__call__.<locals>.compile_wrapper",
        ),
    ];
    frames.extend_from_slice(more);
    frames
}

/// The compiler at work on a function, and what it calls.
fn compiles(subject: F, more: &[F]) -> Vec<F> {
    let marked = [
        F::Compiles(Box::new(subject)),
        dynamo("convert_frame.py", "_compile"),
    ];
    calls(&[&marked[..], more].concat())
}

fn generated() -> Vec<F> {
    vec![
        lib(
            "torch/_functorch/_aot_autograd/runtime_wrappers.py",
            "wrapper",
        ),
        lib("torch/_inductor/output_code.py", "CompiledFxGraph.__call__"),
        py("/x/cache/c2/cc2x.py", "Runner.call", 60),
        torch("at::native::add(at::Tensor const&)"),
    ]
}

fn forward_part() -> F {
    user("Net.forward", 20)
}

fn rest_part() -> F {
    user("Net.torch_dynamo_resume_in_forward_at_23", 23)
}

fn table(builder: Builder) -> CompileTable {
    analyze(&builder.profile())
        .primary()
        .unwrap()
        .compile
        .clone()
}

fn function<'t>(table: &'t CompileTable, name: &str) -> &'t CompiledFunction {
    let found = table.functions.iter().find(|each| each.name == name);
    found.unwrap_or_else(|| panic!("no {name}: {table:?}"))
}

fn ticks(builder: &mut Builder, ticks: u64, frames: &[F]) {
    builder.ticks(0, ticks, S::Running, frames);
}

#[test]
fn compiling_is_of_a_function_and_a_stage() {
    let mut builder = Builder::trainer();
    let tracing = dynamo("symbolic_convert.py", "InstructionTranslator.run");
    let aot = lib(
        "torch/_functorch/aot_autograd.py",
        "create_aot_dispatcher_function",
    );
    let inductor = lib("torch/_inductor/graph.py", "GraphLowering.run");
    let build = lib("torch/_inductor/cpp_builder.py", "run_compile_cmd");
    ticks(&mut builder, 10, &compiles(forward_part(), &[tracing]));
    ticks(
        &mut builder,
        20,
        &compiles(forward_part(), std::slice::from_ref(&aot)),
    );
    let fx = lib("torch/fx/interpreter.py", "Interpreter.run");
    ticks(
        &mut builder,
        30,
        &compiles(forward_part(), &[aot.clone(), inductor.clone(), fx]),
    );
    let waits = [
        aot,
        inductor,
        build,
        std_lib("subprocess.py", "Popen.communicate"),
    ];
    builder.ticks(0, 40, S::Read, &compiles(forward_part(), &waits));
    // By a way of its own: no frame says of what.
    let other = lib("torch/_inductor/compile_fx.py", "compile_fx");
    ticks(&mut builder, 5, &[user("main", 57), other]);
    ticks(&mut builder, 5, &[user("main", 60)]);
    let profile = builder.profile();
    assert_eq!(profile.samples[99].phase, P::Compile);
    let analysis = analyze(&profile);
    let table = &analysis.primary().unwrap().compile;
    assert_eq!(table.compile_ns, 105 * TICK_NS);
    let stages = [
        (CompileStage::Dynamo, 10 * TICK_NS),
        (CompileStage::AotAutograd, 20 * TICK_NS),
        (CompileStage::Inductor, 35 * TICK_NS),
        (CompileStage::Build, 40 * TICK_NS),
    ];
    assert_eq!(table.stages, stages);
    assert_eq!(table.unknown_ns, 5 * TICK_NS);
    let forward = function(table, "Net.forward");
    assert_eq!((forward.compile_ns, forward.line), (100 * TICK_NS, 1));
    assert_eq!((forward.compilations, forward.recompilations), (1, 0));
    let text = render_summary(&profile, &analysis, TextOptions::default());
    for says in [
        "  compiling          1.05 s",
        "    C++/Triton 0.4 s, inductor 0.3 s, AOT 0.2 s, dynamo 0.1 s",
        ">=1  Net.forward (train.py:1)",
        "of an unknown function: compiling, 0.05 s",
    ] {
        assert!(text.contains(says), "{says} is missing: {text}");
    }
}

#[test]
fn compilations_are_stretches_of_the_same_part() {
    let mut builder = Builder::trainer();
    let run = |part: F| calls(&[&[part][..], &generated()].concat());
    for _ in 0..2 {
        ticks(&mut builder, 3, &compiles(forward_part(), &[]));
        // What was not read in between may be of the same compilation.
        ticks(
            &mut builder,
            1,
            &calls(&[dynamo("convert_frame.py", "_compile")]),
        );
        ticks(&mut builder, 1, &[F::Cut(Partial::StopTimeout)]);
        ticks(&mut builder, 3, &compiles(forward_part(), &[]));
        ticks(&mut builder, 2, &run(forward_part()));
        ticks(&mut builder, 3, &compiles(rest_part(), &[]));
        ticks(&mut builder, 2, &run(rest_part()));
    }
    ticks(
        &mut builder,
        1,
        &calls(&[&[user("helper", 70)][..], &generated()].concat()),
    );
    let table = table(builder);
    let forward = function(&table, "Net.forward");
    assert_eq!((forward.compilations, forward.recompilations), (4, 2));
    assert_eq!(
        (forward.compile_ns, forward.run_ns),
        (18 * TICK_NS, 8 * TICK_NS)
    );
    assert_eq!(function(&table, "helper").compilations, 0);
    let [place] = &table.graph_breaks[..] else {
        panic!("{table:?}");
    };
    assert_eq!(
        (place.at.function.as_str(), place.at.line),
        ("Net.forward", 23)
    );
    assert_eq!(place.file, "/home/u/train.py");
}

#[test]
fn compiled_code_of_backward_is_of_the_only_function_there_is() {
    let node = torch("torch::autograd::PyNode::apply(std::vector<at::Tensor>&&)");
    let engine = lib("torch/autograd/graph.py", "_engine_run_backward");
    let compiled = lib(
        "torch/_functorch/_aot_autograd/runtime_wrappers.py",
        "CompiledFunction.backward",
    );
    let first = [user("main", 57), engine, node, compiled];
    let backward = [&first[..], &generated()].concat();
    // Backward's graph is compiled when it is first called.
    let lazily = [
        lib(
            "torch/_functorch/_aot_autograd/runtime_wrappers.py",
            "_AutogradBackwardCompiler.get_or_compile",
        ),
        lib("torch/_inductor/graph.py", "GraphLowering.run"),
        lib(MODULE, "Module._call_impl"),
    ];
    let compiles_backward = [&first[..], &lazily].concat();
    let run = |part: F| calls(&[&[part][..], &generated()].concat());

    let mut one = Builder::trainer();
    ticks(&mut one, 2, &run(forward_part()));
    ticks(&mut one, 3, &backward);
    ticks(&mut one, 4, &compiles_backward);
    let one = table(one);
    assert_eq!((one.run_ns, one.backward_ns), (5 * TICK_NS, 0));
    assert_eq!(function(&one, "Net.forward").run_ns, 5 * TICK_NS);
    assert_eq!(function(&one, "Net.forward").run_share.samples, 5);
    assert_eq!(function(&one, "Net.forward").compile_ns, 4 * TICK_NS);
    assert_eq!((one.unknown_ns, one.compile_ns), (0, 4 * TICK_NS));

    let mut two = Builder::trainer();
    ticks(&mut two, 2, &run(forward_part()));
    ticks(&mut two, 2, &run(user("other", 80)));
    ticks(&mut two, 3, &backward);
    ticks(&mut two, 4, &compiles_backward);
    let two = table(two);
    assert_eq!((two.run_ns, two.backward_ns), (7 * TICK_NS, 3 * TICK_NS));
    assert_eq!(function(&two, "Net.forward").run_ns, 2 * TICK_NS);
    assert_eq!((two.unknown_ns, two.compile_ns), (4 * TICK_NS, 4 * TICK_NS));
}

#[test]
fn a_module_that_is_compiled_as_a_whole_has_its_class() {
    let info = NnModuleInfo {
        root: "Sequential".to_owned(),
        number: 0,
        path: String::new(),
        class: "Sequential".to_owned(),
        training: Some(true),
    };
    let wrapper = dynamo("external_utils.py", "wrap_inline.<locals>.inner");
    let mut builder = Builder::trainer();
    let frames = [
        &[
            user("main", 41),
            F::Module(info),
            lib(MODULE, "Module._call_impl"),
        ][..],
        &[wrapper],
        &generated(),
    ];
    ticks(&mut builder, 3, &frames.concat());
    let table = table(builder);
    let whole = function(&table, "Sequential");
    assert_eq!((whole.run_ns, whole.file.as_str()), (3 * TICK_NS, ""));
}

#[test]
fn a_graph_that_a_program_made_itself_is_no_compiled_code() {
    let graph = py("<eval_with_key>.0", "forward", 5);
    let mut builder = Builder::trainer();
    let own = [
        user("main", 41),
        lib("torch/fx/graph_module.py", "GraphModule.call_wrapped"),
    ];
    ticks(
        &mut builder,
        2,
        &[&own[..], std::slice::from_ref(&graph)].concat(),
    );
    let of_compiler = [forward_part(), dynamo("eval_frame.py", "_fn"), graph];
    ticks(&mut builder, 3, &calls(&of_compiler));
    let table = table(builder);
    assert_eq!(table.run_ns, 3 * TICK_NS);
    assert_eq!(function(&table, "Net.forward").run_ns, 3 * TICK_NS);
}

/// AOTAutograd traces backward by running it, and inductor calls modules.
#[test]
fn what_the_compiler_runs_is_compiling() {
    let traces = [
        lib(
            "torch/_functorch/_aot_autograd/graph_capture.py",
            "inner_fn",
        ),
        lib("torch/autograd/__init__.py", "grad"),
        lib("torch/autograd/graph.py", "_engine_run_backward"),
        torch("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)"),
        lib(MODULE, "Module._call_impl"),
    ];
    let mut builder = Builder::trainer();
    ticks(&mut builder, 2, &compiles(forward_part(), &traces));
    let made = lib(
        "torch/_functorch/_aot_autograd/codegen.py:codegen(runtime_wrapper)",
        "_runtime_wrapper",
    );
    let calls_made = [
        forward_part(),
        lib("torch/_functorch/aot_autograd.py", "forward"),
        made,
    ];
    ticks(
        &mut builder,
        3,
        &calls(&[&calls_made[..], &generated()].concat()),
    );
    let profile = builder.profile();
    assert_eq!(profile.samples[0].phase, P::Compile);
    assert_eq!(profile.samples[2].phase, P::Forward);
    let primary = analyze(&profile);
    let table = &primary.primary().unwrap().compile;
    assert_eq!((table.compile_ns, table.run_ns), (2 * TICK_NS, 3 * TICK_NS));
    assert_eq!(table.stages, [(CompileStage::AotAutograd, 2 * TICK_NS)]);
    assert_eq!(primary.primary().unwrap().backward.total_ns, 0);
}

#[test]
fn a_program_without_torch_compile_has_no_table() {
    let mut builder = Builder::trainer();
    ticks(&mut builder, 30, &[user("main", 41)]);
    let profile = builder.profile();
    let analysis = analyze(&profile);
    assert!(analysis.primary().unwrap().compile.is_empty());
    let text = render_summary(&profile, &analysis, TextOptions::default());
    assert!(!text.contains("COMPILE"), "{text}");
}

/// What uses torch.compile is not advised to use it.
#[test]
fn compiled_programs_are_advised_what_comes_after_torch_compile() {
    const ADVISED: &[Cause] = &[
        Cause::Launch,
        Cause::Python,
        Cause::GpuMemory,
        Cause::Dispatch,
    ];
    let mut builder = Builder::trainer();
    ticks(&mut builder, 30, &[user("main", 41)]);
    let mut compiled = Builder::trainer();
    ticks(
        &mut compiled,
        30,
        &calls(&[&[forward_part()][..], &generated()].concat()),
    );
    for (builder, is_compiled) in [(builder, false), (compiled, true)] {
        let profile = builder.profile();
        let figures = analyze(&profile).verdict.unwrap().figures;
        assert_eq!(figures.compiled, is_compiled);
        for &cause in ADVISED {
            let next = next_step(&profile, cause, None, &figures);
            let plain = ["or torch.compile:", "torch.compile;", "torch.compile it"];
            let is_advised = plain.iter().any(|words| next.contains(words));
            assert_eq!(is_advised, !is_compiled, "{cause:?}: {next}");
        }
    }
}
