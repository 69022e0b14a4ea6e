//! What a profile sums up to, and how it is said.

use crate::analysis_builder::*;
use proptest::prelude::*;
use torchspy::analysis::{Analysis, analyze};
use torchspy::model::category::{Activity, Phase, SummaryRow};
use torchspy::model::frame::Partial;
use torchspy::model::ids::ProcessId;
use torchspy::model::profile::{Profile, Role};
use torchspy::model::run::Loss;
use torchspy::model::sample::Capture;
use torchspy::report::json::render_json;
use torchspy::report::text::{TextOptions, render_summary};

fn module_call() -> F {
    lib("torch/nn/modules/module.py", "Module._call_impl")
}

fn conv() -> Vec<F> {
    vec![
        user("<module>", 90),
        user("main", 41),
        module_call(),
        lib("torch/nn/modules/conv.py", "Conv2d.forward"),
        native(
            "libtorch_python.so",
            "torch::autograd::THPVariable_conv2d(_object*)",
        ),
        torch("at::native::conv2d(at::Tensor const&)"),
        torch(
            "dnnl::impl::cpu::x64::brgemm_convolution_fwd_t::execute(dnnl::impl::exec_ctx_t const&)",
        ),
    ]
}

fn input_wait() -> Vec<F> {
    vec![
        user("<module>", 90),
        user("main", 38),
        lib(
            "torch/utils/data/dataloader.py",
            "_MultiProcessingDataLoaderIter._try_get_data",
        ),
        std_lib("multiprocessing/connection.py", "_ConnectionBase.poll"),
        libc("poll"),
    ]
}

fn worker_stack() -> Vec<F> {
    vec![
        lib("torch/utils/data/_utils/worker.py", "_worker_loop"),
        lib(
            "torch/utils/data/_utils/fetch.py",
            "_MapDatasetFetcher.fetch",
        ),
        user("Data.__getitem__", 12),
        native("_imaging.so", "ImagingResample"),
    ]
}

/// A trainer with a worker: 30 s at 100 Hz.
fn training_run() -> Builder {
    let mut builder = Builder::trainer();
    builder.environment(
        0,
        &[("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")],
    );
    for step in 0..100_u32 {
        for _ in 0..18 {
            builder.sample(0, TICK_NS, S::Poll, &input_wait()).capture = Capture::Reused;
        }
        builder.ticks(0, 8, S::Running, &conv());
        let optimizer = [
            user("<module>", 90),
            user("main", 44),
            lib(
                "torch/optim/optimizer.py",
                "Optimizer.profile_hook_step.<locals>.wrapper",
            ),
            lib("torch/optim/sgd.py", "SGD.step"),
            torch("at::native::_foreach_add_(at::TensorList)"),
        ];
        builder.ticks(0, 3, S::Running, &optimizer);
        let sample = builder.sample(
            0,
            TICK_NS,
            S::Running,
            &[user("<module>", 90), user("main", 46)],
        );
        if step % 4 == 0 {
            sample.queue_ns = TICK_NS / 2;
        }
    }
    builder.ticks(
        0,
        5,
        S::Running,
        &[F::Cut(Partial::NoUnwindInfo), F::Anonymous],
    );
    let openmp = builder.thread(0, 101, "python", false);
    builder.ticks(
        openmp,
        3000,
        S::Futex,
        &[
            libc("clone3"),
            native("libgomp.so.1", "gomp_thread_start"),
            native("libgomp.so.1", "gomp_barrier_wait"),
        ],
    );
    let worker = builder.process(120, 100, &["python", "train.py"]);
    builder.environment(worker, &[("RANK", "0"), ("WORLD_SIZE", "1")]);
    let thread = builder.thread(worker, 120, "pt_data_worker", true);
    builder.ticks(thread, 3000, S::Running, &worker_stack());
    for stop in 0..1000 {
        builder.sideband.quality.stops.record(40_000 + stop * 20);
    }
    builder.sideband.quality.ticks = 2991;
    builder.sideband.quality.late_ticks = 12;
    builder.sideband.quality.missed_ticks = 9;
    builder.sideband.quality.target_run_ns = 16_000_000_000;
    builder.sideband.quality.own_cpu_ns = 1_200_000_000;
    builder
}

fn analyzed(builder: Builder) -> (Profile, Analysis) {
    let profile = builder.profile();
    let analysis = analyze(&profile);
    (profile, analysis)
}

/// As the page does, and as anybody does with the figures of JSON.
#[test]
fn each_share_is_rounded_by_itself_and_a_place_is_whole() {
    let mut builder = Builder::trainer();
    let file = "/home/u/a_long_named_script.py".to_owned();
    let line = F::Py(file, "main".to_owned(), 7);
    for (module, function) in [
        ("/torch/lib/libtorch_cpu.so", "at::native::add_kernel"),
        ("/lib/libpython3.so", "PyObject_Call"),
        (
            "/torch/lib/libtorch_cpu.so",
            "dnnl::impl::cpu::x64::brgemm_convolution_fwd_t::execute",
        ),
    ] {
        builder.ticks(
            0,
            100,
            S::Running,
            &[line.clone(), native(module, function)],
        );
    }
    let profile = builder.profile();
    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    let cells = text.lines().skip_while(|line| !line.starts_with("PHASE x"));
    let row = cells.skip(2).find(|line| line.contains("100.0")).unwrap();
    assert_eq!(row.matches(" 33.3").count(), 3, "{text}");
    assert!(!text.contains("33.4"), "{text}");
    assert!(
        text.contains("  most at a_long_named_script.py:7\n"),
        "{text}"
    );
}

#[test]
fn text_of_one_trainer() {
    let mut builder = training_run();
    builder
        .missing
        .push("the end of the recording: torchspy was killed".to_owned());
    builder.sideband.losses.push(Loss {
        time_ns: 5,
        samples: 20,
        reason: "queue full".to_owned(),
    });
    let (profile, analysis) = analyzed(builder);
    let options = TextOptions {
        itwinai: true,
        rows: 5,
        ..TextOptions::default()
    };
    let text = render_summary(&profile, &analysis, options);
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    insta::assert_snapshot!(text);
}

#[test]
fn text_of_two_ranks_with_cuda_and_nccl() {
    let mut builder = Builder::new();
    builder.process(
        100,
        1,
        &[
            "/usr/bin/python",
            "/usr/bin/torchrun",
            "--nproc-per-node=2",
            "train.py",
        ],
    );
    builder.thread(0, 100, "torchrun", true);
    builder.ticks(
        0,
        400,
        S::Nanosleep,
        &[
            lib("torch/distributed/run.py", "run"),
            cpython("time_sleep"),
        ],
    );
    for rank in 0..2_i32 {
        let process = builder.process(101 + rank, 100, &["python", "-u", "train.py"]);
        builder.environment(
            process,
            &[
                ("RANK", if rank == 0 { "0" } else { "1" }),
                ("WORLD_SIZE", "2"),
            ],
        );
        builder.processes[process].has_cuda = true;
        let thread = builder.thread(process, 101 + rank, "python", true);
        let launch = [
            user("main", 41),
            module_call(),
            torch("at::native::add(at::Tensor const&)"),
            native("libcudart.so.13", "cudaLaunchKernel"),
        ];
        builder.ticks(thread, 200, S::Running, &launch);
        let sync = [
            user("main", 47),
            native(
                "libtorch_cuda.so",
                "at::native::_local_scalar_dense_cuda(at::Tensor const&)",
            ),
            native("libcudart.so.13", "cudaStreamSynchronize"),
        ];
        builder.ticks(thread, 150, S::Running, &sync);
        let reduce = [
            user("main", 45),
            native(
                "libtorch_cuda.so",
                "c10d::ProcessGroupNCCL::allreduce(std::vector<at::Tensor>&)",
            ),
            native("libnccl.so.2", "ncclAllReduce"),
        ];
        builder.ticks(thread, 50, S::Running, &reduce);
    }
    let (profile, analysis) = analyzed(builder);
    let text = render_summary(
        &profile,
        &analysis,
        TextOptions {
            rows: 3,
            ..TextOptions::default()
        },
    );
    assert!(text.contains("host op dispatch"));
    assert!(text.contains("enqueue only; device communication not visible"));
    insta::assert_snapshot!(text);
}

#[test]
fn hostile_names_do_not_reach_the_terminal() {
    let mut builder = Builder::trainer();
    builder.run.command = vec!["python\x1b]0;owned\x07".to_owned()];
    builder.run.host = "n\n17".to_owned();
    builder.threads[0].name = "\x1b[2J".to_owned();
    builder.missing.push("\u{9b}31m".to_owned());
    builder.ticks(
        0,
        50,
        S::Running,
        &[
            py("/x/\x1b[31m.py", "f\r\x08\u{202e}", 1),
            native("lib\x1b.so", "g\x1b[0m"),
        ],
    );
    let helper = builder.process(7, 1, &["evil\x1b[1m"]);
    builder.processes[helper].python.clear();
    builder.processes[helper].note = "\x1b".to_owned();
    let (profile, analysis) = analyzed(builder);
    let text = render_summary(
        &profile,
        &analysis,
        TextOptions {
            itwinai: true,
            rows: 9,
            ..TextOptions::default()
        },
    );
    let bad: Vec<char> = text
        .chars()
        .filter(|each| each.is_control() && *each != '\n')
        .collect();
    assert!(bad.is_empty(), "{bad:?}");
    assert!(!text.contains('\u{202e}'));
}

#[test]
fn nothing_sampled_is_said() {
    let (profile, analysis) = analyzed(Builder::new());
    assert!(
        render_summary(&profile, &analysis, TextOptions::default()).contains("NOTHING SAMPLED")
    );
    let json: serde_json::Value =
        serde_json::from_str(&render_json(&profile, &analysis).unwrap()).unwrap();
    assert_eq!(json["primary"], serde_json::Value::Null);
    assert_eq!(json["quality"]["rooted_share"], serde_json::Value::Null);
}

#[test]
fn json_has_the_keys_of_its_schema() {
    let (profile, analysis) = analyzed(training_run());
    let json: serde_json::Value =
        serde_json::from_str(&render_json(&profile, &analysis).unwrap()).unwrap();
    assert_eq!(json["schema"], 2);
    assert!((json["duration_s"].as_f64().unwrap() - 30.05).abs() < 1e-9);
    let process = &json["processes"][0];
    assert_eq!(process["pid"], 100);
    assert_eq!(process["role"], "trainer");
    assert_eq!(process["rank"], 0);
    assert_eq!(process["python"], "3.11.7");
    assert_eq!(process["torch"], "2.15.0");
    assert_eq!(json["processes"][1]["role"], "dataloader_worker");
    assert_eq!(json["processes"][1]["rank"], serde_json::Value::Null);
    for row in SummaryRow::ALL {
        assert!(json["summary"][row.name()].is_f64(), "{}", row.name());
    }
    for phase in Phase::BUILT_IN {
        assert!(json["phases"][phase.name()].is_f64(), "{}", phase.name());
    }
    for activity in Activity::ALL {
        assert!(
            json["activities"][activity.name()].is_f64(),
            "{}",
            activity.name()
        );
    }
    for key in ["name", "file", "line", "self_s", "total_s"] {
        assert!(!json["functions"][0][key].is_null(), "{key}");
    }
    assert!(json["threads"].as_array().unwrap().len() == 2);
    let quality = &json["quality"];
    for key in [
        "rate_hz",
        "ticks",
        "late_ticks",
        "samples",
        "fresh",
        "stops",
        "stopped_share",
        "rooted_share",
        "merged_share",
    ] {
        assert!(quality[key].is_number(), "{key}");
    }
    for key in ["p50", "p99", "max"] {
        assert!(quality["stop_us"][key].is_f64(), "{key}");
    }
    assert_eq!(quality["partial"]["no_unwind_info"], 5);
    let input = json["summary"]["input"].as_f64().unwrap();
    assert!((input - 18.0 / 30.05).abs() < 1e-6, "{input}");
    let interval = &json["intervals"]["summary"]["input"];
    assert!(
        interval["low"].as_f64().unwrap() < input && input < interval["high"].as_f64().unwrap()
    );
}

#[test]
fn time_without_a_cpu_is_cpu_wait() {
    let (_, analysis) = analyzed(training_run());
    let primary = analysis.primary().unwrap();
    assert_eq!(primary.matrix.activity(Activity::CpuWait), 25 * TICK_NS / 2);
    assert_eq!(
        primary.matrix.cell(Phase::User, Activity::CpuWait),
        25 * TICK_NS / 2
    );
    assert_eq!(primary.row_ns(SummaryRow::CpuWait), 25 * TICK_NS / 2);
    // A line's time without a CPU is of that row, and not of the row that it computes in.
    for ((row, ns, _), at) in primary.rows.iter().zip(&primary.row_lines) {
        assert!(
            at.is_none_or(|at| at.total_ns <= *ns),
            "{row:?}: {at:?} of {ns}"
        );
        assert!(*row != SummaryRow::CpuWait || at.is_some());
    }
}

#[test]
fn quality_counts_fresh_captures_only() {
    let mut builder = Builder::trainer();
    let stack = [user("main", 1), torch("at::native::add(at::Tensor const&)")];
    builder.ticks(0, 6, S::Running, &stack);
    builder.ticks(
        0,
        1,
        S::Running,
        &[
            F::Cut(Partial::NoUnwindInfo),
            torch("at::native::add(at::Tensor const&)"),
        ],
    );
    builder.ticks(
        0,
        2,
        S::Running,
        &[F::Cut(Partial::MergeMismatch), user("main", 1)],
    );
    builder.ticks(
        0,
        1,
        S::Running,
        &[
            user("main", 1),
            F::Guess("/lib/libcuda.so.1".to_owned(), None),
        ],
    );
    let reused = builder.sample(0, TICK_NS, S::Futex, &[F::Cut(Partial::Torn)]);
    reused.capture = Capture::Reused;
    reused.ticks = 30;
    let (_, analysis) = analyzed(builder);
    let quality = &analysis.quality;
    assert_eq!(
        (
            quality.fresh,
            quality.captures.stopped,
            quality.captures.reused,
            quality.samples
        ),
        (10, 10, 30, 40)
    );
    assert_eq!(quality.rooted_share, Some(0.9));
    // Nine have Python frames or a reason that concerns them; seven are whole.
    assert_eq!(quality.merged_share, Some(7.0 / 9.0));
    assert_eq!(
        quality.partial,
        [(Partial::NoUnwindInfo, 1), (Partial::MergeMismatch, 2)]
    );
    assert!((quality.guessed_frames - 1.0 / 8.0).abs() < 1e-9);
    assert!((quality.guessed_stacks - 0.1).abs() < 1e-9);
}

#[test]
fn recursion_counts_once() {
    let mut builder = Builder::trainer();
    builder.ticks(
        0,
        10,
        S::Running,
        &[
            user("walk", 3),
            user("walk", 5),
            user("walk", 5),
            torch("at::native::add(at::Tensor const&)"),
        ],
    );
    let (profile, analysis) = analyzed(builder);
    let hot = &analysis.primary().unwrap().hot;
    assert_eq!(
        (hot.python[0].self_ns, hot.python[0].total_ns),
        (10 * TICK_NS, 10 * TICK_NS)
    );
    let lines: Vec<(u32, u64, u64)> = hot
        .lines
        .iter()
        .map(|line| (line.line, line.self_ns, line.total_ns))
        .collect();
    assert_eq!(
        lines,
        [(5, 10 * TICK_NS, 10 * TICK_NS), (3, 0, 10 * TICK_NS)]
    );
    assert_eq!(
        profile.functions[hot.native[0].function.index()].name,
        "at::native::add(at::Tensor const&)"
    );
}

fn roles(builder: Builder) -> Vec<Role> {
    builder
        .profile()
        .processes
        .iter()
        .map(|process| process.role)
        .collect()
}

fn trainer(rank: Option<u32>, world_size: Option<u32>, local_rank: Option<u32>) -> Role {
    Role::Trainer {
        rank,
        world_size,
        local_rank,
    }
}

#[test]
fn roles_of_a_torchrun_job() {
    let mut builder = Builder::new();
    let launcher = builder.process(
        100,
        1,
        &["/usr/bin/python", "-m", "torch.distributed.run", "train.py"],
    );
    builder.thread(launcher, 100, "python", true);
    builder.ticks(
        0,
        1,
        S::Nanosleep,
        &[lib("torch/distributed/run.py", "main")],
    );
    for rank in 0..2_i32 {
        let process = builder.process(110 + rank, 100, &["python", "-u", "train.py"]);
        let rank_text = rank.to_string();
        builder.environment(
            process,
            &[
                ("RANK", &rank_text),
                ("WORLD_SIZE", "2"),
                ("LOCAL_RANK", &rank_text),
                ("SLURM_PROCID", "7"),
            ],
        );
        let thread = builder.thread(process, 110 + rank, "python", true);
        builder.ticks(thread, 1, S::Running, &conv());
        for worker in 0..2_i32 {
            let pid = 120 + rank * 10 + worker;
            let process = builder.process(pid, 110 + rank, &["python", "-u", "train.py"]);
            builder.environment(process, &[("RANK", &rank_text), ("WORLD_SIZE", "2")]);
            let thread = builder.thread(process, pid, "python", true);
            builder.ticks(thread, 1, S::Running, &worker_stack());
        }
    }
    let tracker = builder.process(
        190,
        110,
        &[
            "python",
            "-c",
            "from multiprocessing.resource_tracker import main;main(5)",
        ],
    );
    builder.thread(tracker, 190, "python", true);
    let shell = builder.process(191, 110, &["sh", "-c", "nvidia-smi"]);
    builder.processes[shell].python.clear();
    // A fork of the launcher that ended before it was seen to exec.
    let command = ["/usr/bin/python", "-m", "torch.distributed.run", "train.py"];
    let fork = builder.process(192, 100, &command);
    builder.thread(fork, 192, "python", true);
    let worker = |number, of| Role::DataLoaderWorker {
        number,
        trainer: Some(ProcessId(of)),
    };
    assert_eq!(
        roles(builder),
        [
            Role::Launcher,
            trainer(Some(0), Some(2), Some(0)),
            worker(0, 1),
            worker(1, 1),
            trainer(Some(1), Some(2), Some(1)),
            worker(0, 4),
            worker(1, 4),
            Role::Other,
            Role::Other,
            Role::Other,
        ]
    );
}

#[test]
fn ranks_by_environment() {
    let cases: [(&[(&str, &str)], Role); 6] = [
        (
            &[
                ("SLURM_PROCID", "3"),
                ("SLURM_NTASKS", "8"),
                ("SLURM_LOCALID", "1"),
            ],
            trainer(Some(3), Some(8), Some(1)),
        ),
        (
            &[
                ("OMPI_COMM_WORLD_RANK", "2"),
                ("OMPI_COMM_WORLD_SIZE", "4"),
                ("PMI_RANK", "9"),
            ],
            trainer(Some(2), Some(4), None),
        ),
        (
            &[("PMI_RANK", "1"), ("PMI_SIZE", "2")],
            trainer(Some(1), Some(2), None),
        ),
        (
            &[("RANK", "x"), ("SLURM_PROCID", "0")],
            trainer(Some(0), None, None),
        ),
        (&[("RANK", "-1")], trainer(None, None, None)),
        (&[], trainer(None, None, None)),
    ];
    for (environment, wanted) in cases {
        let mut builder = Builder::trainer();
        builder.environment(0, environment);
        builder.ticks(0, 1, S::Running, &conv());
        assert_eq!(roles(builder), [wanted], "{environment:?}");
    }
}

#[test]
fn spawned_children_of_a_trainer_are_workers_and_spawned_trainers_are_ranks() {
    let spawn = [
        "python",
        "-c",
        "from multiprocessing.spawn import spawn_main; spawn_main()",
        "--multiprocessing-fork",
    ];
    let mut builder = Builder::trainer();
    builder.ticks(0, 1, S::Running, &conv());
    let child = builder.process(101, 100, &spawn);
    let thread = builder.thread(child, 101, "python", true);
    builder.ticks(
        thread,
        1,
        S::Running,
        &[py("<frozen importlib._bootstrap>", "_find_and_load", 1)],
    );
    // Forked by the worker to run something else, and gone before it did.
    let fork = builder.process(102, 101, &spawn);
    builder.thread(fork, 102, "python", true);
    assert_eq!(
        roles(builder)[1..],
        [
            Role::DataLoaderWorker {
                number: 0,
                trainer: Some(ProcessId(0))
            },
            Role::Other
        ]
    );

    let mut builder = Builder::trainer();
    builder.ticks(
        0,
        1,
        S::Futex,
        &[
            user("main", 3),
            lib("torch/multiprocessing/spawn.py", "spawn"),
        ],
    );
    // What it imports looks like training for a moment.
    builder.ticks(0, 1, S::Running, &conv());
    let child = builder.process(101, 100, &spawn);
    builder.environment(child, &[("RANK", "1")]);
    let thread = builder.thread(child, 101, "python", true);
    builder.ticks(thread, 100, S::Running, &conv());
    assert_eq!(
        roles(builder),
        [Role::Launcher, trainer(Some(1), None, None)]
    );
}

#[test]
fn parents_in_a_ring_end() {
    let mut builder = Builder::new();
    builder.process(100, 101, &["python"]);
    builder.process(101, 100, &["python"]);
    builder.processes[1].start_ticks = builder.processes[0].start_ticks;
    assert_eq!(roles(builder).len(), 2);
}

#[test]
fn a_thread_that_trains_in_place_of_main_is_the_training_thread() {
    let mut builder = Builder::trainer();
    // What prepares the training may look as if it did.
    builder.ticks(0, 1, S::Running, &conv());
    builder.ticks(
        0,
        29,
        S::Futex,
        &[user("main", 3), std_lib("threading.py", "Thread.join")],
    );
    let thread = builder.thread(0, 101, "Thread-1", true);
    builder.ticks(thread, 30, S::Running, &conv());
    let (profile, analysis) = analyzed(builder);
    assert_eq!(
        profile.processes[0]
            .training_thread
            .map(|thread| thread.index()),
        Some(thread)
    );
    assert_eq!(
        analysis
            .primary()
            .unwrap()
            .row_ns(SummaryRow::HostComputation),
        30 * TICK_NS
    );
}

/// Compiled Python has frames, and no interpreter loop between whose native frames they belong.
#[test]
fn what_does_not_merge_is_said_in_words() {
    for (mismatches, is_said) in [(1, false), (9, true)] {
        let mut builder = Builder::trainer();
        let mismatch = [F::Cut(Partial::MergeMismatch), user("main", 3)];
        builder.ticks(0, mismatches, S::Running, &mismatch);
        builder.ticks(0, 10 - mismatches, S::Running, &[user("main", 3)]);
        let (profile, analysis) = analyzed(builder);
        let text = render_summary(&profile, &analysis, TextOptions::default());
        assert_eq!(text.contains("do not match native ones"), is_said, "{text}");
    }
}

#[test]
fn without_native_frames_rooted_is_not_claimed() {
    let mut builder = Builder::trainer();
    builder.run.native = false;
    builder.ticks(0, 5, S::Running, &[user("main", 3)]);
    let (profile, analysis) = analyzed(builder);
    assert_eq!(analysis.quality.rooted_share, None);
    assert_eq!(analysis.quality.merged_share, Some(1.0));
    assert!(render_summary(&profile, &analysis, TextOptions::default()).contains("not asked for"));
}

fn any_stack() -> impl Strategy<Value = Vec<F>> {
    let frame = prop_oneof![
        Just(user("main", 4)),
        Just(module_call()),
        Just(lib("torch/utils/data/dataloader.py", "_next_data")),
        Just(lib("torch/autograd/graph.py", "_engine_run_backward")),
        Just(torch("at::native::add(at::Tensor const&)")),
        Just(torch("torch::autograd::Engine::thread_init(int)")),
        Just(native("libnccl.so.2", "ncclAllReduce")),
        Just(libc("pthread_cond_wait")),
        Just(F::Anonymous),
        Just(unnamed("other.so")),
    ];
    proptest::collection::vec(frame, 0..6)
}

fn any_state() -> impl Strategy<Value = S> {
    prop_oneof![
        Just(S::Running),
        Just(S::Futex),
        Just(S::Read),
        Just(S::Poll),
        Just(S::Disk),
        Just(S::Ioctl)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_sum_is_the_wall_time(
        samples in proptest::collection::vec((0_usize..3, 1_u64..50_000_000, 0_u64..60_000_000, any_state(), any_stack()), 1..80)
    ) {
        let mut builder = Builder::trainer();
        builder.thread(0, 101, "pt_autograd_0", false);
        builder.thread(0, 102, "python", true);
        for (thread, weight_ns, queue_ns, state, stack) in &samples {
            builder.sample(*thread, *weight_ns, *state, stack).queue_ns = *queue_ns;
        }
        let profile = builder.profile();
        let analysis = analyze(&profile);
        for process in &analysis.processes {
            let thread = process.training_thread.map(|thread| thread.index());
            let wall_ns: u64 = samples.iter().filter(|sample| Some(sample.0) == thread).map(|sample| sample.1).sum();
            prop_assert_eq!(process.wall_ns, wall_ns);
            prop_assert_eq!(process.matrix.total(), wall_ns);
            prop_assert_eq!(process.rows.iter().map(|&(_, ns, _)| ns).sum::<u64>(), wall_ns);
            prop_assert_eq!(process.itwinai.computation_ns + process.itwinai.other_ns, wall_ns);
            if wall_ns > 0 {
                for shares in [
                    process.rows.iter().map(|(_, _, share)| share.value).sum::<f64>(),
                    process.phases.iter().map(|(_, share)| share.value).sum::<f64>(),
                    process.activities.iter().map(|(_, share)| share.value).sum::<f64>(),
                ] {
                    prop_assert!((shares - 1.0).abs() < 1e-6, "{}", shares);
                }
                for (_, _, share) in &process.rows {
                    prop_assert!(0.0 <= share.low && share.low <= share.value && share.value <= share.high && share.high <= 1.0);
                }
            }
        }
        let all: u64 = samples.iter().map(|sample| sample.1).sum();
        prop_assert_eq!(profile.samples.iter().map(|sample| sample.weight_ns).sum::<u64>(), all);
        let text = render_summary(&profile, &analysis, TextOptions::default());
        prop_assert!(text.lines().all(|line| line.chars().count() <= 80));
        render_json(&profile, &analysis).unwrap();
    }
}
