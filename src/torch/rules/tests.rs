//! Checks the rules with real functions, and that every row has an effect.

use super::matching::Matching;
use super::*;
use crate::model::category::{Activity, FrameKind, Phase};
use crate::model::collective::{Backend, Issuer};
use crate::model::compile::CompileStage;
use crate::model::input::InputTask;
use crate::model::module::ModuleKind;
use CompileMark::{Between, Generated, Graph, Stage};
use CompileStage::{AotAutograd, Build, Dynamo, Inductor};
use InputPart::{Own, Task};
use InputTask::{Collate, Decode, Read, Transform};
use Issuer::{DdpBucket, FsdpReduce, FsdpReshard, FsdpUnshard};
use WaitPart::{Gpu, Method, Runtime, Socket};
use std::collections::{BTreeMap, BTreeSet};
use words::Word;

/// A file name of inductor.
const INDUCTOR: &str = "ccp22flhfst5j7iuivqotdljcdcp6fcjsqrzkllybncud725urjp";
const SITE: &str = "/env/lib/python3.11/site-packages/";

fn python(file: &str, function: &str) -> FunctionRules {
    RuleSet::built_in().python(file, function)
}

fn native(path: &str, name: &str) -> FunctionRules {
    RuleSet::built_in().native(ModuleKind::File, path, Some(name))
}

fn name(symbol: &str) -> (Option<&'static str>, Option<Backend>) {
    let part = native("/x/libtorch_cuda.so", symbol).collective;
    (part.name, part.backend)
}

/// Names as nm -C prints them for libtorch_cpu.so and libtorch_cuda.so 2.15.0, and nm -D for
/// libnccl.so.2.
#[test]
fn native_collectives_are_named() {
    let gloo = Some(Backend::Gloo);
    let nccl = Some(Backend::Nccl);
    for (symbol, wanted) in [
        (
            "c10d::ops::(anonymous namespace)::allreduce_CPU(c10::ArrayRef<at::Tensor>)",
            (Some("all_reduce"), None),
        ),
        (
            "c10d::ProcessGroupGloo::allreduce(std::vector<at::Tensor>&, c10d::AllreduceOptions const&)",
            (Some("all_reduce"), gloo),
        ),
        (
            "c10d::ProcessGroupGloo::all_gather_single(at::Tensor&, at::Tensor&)",
            (Some("all_gather"), gloo),
        ),
        (
            "c10d::ProcessGroupNCCL::_reduce_scatter_base(at::Tensor&, at::Tensor&)",
            (Some("reduce_scatter"), nccl),
        ),
        ("ncclAllReduce", (Some("all_reduce"), nccl)),
        ("ncclGroupEnd", (None, nccl)),
        (
            "gloo::transport::tcp::UnboundBuffer::waitRecv(int*)",
            (None, gloo),
        ),
        (
            "c10d::ProcessGroupGloo::AsyncWork::execute(int)",
            (None, gloo),
        ),
        (
            "c10d::Work::wait(std::chrono::duration<long>)",
            (None, None),
        ),
        ("at::native::scatter(at::Tensor)", (None, None)),
    ] {
        assert_eq!(name(symbol), wanted, "{symbol}");
    }
}

#[test]
fn python_collectives_are_named() {
    let file = "/e/site-packages/torch/distributed/distributed_c10d.py";
    for (function, wanted) in [
        ("all_reduce", Some("all_reduce")),
        ("all_gather_into_tensor", Some("all_gather")),
        ("reduce_scatter_tensor", Some("reduce_scatter")),
        ("all_gather_object", Some("all_gather_object")),
        ("barrier", Some("barrier")),
        ("_get_default_group", None),
        ("get_rank", None),
    ] {
        assert_eq!(python(file, function).collective.name, wanted, "{function}");
    }
    assert_eq!(
        python("/home/u/comm.py", "all_reduce").collective.name,
        None
    );
}

#[test]
fn wrappers_are_told_apart() {
    let fsdp = "/e/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py";
    let issuer = |file, function| python(file, function).collective.issuer;
    assert_eq!(issuer(fsdp, "FSDPParamGroup.unshard"), Some(FsdpUnshard));
    assert_eq!(issuer(fsdp, "FSDPParamGroup.reshard"), Some(FsdpReshard));
    assert_eq!(
        issuer(fsdp, "FSDPParamGroup.post_backward"),
        Some(FsdpReduce)
    );
    assert_eq!(issuer(fsdp, "FSDPParamGroup.pre_forward"), None);
    let reducer = |symbol| native("/x/libtorch_cpu.so", symbol).collective.issuer;
    assert_eq!(
        reducer("c10d::Reducer::all_reduce_bucket(c10d::Reducer::Bucket&)"),
        Some(DdpBucket)
    );
    assert_eq!(
        reducer("c10d::Reducer::autograd_hook(unsigned long)"),
        Some(Issuer::DdpReducer)
    );
}

#[test]
fn stages_are_told_by_file() {
    let cases = [
        (
            "torch/_dynamo/symbolic_convert.py",
            "InstructionTranslator.run",
            Stage(Dynamo),
        ),
        (
            "torch/_functorch/partitioners.py",
            "min_cut",
            Stage(AotAutograd),
        ),
        (
            "torch/_inductor/scheduler.py",
            "Scheduler.fuse",
            Stage(Inductor),
        ),
        (
            "torch/_inductor/cpp_builder.py",
            "run_compile_cmd",
            Stage(Build),
        ),
        (
            "torch/_inductor/output_code.py",
            "CompiledFxGraph.__call__",
            Generated,
        ),
        ("torch/_dynamo/utils.py", "dynamo_timed", Between),
        (
            "torch/nn/modules/module.py",
            "Module._call_impl",
            CompileMark::None,
        ),
    ];
    for (file, function, wanted) in cases {
        assert_eq!(
            python(&format!("{SITE}{file}"), function).compile,
            wanted,
            "{file}"
        );
    }
    let made = "/tmp/torchinductor_u/c2/cc2x.py";
    assert_eq!(python(made, "Runner.call").compile, Generated);
    assert_eq!(python("<eval_with_key>.3", "forward").compile, Graph);
    assert_eq!(
        python("/home/u/train.py", "main").compile,
        CompileMark::None
    );
    let takes_code = |file: &str| python(file, "_compile").takes_code;
    assert!(takes_code(&format!("{SITE}torch/_dynamo/convert_frame.py")));
    assert!(!takes_code("/home/u/convert_frame.py"));
}

#[test]
fn tasks_of_real_functions() {
    for (file, function, wanted) in [
        ("PIL/ImageFile.py", "ImageFile.load", Task(Decode)),
        (
            "PIL/JpegImagePlugin.py",
            "JpegImageFile._open",
            Task(Decode),
        ),
        ("PIL/Image.py", "Image.resize", Task(Transform)),
        (
            "torchvision/transforms/transforms.py",
            "Resize.forward",
            Task(Transform),
        ),
        (
            "torch/utils/data/_utils/collate.py",
            "default_collate",
            Task(Collate),
        ),
        ("numpy/lib/_npyio_impl.py", "load", Task(Read)),
        ("torch/nn/functional.py", "pad", InputPart::None),
    ] {
        assert_eq!(
            python(&format!("{SITE}{file}"), function).input,
            wanted,
            "{file}"
        );
    }
    let own = |function| python("/home/u/data.py", function).input;
    assert_eq!(own("Images.__getitem__"), Own);
    assert_eq!(own("Images.decode_row"), Task(Decode));
    assert_eq!(own("RandomCrop.__call__"), Own);
    assert_eq!(
        native("/x/pillow.libs/libjpeg-32d42e16.so.62", "jpeg_idct_islow").input,
        Task(Decode)
    );
    assert_eq!(
        native("/lib/x86_64-linux-gnu/libc.so.6", "memcpy").input,
        InputPart::None
    );
}

#[test]
fn families_of_real_paths() {
    let library = |kind, path| RuleSet::built_in().family(kind, path);
    let cases = [
        ("/x/torch/lib/libtorch_cpu.so", Library::Torch),
        ("/x/torch/lib/libtorch_cuda.so", Library::Torch),
        ("/x/torch/lib/libc10_cuda.so", Library::Torch),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.570.1", Library::Cuda),
        ("/x/nvidia/cu13/lib/libcudart.so.13", Library::Cuda),
        ("/x/nvidia/nccl/lib/libnccl.so.2", Library::Nccl),
        ("/x/torch/lib/libgomp.so.1", Library::OpenMp),
        ("/usr/bin/python3.11", Library::Python),
        ("/x/lib/python3.11/lib-dynload/_pickle.so", Library::Python),
        ("/lib/x86_64-linux-gnu/libc.so.6", Library::System),
        ("/lib64/ld-linux-x86-64.so.2", Library::System),
        (
            "/x/numpy.libs/libscipy_openblas64_-32a4b2a6.so",
            Library::Blas,
        ),
        ("/x/numpy/_core/_multiarray_umath.so", Library::Other),
        ("/x/triton/_C/libtriton.so", Library::Other),
        ("", Library::Other),
    ];
    for (path, wanted) in cases {
        assert_eq!(library(ModuleKind::File, path), wanted, "{path}");
    }
    assert_eq!(library(ModuleKind::Vdso, "[vdso]"), Library::System);
    assert_eq!(library(ModuleKind::Anonymous, "x"), Library::Anonymous);
}

#[test]
fn what_runs_when_torch_is_loaded_is_no_matrix_product() {
    let path = "/x/torch/lib/libtorch_cpu.so";
    for name in [
        "_GLOBAL__sub_I_RegisterCPU_0.cpp",
        "__static_initialization_and_destruction_0(int, int)",
    ] {
        assert_eq!(
            native(path, name).class.role,
            FrameRole::TorchOther,
            "{name}"
        );
    }
    let role = native(path, "gblock_by_k_omp").class.role;
    assert!(matches!(
        role,
        FrameRole::Known {
            active: Activity::Gemm,
            ..
        }
    ));
    // The same name in a library without MKL.
    let other = native("/x/libtorch_python.so", "gblock_by_k_omp");
    assert_eq!(other.class.role, FrameRole::TorchOther);
}

/// Names as nm -C prints them for libtorch_cpu.so 2.15.0.
#[test]
fn copies_in_memory_are_no_computation_of_elements() {
    let active = |name: &str| match native("/x/torch/lib/libtorch_cpu.so", name).class.role {
        FrameRole::Known { active, .. } => Some(active),
        _ => None,
    };
    for name in [
        "at::native::AVX512::copy_kernel(at::TensorIterator&, bool)",
        "at::native::copy_impl(at::Tensor&, at::Tensor const&, bool) [clone .isra.0]",
        "(anonymous namespace)::copy_same_type_transpose_(at::Tensor&, at::Tensor const&)::{lambda()#1}::operator()() const [clone .isra.0]",
        "void c10::function_ref<void (char**, long const*, long, long)>::callback_fn<at::native::AVX2::VectorizedLoop2d<\
         at::native::AVX2::direct_copy_kernel(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(float)#1}>>",
    ] {
        assert_eq!(active(name), Some(Activity::TensorCopy), "{name}");
    }
    for name in [
        "at::native::(anonymous namespace)::index_copy_kernel(at::TensorIterator&, long, long, long)",
        "at::native::AVX2::add_clamp_kernel(at::TensorIterator&, c10::Scalar const&, c10::Scalar const&, c10::Scalar const&)",
    ] {
        assert_eq!(active(name), Some(Activity::AtenCompute), "{name}");
    }
    // A copy to a device is none of these.
    let cuda = native(
        "/x/torch/lib/libtorch_cuda.so",
        "at::native::copy_kernel_cuda(at::TensorIterator&, bool)",
    );
    assert!(matches!(
        cuda.class.role,
        FrameRole::Known {
            active: Activity::GpuCopy,
            ..
        }
    ));
}

/// A name that did not demangle, or of a PLT stub, is not one of MKL's C functions.
#[test]
fn only_plain_names_of_libtorch_cpu_are_mkl_s() {
    let class = |name: &str| native("/x/libtorch_cpu.so", name).class;
    assert!(matches!(
        class("sgemm_t_n23").role,
        FrameRole::Known {
            active: Activity::Gemm,
            ..
        }
    ));
    for name in [
        "__tls_get_addr@plt",
        "_ZSt14__copy_move_a1ILb1EPSt10shared_ptr",
    ] {
        assert_ne!(class(name), class("sgemm_t_n23"), "{name}");
    }
}

/// Names as nm -C prints them for libtorch_python.so 2.15.0.
#[test]
fn bindings_are_read_as_they_are_written() {
    let wait = |name: &str| native("/x/libtorch_python.so", name).wait;
    let name = "torch::autograd::THPVariable_item(_object*, _object*)";
    assert_eq!(wait(name), Method);
    assert_eq!(
        wait("THCPModule_cudaSynchronize(_object*, _object*)"),
        Gpu("torch.cuda.synchronize()")
    );
    assert_eq!(wait("cuMemcpyDtoHAsync_v2"), WaitPart::ToHost);
    assert_eq!(wait("cuMemcpyAsync"), Runtime);
    assert_eq!(wait("at::native::add(int)"), WaitPart::None);
}

#[test]
fn a_file_of_the_user_s_is_not_python_s() {
    let wait = |file: &str| python(file, "SocketIO.readinto").wait;
    assert_eq!(wait("/home/u/socket.py"), WaitPart::None);
    assert_eq!(wait("/usr/lib/python3.11/socket.py"), Socket);
}

#[test]
fn averages_of_the_weights_are_the_optimizer_s() {
    let mark = |name: &str| {
        python("/x/site-packages/torch/optim/swa_utils.py", name)
            .class
            .mark
    };
    let optimizer = Some(PhaseMark::Strong(Phase::Optimizer));
    assert_eq!(mark("AveragedModel.update_parameters"), optimizer);
    // It runs the model over a loader.
    assert_eq!(mark("update_bn"), None);
}

#[test]
fn calls_are_told_by_file_and_name() {
    let call = |file: &str, function: &str| python(file, function).module_call;
    let file = "/x/site-packages/torch/nn/modules/module.py";
    assert_eq!(call(file, "Module._wrapped_call_impl"), ModuleCall::Outer);
    assert_eq!(call(file, "_call_impl"), ModuleCall::Inner);
    assert_eq!(
        call(file, "Module._call_impl.<locals>.inner"),
        ModuleCall::No
    );
    assert_eq!(call("/x/my.py", "_call_impl"), ModuleCall::No);
}

#[test]
fn code_of_inductor_is_known_wherever_its_cache_is() {
    let name = INDUCTOR;
    let of = |path: String| python(&path, "call").class.kind;
    assert_eq!(of(format!("/data/k/cp/{name}.py")), FrameKind::PythonTorch);
    assert_eq!(of(format!("/data/k/xx/{name}.py")), FrameKind::PythonUser);
    assert_eq!(of("/data/cp/ccp.py".to_owned()), FrameKind::PythonUser);
}

/// Functions that a row matches: every pattern of it, as `(library or file, name)`.
fn examples(row: &Listed) -> Vec<(String, String)> {
    let of = |key: &str| {
        let found = row.patterns.iter().find(|(name, _)| name == key);
        found.map_or(&[][..], |(_, values)| values.as_slice())
    };
    let (mut places, mut names): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    let plain = |text: &String| text.trim_end_matches('*').to_owned();
    if row.subject == "python" {
        let mut add = |key: &str, folder: &str| {
            let path = |path| format!("{folder}{}", plain(path));
            places.extend(of(key).iter().map(path));
        };
        add("file", "/home/u/");
        add("package", SITE);
        add("library", "/usr/lib/python3.11/");
        if of("form").iter().any(|form| form == "inductor") {
            places.push(format!("/data/k/cp/{INDUCTOR}.py"));
        }
        names.extend(of("function").iter().map(plain));
        if names.is_empty() {
            names.push("anything".to_owned());
        }
    } else {
        let family = of("family").first().map_or("other", String::as_str);
        let rules = RuleSet::built_in();
        let files = rules.families.iter().filter(|each| {
            format!("{:?}", each.name).to_lowercase() == family && !each.files.is_empty()
        });
        places.extend(of("file").iter().map(|start| format!("/x/{start}1.so")));
        if places.is_empty() {
            let name = files.flat_map(|each| &each.files).next();
            places.push(format!("/x/{}_cpu.so", name.map_or("ext", String::as_str)));
        }
        let symbols = of("start").iter().chain(of("is")).chain(of("has"));
        names.extend(symbols.cloned());
        if names.is_empty() {
            names.push("anything".to_owned());
        }
    }
    places
        .iter()
        .flat_map(|place| names.iter().map(|name| (place.clone(), name.clone())))
        .collect()
}

/// Each pattern of a row is the first to decide something for some function; and each meaning of a
/// row takes effect for some function that it matches: no earlier row, more general or not, hides
/// it.
#[test]
fn no_row_is_shadowed() {
    let rules = RuleSet::built_in();
    let rows = listed(None);
    let mut shadowed = Vec::new();
    for subject in ["python", "native"] {
        let own: Vec<&Listed> = rows.iter().filter(|row| row.subject == subject).collect();
        for (index, row) in own.iter().enumerate() {
            let mut answered = BTreeSet::new();
            for (place, name) in examples(row) {
                let matching = match subject {
                    "python" => rules.explain_python(&place, &name),
                    _ => rules.explain_native(ModuleKind::File, &place, Some(&name)),
                };
                let of_subject = matching
                    .matching
                    .iter()
                    .filter(|row| row.subject == subject);
                let matching: Vec<usize> = of_subject.map(|row| row.at).collect();
                assert!(matching.contains(&index), "{place} {name}: {row:?}");
                let is_first = |meaning: &str| {
                    let mut earlier = matching.iter().take_while(|&&at| at < index);
                    let has = |row: &Listed| row.meanings.iter().any(|(key, _)| key == meaning);
                    !earlier.any(|&at| own.get(at).is_some_and(|row| has(row)))
                };
                let keys = row.meanings.iter().map(|(key, _)| key.as_str());
                let first: Vec<&str> = keys.filter(|key| is_first(key)).collect();
                if first.is_empty() {
                    shadowed.push(format!("{place} {name}: {row:?}"));
                }
                answered.extend(first);
            }
            for (key, _) in &row.meanings {
                if !answered.contains(key.as_str()) {
                    shadowed.push(format!("{key} of {row:?}"));
                }
            }
        }
    }
    assert!(shadowed.is_empty(), "{}", shadowed.join("\n"));
}

/// The same for all other rows: each decides for each name that it lists.
#[test]
fn every_name_of_a_row_is_its_own() {
    let rules = RuleSet::built_in();
    let rows = listed(None);
    let mut asked = BTreeMap::new();
    for row in &rows {
        let of = |key: &str| {
            let found = row.patterns.iter().find(|(name, _)| name == key);
            found.map_or(&[][..], |(_, values)| values.as_slice())
        };
        let said = |key: &str| {
            let found = row.meanings.iter().find(|(name, _)| name == key);
            found.map(|(_, value)| value.as_str())
        };
        let name = || of("name").first().map(String::as_str);
        let mut answers = 0;
        let mut is = |found: Option<String>, wanted: Option<&str>, example: &str| {
            assert_eq!(found.as_deref(), wanted, "{example}: {row:?}");
            answers += 1;
        };
        match row.subject {
            "family" => {
                let mut paths: Vec<(ModuleKind, String)> = Vec::new();
                let file = |path: String| (ModuleKind::File, path);
                let of_files = of("files").iter().map(|start| format!("/x/{start}1.so"));
                paths.extend(of_files.map(file));
                let of_folders = of("folder").iter().map(|folder| format!("/x/{folder}x.so"));
                paths.extend(of_folders.map(file));
                // These have no names of files.
                paths.extend(match name() {
                    Some("inductor") => Some(file(format!("/tmp/k/cp/{INDUCTOR}.so"))),
                    Some("anonymous") => Some((ModuleKind::Anonymous, String::new())),
                    Some("other") => Some(file("/x/acme.so".to_owned())),
                    _ => None,
                });
                let class = |row: &&Listed| {
                    let is_name = |(key, values): &(String, Vec<String>)| {
                        key == "name" && values.iter().map(String::as_str).eq(said("class"))
                    };
                    row.subject == "class" && row.patterns.iter().any(is_name)
                };
                let class = rows.iter().find(class).expect("its class");
                let kind = class.meanings.iter().find(|(key, _)| key == "kind");
                for (module, path) in paths {
                    let family = format!("{:?}", rules.family(module, &path)).to_lowercase();
                    is(Some(family), name(), &path);
                    let found = rules.native(module, &path, None).class.kind.name();
                    let wanted = kind.map(|(_, value)| value.as_str());
                    is(Some(found.to_owned()), wanted, &path);
                }
            }
            "own" => {
                for word in of("word") {
                    let found = python("/home/u/data.py", word).input;
                    let Task(task) = found else {
                        panic!("{word}: {found:?}")
                    };
                    is(Some(task.name().to_owned()), said("input"), word);
                }
                for each in of("name") {
                    let mark = python("/home/u/data.py", each).class.mark;
                    let mark = mark.map(|mark| format!("{mark:?}"));
                    let wanted = said("phase").and_then(PhaseMark::parse);
                    is(
                        mark,
                        wanted.map(|mark| format!("{mark:?}")).as_deref(),
                        each,
                    );
                }
            }
            "thread" => {
                for start in of("start") {
                    let thread = format!("{start}0");
                    let phase = rules
                        .thread_phase(&thread)
                        .map(|phase| phase.name().to_owned());
                    is(phase, said("phase"), start);
                    let backend = rules.thread_backend(&thread);
                    is(
                        backend.map(|each| each.name().to_owned()),
                        said("backend"),
                        start,
                    );
                }
            }
            "collective" => {
                for start in of("start") {
                    let found = rules
                        .collective_name(start, &Matching::<()>::new("", &[], &[], 0))
                        .map(str::to_owned);
                    is(found, said("name"), start);
                }
            }
            "call" => {
                for operator in of("operator") {
                    is(
                        Some(rules.operator_call(operator).to_owned()),
                        said("call"),
                        operator,
                    );
                }
            }
            "class" => {
                let users = rows.iter().filter(|user| {
                    user.meanings
                        .iter()
                        .any(|(key, value)| key == "class" && Some(value.as_str()) == name())
                });
                answers = users.count();
            }
            _ => continue,
        }
        assert!(answers > 0, "no name has it: {row:?}");
        *asked.entry(row.subject).or_insert(0) += 1;
    }
    let all: Vec<&str> = asked.keys().copied().collect();
    assert_eq!(
        all,
        ["call", "class", "collective", "family", "own", "thread"]
    );
}

#[test]
fn every_row_has_a_source_and_a_meaning() {
    let rows = listed(None);
    assert!(rows.len() > 200, "{}", rows.len());
    for row in rows {
        assert!(row.subject == "class" || !row.source.is_empty(), "{row:?}");
        assert!(
            !row.meanings.is_empty() || row.subject == "family",
            "{row:?}"
        );
    }
}

#[test]
fn rows_of_the_user_s_own_come_first() {
    let text = r#"
        [class.acme_gemm]
        kind = "aten"
        running = "aten_compute"
        [[native]]
        file = "libacme_products"
        class = "acme_gemm"
        [[python]]
        file = "acme/loader.py"
        phase = "whole input"
        input = "decode"
        [[python]]
        file = "torch/optim/"
        phase = "strong user"
        [[native]]
        file = "libacme_kernels"
        class = "aten"
    "#;
    let rules = RuleSet::with(text).expect("rules");
    assert_eq!(rules.added, 4);
    let found = rules.python("/home/u/acme/loader.py", "Loader.read");
    assert_eq!((found.input, found.added), (Task(Decode), true));
    let input = crate::model::category::Phase::Input;
    assert_eq!(found.class.mark, Some(PhaseMark::Whole(input)));
    let step = rules.python(&format!("{SITE}torch/optim/sgd.py"), "SGD.step");
    let user = crate::model::category::Phase::User;
    assert_eq!(step.class.mark, Some(PhaseMark::Strong(user)));
    let kernel = rules.native(ModuleKind::File, "/x/libacme_kernels.so", Some("fused"));
    assert_eq!((kernel.class.kind, kernel.added), (FrameKind::Aten, true));
    let product = rules.native(ModuleKind::File, "/x/libacme_products.so", None);
    assert_eq!(product.class.kind, FrameKind::Aten);
    let other = rules.native(ModuleKind::File, "/x/libother.so", Some("fused"));
    assert_eq!((other.class.role, other.added), (FrameRole::Foreign, false));
}

#[test]
fn errors_say_where_and_what() {
    let cases = [
        ("[[python]]\nfile = 3", 2, "a string, or a list"),
        (
            "[[python]]\nfile = \"a/\"\nphas = \"none\"",
            3,
            "unknown field `phas`",
        ),
        (
            "\n[[python]]\nfile = \"a/\"\nphase = \"strong inputs\"",
            4,
            "unknown phase mark",
        ),
        ("[[python]]\nphase = \"none\"", 1, "needs `file`"),
        (
            "[[native]]\nstart = \"f\"\nclass = \"fast\"",
            3,
            "unknown class `fast`, expected one of: anonymous, aten, autograd, ",
        ),
        (
            "[[family]]\nname = \"torch\"\nclass = \"fast\"",
            3,
            "unknown class `fast`",
        ),
        (
            "[[native]]\nis = \"f_allreduce\"\ncollective = \"follows\"",
            1,
            "needs `start`",
        ),
        (
            "[[native]]\nhas = \"f::\"\noperator = \"entry\"",
            1,
            "needs `start`",
        ),
        (
            "[[python]]\nfile = \"a/\"\ncollective = \"follows\"",
            1,
            "collective = \"last\"",
        ),
        (
            "version = 1\n[[own]]\nname = \"Loader.load\"\nphase = \"whole input\"",
            2,
            "no dot",
        ),
        (
            "[[python]]\nfile = \"a/\"\nphase = \"around input\"",
            3,
            "one of `around framework`, `import` and `none`",
        ),
        ("[[native]]\nclass = \"aten\"", 1, "needs `start`"),
        ("[[native]\n", 1, ""),
        ("[class.mine]\nkind = \"aten\"", 1, "`running` or `part`"),
        (
            "\n[class.aten]\nkind = \"python (torch)\"\npart = \"loading\"",
            2,
            "class `aten` is torchspy's own",
        ),
        (
            "[[thread]]\nstart = \"x\"\nphase = \"run\"",
            3,
            "unknown phase `run`",
        ),
    ];
    for (text, line, message) in cases {
        let error = RuleSet::with(text).expect_err(text);
        assert_eq!(error.line, line, "{text}: {error}");
        assert!(error.message.contains(message), "{text}: {error}");
    }
}

#[test]
fn a_row_may_name_the_end_of_a_qualified_name() {
    let text = r#"
        [[python]]
        file = "acme/loader.py"
        function = ["Loader.__next__", "Loader.load_*", "<locals>.inner"]
        phase = "whole input"
    "#;
    let rules = RuleSet::with(text).expect("rules");
    let is_for = |function| rules.python("/home/u/acme/loader.py", function).added;
    for function in [
        "Loader.__next__",
        "outer.<locals>.Loader.__next__",
        "Loader.load_image",
        "outer.<locals>.inner",
    ] {
        assert!(is_for(function), "{function}");
    }
    for function in [
        // Python 3.10 records this.
        "__next__",
        "MyLoader.__next__",
        "Loader.__next__.<locals>.inner2",
        "Loader.load_.image",
        "load_image",
        "Loader.Other.load_image",
        "inner",
    ] {
        assert!(!is_for(function), "{function}");
    }
}

#[test]
fn collectives_of_the_user_s_own_are_named_as_they_write_them() {
    let text = r#"
        [[native]]
        file = "libfirm"
        start = "firm_"
        collective = "follows"
        [[native]]
        file = "libother"
        start = "Firm"
        collective = "last"
        [[collective]]
        start = ["Ring_Sum", "firm_swap"]
        name = "all_reduce"
    "#;
    let rules = RuleSet::with(text).expect("rules");
    let name = |library, symbol| {
        let found = rules.native(ModuleKind::File, library, Some(symbol));
        found.collective.name
    };
    assert_eq!(name("libfirm.so", "firm_ring_sum"), Some("all_reduce"));
    assert_eq!(name("libfirm.so", "firm_allgather"), Some("all_gather"));
    assert_eq!(name("libfirm.so", "firm_init"), None);
    assert_eq!(
        name("libother.so", "Firm::ringSum(int)"),
        Some("all_reduce")
    );
    assert_eq!(name("libother.so", "FirmSwap"), Some("all_reduce"));
}

/// The text of a meaning in the row that decided it.
fn deciding(
    why: &Explanation,
    text: Option<&str>,
    meaning: &str,
) -> Vec<(Option<&'static str>, String)> {
    let rows = listed(text);
    let decisions = why.decisions.iter().filter(|each| each.meaning == meaning);
    let found = decisions.map(|decision| {
        let mut rows = rows
            .iter()
            .filter(|row| row.subject == decision.row.subject);
        let row = rows.nth(decision.row.at).expect("row");
        let mut meanings = row.meanings.iter();
        let written = meanings.find(|(key, _)| key == meaning).expect("meaning");
        (row.file, written.1.clone())
    });
    found.collect()
}

#[test]
fn what_was_decided_is_told_with_its_row() {
    let text = "[[python]]\nfile = \"torch/optim/\"\nphase = \"strong user\"";
    let rules = RuleSet::with(text).expect("rules");
    let step = rules.explain_python(&format!("{SITE}torch/optim/sgd.py"), "SGD.step");
    let of = |meaning| deciding(&step, Some(text), meaning);
    assert_eq!(of("phase"), [(None, "strong user".to_owned())]);
    let kind = [(Some("python.toml"), "optimizer".to_owned())];
    assert_eq!(of("kind"), kind);
    assert!(of("wait").is_empty());
    let own = rules.explain_python("/home/u/data.py", "decode_row");
    let decode = [(Some("input.toml"), "decode".to_owned())];
    assert_eq!(deciding(&own, Some(text), "input"), decode);
    let sum = rules.explain_native(ModuleKind::File, "/x/libnccl.so.2", Some("ncclAllReduce"));
    let name = [(Some("native.toml"), "all_reduce".to_owned())];
    assert_eq!(deciding(&sum, Some(text), "name"), name);
    assert_eq!(deciding(&sum, Some(text), "class").len(), 1);
    let foreign = rules.explain_native(ModuleKind::File, "/x/libz.so.1", None);
    assert_eq!(foreign.matching.len(), 1, "{:?}", foreign.matching);
}
