//! What the training thread waits for: kinds, words, lines, holders of the GIL, and what workers do
//! meanwhile.

use crate::analysis_builder::*;
use crate::verdict_scenarios::{Device, Do, Run};
use torchspy::analysis::late_ranks::last_rank;
use torchspy::analysis::waits::{ProcessWaits, WaitTime};
use torchspy::analysis::{Analysis, analyze, full_queue};
use torchspy::model::category::Activity;
use torchspy::model::ids::ThreadId;
use torchspy::model::input::InputTask;
use torchspy::model::profile::Profile;
use torchspy::model::sample::Gil;
use torchspy::model::wait::WaitKind;
use torchspy::report::json::render_json;
use torchspy::report::text::{By, TextOptions, render_summary};
use torchspy::resolve::{Names, resolve};
use torchspy::torch::rules::RuleSet;

fn python(symbol: &str) -> F {
    native("libtorch_python.so", symbol)
}

fn cuda(symbol: &str) -> F {
    native("libtorch_cuda.so", symbol)
}

fn runtime(symbol: &str) -> F {
    native("libcudart.so.13", symbol)
}

fn driver(symbol: &str) -> F {
    native("libcuda.so.1", symbol)
}

fn allocator(name: &str) -> F {
    let class = "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator";
    native("libc10_cuda.so", &format!("{class}::{name}"))
}

fn binding(name: &str) -> F {
    python(&format!(
        "torch::autograd::THPVariable_{name}(_object*, _object*)"
    ))
}

fn op(overload: &str) -> F {
    torch(&format!("at::_ops::{overload}::call(at::Tensor const&)"))
}

fn analyzed(builder: Builder) -> (Profile, Analysis) {
    let profile = builder.profile();
    let analysis = analyze(&profile);
    (profile, analysis)
}

fn waits_of(builder: Builder) -> (Profile, ProcessWaits) {
    let (profile, analysis) = analyzed(builder);
    let waits = analysis.primary_waits().expect("a trainer").clone();
    let sum: u64 = waits.rows.iter().map(|row| row.ns).sum();
    assert_eq!(sum, waits.ns, "no time is lost or made");
    (profile, waits)
}

/// The only wait of a thread that did this for a second.
fn only(state: S, frames: &[F]) -> WaitTime {
    let mut builder = Builder::trainer();
    builder.ticks(0, 100, state, frames);
    let (_, waits) = waits_of(builder);
    assert_eq!(waits.rows.len(), 1, "{:?}", waits.rows);
    waits.rows[0].clone()
}

fn kind_and_what(state: S, frames: &[F]) -> (WaitKind, String) {
    let wait = only(state, frames);
    (wait.kind, wait.what)
}

/// Calls are named, and libraries left aside, by the rules in force: those of a file before
/// torchspy's own.
#[test]
fn waits_are_named_by_rules_of_the_users_own() {
    let text = "[[call]]\noperator = \"aten::_local_scalar_dense\"\ncall = \"acme.read()\"\n\
        [[family]]\nname = \"system\"\nfiles = \"libacme\"\n";
    let rules: &'static RuleSet = Box::leak(Box::new(RuleSet::with(text).unwrap()));
    let item = vec![
        user("step", 5),
        op("_local_scalar_dense"),
        runtime("cudaStreamSynchronize"),
    ];
    let lock = vec![
        user("step", 6),
        native("libshop.so", "shop::Basket::wait()"),
        native("libacme.so", "acme::lock()"),
        libc("pthread_mutex_lock"),
    ];
    let mut builder = Builder::trainer();
    builder.ticks(0, 30, S::Running, &item);
    builder.ticks(0, 30, S::Futex, &lock);
    let recording = builder.recording(60 * TICK_NS);
    let named = |rules| {
        let profile = resolve(&recording, Names { rules, ..names() });
        let analysis = analyze(&profile);
        let rows = &analysis.primary_waits().expect("a trainer").rows;
        let mut named: Vec<String> = rows.iter().map(|row| row.what.clone()).collect();
        named.sort();
        named
    };
    assert_eq!(
        named(RuleSet::built_in()),
        [".item()", "lock in acme::lock"]
    );
    assert_eq!(named(rules), ["acme.read()", "lock in shop::Basket::wait"]);
}

#[test]
fn gpu_syncs_are_named_after_the_call() {
    let item = [
        user("step", 97),
        binding("item"),
        op("item"),
        op("_local_scalar_dense"),
        cuda("at::native::_local_scalar_dense_cuda(at::Tensor const&)"),
        runtime("cudaStreamSynchronize"),
        driver("cuStreamSynchronize"),
    ];
    let wait = only(S::Ioctl, &item);
    assert_eq!(
        (wait.kind, wait.what.as_str()),
        (WaitKind::GpuSync, ".item()")
    );
    assert!(wait.kind.is_for_earlier_work());
    for (frames, what) in [
        (
            vec![
                user("step", 5),
                lib("torch/cuda/__init__.py", "synchronize"),
                python("THCPModule_cudaSynchronize(_object*, _object*)"),
                native("libc10_cuda.so", "c10::cuda::device_synchronize()"),
                runtime("cudaDeviceSynchronize"),
            ],
            "torch.cuda.synchronize()",
        ),
        (
            vec![
                user("step", 5),
                lib("torch/cuda/streams.py", "Event.synchronize"),
                python("THCPEvent_synchronize(_object*, _object*)"),
                runtime("cudaEventSynchronize"),
            ],
            "Event.synchronize()",
        ),
        (
            vec![
                user("step", 5),
                binding("nonzero"),
                op("nonzero"),
                cuda("at::native::nonzero_cuda(at::Tensor const&)"),
                runtime("cudaStreamSynchronize"),
            ],
            ".nonzero()",
        ),
        (
            vec![
                user("step", 5),
                binding("bool_scalar"),
                op("is_nonzero"),
                cuda("at::native::_local_scalar_dense_cuda(at::Tensor const&)"),
                runtime("cudaStreamSynchronize"),
            ],
            "bool() of a tensor",
        ),
        // No binding on the stack: the operator names the call.
        (
            vec![
                user("step", 5),
                op("_local_scalar_dense"),
                runtime("cudaStreamSynchronize"),
            ],
            ".item()",
        ),
        (
            vec![user("step", 5), runtime("cudaStreamSynchronize")],
            "cudaStreamSynchronize",
        ),
        (
            vec![
                user("step", 5),
                lib("torch/_tensor.py", "Tensor.__repr__"),
                lib("torch/_tensor_str.py", "_str"),
                lib("torch/_tensor_str.py", "_Formatter.__init__"),
                binding("masked_select"),
                op("masked_select"),
                runtime("cudaStreamSynchronize"),
            ],
            "print() or repr() of a tensor",
        ),
        // Cached memory is given back: on request, and where the device has no room.
        (
            vec![
                user("step", 5),
                python("THCPModule_emptyCache(_object*, _object*)"),
                allocator("release_cached_blocks(std::shared_ptr<c10::GatheredContext> const&)"),
                runtime("cudaFree"),
            ],
            "torch.cuda.empty_cache()",
        ),
        (
            vec![
                user("step", 5),
                binding("empty"),
                op("empty_memory_format"),
                allocator("malloc(unsigned long, CUstream_st*)"),
                allocator("release_cached_blocks(std::shared_ptr<c10::GatheredContext> const&)"),
                runtime("cudaFree"),
            ],
            "allocation that frees cached memory",
        ),
    ] {
        let (kind, found) = kind_and_what(S::Running, &frames);
        assert_eq!((kind, found.as_str()), (WaitKind::GpuSync, what));
    }
}

/// A launch that runs is work of the host; one that sleeps has found the queue full.
#[test]
fn a_launch_that_sleeps_waits_for_room_in_the_queue() {
    for call in ["cudaLaunchKernel", "cublasGemmEx", "cudaMemsetAsync"] {
        let frames = [user("step", 5), op("mul_Tensor"), runtime(call)];
        let mut builder = Builder::trainer();
        builder.ticks(0, 100, S::Running, &frames);
        assert!(waits_of(builder).1.rows.is_empty(), "{call}");
        let mut asleep = frames.to_vec();
        asleep.extend([unnamed("libcuda.so.1"), libc("poll")]);
        assert_eq!(
            kind_and_what(S::Poll, &asleep),
            (WaitKind::GpuSync, "room in the launch queue".to_owned()),
            "{call}"
        );
    }
}

/// One that spins is told from a launch by what else the thread does, and by the device.
#[test]
fn launches_for_most_of_the_time_of_a_busy_device_wait_for_room() {
    let waited = |busy: f64, step: &[(Do, u64)]| {
        let run = Run::new("queue", None, step).device(Device::busy(busy));
        let mut profile = run.profile();
        full_queue::mark(&mut profile);
        let analysis = analyze(&profile);
        let waits = &analysis.waits[0];
        let mut rows = waits.rows.iter();
        let row = rows.find(|row| row.what == "room in the launch queue (inferred)");
        row.map_or(0, |row| row.ns) as f64 / waits.wall_ns as f64
    };
    let full: &[(Do, u64)] = &[(Do::Launch, 30), (Do::Dispatch, 9), (Do::Sync, 1)];
    assert!((waited(0.97, full) - 0.75).abs() < 0.01);
    for (busy, step) in [
        // The device has time for more launches.
        (0.85, full),
        // Host and device are equally fast.
        (0.97, &[(Do::Launch, 10), (Do::Dispatch, 30)]),
        // It waits elsewhere: a launch of a graph takes long.
        (0.97, &[(Do::GraphLaunch, 10), (Do::Sync, 30)]),
    ] {
        assert_eq!(waited(busy, step), 0.0, "{step:?} at {busy}");
    }
}

/// The stack of a call of torch.distributed's by a script.
fn distributed(function: &str, more: &[F]) -> Vec<F> {
    let file = "torch/distributed/distributed_c10d.py";
    let mut frames = vec![user("main", 143), lib(file, function)];
    frames.extend_from_slice(more);
    frames
}

/// NCCL's barrier, by both of torch's backends.
fn barriers() -> [Vec<F>; 2] {
    let new = [
        cuda("c10d::nccl2::WorkNCCL::wait(std::chrono::duration<long>)"),
        cuda("c10d::nccl2::WorkNCCL::synchronize()"),
        cuda("c10d::nccl2::WorkNCCL::synchronizeInternal(std::chrono::duration<long>)"),
        runtime("cudaStreamSynchronize"),
    ];
    let old = [
        torch("c10d::ProcessGroup::barrier(c10d::BarrierOptions const&)"),
        torch("c10d::ops::(anonymous namespace)::barrierCUDA(at::Tensor)"),
        cuda("c10d::ProcessGroupNCCL::barrier(c10d::BarrierOptions const&)"),
        native(
            "libc10_cuda.so",
            "c10::cuda::CUDAStream::synchronize() const",
        ),
        runtime("cudaStreamSynchronize"),
    ];
    [distributed("barrier", &new), distributed("barrier", &old)]
}

#[test]
fn a_barrier_on_nccl_waits_for_other_ranks() {
    for frames in barriers() {
        for state in [S::Running, S::Poll] {
            assert_eq!(
                kind_and_what(state, &frames),
                (WaitKind::Collective, "barrier".to_owned())
            );
        }
        let mut builder = Builder::trainer();
        builder.ticks(0, 100, S::Running, &frames);
        let (_, analysis) = analyzed(builder);
        let row = &analysis.primary_collectives().expect("a trainer").rows[0];
        assert_eq!(row.call.label(), "barrier");
        assert_eq!(row.call.backend.map(|backend| backend.name()), Some("nccl"));
        assert_eq!(
            (row.wait_ns, row.at.expect("a line").1),
            (100 * TICK_NS, 143)
        );
    }
}

#[test]
fn nccl_sets_up_its_communicator_in_whatever_comes_first() {
    let make = [
        cuda("c10d::nccl2::NCCLBootstrap::createNcclComm(std::string const&)"),
        native("libnccl.so.2", "ncclCommInitRankConfig"),
        libc("clock_nanosleep"),
    ];
    let new = distributed("init_process_group", &make);
    let make = [
        cuda("c10d::ProcessGroupNCCL::initNCCLComm(std::string const&, c10::Device&)"),
        native("libnccl.so.2", "ncclCommInitRankConfig"),
        libc("clock_nanosleep"),
    ];
    let old = distributed("all_reduce", &make);
    for frames in [new, old] {
        assert_eq!(
            kind_and_what(S::Nanosleep, &frames),
            (WaitKind::Collective, "nccl_communicator_init".to_owned())
        );
    }
}

/// The same work has the same names by both of torch's NCCL backends.
#[test]
fn a_bucket_of_ddp_is_named_alike_by_both_backends() {
    let reducer = |more: &[F]| {
        let mut frames = vec![
            user("main", 140),
            lib("torch/_tensor.py", "Tensor.backward"),
            torch("torch::autograd::Engine::execute(int)"),
            torch("c10d::Reducer::autograd_hook(unsigned long)"),
            torch("c10d::Reducer::mark_bucket_ready(unsigned long)"),
            torch("c10d::Reducer::all_reduce_bucket(c10d::Reducer::Bucket&)"),
            torch("c10d::Reducer::run_comm_hook(c10d::GradBucket&)"),
            torch("c10d::_AllReduceBySumCommHook::runHook(c10d::GradBucket&)"),
        ];
        frames.extend_from_slice(more);
        frames
    };
    let enqueues = native("libnccl.so.2", "ncclAllReduce");
    let of = |backend: &str| {
        reducer(&[
            cuda(&format!(
                "c10d::{backend}::allreduce(std::vector<at::Tensor>&)"
            )),
            enqueues.clone(),
        ])
    };
    let blocks = reducer(&[
        cuda("c10d::nccl2::WorkNCCL::getFuture()"),
        cuda("c10d::nccl2::WorkNCCL::synchronizeInternal(std::chrono::duration<long>)"),
        runtime("cudaStreamWaitEvent"),
    ]);
    for frames in [
        of("ProcessGroupNCCL"),
        of("nccl2::ProcessGroupNCCL"),
        blocks,
    ] {
        let mut builder = Builder::trainer();
        builder.ticks(0, 100, S::Running, &frames);
        let (_, analysis) = analyzed(builder);
        let row = &analysis.primary_collectives().expect("a trainer").rows[0];
        assert_eq!(row.call.label(), "all_reduce (DDP bucket)");
        assert_eq!(row.call.backend.map(|backend| backend.name()), Some("nccl"));
    }
}

/// nccl2's thread has the process's name, the one before has its own.
#[test]
fn the_watchdog_of_nccl_waits_for_no_rank() {
    for (name, function) in [
        ("python", "c10d::nccl2::ProcessGroupNCCL::timeoutWatchdog()"),
        (
            "pt_nccl_watchdg",
            "c10d::ProcessGroupNCCL::Watchdog::runLoop()",
        ),
    ] {
        let mut builder = Builder::trainer();
        builder.ticks(0, 100, S::Running, &[user("main", 5)]);
        let reduces = [user("main", 5), torch("c10d::Reducer::finalize_backward()")];
        builder.ticks(0, 10, S::Running, &reduces);
        let watchdog = builder.thread(0, 105, name, false);
        let frames = [cuda(function), libc("pthread_cond_timedwait")];
        builder.ticks(watchdog, 110, S::Futex, &frames);
        let (_, analysis) = analyzed(builder);
        let threads = &analysis.primary().expect("a trainer").threads;
        let thread = threads.iter().find(|thread| thread.tid == 105).expect("it");
        assert_eq!(thread.role, "NCCL watchdog");
        assert_eq!(thread.main_activity, Activity::LockWait);
        // Its process trains over NCCL.
        let row = &analysis.primary_collectives().expect("a trainer").rows[0];
        assert_eq!(row.call.backend.map(|backend| backend.name()), Some("nccl"));
    }
}

#[test]
fn gpu_copies_tell_direction_and_why_they_block() {
    let copy = |call: &str, leaves: &[F]| {
        let mut frames = vec![
            user("step", 20),
            binding(call),
            op("_to_copy"),
            op("copy_"),
            cuda("at::native::copy_kernel_cuda(at::TensorIterator&, bool)"),
        ];
        frames.extend_from_slice(leaves);
        kind_and_what(S::Running, &frames)
    };
    for (call, leaves, what) in [
        (
            "to",
            vec![runtime("cudaMemcpyAsync"), driver("cuMemcpyHtoDAsync_v2")],
            ".to() (host to GPU, pageable memory)",
        ),
        (
            "to",
            vec![runtime("cudaMemcpyAsync")],
            ".to() (pageable memory)",
        ),
        (
            "cuda",
            vec![runtime("cudaStreamSynchronize")],
            ".cuda() (not non_blocking)",
        ),
        (
            "cpu",
            vec![runtime("cudaMemcpyAsync"), driver("cuMemcpyDtoHAsync_v2")],
            ".cpu() (GPU to host, pageable memory)",
        ),
    ] {
        assert_eq!(copy(call, &leaves), (WaitKind::GpuCopy, what.to_owned()));
    }
    let within = [
        cuda("at::native::copy_device_to_device(at::TensorIterator&, bool, bool)"),
        runtime("cudaMemcpyAsync"),
    ];
    let what = ".clone() (GPU to GPU)".to_owned();
    assert_eq!(copy("clone", &within), (WaitKind::GpuCopy, what));
}

#[test]
fn python_waits_are_named_as_users_know_them() {
    let cases: Vec<(S, Vec<F>, WaitKind, &str)> = vec![
        (
            S::Futex,
            vec![
                user("f", 3),
                std_lib("queue.py", "Queue.get"),
                std_lib("threading.py", "Condition.wait"),
                cpython("lock_PyThread_acquire_lock"),
                libc("sem_wait"),
            ],
            WaitKind::Lock,
            "queue.Queue.get",
        ),
        (
            S::Futex,
            vec![
                std_lib("threading.py", "Thread._bootstrap"),
                std_lib("threading.py", "Thread._bootstrap_inner"),
                std_lib("threading.py", "Thread.run"),
                std_lib("threading.py", "Event.wait"),
                std_lib("threading.py", "Condition.wait"),
                cpython("lock_PyThread_acquire_lock"),
                libc("sem_wait"),
            ],
            WaitKind::Lock,
            "threading.Event.wait",
        ),
        (
            S::Futex,
            vec![
                user("f", 3),
                cpython("lock_PyThread_acquire_lock"),
                libc("sem_wait"),
            ],
            WaitKind::Lock,
            "a lock",
        ),
        (
            S::Nanosleep,
            vec![user("f", 3), cpython("time_sleep"), libc("clock_nanosleep")],
            WaitKind::Sleep,
            "time.sleep()",
        ),
        (
            S::Read,
            vec![user("f", 3), cpython("os_read"), libc("read")],
            WaitKind::Io,
            "read",
        ),
        (
            S::Read,
            vec![
                user("f", 3),
                std_lib("socket.py", "SocketIO.readinto"),
                libc("read"),
            ],
            WaitKind::Socket,
            "socket.SocketIO.readinto (read)",
        ),
        (
            S::Disk,
            vec![user("f", 3), cpython("os_read"), libc("read")],
            WaitKind::Disk,
            "page fault or driver",
        ),
        (
            S::Poll,
            vec![
                user("f", 3),
                std_lib("subprocess.py", "run"),
                std_lib("subprocess.py", "Popen.communicate"),
                std_lib("selectors.py", "_PollLikeSelector.select"),
                libc("poll"),
            ],
            WaitKind::Child,
            "subprocess.run (poll)",
        ),
        (
            S::Futex,
            vec![
                user("f", 3),
                lib("torch/_tensor.py", "Tensor.backward"),
                lib("torch/autograd/graph.py", "_engine_run_backward"),
                torch("torch::autograd::Engine::execute(int)"),
                libc("pthread_cond_wait"),
            ],
            WaitKind::Autograd,
            "backward()",
        ),
    ];
    for (state, frames, kind, what) in cases {
        let wait = only(state, &frames);
        assert_eq!((wait.kind, wait.what.as_str()), (kind, what));
        assert!(wait.at.is_some());
    }
}

#[test]
fn time_without_a_cpu_is_a_wait_and_computation_is_none() {
    let mut builder = Builder::trainer();
    builder.ticks(0, 60, S::Running, &[user("f", 1)]);
    for _ in 0..40 {
        builder
            .sample(0, TICK_NS, S::Running, &[user("f", 2)])
            .queue_ns = TICK_NS / 2;
    }
    let (_, waits) = waits_of(builder);
    assert_eq!(waits.rows.len(), 1);
    assert_eq!(waits.rows[0].kind, WaitKind::Cpu);
    assert_eq!(waits.ns, 40 * TICK_NS / 2);
    assert!((waits.rows[0].share.value - 0.2).abs() < 1e-9);
}

#[test]
fn the_holder_of_the_gil_is_named_by_overlap() {
    let mut builder = Builder::trainer();
    let spinner = builder.thread(0, 101, "spinner", true);
    let logger = builder.thread(0, 102, "logger", true);
    let waiting = [
        user("train", 90),
        cpython("take_gil"),
        libc("pthread_cond_timedwait"),
    ];
    for tick in 0..100_u64 {
        builder.sample(0, TICK_NS, S::Futex, &waiting).gil = Gil::NotHeld;
        // The first 70 ticks one thread holds it, then the other, of which no sample says so.
        let held = if tick < 70 { Gil::Held } else { Gil::NotHeld };
        let frames = [user("run", 10), user("spin", 33)];
        builder.sample(spinner, TICK_NS, S::Running, &frames).gil = held;
        builder
            .sample(logger, TICK_NS, S::Running, &[user("log", 50)])
            .gil = Gil::NotHeld;
        if tick >= 70 {
            let own = builder.samples.iter_mut().rev();
            let mut own = own.filter(|sample| sample.thread == ThreadId::from_index(0));
            own.next().expect("sampled").gil_holder = Some(ThreadId::from_index(logger));
        }
    }
    let (profile, waits) = waits_of(builder);
    let wait = &waits.rows[0];
    assert_eq!(wait.kind, WaitKind::Gil);
    let holders: Vec<(i32, &str, u32, u64)> = wait
        .holders
        .iter()
        .map(|holder| {
            let (function, line) = holder.at.expect("read");
            let thread = &profile.threads[holder.thread.index()];
            let function = &profile.functions[function.index()];
            (
                thread.tid,
                function.name.as_str(),
                line,
                holder.ns / TICK_NS,
            )
        })
        .collect();
    assert_eq!(holders, [(101, "spin", 33, 70), (102, "log", 50, 30)]);
}

fn loader_wait() -> Vec<F> {
    vec![
        user("main", 88),
        lib(
            "torch/utils/data/dataloader.py",
            "_BaseDataLoaderIter.__next__",
        ),
        lib(
            "torch/utils/data/dataloader.py",
            "_MultiProcessingDataLoaderIter._try_get_data",
        ),
        std_lib("multiprocessing/queues.py", "Queue.get"),
        std_lib("multiprocessing/connection.py", "Connection.poll"),
        std_lib("selectors.py", "_PollLikeSelector.select"),
        libc("poll"),
    ]
}

/// A trainer that waits for 200 ticks for two workers, and trains for 50 while they do other
/// things.
fn starving() -> Builder {
    let mut builder = Builder::trainer();
    builder.ticks(0, 200, S::Poll, &loader_wait());
    builder.ticks(0, 50, S::Running, &[user("main", 90)]);
    for number in 0..2 {
        let pid = 110 + number;
        let process = builder.process(pid, 100, &["python", "train.py"]);
        let thread = builder.thread(process, pid, "pt_data_worker", true);
        let decode = fetch(&[
            py(
                "/e/lib/python3.11/site-packages/PIL/ImageFile.py",
                "ImageFile.load",
                300,
            ),
            native("libjpeg-32d42e16.so.62", "jpeg_idct_islow"),
        ]);
        builder.ticks(thread, 120, S::Running, &decode);
        let resize = fetch(&[lib("torchvision/transforms/functional.py", "resize")]);
        builder.ticks(thread, 40, S::Running, &resize);
        let read = fetch(&[cpython("_io_FileIO_readall"), libc("read")]);
        builder.ticks(thread, 20, S::Disk, &read);
        let idle = [
            lib("torch/utils/data/_utils/worker.py", "_worker_loop"),
            std_lib("multiprocessing/queues.py", "Queue.get"),
            std_lib("multiprocessing/connection.py", "Connection.poll"),
            libc("poll"),
        ];
        // 20 ticks while the trainer waits, and all the time that it trains.
        builder.ticks(thread, 70, S::Poll, &idle);
    }
    builder
}

#[test]
fn workers_are_seen_while_their_trainer_waits() {
    let (_, waits) = waits_of(starving());
    assert_eq!(waits.rows[0].kind, WaitKind::Input);
    assert_eq!(waits.rows[0].ns, 200 * TICK_NS);
    let workers = waits.worker_activity.expect("workers");
    assert_eq!(workers.waited_ns, 200 * TICK_NS);
    assert!((workers.workers - 2.0).abs() < 1e-9);
    assert!((workers.busy.value - 0.9).abs() < 1e-9);
    assert!(workers.busy.low <= 0.9 && workers.busy.high >= 0.9);
    let tasks: Vec<(InputTask, u64)> = workers
        .tasks
        .iter()
        .map(|task| (task.task, task.ns / TICK_NS))
        .collect();
    assert_eq!(
        tasks,
        [
            (InputTask::Decode, 240),
            (InputTask::Transform, 80),
            (InputTask::Read, 40),
            (InputTask::Idle, 40)
        ]
    );
    assert!(workers.tasks[0].lines[0].0.is_some());
    assert!(waits.inline.is_none());
}

#[test]
fn without_workers_the_training_thread_makes_its_input_itself() {
    let mut builder = Builder::trainer();
    let next = [
        user("main", 88),
        lib(
            "torch/utils/data/dataloader.py",
            "_SingleProcessDataLoaderIter._next_data",
        ),
        lib(
            "torch/utils/data/_utils/fetch.py",
            "_MapDatasetFetcher.fetch",
        ),
    ];
    let with = |more: F| [&next[..], &[more]].concat();
    let collate = with(lib("torch/utils/data/_utils/collate.py", "default_collate"));
    builder.ticks(
        0,
        60,
        S::Running,
        &with(py("/home/u/data.py", "Images.__getitem__", 5)),
    );
    builder.ticks(0, 40, S::Running, &collate);
    builder.ticks(0, 100, S::Running, &[user("main", 90)]);
    let (_, waits) = waits_of(builder);
    let inline = waits.inline.expect("input");
    assert!((inline.share.value - 0.5).abs() < 1e-9);
    let tasks: Vec<(InputTask, u64)> = inline
        .tasks
        .iter()
        .map(|task| (task.task, task.ns / TICK_NS))
        .collect();
    assert_eq!(tasks, [(InputTask::Dataset, 60), (InputTask::Collate, 40)]);
    assert!(waits.worker_activity.is_none());
}

/// torchrun, whose ranks follow.
fn launcher() -> Builder {
    let mut builder = Builder::new();
    builder.process(100, 1, &["torchrun", "train.py"]);
    builder.thread(0, 100, "torchrun", true);
    builder.ticks(0, 100, S::Poll, &[lib("torch/distributed/run.py", "main")]);
    builder
}

/// A rank of torchrun over Gloo: its training thread.
fn gloo_rank(builder: &mut Builder, rank: i32, job: &[(&str, &str)]) -> usize {
    let process = builder.process(101 + rank, 100, &["python", "train.py"]);
    let number = rank.to_string();
    builder.environment(process, &[&[("RANK", number.as_str())], job].concat());
    let thread = builder.thread(process, 101 + rank, "python", true);
    builder.thread(process, 201 + rank, "pt_gloo_runloop", false);
    thread
}

/// DDP's wait for its last bucket.
fn reduce_after(backward: &[F]) -> Vec<F> {
    let wait = [
        torch("c10d::Reducer::finalize_backward()"),
        torch("c10::ivalue::Future::wait()"),
        libc("pthread_cond_wait"),
    ];
    [backward, &wait].concat()
}

/// Three ranks: rank 2 arrives last, by its own transform; rank 1 a little before.
fn ranks() -> Builder {
    let mut builder = launcher();
    for rank in 0..3_i32 {
        let of = [("WORLD_SIZE", "4"), ("MASTER_PORT", "29500")];
        let thread = gloo_rank(&mut builder, rank, &of);
        let backward = [
            user("main", 57),
            lib("torch/_tensor.py", "Tensor.backward"),
            lib("torch/autograd/graph.py", "_engine_run_backward"),
            torch("torch::autograd::Engine::execute(int)"),
        ];
        let reduce = reduce_after(&backward);
        let busy = [20, 60, 90][rank as usize];
        for _ in 0..5 {
            let frames = [user("main", 50), user("slow_transform", 41)];
            builder.ticks(thread, busy - 10, S::Running, &frames);
            builder.ticks(thread, 10, S::Running, &backward);
            builder.ticks(thread, 100 - busy, S::Futex, &reduce);
        }
    }
    builder
}

/// Two ranks of which rank 1 sleeps in each step, which is no cause by itself.
#[test]
fn the_verdict_is_that_of_the_rank_that_arrives_last_whatever_it_does() {
    let mut builder = launcher();
    for rank in 0..2_i32 {
        let thread = gloo_rank(&mut builder, rank, &[("WORLD_SIZE", "2")]);
        let backward = [user("main", 57), lib("torch/_tensor.py", "Tensor.backward")];
        let reduce = reduce_after(&backward);
        let asleep = [30, 80][rank as usize];
        for _ in 0..6 {
            let frames = [
                user("main", 50),
                user("augment", 7),
                libc("clock_nanosleep"),
            ];
            builder.ticks(thread, asleep, S::Nanosleep, &frames);
            builder.ticks(thread, 10, S::Running, &backward);
            builder.ticks(thread, 90 - asleep, S::Futex, &reduce);
        }
    }
    let (profile, analysis) = analyzed(builder);
    let text = render_summary(&profile, &analysis, TextOptions::default());
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        // 50 of 60 ticks of each wait, of 100 of a step.
        "VERDICT communication-bound, one rank arrives last (",
        "The others wait for this rank 50 % of their time after start-up",
        "this is rank 1/2, the last to arrive for 83 % of the others' wait in collectives",
        "at train.py:7 in augment",
        "NEXT the others wait for what this rank alone does at train.py:7",
        "BOUND with this rank as fast as the others: at most 2.0x",
    ] {
        assert!(words.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_rank_that_arrives_last_is_named_with_its_line() {
    let (profile, analysis) = analyzed(ranks());
    let collectives = analysis.primary_collectives().expect("rank 0");
    assert_eq!(collectives.peers, 2);
    let row = &collectives.rows[0];
    assert_eq!(row.call.name, Some("all_reduce"));
    assert_eq!(row.call.backend.map(|backend| backend.name()), Some("gloo"));
    assert_eq!(row.wait_ns, 400 * TICK_NS);
    assert!((row.wait_share.value - 0.8).abs() < 1e-9);
    // Of 80 ticks of each wait rank 2 is missing for 70: the last 10 are the collective itself.
    assert_eq!(row.late_ns(), 350 * TICK_NS);
    let (late, ns, at) = last_rank(row).expect("late");
    assert_eq!(profile.processes[late.index()].info.pid, 103);
    assert_eq!(ns, 350 * TICK_NS);
    let (function, line) = at.expect("a line");
    assert_eq!(profile.functions[function.index()].name, "slow_transform");
    assert_eq!(line, 41);
    let text = render_summary(&profile, &analysis, TextOptions::default());
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("rank 0 waits 80.0 % ±")
            && words.contains("in all_reduce (DDP bucket): rank 2 arrives last (3.50 of 4.00 s), at train.py:41 slow_transform"),
        "{text}"
    );
    assert!(
        words.contains("3 of 4 ranks are in this recording"),
        "{text}"
    );
    // The last one waits for nobody: the rest is the collective itself.
    assert!(
        words.contains("rank 2 waits") && words.contains("for most of it all ranks had arrived"),
        "{text}"
    );
}

#[test]
fn reports_by_wait_in_text_and_json() {
    let (profile, analysis) = analyzed(starving());
    let options = TextOptions {
        by: Some(By::Wait),
        ..TextOptions::default()
    };
    let text = render_summary(&profile, &analysis, options);
    assert!(!text.contains("PYTHON LINES"), "{text}");
    let from = text.find("WAITS").expect("the section");
    let to = text.find("\nSAMPLER").expect("the next section");
    let section = &text[from..to];
    assert!(
        section.lines().all(|line| line.chars().count() <= 80),
        "{section}"
    );
    insta::assert_snapshot!(section);

    let json: serde_json::Value =
        serde_json::from_str(&render_json(&profile, &analysis).expect("json")).expect("json");
    let wait = &json["waits"][0];
    assert_eq!(wait["kind"], "input_queue");
    assert_eq!(wait["at"]["line"], 88);
    assert!((wait["seconds"].as_f64().expect("a number") - 2.0).abs() < 1e-9);
    assert_eq!(wait["interval"]["samples"], 200);
    assert_eq!(json["input"]["workers"]["tasks"][0]["task"], "decode");

    let (profile, analysis) = analyzed(ranks());
    let json: serde_json::Value =
        serde_json::from_str(&render_json(&profile, &analysis).expect("json")).expect("json");
    let rows = json["collectives"].as_array().expect("rows");
    let own = rows.iter().find(|row| row["rank"] == 0).expect("rank 0");
    assert_eq!(own["name"], "all_reduce");
    assert_eq!(own["issuer"], "DDP bucket");
    assert_eq!(own["late"][0]["rank"], 2);
    assert_eq!(own["late"][0]["at"]["function"], "slow_transform");
    assert!(own["group"].is_null());
}

#[test]
fn waits_for_the_gpu_promise_nothing() {
    let mut builder = Builder::trainer();
    builder.processes[0].has_cuda = true;
    builder.ticks(
        0,
        100,
        S::Ioctl,
        &[
            user("step", 97),
            binding("item"),
            cuda("at::native::_local_scalar_dense_cuda(at::Tensor const&)"),
            runtime("cudaStreamSynchronize"),
        ],
    );
    let (profile, analysis) = analyzed(builder);
    let text = render_summary(&profile, &analysis, TextOptions::default());
    assert!(text.contains("GPU sync: .item() *  train.py:97"), "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("this is not the line's own cost"), "{text}");
}
