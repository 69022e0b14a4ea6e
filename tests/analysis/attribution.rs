//! Attribution: what a stack means, by the tables.

use crate::analysis_builder::*;
use torchspy::model::category::{Activity as A, Phase as P, SummaryRow as R};
use torchspy::model::frame::Partial;
use torchspy::model::ids::ThreadId;
use torchspy::model::profile::{Profile, ProfileSample};
use torchspy::model::sample::Capture;

fn of(state: S, frames: &[F]) -> (P, A, R) {
    let mut builder = Builder::trainer();
    builder.ticks(0, 1, state, frames);
    let profile = builder.profile();
    let sample = profile.samples[0];
    (sample.phase, sample.activity, sample.row)
}

fn script() -> Vec<F> {
    vec![
        cpython("Py_RunMain"),
        user("<module>", 90),
        user("main", 40),
    ]
}

fn under(more: &[F]) -> Vec<F> {
    let mut frames = script();
    frames.extend_from_slice(more);
    frames
}

fn forward() -> Vec<F> {
    under(&[
        lib("torch/nn/modules/module.py", "Module._wrapped_call_impl"),
        lib("torch/nn/modules/module.py", "Module._call_impl"),
        lib("torch/nn/modules/conv.py", "Conv2d.forward"),
    ])
}

fn forward_with(more: &[F]) -> Vec<F> {
    let mut frames = forward();
    frames.extend_from_slice(more);
    frames
}

#[test]
fn phases_are_told_by_the_nearest_frame() {
    let module = lib("torch/nn/modules/module.py", "Module._call_impl");
    let step = lib(
        "torch/optim/optimizer.py",
        "Optimizer.profile_hook_step.<locals>.wrapper",
    );
    let engine = lib("torch/autograd/graph.py", "_engine_run_backward");
    let in_ddp = |function| lib("torch/nn/parallel/distributed.py", function);
    let around_forward = in_ddp("DistributedDataParallel._pre_forward");
    let ddp = in_ddp("DistributedDataParallel._sync_buffers");
    let dynamo = lib("torch/_dynamo/convert_frame.py", "ConvertFrame.__call__");
    let import = py("<frozen importlib._bootstrap>", "_find_and_load", 1);
    let cases: Vec<(P, Vec<F>)> = vec![
        (P::User, vec![]),
        (P::Forward, vec![module.clone(), user("Net.forward", 3)]),
        (
            P::Backward,
            vec![lib("torch/_tensor.py", "Tensor.backward"), engine.clone()],
        ),
        (
            P::Optimizer,
            vec![step.clone(), lib("torch/optim/sgd.py", "SGD.step")],
        ),
        // A closure that is evaluated by the optimizer's step.
        (
            P::Forward,
            vec![step.clone(), user("closure", 5), module.clone()],
        ),
        (
            P::Optimizer,
            vec![lib("torch/optim/optimizer.py", "Optimizer.zero_grad")],
        ),
        (
            P::Optimizer,
            vec![lib("torch/optim/lr_scheduler.py", "StepLR.step")],
        ),
        (P::Forward, vec![module.clone(), around_forward]),
        (P::Communication, vec![module.clone(), ddp.clone()]),
        (
            P::Forward,
            vec![
                module.clone(),
                ddp.clone(),
                module.clone(),
                user("Net.forward", 3),
            ],
        ),
        (
            P::Communication,
            vec![lib("torch/distributed/distributed_c10d.py", "all_reduce")],
        ),
        (
            P::Checkpoint,
            vec![lib(
                "torch/distributed/checkpoint/state_dict_saver.py",
                "save",
            )],
        ),
        (P::Checkpoint, vec![lib("torch/serialization.py", "save")]),
        (
            P::Compile,
            vec![
                module.clone(),
                dynamo.clone(),
                lib("torch/_inductor/graph.py", "run"),
            ],
        ),
        (
            P::Startup,
            vec![import.clone(), lib("torch/__init__.py", "<module>")],
        ),
        // Decorators of a module that is being imported are no compiling.
        (
            P::Startup,
            vec![
                import.clone(),
                lib("torch/_dynamo/utils.py", "<module>"),
                lib("torch/_dynamo/utils.py", "register"),
            ],
        ),
        // Importing inside of a phase is that phase's time.
        (
            P::Compile,
            vec![
                dynamo.clone(),
                import.clone(),
                lib("sympy/__init__.py", "<module>"),
            ],
        ),
        (P::Forward, vec![module.clone(), import.clone()]),
        // The compiled code and the frames that call it are no compiling.
        (
            P::Forward,
            vec![
                module.clone(),
                lib("torch/_dynamo/eval_frame.py", "_fn"),
                lib(
                    "torch/_functorch/_aot_autograd/runtime_wrappers.py",
                    "runtime_wrapper",
                ),
                py("/tmp/torchinductor_u/ab/cab.py", "call", 50),
                lib(
                    "torch/_inductor/runtime/triton_heuristics.py",
                    "CachingAutotuner.run",
                ),
            ],
        ),
        // 3.10 knows no qualified names.
        (
            P::Optimizer,
            vec![lib("torch/optim/optimizer.py", "wrapper")],
        ),
        // The user's own file of the same name is the user's.
        (P::User, vec![py("/home/u/serialization.py", "save", 4)]),
    ];
    for (wanted, frames) in cases {
        assert_eq!(of(S::Running, &under(&frames)).0, wanted, "{frames:?}");
    }
}

#[test]
fn all_that_a_fetch_runs_is_input() {
    let fetch = [
        lib(
            "torch/utils/data/dataloader.py",
            "_BaseDataLoaderIter.__next__",
        ),
        lib(
            "torch/utils/data/dataloader.py",
            "_SingleProcessDataLoaderIter._next_data",
        ),
        lib(
            "torch/utils/data/_utils/fetch.py",
            "_MapDatasetFetcher.fetch",
        ),
        user("Data.__getitem__", 12),
        // torchvision's transforms are nn.Modules.
        lib("torch/nn/modules/module.py", "Module._call_impl"),
        lib("torchvision/transforms/transforms.py", "Resize.forward"),
        torch("at::native::upsample_bilinear2d(at::Tensor const&)"),
    ];
    assert_eq!(
        of(S::Running, &under(&fetch)),
        (P::Input, A::AtenCompute, R::Input)
    );
}

#[test]
fn waiting_for_a_worker_is_input_and_a_lock_wait() {
    let wait = [
        lib(
            "torch/utils/data/dataloader.py",
            "_MultiProcessingDataLoaderIter._try_get_data",
        ),
        std_lib("multiprocessing/queues.py", "Queue.get"),
        std_lib("multiprocessing/connection.py", "_ConnectionBase.poll"),
        std_lib("selectors.py", "_PollLikeSelector.select"),
        native("lib-dynload/select.cpython-311.so", "select_poll_poll"),
        libc("poll"),
    ];
    assert_eq!(
        of(S::Poll, &under(&wait)),
        (P::Input, A::LockWait, R::Input)
    );
}

#[test]
fn activities_are_told_by_the_first_known_frame() {
    let binding = native(
        "libtorch_python.so",
        "torch::autograd::THPVariable_conv2d(_object*, _object*, _object*)",
    );
    let op = torch("at::_ops::conv2d::call(at::Tensor const&)");
    let wrapper = torch(
        "c10::impl::wrap_kernel_functor_unboxed_<c10::impl::W<&at::native::conv2d>, at::Tensor (at::Tensor)>::call(c10::OperatorKernel*)",
    );
    let kernel = torch("at::native::conv2d(at::Tensor const&)");
    let callback = torch(
        "void c10::function_ref<void (char**, long)>::callback_fn<at::native::AVX2::mul_kernel(at::TensorIterator&)::{lambda()#1}>(long)",
    );
    let parallel = native("libgomp.so.1", "GOMP_parallel");
    let outlined = torch(
        "at::internal::invoke_parallel<at::parallel_for<at::native::f()>>(long) [clone ._omp_fn.0]",
    );
    let oned = torch(
        "dnnl::impl::cpu::x64::jit_avx512_convolution_fwd_t<float>::execute_forward(dnnl::impl::exec_ctx_t const&) const",
    );
    let node =
        torch("torch::autograd::generated::ConvolutionBackward0::apply(std::vector<at::Tensor>&&)");
    let cases: Vec<(A, R, Vec<F>)> = vec![
        (A::Python, R::Python, vec![]),
        (A::Python, R::Python, vec![cpython("list_sort")]),
        (
            A::Python,
            R::Python,
            vec![cpython("list_sort"), libc("__memmove_avx_unaligned_erms")],
        ),
        (
            A::Dispatch,
            R::HostComputation,
            vec![binding.clone(), op.clone()],
        ),
        (
            A::Dispatch,
            R::HostComputation,
            vec![binding.clone(), op.clone(), wrapper.clone()],
        ),
        (
            A::AtenCompute,
            R::HostComputation,
            vec![op.clone(), wrapper.clone(), kernel.clone()],
        ),
        (
            A::AtenCompute,
            R::HostComputation,
            vec![kernel.clone(), libc("malloc")],
        ),
        (
            A::AtenCompute,
            R::HostComputation,
            vec![kernel.clone(), callback],
        ),
        (
            A::AtenCompute,
            R::HostComputation,
            vec![kernel.clone(), parallel.clone(), outlined],
        ),
        (
            A::OmpIdle,
            R::OmpBarrier,
            vec![
                kernel.clone(),
                parallel.clone(),
                native("libgomp.so.1", "gomp_team_barrier_wait_end"),
            ],
        ),
        (
            A::OmpIdle,
            R::OmpBarrier,
            vec![kernel.clone(), parallel.clone(), unnamed("libgomp.so.1")],
        ),
        (
            A::Gemm,
            R::HostComputation,
            vec![kernel.clone(), oned.clone()],
        ),
        (
            A::Gemm,
            R::HostComputation,
            vec![kernel.clone(), oned, F::Anonymous],
        ),
        (
            A::Gemm,
            R::HostComputation,
            vec![kernel.clone(), torch("mkl_blas_avx512_sgemm_kernel_0_b1")],
        ),
        (
            A::Gemm,
            R::HostComputation,
            vec![kernel.clone(), torch("gblock_by_k_omp")],
        ),
        (
            A::Gemm,
            R::HostComputation,
            vec![
                unnamed("numpy.so"),
                native("libscipy_openblas64_-32a4b2a6.so", "dgemm_kernel"),
            ],
        ),
        (A::Autograd, R::HostComputation, vec![node.clone()]),
        (
            A::AtenCompute,
            R::HostComputation,
            vec![
                node,
                torch("at::native::convolution_backward(at::Tensor const&)"),
            ],
        ),
        (
            A::GpuLaunch,
            R::HostComputation,
            vec![
                kernel.clone(),
                native("libcudart.so.13", "cudaLaunchKernel"),
                unnamed("libcuda.so.1"),
            ],
        ),
        (
            A::GpuLaunch,
            R::HostComputation,
            vec![unnamed("libcudart.so.13"), unnamed("libcuda.so.1")],
        ),
        (
            A::Dispatch,
            R::HostComputation,
            vec![
                op.clone(),
                unnamed("libtorch_cuda.so"),
                unnamed("libcudart.so.13"),
            ],
        ),
        (
            A::GpuSync,
            R::GpuWait,
            vec![
                native("libcudart.so.13", "cudaStreamSynchronize"),
                unnamed("libcuda.so.1"),
                libc("clock_gettime"),
            ],
        ),
        (
            A::TensorCopy,
            R::HostComputation,
            vec![torch(
                "at::native::AVX2::copy_kernel(at::TensorIterator&, bool)",
            )],
        ),
        (
            A::GpuCopy,
            R::GpuWait,
            vec![
                torch("at::native::copy_kernel_cuda(at::TensorIterator&, bool)"),
                native("libcudart.so.13", "cudaMemcpyAsync"),
            ],
        ),
        (
            A::GpuSync,
            R::GpuWait,
            vec![
                native(
                    "libtorch_cuda.so",
                    "at::native::_local_scalar_dense_cuda(at::Tensor const&)",
                ),
                native("libcudart.so.13", "cudaMemcpyAsync"),
                unnamed("libcuda.so.1"),
            ],
        ),
        (
            A::Dispatch,
            R::HostComputation,
            vec![native(
                "libc10_cuda.so",
                "c10::cuda::CUDACachingAllocator::Native::malloc(void**, long)",
            )],
        ),
        (
            A::GpuAlloc,
            R::HostComputation,
            vec![
                native(
                    "libc10_cuda.so",
                    "c10::cuda::CUDACachingAllocator::Native::malloc(void**, long)",
                ),
                native("libcudart.so.13", "cudaMalloc"),
            ],
        ),
        (
            A::CollectiveCall,
            R::Communication,
            vec![torch(
                "c10d::Reducer::all_reduce_bucket(c10d::Reducer::Bucket&)",
            )],
        ),
        (
            A::CollectiveCall,
            R::Communication,
            vec![
                native("libnccl.so.2", "ncclAllReduce"),
                unnamed("libnccl.so.2"),
            ],
        ),
        (
            A::CollectiveWait,
            R::Communication,
            vec![native(
                "libtorch_cuda.so",
                "c10d::ProcessGroupNCCL::WorkNCCL::wait(std::chrono::milliseconds)",
            )],
        ),
        (
            A::NativeOther,
            R::Other,
            vec![native("_imaging.so", "ImagingResample")],
        ),
        (A::NativeOther, R::Other, vec![unnamed("_imaging.so")]),
        // Glue did not do the work of the extension that it calls.
        (
            A::NativeOther,
            R::Other,
            vec![
                native(
                    "libtorch_python.so",
                    "pybind11::cpp_function::dispatcher(_object*)",
                ),
                native("my_ext.so", "run"),
            ],
        ),
        (A::Unclassified, R::Unclassified, vec![F::Anonymous]),
        (A::Io, R::Other, vec![cpython("os_read"), libc("read")]),
    ];
    for (activity, row, frames) in cases {
        let found = of(S::Running, &under(&frames));
        assert_eq!((found.1, found.2), (activity, row), "{frames:?}");
    }
}

#[test]
fn sleepers_are_told_by_their_system_call_unless_a_frame_knows_better() {
    let kernel = torch("at::native::copy_(at::Tensor&)");
    let restore = cpython("PyEval_RestoreThread");
    let cond = libc("pthread_cond_timedwait");
    let acquire = cpython("PyThread_acquire_lock_timed");
    let work = native(
        "libtorch_cuda.so",
        "c10d::ProcessGroupGloo::AsyncWork::wait(std::chrono::milliseconds)",
    );
    let sync = native("libcudart.so.13", "cudaStreamSynchronize");
    let cases: Vec<(A, S, Vec<F>)> = vec![
        (
            A::GilWait,
            S::Futex,
            vec![
                kernel.clone(),
                restore.clone(),
                cpython("take_gil"),
                cond.clone(),
            ],
        ),
        (
            A::GilWait,
            S::Futex,
            vec![kernel.clone(), restore, cond.clone()],
        ),
        // take_gil inlined into the evaluation loop, whose frame is a Python frame after merging.
        (A::GilWait, S::Futex, vec![cond.clone()]),
        (A::LockWait, S::Futex, vec![acquire, libc("sem_clockwait")]),
        (A::LockWait, S::Futex, vec![unnamed("python3.11"), cond]),
        (
            A::LockWait,
            S::Futex,
            vec![kernel.clone(), libc("pthread_mutex_lock")],
        ),
        (A::Io, S::Read, vec![cpython("os_read"), libc("read")]),
        (A::Io, S::Disk, vec![kernel.clone(), unnamed("libc.so.6")]),
        (
            A::Sleep,
            S::Nanosleep,
            vec![cpython("time_sleep"), libc("clock_nanosleep")],
        ),
        (A::Sleep, S::Poll, vec![libc("poll")]),
        (
            A::CollectiveWait,
            S::Futex,
            vec![work, libc("pthread_cond_wait")],
        ),
        (
            A::GpuSync,
            S::Ioctl,
            vec![sync.clone(), unnamed("libcuda.so.1"), libc("ioctl")],
        ),
        (
            A::GpuSync,
            S::Poll,
            vec![sync, unnamed("libcuda.so.1"), libc("poll")],
        ),
        (
            A::OmpIdle,
            S::Futex,
            vec![
                kernel,
                native("libgomp.so.1", "GOMP_parallel"),
                native("libgomp.so.1", "gomp_barrier_wait"),
            ],
        ),
        (
            A::LockWait,
            S::Futex,
            vec![std_lib("threading.py", "Condition.wait")],
        ),
        (A::Sleep, S::Nanosleep, vec![]),
    ];
    for (wanted, state, frames) in cases {
        assert_eq!(of(state, &under(&frames)).1, wanted, "{state:?} {frames:?}");
    }
}

#[test]
fn a_stack_without_anything_is_unclassified_unless_its_state_tells() {
    assert_eq!(of(S::Running, &[]).1, A::Unclassified);
    assert_eq!(
        of(S::Running, &[F::Cut(Partial::NoUnwindInfo)]).2,
        R::Unclassified
    );
    assert_eq!(of(S::Nanosleep, &[]).1, A::Sleep);
    let cut = [
        F::Cut(Partial::StopTimeout),
        torch("at::native::add(at::Tensor const&)"),
    ];
    assert_eq!(of(S::Running, &cut).1, A::AtenCompute);
}

#[test]
fn names_of_threads_tell_the_phase_where_frames_do_not() {
    let mut builder = Builder::trainer();
    builder.ticks(0, 1, S::Running, &script());
    let watchdog = builder.thread(0, 105, "pt_nccl_watchdg", false);
    builder.ticks(
        watchdog,
        1,
        S::Nanosleep,
        &[libc("clone3"), libc("clock_nanosleep")],
    );
    let profile = builder.profile();
    assert_eq!(profile.samples[1].phase, P::Communication);
    assert_eq!(profile.samples[1].activity, A::Sleep);
}

fn backward() -> Vec<F> {
    under(&[
        lib("torch/_tensor.py", "Tensor.backward"),
        lib("torch/autograd/__init__.py", "backward"),
        lib("torch/autograd/graph.py", "_engine_run_backward"),
    ])
}

fn waiting() -> Vec<F> {
    let mut frames = backward();
    frames.extend([
        native("libtorch_python.so", "THPEngine_run_backward"),
        torch("torch::autograd::Engine::execute(std::vector<torch::autograd::Edge> const&)"),
        libc("pthread_cond_wait"),
    ]);
    frames
}

fn engine(kernel: &str) -> Vec<F> {
    vec![
        libc("clone3"),
        torch("torch::autograd::Engine::thread_init(int)"),
        torch(
            "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)",
        ),
        torch(kernel),
    ]
}

fn names(profile: &Profile, sample: &ProfileSample) -> Vec<String> {
    profile
        .stacks
        .root_to_leaf(sample.stack)
        .into_iter()
        .map(|frame| {
            profile.functions[profile.stacks.frame(frame).function.index()]
                .short_name
                .clone()
        })
        .collect()
}

#[test]
fn backward_on_an_engine_thread_is_the_waiting_threads() {
    let mut builder = Builder::trainer();
    builder.ticks(0, 1, S::Running, &forward());
    builder.sample(0, 40_000_000, S::Futex, &waiting()).ticks = 4;
    let autograd = builder.thread(0, 101, "pt_autograd_0", false);
    builder.sample(
        autograd,
        25_000_000,
        S::Futex,
        &engine("torch::autograd::ReadyQueue::pop()"),
    );
    builder.ticks(
        autograd,
        1,
        S::Running,
        &engine("at::native::mm(at::Tensor const&)"),
    );
    builder.ticks(
        autograd,
        1,
        S::Running,
        &engine("torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)"),
    );
    let mut truncated = engine("at::native::relu(at::Tensor const&)");
    truncated[0] = F::Cut(Partial::NoUnwindInfo);
    builder.ticks(autograd, 1, S::Running, &truncated);
    let profile = builder.profile();
    let own: Vec<&ProfileSample> = profile
        .samples
        .iter()
        .filter(|sample| sample.thread == ThreadId(0))
        .collect();
    let pieces: Vec<(u64, u64, A)> = own[1..]
        .iter()
        .map(|sample| {
            (
                sample.start_ns / 1_000_000,
                sample.weight_ns / 1_000_000,
                sample.activity,
            )
        })
        .collect();
    assert_eq!(
        pieces,
        [
            (10, 15, A::LockWait),
            (25, 10, A::AtenCompute),
            (35, 10, A::Autograd),
            (45, 5, A::AtenCompute),
        ]
    );
    assert!(own[1..].iter().all(|sample| sample.phase == P::Backward));
    assert_eq!(own[2].row, R::HostComputation);
    assert_eq!(own[1..].iter().map(|sample| sample.ticks).sum::<u32>(), 4);
    assert_eq!(own[1].capture, Capture::Asleep);
    assert!(
        own[2..]
            .iter()
            .all(|sample| sample.capture == Capture::Reused)
    );
    let stack = names(&profile, own[4]);
    let joint = stack
        .iter()
        .position(|name| name == "torch::autograd::Engine::thread_init")
        .expect("stitched");
    assert_eq!(stack[joint - 1], "pthread_cond_wait");
    assert_eq!(stack.last().map(String::as_str), Some("at::native::relu"));
    assert!(
        !stack.contains(&"no_unwind_info".to_owned()),
        "a marker in mid-stack"
    );
    // The engine thread's own time is untouched.
    let engine_ns: u64 = profile
        .samples
        .iter()
        .filter(|sample| sample.thread == ThreadId(1))
        .map(|sample| sample.weight_ns)
        .sum();
    assert_eq!(engine_ns, 55_000_000);
}

/// Activity, time in the run queue and length (ms) of the caller's samples in a backward whose
/// engine thread did `engine` meanwhile.
fn stitched(caller: (S, &[F]), queue_ns: u64, (state, engine): (S, &[F])) -> Vec<(A, u64, u64)> {
    let mut builder = Builder::trainer();
    builder.sample(0, 20_000_000, caller.0, caller.1).queue_ns = queue_ns;
    let autograd = builder.thread(0, 101, "pt_autograd_0", false);
    builder.sample(autograd, 20_000_000, state, engine);
    let profile = builder.profile();
    let own = profile.samples.iter();
    own.filter(|sample| sample.thread == ThreadId(0))
        .map(|sample| {
            let (queue_ns, weight_ns) = (sample.queue_ns, sample.weight_ns);
            (sample.activity, queue_ns / 1_000_000, weight_ns / 1_000_000)
        })
        .collect()
}

#[test]
fn a_wait_inside_of_a_node_is_what_backward_waits_for() {
    let node = "torch::autograd::Engine::evaluate_function(std::shared_ptr<GraphTask>&)";
    let mut asleep = engine(node);
    asleep.extend([libc("pthread_mutex_lock")]);
    let found = stitched((S::Futex, &waiting()), 0, (S::Futex, &asleep));
    assert_eq!(found, [(A::LockWait, 0, 20)]);
    let mut builder = Builder::trainer();
    builder.sample(0, 20_000_000, S::Futex, &waiting());
    let autograd = builder.thread(0, 101, "pt_autograd_0", false);
    builder.sample(autograd, 20_000_000, S::Futex, &asleep);
    let profile = builder.profile();
    let stack = names(&profile, &profile.samples[0]);
    assert_eq!(
        stack.last().map(String::as_str),
        Some("pthread_mutex_lock"),
        "{stack:?}"
    );
}

#[test]
fn a_caller_that_waits_for_a_cpu_to_fall_asleep_waits_for_the_engine() {
    let mut handed_over = backward();
    handed_over.extend([
        native("libtorch_python.so", "THPEngine_run_backward"),
        torch(
            "torch::autograd::Engine::execute_with_graph_task(std::shared_ptr<GraphTask> const&)",
        ),
        libc("pthread_cond_signal"),
    ]);
    let caller = (S::Running, &handed_over[..]);
    let works = engine("at::native::mm(at::Tensor const&)");
    let found = stitched(caller, 19_000_000, (S::Running, &works));
    assert_eq!(found, [(A::AtenCompute, 0, 20)]);
    // With nobody at work, its wait for a CPU is what backward waits for.
    let mut idle = engine("torch::autograd::ReadyQueue::pop()");
    idle.push(libc("pthread_cond_wait"));
    let found = stitched(caller, 19_000_000, (S::Futex, &idle));
    assert_eq!(found, [(A::Autograd, 19, 20)]);
}

#[test]
fn backward_in_the_caller_is_left_alone() {
    let mut builder = Builder::trainer();
    let mut frames = backward();
    frames.extend([
        torch("torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)"),
        torch("at::native::mm(at::Tensor const&)"),
    ]);
    builder.ticks(0, 3, S::Running, &frames);
    let profile = builder.profile();
    assert_eq!(profile.samples.len(), 3);
    assert_eq!(profile.samples[0].phase, P::Backward);
    assert_eq!(profile.samples[0].activity, A::AtenCompute);
}

#[test]
fn a_forked_workers_stack_begins_at_its_loop() {
    let mut builder = Builder::trainer();
    builder.ticks(0, 1, S::Running, &forward());
    let worker = builder.process(120, 100, &["python", "train.py"]);
    let thread = builder.thread(worker, 120, "pt_data_worker", true);
    let inner = [
        lib("torch/utils/data/_utils/worker.py", "_worker_loop"),
        lib(
            "torch/utils/data/_utils/fetch.py",
            "_MapDatasetFetcher.fetch",
        ),
        user("Data.__getitem__", 12),
    ];
    let mut frames = under(&[
        lib(
            "torch/utils/data/dataloader.py",
            "_MultiProcessingDataLoaderIter.__init__",
        ),
        std_lib("multiprocessing/process.py", "BaseProcess.start"),
    ]);
    frames.extend(inner.clone());
    builder.ticks(thread, 1, S::Running, &frames);
    let mut cut = vec![F::Cut(Partial::TooDeep)];
    cut.extend(inner);
    builder.ticks(thread, 1, S::Running, &cut);
    let profile = builder.profile();
    let worker: Vec<&ProfileSample> = profile
        .samples
        .iter()
        .filter(|sample| sample.thread == ThreadId(1))
        .collect();
    assert_eq!(
        names(&profile, worker[0]),
        [
            "_worker_loop",
            "_MapDatasetFetcher.fetch",
            "Data.__getitem__"
        ]
    );
    assert_eq!(
        names(&profile, worker[1])[..2],
        ["too_deep", "_worker_loop"]
    );
    assert_eq!(worker[0].row, R::Input);
}

#[test]
fn a_worker_is_input_even_where_its_stack_is_cut() {
    let mut builder = Builder::trainer();
    builder.ticks(0, 1, S::Running, &forward());
    let worker = builder.process(120, 100, &["python", "train.py"]);
    let thread = builder.thread(worker, 120, "python", true);
    builder.ticks(
        thread,
        1,
        S::Running,
        &[lib("torch/utils/data/_utils/worker.py", "_worker_loop")],
    );
    builder.ticks(
        thread,
        1,
        S::Running,
        &[F::Cut(Partial::TooDeep), user("decode", 3)],
    );
    let profile = builder.profile();
    assert!(
        profile.samples[1..]
            .iter()
            .all(|sample| sample.phase == P::Input)
    );
}

#[test]
fn kinds_and_plumbing() {
    let mut builder = Builder::trainer();
    builder.ticks(
        0,
        1,
        S::Running,
        &forward_with(&[
            native(
                "libtorch_python.so",
                "torch::autograd::THPVariable_conv2d(_object*)",
            ),
            torch("at::_ops::conv2d::call(at::Tensor const&)"),
            torch("at::native::conv2d(at::Tensor const&)"),
        ]),
    );
    let profile = builder.profile();
    let plumbing: Vec<bool> = profile
        .stacks
        .root_to_leaf(profile.samples[0].stack)
        .into_iter()
        .map(|frame| profile.functions[profile.stacks.frame(frame).function.index()].plumbing)
        .collect();
    assert_eq!(
        plumbing,
        [true, false, false, true, true, false, true, true, false]
    );
}

/// Where a loader hands a batch over, the last one is freed: no frame of the loader is on the stack
/// then.
#[test]
fn what_the_interpreter_does_on_a_line_that_takes_a_batch_is_input() {
    let next = lib(
        "torch/utils/data/dataloader.py",
        "_BaseDataLoaderIter.__next__",
    );
    let tqdm = py("/env/site-packages/tqdm/std.py", "tqdm.__iter__", 1181);
    let at = |line: u32, more: &[F]| [&[user("main", line)], more].concat();
    let frees = [
        cpython("subtype_dealloc"),
        native("libtorch_python.so", "THPVariable_clear(THPVariable*)"),
        libc("munmap"),
    ];
    let mut builder = Builder::trainer();
    for taken in [
        at(30, &[next.clone(), cpython("builtin_next")]),
        at(31, &[tqdm.clone(), next.clone()]),
    ] {
        builder.ticks(0, 1, S::Running, &taken);
    }
    let cases = [
        // The interpreter itself: it stores the batch.
        (P::Input, at(30, &[])),
        (P::Input, at(30, &frees)),
        // An iterator around the loader, and the loop around that.
        (P::Input, at(31, &frees)),
        (P::Input, [&at(31, &[tqdm])[..], &frees[..]].concat()),
        // Another line, and what else is called on that line.
        (P::User, at(32, &frees)),
        (P::User, at(30, &[user("log", 5)])),
        (
            P::User,
            at(30, &[torch("at::_ops::mul::call(at::Tensor const&)")]),
        ),
        (P::User, at(30, &[native("libfoo.so", "foo")])),
    ];
    for (_, frames) in &cases {
        builder.ticks(0, 1, S::Running, frames);
    }
    let profile = builder.profile();
    for (at, (wanted, frames)) in cases.iter().enumerate() {
        assert_eq!(profile.samples[2 + at].phase, *wanted, "{frames:?}");
    }
}

#[test]
fn a_function_that_is_called_get_batch_makes_batches() {
    let maker = user("get_batch", 12);
    let mut builder = Builder::trainer();
    builder.ticks(
        0,
        1,
        S::Running,
        &under(&[maker.clone(), torch("at::native::stack(int)")]),
    );
    builder.ticks(0, 1, S::Running, &under(&[libc("munmap")]));
    builder.ticks(0, 1, S::Running, &under(&[lib("torch/x.py", "get_batch")]));
    let profile = builder.profile();
    let phases: Vec<P> = profile.samples.iter().map(|sample| sample.phase).collect();
    assert_eq!(phases, [P::Input, P::Input, P::User]);
}

#[test]
fn the_end_of_the_interpreter_is_a_phase() {
    let ends = [cpython("Py_RunMain"), cpython("Py_FinalizeEx")];
    let with = |more: &[F]| [&ends[..], more].concat();
    for frames in [
        with(&[cpython("finalize_modules"), libc("free")]),
        // What runs at the exit of the loader's is no input.
        with(&[lib(
            "torch/utils/data/dataloader.py",
            "_MultiProcessingDataLoaderIter.__del__",
        )]),
        vec![
            libc("exit"),
            libc("__run_exit_handlers"),
            torch("c10::Foo::~Foo()"),
        ],
    ] {
        assert_eq!(of(S::Running, &frames).0, P::Shutdown, "{frames:?}");
        assert_eq!(of(S::Running, &frames).2, R::Shutdown, "{frames:?}");
    }
}

#[test]
fn what_counts_a_loop_written_by_hand_is_named() {
    use torchspy::analysis::analyze;
    use torchspy::report::text::{TextOptions, render_summary};
    let mut builder = Builder::trainer();
    let engine = lib("torch/autograd/graph.py", "_engine_run_backward");
    builder.ticks(0, 40, S::Running, &under(&[engine]));
    let profile = builder.profile();
    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    for says in [
        "STEPS not counted: no optimizer and no DataLoader was seen at work",
        "--region input=FILE:FUNCTION",
        "optimizer=FILE:FUNCTION",
    ] {
        assert!(text.contains(says), "{says} is missing: {text}");
    }
}

/// A recording of something else than training says so, and what to do.
#[test]
fn a_recording_without_training_says_so() {
    use torchspy::analysis::analyze;
    use torchspy::model::run::Loss;
    use torchspy::report::text::{Detail, TextOptions, render_summary};
    let text = |frames: &[F], ticks| {
        let mut builder = Builder::trainer();
        builder.ticks(0, ticks, S::Running, frames);
        builder.sideband.quality.ticks = ticks;
        builder.sideband.quality.privileges_lost = 1;
        builder.sideband.losses.push(Loss {
            time_ns: 0,
            samples: 0,
            reason: "queue full".to_owned(),
        });
        let profile = builder.profile();
        let analysis = analyze(&profile);
        [Detail::Brief, Detail::Full].map(|detail| {
            let options = TextOptions {
                detail,
                ..TextOptions::default()
            };
            render_summary(&profile, &analysis, options)
        })
    };
    for text in text(&[user("prepare", 3)], 11) {
        for says in [
            "STEPS none\n  no training was seen (no backward, no optimizer): record longer or attach",
            "--region backward=FILE:FUNCTION",
            "OPERATORS none seen",
            "WARNING: 1 setuid program began",
            "LOST 0 stacks in 1 gap (",
        ] {
            assert!(text.contains(says), "{says} is missing: {text}");
        }
        assert!(text.contains("too few"), "{text}");
        assert!(
            !text.contains("100.0 Hz") && !text.contains("100 samples a second"),
            "{text}"
        );
    }
    let engine = lib("torch/autograd/graph.py", "_engine_run_backward");
    for text in text(&under(&[engine]), 30) {
        assert!(!text.contains("no training"), "{text}");
        assert!(
            text.contains("100 samples a second of 100") || text.contains("100.0 Hz of 100"),
            "{text}"
        );
    }
}
