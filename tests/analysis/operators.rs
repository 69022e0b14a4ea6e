//! The operator table: which time is whose, where it was called from, and what names it.

use crate::analysis_builder::*;
use torchspy::analysis::operators::{CallSite, OperatorTable, OperatorTime};
use torchspy::analysis::{Analysis, analyze};
use torchspy::model::category::{Activity, Phase};
use torchspy::model::frame::Partial;
use torchspy::model::module::ModuleKind;
use torchspy::model::operator::{NamedBy, OperatorMark};
use torchspy::model::profile::Profile;
use torchspy::native::demangle::demangle;
use torchspy::report::json::render_json;
use torchspy::report::text::{TextOptions, render_summary};
use torchspy::torch::rules::RuleSet;

/// An operator's entry.
fn op(overload: &str) -> F {
    torch(&format!("at::_ops::{overload}::call(at::Tensor const&)"))
}

/// The same, past the first dispatch key.
fn redispatch(overload: &str) -> F {
    torch(&format!(
        "at::_ops::{overload}::redispatch(c10::DispatchKeySet, at::Tensor const&)"
    ))
}

fn kernel(name: &str) -> F {
    torch(&format!("at::native::{name}(at::Tensor const&)"))
}

fn module_call() -> F {
    lib("torch/nn/modules/module.py", "Module._call_impl")
}

/// The script in the forward of one of its modules, in the forward of torch's `class`.
fn forward_of(class: &str, more: &[F]) -> Vec<F> {
    let mut frames = vec![
        user("<module>", 90),
        user("main", 41),
        lib("torch/nn/modules/module.py", "Module._wrapped_call_impl"),
        module_call(),
        user("main.<locals>.Net.forward", 20),
        lib("torch/nn/modules/module.py", "Module._wrapped_call_impl"),
        module_call(),
        lib("torch/nn/modules/conv.py", &format!("{class}.forward")),
    ];
    frames.extend_from_slice(more);
    frames
}

/// The script in `loss.backward()`, called inside of a module.
fn backward_of(node: &str, more: &[F]) -> Vec<F> {
    let mut frames = vec![
        user("<module>", 90),
        module_call(),
        user("Trainer.forward", 44),
        lib("torch/_tensor.py", "Tensor.backward"),
        lib("torch/autograd/graph.py", "_engine_run_backward"),
        native("libtorch_python.so", "THPEngine_run_backward"),
        torch("torch::autograd::Engine::execute(int)"),
        torch("torch::autograd::Engine::evaluate_function(int)"),
    ];
    if !node.is_empty() {
        frames.push(torch(&format!(
            "torch::autograd::{node}::apply(std::vector<at::Tensor>&&)"
        )));
    }
    frames.extend_from_slice(more);
    frames
}

fn analyzed(builder: Builder) -> (Profile, Analysis) {
    let profile = builder.profile();
    let analysis = analyze(&profile);
    (profile, analysis)
}

fn table(builder: Builder) -> (Profile, OperatorTable) {
    let (profile, analysis) = analyzed(builder);
    let process = analysis.primary().expect("sampled");
    let table = process.operators.clone();
    assert_eq!(
        table.inside_ns() + table.outside_ns(),
        process.wall_ns,
        "no time is lost or made"
    );
    let own: u64 = table.operators.iter().map(|each| each.self_ns).sum();
    assert_eq!(own, table.inside_ns());
    for each in &table.operators {
        let sums = each.sites.iter().fold((0, 0), |(own, total), site| {
            (own + site.self_ns, total + site.total_ns)
        });
        assert_eq!(sums, (each.self_ns, each.total_ns), "{}", each.name);
    }
    (profile, table)
}

fn find<'a>(table: &'a OperatorTable, name: &str) -> &'a OperatorTime {
    table
        .operators
        .iter()
        .find(|each| each.name == name)
        .unwrap_or_else(|| panic!("no {name} among {:?}", names(table)))
}

fn names(table: &OperatorTable) -> Vec<&str> {
    table
        .operators
        .iter()
        .map(|each| each.name.as_str())
        .collect()
}

/// (own, total) in ticks.
fn ticks(table: &OperatorTable, name: &str) -> (u64, u64) {
    let found = find(table, name);
    (found.self_ns / TICK_NS, found.total_ns / TICK_NS)
}

fn call_site<'a>(table: &'a OperatorTable, name: &str) -> &'a CallSite {
    let sites = &find(table, name).sites;
    assert_eq!(sites.len(), 1, "{name}: {sites:?}");
    &sites[0].call
}

#[test]
fn own_time_is_the_innermost_operators_and_total_time_counts_once() {
    let mut builder = Builder::trainer();
    let inner = forward_of(
        "Conv2d",
        &[
            op("conv2d"),
            redispatch("conv2d"),
            kernel("conv2d"),
            op("convolution"),
            op("mkldnn_convolution"),
            redispatch("mkldnn_convolution"),
            kernel("mkldnn_convolution"),
            torch("dnnl::impl::cpu::x64::brgemm_convolution_fwd_t::execute(int)"),
        ],
    );
    builder.ticks(0, 60, S::Running, &inner);
    builder.ticks(0, 5, S::Running, &forward_of("Conv2d", &[op("conv2d")]));
    // An operator that calls itself, through another.
    let again = forward_of(
        "Linear",
        &[op("sum_dim_IntList"), op("to_dtype"), op("sum")],
    );
    builder.ticks(0, 10, S::Running, &again);
    builder.ticks(0, 25, S::Running, &[user("<module>", 90), user("main", 46)]);
    let (_, table) = table(builder);
    assert_eq!(ticks(&table, "aten::mkldnn_convolution"), (60, 60));
    assert_eq!(ticks(&table, "aten::convolution"), (0, 60));
    assert_eq!(ticks(&table, "aten::conv2d"), (5, 65));
    assert_eq!(ticks(&table, "aten::sum"), (10, 10));
    assert_eq!(ticks(&table, "aten::to"), (0, 10));
    assert_eq!(table.operators.len(), 5, "{:?}", names(&table));
    assert_eq!(table.outside, [(Activity::Python, 25 * TICK_NS)]);
    let share = find(&table, "aten::mkldnn_convolution").share;
    assert!((share.value - 0.6).abs() < 1e-9 && share.low < 0.6 && share.high > 0.6);
    assert_eq!(share.samples, 60);
    assert_eq!(table.operators[0].name, "aten::mkldnn_convolution");
}

#[test]
fn forward_has_its_module_and_line() {
    let mut builder = Builder::trainer();
    let frames = forward_of("Conv2d", &[op("convolution"), kernel("convolution")]);
    builder.ticks(0, 10, S::Running, &frames);
    let functional = [
        user("<module>", 90),
        user("loss", 55),
        op("cross_entropy_loss"),
    ];
    builder.ticks(0, 10, S::Running, &functional);
    let (profile, table) = table(builder);
    let at = call_site(&table, "aten::convolution");
    assert_eq!((at.phase, at.node.as_deref()), (Phase::Forward, None));
    assert_eq!(at.module.as_deref(), Some("Conv2d"));
    let (function, line) = at.line.expect("a line");
    assert_eq!(line, 20);
    assert_eq!(
        profile.functions[function.index()].name,
        "main.<locals>.Net.forward"
    );
    let at = call_site(&table, "aten::cross_entropy_loss");
    assert_eq!((at.phase, at.module.as_deref()), (Phase::User, None));
    assert_eq!(at.line.map(|(_, line)| line), Some(55));
}

#[test]
fn the_users_own_module_is_named_where_no_other_is_nearer() {
    let mut builder = Builder::trainer();
    let frames = [
        user("main", 41),
        lib(
            "torch/nn/modules/module.py",
            "Module._call_impl.<locals>.inner",
        ),
        user("main.<locals>.Net.forward", 21),
        op("relu"),
    ];
    builder.ticks(0, 10, S::Running, &frames);
    // A hook is no module; a name that is not qualified names none.
    let hook = [user("main", 41), module_call(), user("hook", 30), op("neg")];
    builder.ticks(0, 10, S::Running, &hook);
    let old = [
        user("main", 41),
        module_call(),
        user("forward", 30),
        op("abs"),
    ];
    builder.ticks(0, 10, S::Running, &old);
    let (_, table) = table(builder);
    assert_eq!(
        call_site(&table, "aten::relu").module.as_deref(),
        Some("Net")
    );
    assert_eq!(call_site(&table, "aten::neg").module, None);
    assert_eq!(call_site(&table, "aten::abs").module, None);
}

#[test]
fn backward_has_its_node_and_no_module() {
    let mut builder = Builder::trainer();
    let node = "generated::ConvolutionBackward0";
    let inner = [op("convolution_backward"), kernel("convolution_backward")];
    builder.ticks(0, 30, S::Running, &backward_of(node, &inner));
    builder.ticks(0, 4, S::Running, &backward_of(node, &[]));
    // The engine adds gradients up itself, under no node.
    builder.ticks(0, 6, S::Running, &backward_of("", &[op("add_Tensor")]));
    builder.ticks(
        0,
        3,
        S::Running,
        &backward_of("AccumulateGrad", &[op("add__Tensor")]),
    );
    builder.ticks(
        0,
        2,
        S::Running,
        &backward_of("CppNode<mylib::Scale>", &[op("mul_Tensor")]),
    );
    let (_, table) = table(builder);
    let at = call_site(&table, "aten::convolution_backward");
    assert_eq!(at.phase, Phase::Backward);
    assert_eq!(at.node.as_deref(), Some("ConvolutionBackward0"));
    assert_eq!(at.module, None, "the module only called backward()");
    assert_eq!(at.line.map(|(_, line)| line), Some(44));
    assert_eq!(call_site(&table, "aten::add").node, None);
    assert_eq!(call_site(&table, "aten::add").phase, Phase::Backward);
    assert_eq!(
        call_site(&table, "aten::add_").node.as_deref(),
        Some("AccumulateGrad")
    );
    assert_eq!(
        call_site(&table, "aten::mul").node.as_deref(),
        Some("CppNode<mylib::Scale>")
    );
    assert_eq!(table.outside, [(Activity::Autograd, 4 * TICK_NS)]);
}

#[test]
fn what_backward_does_inside_of_an_operator_is_not_its_own() {
    let mut builder = Builder::trainer();
    for node in ["generated::MmBackward0", ""] {
        let mut frames = vec![user("main", 3), op("linear")];
        frames.extend(backward_of(node, &[]));
        builder.ticks(0, 10, S::Running, &frames);
    }
    let (_, table) = table(builder);
    assert_eq!(ticks(&table, "aten::linear"), (0, 20));
    assert!(table.inside.is_empty(), "{:?}", table.inside);
}

#[test]
fn openmp_workers_are_not_counted_and_waiting_for_them_is() {
    let mut builder = Builder::trainer();
    let region = torch("void at::internal::invoke_parallel<f>(long) [clone ._omp_fn.0]");
    let wait = forward_of(
        "ReLU",
        &[
            op("clamp_min"),
            native("libgomp.so.1", "GOMP_parallel"),
            native("libgomp.so.1", "gomp_team_barrier_wait_end"),
        ],
    );
    builder.ticks(0, 20, S::Running, &wait);
    let worker = builder.thread(0, 101, "python", false);
    builder.ticks(
        worker,
        20,
        S::Running,
        &[
            libc("clone3"),
            native("libgomp.so.1", "gomp_thread_start"),
            region,
            op("clamp_min"),
        ],
    );
    let (_, table) = table(builder);
    assert_eq!(ticks(&table, "aten::clamp_min"), (20, 20));
}

#[test]
fn waiting_for_a_cpu_inside_of_an_operator_is_the_operators() {
    let mut builder = Builder::trainer();
    for _ in 0..10 {
        let sample = builder.sample(0, TICK_NS, S::Running, &[user("main", 3), op("mm")]);
        sample.queue_ns = TICK_NS / 2;
    }
    let sample = builder.sample(0, TICK_NS, S::Running, &[user("main", 4)]);
    sample.queue_ns = TICK_NS / 4;
    let (_, table) = table(builder);
    assert_eq!(ticks(&table, "aten::mm"), (10, 10));
    assert_eq!(
        table.inside,
        [
            (Activity::Dispatch, TICK_NS * 5),
            (Activity::CpuWait, TICK_NS * 5)
        ]
    );
    assert_eq!(
        table.outside,
        [
            (Activity::Python, TICK_NS * 3 / 4),
            (Activity::CpuWait, TICK_NS / 4)
        ]
    );
}

#[test]
fn operators_of_an_engine_thread_are_the_waiting_threads() {
    let mut builder = Builder::trainer();
    builder.ticks(0, 10, S::Running, &forward_of("Linear", &[op("addmm")]));
    let mut waiting = backward_of("", &[]);
    waiting.pop();
    waiting.push(libc("pthread_cond_wait"));
    builder.ticks(0, 20, S::Futex, &waiting);
    let engine = builder.thread(0, 101, "pt_autograd_0", false);
    let idle = [
        libc("clone3"),
        torch("torch::autograd::Engine::thread_init(int)"),
        torch("torch::autograd::ReadyQueue::pop()"),
    ];
    builder.ticks(engine, 10, S::Futex, &idle);
    let busy = [
        libc("clone3"),
        torch("torch::autograd::Engine::thread_init(int)"),
        torch("torch::autograd::Engine::evaluate_function(int)"),
        torch("torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)"),
        op("mm"),
        native("libcudart.so.13", "cudaLaunchKernel"),
    ];
    builder.ticks(engine, 15, S::Running, &busy);
    let (_, table) = table(builder);
    assert_eq!(ticks(&table, "aten::mm"), (15, 15));
    let at = call_site(&table, "aten::mm");
    assert_eq!(at.node.as_deref(), Some("AddmmBackward0"));
    assert_eq!(
        (at.phase, at.line.map(|(_, line)| line)),
        (Phase::Backward, Some(44))
    );
}

const GLUE: &str = "c10::impl::wrap_kernel_functor_unboxed_<c10::impl::detail::";

#[test]
fn operators_of_other_libraries_go_by_their_kernels() {
    let mut builder = Builder::trainer();
    let named = format!(
        "{GLUE}WrapFunctionIntoFunctor_<c10::CompileTimeFunctionPointer<at::Tensor (at::Tensor const&), \
         &mylib::(anonymous namespace)::foo>, at::Tensor> >::call(c10::OperatorKernel*)"
    );
    let unnamed = format!(
        "{GLUE}WrapFunctionIntoRuntimeFunctor_<at::Tensor (*)(at::Tensor const&)> >::call(c10::OperatorKernel*)"
    );
    let site = user("main", 3);
    let stacks: [(u64, Vec<F>); 4] = [
        (10, vec![native("mylib.so", &named)]),
        (
            20,
            vec![
                native("mylib.so", &unnamed),
                native("mylib.so", "mylib::bar(at::Tensor const&)"),
                native("mylib.so", "mylib::helper(float*)"),
                libc("memcpy"),
            ],
        ),
        // Inlined: the library's own code has no name, and an operator that it calls is not its
        // kernel.
        (30, vec![native("mylib.so", &unnamed), op("sin")]),
        // Torch's own glue says nothing: the operator's entry does.
        (40, vec![op("cos"), torch(&named)]),
    ];
    for (count, frames) in stacks {
        let frames: Vec<F> = std::iter::once(site.clone()).chain(frames).collect();
        builder.ticks(0, count, S::Running, &frames);
    }
    let (_, table) = table(builder);
    assert_eq!(ticks(&table, "mylib::foo"), (10, 10));
    assert_eq!(ticks(&table, "mylib::bar"), (20, 20));
    assert_eq!(find(&table, "mylib::bar").named_by, NamedBy::Kernel);
    assert_eq!(ticks(&table, "kernel without a name"), (0, 30));
    assert_eq!(ticks(&table, "aten::sin"), (30, 30));
    assert_eq!(ticks(&table, "aten::cos"), (40, 40));
    assert_eq!(find(&table, "aten::cos").named_by, NamedBy::Schema);
}

#[test]
fn operators_in_python_go_by_their_function() {
    let mut builder = Builder::trainer();
    let holder = || {
        native(
            "libtorch_python.so",
            "void c10::BoxedKernel::make_boxed_functor<torch::impl::dispatch::PythonKernelHolder>(c10::OperatorKernel*)",
        )
    };
    let slow = [
        user("main", 3),
        lib("torch/_library/custom_ops.py", "CustomOpDef.__call__"),
        holder(),
        lib("torch/_library/custom_ops.py", "backend_impl"),
        user("slow", 60),
        user("helper", 70),
    ];
    builder.ticks(0, 10, S::Running, &slow);
    let mut clone = slow.to_vec();
    clone.push(op("clone"));
    builder.ticks(0, 5, S::Running, &clone);
    // The first call imports what it needs.
    let imports = [
        user("main", 3),
        holder(),
        lib("torch/_library/custom_ops.py", "backend_impl"),
        py("<frozen importlib._bootstrap>", "_find_and_load", 1),
        user("<module>", 1),
    ];
    builder.ticks(0, 7, S::Running, &imports);
    let (_, table) = table(builder);
    assert_eq!(ticks(&table, "slow"), (10, 15));
    assert_eq!(find(&table, "slow").named_by, NamedBy::Kernel);
    assert_eq!(ticks(&table, "aten::clone"), (5, 5));
    assert_eq!(table.operators.len(), 2, "{:?}", names(&table));
}

#[test]
fn wrappers_tell_where_the_entry_is_missing() {
    let mut builder = Builder::trainer();
    let inner = [
        "at::(anonymous namespace)::(anonymous namespace)::wrapper_CPU_out_mm_out(at::Tensor const&)",
        "at::(anonymous namespace)::wrapper_CPU__softmax(at::Tensor const&, long)",
        "torch::autograd::VariableType::(anonymous namespace)::add_Tensor(c10::DispatchKeySet, at::Tensor const&)",
        "torch::ADInplaceOrView::(anonymous namespace)::_foreach_mul__Scalar(c10::DispatchKeySet, c10::ArrayRef<at::Tensor>)",
        "c10d::ops::(anonymous namespace)::allreduce_CPU(c10::ArrayRef<at::Tensor>)",
        "c10d::ops::(anonymous namespace)::barrierCUDA(at::Tensor)",
    ];
    for name in inner {
        builder.ticks(0, 10, S::Running, &[F::Cut(Partial::Torn), torch(name)]);
    }
    // These only sound like it.
    for name in [
        "torch::autograd::VariableType::allCPUTypes()",
        "at::_ops::add_Tensor::schema()",
        "c10d::ops::(anonymous namespace)::TORCH_LIBRARY_IMPL_init_c10d_CPU_5(torch::Library&)",
        "torch::autograd::Function<Scale>::apply<Scale>(at::Tensor)",
    ] {
        builder.ticks(0, 1, S::Running, &[F::Cut(Partial::Torn), torch(name)]);
    }
    let (_, table) = table(builder);
    let mut found = names(&table);
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "aten::_foreach_mul_",
            "aten::_softmax",
            "aten::add",
            "aten::mm",
            "c10d::allreduce_",
            "c10d::barrier"
        ]
    );
}

/// Real symbols, through the demangler that reports use.
#[test]
fn real_symbols_name_their_operators() {
    let cases = [
        (
            "libtorch_cpu.so",
            "_ZN2at4_ops11mul__Scalar4callERNS_6TensorERKN3c106ScalarE",
            OperatorMark::Operator("aten::mul_".to_owned()),
        ),
        (
            "libtorch_cpu.so",
            "_ZN2at4_ops20_foreach_add__Scalar10redispatchEN3c1014DispatchKeySetENS2_8ArrayRefINS_6TensorEEERKNS2_6ScalarE",
            OperatorMark::Operator("aten::_foreach_add_".to_owned()),
        ),
        (
            "mylib.so",
            "_ZN3c104impl28wrap_kernel_functor_unboxed_INS0_6detail24WrapFunctionIntoFunctor_INS_26CompileTimeFunctionPointerIFN2at6TensorERKS6_EXadL_ZN5mylib12_GLOBAL__N_13bazES8_EEEES6_NS_4guts8typelist8typelistIJS8_EEEEES9_E4callEPNS_14OperatorKernelENS_14DispatchKeySetES8_",
            OperatorMark::LibraryKernel(Some("mylib::baz".to_owned())),
        ),
        (
            "mylib.so",
            "_ZN3c104impl31make_boxed_from_unboxed_functorINS0_6detail24WrapFunctionIntoFunctor_INS_26CompileTimeFunctionPointerIFN2at6TensorERKS6_dEXadL_ZN5mylib7foo_cpuES8_dEEEES6_NS_4guts8typelist8typelistIJS8_dEEEEELb0EE4callEPNS_14OperatorKernelERKNS_14OperatorHandleENS_14DispatchKeySetEPSt6vectorINS_6IValueESaISP_EE",
            OperatorMark::LibraryKernel(Some("mylib::foo_cpu".to_owned())),
        ),
        (
            "mylib.so",
            "_ZN3c104impl28wrap_kernel_functor_unboxed_INS0_6detail31WrapFunctionIntoRuntimeFunctor_IPFN2at6TensorERKS5_ES5_NS_4guts8typelist8typelistIJS7_EEEEES8_E4callEPNS_14OperatorKernelENS_14DispatchKeySetES7_",
            OperatorMark::LibraryKernel(None),
        ),
        (
            "libtorch_python.so",
            "_ZN3c1011BoxedKernel18make_boxed_functorIN5torch4impl8dispatch18PythonKernelHolderEEEvPNS_14OperatorKernelERKNS_14OperatorHandleENS_14DispatchKeySetEPSt6vectorINS_6IValueESaISD_EE",
            OperatorMark::PythonKernel,
        ),
    ];
    for (module, symbol, wanted) in cases {
        let name = demangle(symbol);
        assert_ne!(name, symbol);
        let rules = RuleSet::built_in().native(ModuleKind::File, module, Some(&name));
        assert_eq!(rules.operator, wanted, "{name}");
    }
}

#[test]
fn every_entry_of_the_fixture_is_an_operator() {
    let text = include_str!("../fixtures/recording/torch_symbols.txt");
    let symbols = text.lines().filter_map(|line| line.split(' ').nth(3));
    let mut entries = 0;
    for symbol in symbols.filter(|symbol| symbol.starts_with("_ZN2at4_ops")) {
        let name = demangle(symbol);
        let rules = RuleSet::built_in();
        let mark = rules
            .native(ModuleKind::File, "libtorch_cpu.so", Some(&name))
            .operator;
        assert!(
            matches!(&mark, OperatorMark::Operator(found) if found.starts_with("aten::")),
            "{name}: {mark:?}"
        );
        entries += 1;
    }
    assert!(entries > 100, "{entries}");
}

fn many_operators() -> Builder {
    let mut builder = Builder::trainer();
    builder.ticks(
        0,
        300,
        S::Running,
        &forward_of("Conv2d", &[op("mkldnn_convolution")]),
    );
    let node = "generated::ConvolutionBackward0";
    builder.ticks(
        0,
        200,
        S::Running,
        &backward_of(node, &[op("convolution_backward")]),
    );
    for (count, line) in [(60, 50), (30, 51), (10, 52)] {
        builder.ticks(
            0,
            count,
            S::Running,
            &[user("main", line), op("mul_Tensor")],
        );
    }
    for name in ["sin", "cos", "tan", "exp"] {
        builder.ticks(0, 5, S::Running, &[user("main", 60), op(name)]);
    }
    builder.ticks(0, 80, S::Running, &[user("main", 46)]);
    builder
}

#[test]
fn the_table_in_text() {
    let (profile, analysis) = analyzed(many_operators());
    let options = TextOptions {
        rows: 4,
        ..TextOptions::default()
    };
    let text = render_summary(&profile, &analysis, options);
    let from = text.find("OPERATORS").expect("the section");
    let to = text.find("\nLINES OF YOUR CODE").expect("the next section");
    let section = &text[from..to];
    assert!(
        section.lines().all(|line| line.chars().count() <= 80),
        "{section}"
    );
    insta::assert_snapshot!(section);
}

#[test]
fn without_native_stacks_the_table_says_why_it_is_not_there() {
    let mut builder = Builder::trainer();
    builder.run.native = false;
    builder.ticks(0, 50, S::Running, &[user("main", 3)]);
    let (profile, analysis) = analyzed(builder);
    let text = render_summary(&profile, &analysis, TextOptions::default());
    assert!(
        text.contains("native stacks of what runs were not recorded"),
        "{text}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&render_json(&profile, &analysis).expect("json")).expect("json");
    assert!(json["operators"].is_null());
}

#[test]
fn the_table_in_json() {
    let (profile, analysis) = analyzed(many_operators());
    let json: serde_json::Value =
        serde_json::from_str(&render_json(&profile, &analysis).expect("json")).expect("json");
    let table = &json["operators"];
    assert_eq!(table["version"], 1);
    assert!(table["rules"].is_u64());
    assert!((table["inside_s"]["dispatch"].as_f64().expect("a number") - 6.2).abs() < 1e-9);
    assert!((table["outside_s"]["python"].as_f64().expect("a number") - 0.8).abs() < 1e-9);
    assert_eq!(table["left_out"], 0);
    let rows = json["ops"].as_array().expect("rows");
    let row = |name: &str| {
        rows.iter()
            .find(|row| row["name"] == name)
            .unwrap_or_else(|| panic!("no {name}"))
    };
    let backward = row("aten::convolution_backward");
    assert_eq!(backward["named_by"], "schema");
    assert!((backward["phases"]["backward"].as_f64().expect("a number") - 2.0).abs() < 1e-9);
    assert_eq!(backward["sites"][0]["node"], "ConvolutionBackward0");
    assert_eq!(backward["sites"][0]["line"], 44);
    assert_eq!(backward["sites"][0]["file"], "/home/u/train.py");
    assert!(backward["sites"][0]["module"].is_null());
    assert_eq!(backward["phase"], "backward");
    let interval = &backward["share"];
    assert!((interval["share"].as_f64().expect("a number") - 2.0 / 7.0).abs() < 1e-9);
    assert_eq!(interval["samples"], 200);
    assert_eq!(
        row("aten::mkldnn_convolution")["sites"][0]["module"],
        "Conv2d"
    );
    // Sampling cannot count calls: nothing may look as if it did.
    for row in rows {
        let keys: Vec<&String> = row.as_object().expect("an object").keys().collect();
        assert!(
            !keys
                .iter()
                .any(|key| key.contains("call") || key.contains("count")),
            "{keys:?}"
        );
    }
}
