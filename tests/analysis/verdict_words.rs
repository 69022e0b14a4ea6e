//! What reports say in words, where figures could be read in two ways: causes, next steps, rows,
//! counts, roles.

use crate::analysis_builder::*;
use crate::track_builder::{cpus, put, track};
use crate::verdict_scenarios::{Do, Run, Workers};
use torchspy::analysis::analyze;
use torchspy::analysis::verdict::{Cause, Verdict};
use torchspy::model::category::SummaryRow;
use torchspy::model::profile::{Profile, Role};
use torchspy::model::track::TrackKind;
use torchspy::report::text::{TextOptions, render_summary};

fn text(profile: &Profile) -> String {
    render_summary(profile, &analyze(profile), TextOptions::default())
}

/// A run without a GPU.
fn host(step: &[(Do, u64)]) -> Run {
    Run {
        cuda: false,
        ..Run::new("host", None, step)
    }
}

fn cause(run: &Run) -> (Option<Cause>, Verdict) {
    let (_, verdict) = run.verdict();
    (verdict.cause, verdict)
}

#[test]
fn barriers_are_a_row_a_wait_and_a_cause() {
    let run = |omp, affinity| Run {
        omp,
        affinity: Some(affinity),
        ..host(&[(Do::Barrier, 55), (Do::Elementwise, 35), (Do::Python, 10)])
    };
    let (found, verdict) = cause(&run(7, 2));
    assert_eq!(
        found,
        Some(Cause::BarrierThreads),
        "{:#?}",
        verdict.findings
    );
    let next = verdict.next_step.unwrap();
    assert!(
        next.starts_with(
            "OpenMP threads want 2 CPUs (8 OpenMP threads seen, OMP_NUM_THREADS not set)"
        ),
        "{next}"
    );
    // Others compute while the training thread waits for them.
    assert_eq!(cause(&run(1, 2)).0, Some(Cause::BarrierUneven));
    // Nobody does.
    assert_eq!(cause(&run(0, 2)).0, Some(Cause::BarrierShort));

    let profile = run(1, 2).profile();
    let shown = text(&profile);
    for line in [
        "VERDICT barrier-bound, uneven OpenMP work",
        "  OpenMP barriers    ",
        "OpenMP barrier in aten::gelu",
    ] {
        assert!(shown.contains(line), "{line}:\n{shown}");
    }
    let analysis = analyze(&profile);
    let process = analysis.primary().unwrap();
    let share = |row| process.row_ns(row) * 100 / process.wall_ns;
    assert_eq!(share(SummaryRow::OmpBarrier), 55);
    assert_eq!(share(SummaryRow::HostComputation), 35);
}

#[test]
fn waits_for_a_cpu_start_up_and_compile_are_rows() {
    let run = Run {
        startup: 300,
        ..host(&[(Do::Starved, 40), (Do::Compile, 60)])
    };
    let profile = run.profile();
    let shown = text(&profile);
    for line in ["  waiting for a CPU ", "  start-up ", "  torch.compile "] {
        assert!(shown.contains(line), "{line}:\n{shown}");
    }
    let analysis = analyze(&profile);
    // The loader of the program's own libraries, before the first import.
    let other_ns = analysis.primary().unwrap().row_ns(SummaryRow::Other);
    assert!(other_ns <= 3 * TICK_NS, "{other_ns}");
    assert!(
        shown.lines().all(|line| line.chars().count() <= 80),
        "{shown}"
    );
}

/// The verdict's figures are of the time after start-up: the table of rows gives them under that
/// name.
#[test]
fn rows_after_start_up_are_the_verdicts_figures() {
    let run = Run {
        startup: 1000,
        ..host(&[(Do::MakeBatch, 30), (Do::Gemm, 50), (Do::Starved, 20)])
    };
    let profile = run.profile();
    let analysis = analyze(&profile);
    let process = analysis.primary().unwrap();
    let verdict = analysis.verdict.as_ref().unwrap();
    use torchspy::analysis::verdict::figures::Part;
    for (row, parts) in [
        (SummaryRow::Input, &[Part::InputWait, Part::InputOwn][..]),
        (SummaryRow::CpuWait, &[Part::NoCpu]),
        (SummaryRow::Python, &[Part::Python]),
        (
            SummaryRow::HostComputation,
            &[Part::Compute, Part::Dispatch],
        ),
    ] {
        let figure: f64 = parts.iter().map(|part| verdict.figures.of(*part)).sum();
        let share = process.after_startup[row as usize].value;
        assert!((figure - share).abs() < 1e-9, "{row:?}: {figure} {share}");
    }
    let shown = text(&profile);
    assert!(
        shown.contains("% of all    % after start-up (30.0 s)"),
        "{shown}"
    );
    let input = shown.lines().find(|line| line.starts_with("  input "));
    assert!(input.unwrap().contains("30.0 %"), "{shown}");
}

#[test]
fn without_a_gpu_nothing_is_launched() {
    let (found, verdict) = cause(&host(&[
        (Do::Dispatch, 65),
        (Do::Python, 25),
        (Do::Gemm, 10),
    ]));
    assert_eq!(found, Some(Cause::Dispatch));
    // What would be gained is that of dispatch, and not of Python.
    let bound = verdict.bound.unwrap();
    assert!((2.8..2.9).contains(&bound.speedup), "{bound:?}");
    let run = host(&[(Do::Dispatch, 65), (Do::Python, 25), (Do::Gemm, 10)]);
    let shown = text(&run.profile());
    assert!(
        !shown.contains("GPU ") || !shown.contains("hands work"),
        "{shown}"
    );
    assert!(shown.contains("VERDICT dispatch-bound"), "{shown}");
}

/// libcuda is mapped by asking whether there is a GPU.
#[test]
fn cuda_that_is_loaded_is_not_used() {
    let mut run = host(&[(Do::Dispatch, 65), (Do::Python, 25), (Do::Gemm, 10)]);
    run.cuda = true;
    assert_eq!(cause(&run).0, Some(Cause::Dispatch));
    assert_eq!(cause(&run).1.missing, Vec::<String>::new());
}

#[test]
fn without_one_cause_the_two_largest_have_a_next_step() {
    let run = host(&[(Do::Compile, 60), (Do::Dispatch, 25), (Do::Python, 15)]);
    let (found, verdict) = cause(&run);
    assert_eq!(found, None);
    let costs: Vec<_> = verdict.costs.iter().map(|cost| cost.what).collect();
    assert_eq!(costs, ["torch.compile at work", "dispatch of operators"]);
    let shown = text(&run.profile());
    for line in [
        "NEXT    1. torch.compile at work, 60 % after start-up: ",
        "        2. dispatch of operators, 25 % after start-up: ",
        "BOUND   without torch.compile at work: at most 2.5x",
        "torch.compile at work 60 %",
    ] {
        assert!(shown.contains(line), "{line}:\n{shown}");
    }
}

/// One that lived for a second of a minute used a sixtieth of what it used then.
#[test]
fn cpus_in_use_are_over_all_of_the_time() {
    let mut builder = Builder::trainer();
    builder.ticks(0, 1000, S::Running, &[user("main", 3)]);
    for worker in 0..20 {
        let at = worker * 500_000_000;
        let track = track(&mut builder, TrackKind::Cpu, None, 1000 + worker as i32);
        put(&mut builder, track, at, at + 500_000_000, 450_000_000);
    }
    cpus(&mut builder, 100, 10_000_000_000, 0.8);
    let analysis = analyze(&builder.profile());
    let used = analysis.verdict.unwrap().figures.cpus.used.unwrap();
    assert!((1.69..1.71).contains(&used), "{used}");
}

#[test]
fn a_single_thread_is_not_told_to_be_fewer() {
    let run = Run {
        affinity: Some(1),
        loads: vec![(100, 0.75)],
        ..host(&[(Do::Starved, 80), (Do::Gemm, 20)])
    };
    let (found, verdict) = cause(&run);
    assert_eq!(found, Some(Cause::CpuStarved));
    let next = verdict.next_step.unwrap();
    assert!(
        next.starts_with("stop other programs on these CPUs"),
        "{next}"
    );
}

/// An OpenMP thread that waits for a CPU keeps the training thread at its barrier.
#[test]
fn barriers_beside_other_programs_count_as_missing_cpus() {
    let run = Run {
        omp: 1,
        affinity: Some(2),
        loads: vec![(100, 0.75)],
        ..host(&[(Do::Starved, 60), (Do::Barrier, 20), (Do::Gemm, 20)])
    };
    let (found, verdict) = cause(&run);
    assert_eq!(found, Some(Cause::CpuStarved));
    let speedup = verdict.bound.unwrap().speedup;
    // Half of what is `Starved` is without a CPU.
    assert!((1.9..2.1).contains(&speedup), "{speedup}");
    let next = verdict.next_step.unwrap();
    assert!(next.contains("until then OMP_NUM_THREADS=1"), "{next}");
    // What the bound takes away is in the evidence, all of it.
    let shown = text(&run.profile());
    let why = "without cpu 30 % after start-up (≥ 10 %), omp barrier 20 % after";
    assert!(shown.contains(why), "{shown}");
    assert!(shown.contains("at most 2.0x"), "{shown}");
}

/// A run without threads or workers of its own to take away is not told to.
#[test]
fn fewer_threads_are_advised_where_there_are_several() {
    let next = |omp: u64, count: u64| {
        let run = Run {
            omp,
            affinity: Some(1),
            loads: vec![(100, 0.99)],
            workers: Workers {
                count,
                decode: 10,
                idle: 90,
                ..Workers::default()
            },
            ..host(&[(Do::Starved, 80), (Do::Gemm, 20)])
        };
        let (found, verdict) = cause(&run);
        assert_eq!(found, Some(Cause::CpuStarved));
        verdict.next_step.unwrap()
    };
    let several = next(4, 2);
    assert!(
        several.starts_with("more CPUs, or fewer OpenMP threads (now "),
        "{several}"
    );
    assert!(
        several.contains(" or DataLoader workers (now 2)"),
        "{several}"
    );
    let none = next(0, 0);
    assert!(
        none.starts_with("more CPUs, or fewer processes that share them"),
        "{none}"
    );
}

/// Threads that spin have a CPU, and compute nothing; how many there are is seen, whatever the
/// environment says.
#[test]
fn cpus_that_spin_do_not_compute() {
    let mut builder = Builder::trainer();
    let frames = |leaf: F| {
        [
            user("main", 3),
            lib("torch/nn/modules/module.py", "Module._call_impl"),
            torch("at::_ops::mm::call(at::Tensor const&)"),
            leaf,
        ]
    };
    let kernel = native("libmkl_core.so.2", "mkl_blas_avx512_sgemm_kernel");
    let spin = native("libgomp.so.1", "gomp_team_barrier_wait_end");
    builder.ticks(0, 1000, S::Running, &frames(kernel));
    let other = builder.thread(0, 101, "python", false);
    let idle = [native("libgomp.so.1", "gomp_thread_start"), spin];
    builder.ticks(other, 1000, S::Running, &idle);
    cpus(&mut builder, 100, 10_000_000_000, 1.95);
    builder.run.cpus = 2;
    let verdict = analyze(&builder.profile()).verdict.unwrap();
    assert_eq!(verdict.cause, Some(Cause::HostCompute));
    let next = verdict.next_step.unwrap();
    assert!(
        next.starts_with("0.9 of 2.0 CPUs compute (2 OpenMP threads seen"),
        "{next}"
    );
}

/// What the training thread does of a loader that has workers is no code of the dataset's.
#[test]
fn a_wait_for_the_gil_under_the_loader_is_no_dataset_code() {
    let mut builder = Builder::trainer();
    let wait = [
        user("main", 88),
        lib(
            "torch/utils/data/dataloader.py",
            "_BaseDataLoaderIter.__next__",
        ),
        lib("torch/autograd/profiler.py", "record_function.__exit__"),
        cpython("take_gil"),
        libc("pthread_cond_timedwait"),
    ];
    let leaves = &wait[..3];
    builder.ticks(0, 300, S::Futex, &wait);
    builder.ticks(0, 100, S::Running, leaves);
    builder.ticks(0, 600, S::Running, &[user("main", 90)]);
    let profile = builder.profile();
    let analysis = analyze(&profile);
    let process = analysis.primary().unwrap();
    assert_eq!(process.row_ns(SummaryRow::Input), 100 * TICK_NS);
    assert_eq!(process.row_ns(SummaryRow::Python), 900 * TICK_NS);
    let shown = text(&profile);
    assert!(!shown.contains("dataset code"), "{shown}");
    assert!(!shown.contains("makes batches"), "{shown}");
}

#[test]
fn one_sample_is_one() {
    let run = Run {
        steps: 1,
        ..host(&[(Do::Gemm, 1)])
    };
    let shown = text(&run.profile());
    assert!(shown.contains("only 1 sample after start-up"), "{shown}");
}

/// NCCL's destructors run in processes that never used it.
#[test]
fn nccl_of_a_destructor_is_not_used() {
    let mut builder = Builder::trainer();
    builder.ticks(0, 300, S::Running, &[user("main", 3)]);
    let leaves = [
        libc("exit"),
        native(
            "libtorch_cuda.so",
            "c10d::ProcessGroupNCCL::~ProcessGroupNCCL()",
        ),
    ];
    builder.ticks(0, 1, S::Running, &leaves);
    let shown = text(&builder.profile());
    for word in ["NCCL time", "NCCL: the", "(nccl"] {
        assert!(!shown.contains(word), "{word}: {shown}");
    }
}

fn roles(builder: Builder) -> Vec<Role> {
    let profile = builder.profile();
    profile
        .processes
        .iter()
        .map(|process| process.role)
        .collect()
}

/// A child between fork and exec has all that its parent had mapped.
#[test]
fn a_process_without_a_sample_is_no_trainer() {
    let mut builder = Builder::trainer();
    builder.process(101, 100, &["python", "train.py"]);
    builder.thread(1, 101, "python", true);
    builder.ticks(0, 100, S::Running, &[user("main", 3)]);
    // The same, with a sample before it was another program that ended soon.
    let child = builder.process(102, 100, &["python", "train.py"]);
    builder.processes[child].exited = true;
    let thread = builder.thread(child, 102, "python", true);
    builder.ticks(thread, 1, S::Running, &[user("main", 3)]);
    assert_eq!(roles(builder)[1..], [Role::Other, Role::Other]);
}

/// Hogwild: the parent starts those that train, waits for them, and evaluates what they made.
#[test]
fn who_evaluates_what_its_children_train_is_their_launcher() {
    let module = lib("torch/nn/modules/module.py", "Module._call_impl");
    let mut builder = Builder::trainer();
    builder.ticks(
        0,
        500,
        S::Futex,
        &[user("main", 9), std_lib("threading.py", "join")],
    );
    builder.ticks(0, 200, S::Running, &[user("test", 30), module.clone()]);
    for pid in [101, 102] {
        let process = builder.process(pid, 100, &["python", "-c", "multiprocessing.spawn"]);
        let thread = builder.thread(process, pid, "python", true);
        builder.ticks(
            thread,
            300,
            S::Running,
            &[user("train", 12), module.clone()],
        );
        let step = [
            user("train", 14),
            lib("torch/optim/optimizer.py", "wrapper"),
        ];
        builder.ticks(thread, 200, S::Running, &step);
    }
    let profile = builder.profile();
    assert_eq!(profile.processes[0].role, Role::Launcher);
    let analysis = analyze(&profile);
    let primary = &profile.processes[analysis.primary().unwrap().process.index()];
    assert_eq!(primary.info.pid, 101);
}

#[test]
fn what_accelerate_looks_for_in_a_step_is_the_optimizers() {
    use torchspy::model::category::Phase;
    let mut builder = Builder::trainer();
    let looks = [
        user("main", 3),
        lib("accelerate/optimizer.py", "AcceleratedOptimizer.step"),
        lib("accelerate/utils/imports.py", "is_lomo_available"),
        std_lib("importlib/util.py", "find_spec"),
        py("<frozen importlib._bootstrap>", "_find_spec", 1),
    ];
    builder.ticks(0, 100, S::Running, &looks);
    let analysis = analyze(&builder.profile());
    let process = analysis.primary().unwrap();
    assert_eq!(process.matrix.phase(Phase::Optimizer), 100 * TICK_NS);
    assert_eq!(process.row_ns(SummaryRow::Startup), 0);
}

/// FSDP2 switches the compiler off around each of its hooks.
#[test]
fn dynamo_that_is_switched_off_compiles_nothing() {
    use torchspy::model::category::Phase;
    let mut builder = Builder::trainer();
    let off = [
        user("run", 14),
        lib(
            "torch/distributed/fsdp/_fully_shard/_fsdp_common.py",
            "_dynamo_disable.<locals>.wrapper",
        ),
        lib("torch/_dynamo/decorators.py", "disable"),
        lib("torch/_dynamo/eval_frame.py", "innermost_fn"),
    ];
    builder.ticks(0, 100, S::Running, &off);
    // Dynamo's functions are called without a compilation, too.
    let config = [
        user("run", 15),
        lib("torch/_dynamo/convert_frame.py", "__init__"),
    ];
    builder.ticks(0, 50, S::Running, &config);
    let profile = builder.profile();
    let analysis = analyze(&profile);
    let matrix = &analysis.primary().unwrap().matrix;
    assert_eq!(matrix.phase(Phase::Communication), 100 * TICK_NS);
    let shown = text(&profile);
    assert!(!shown.contains("TORCH.COMPILE"), "{shown}");
}

/// Collectives are in other phases, too: the table of steps, which is by phase, says so.
#[test]
fn collectives_of_backward_are_named_in_the_table_of_steps() {
    use torchspy::model::ids::{CounterId, ProcessId, ThreadId};
    use torchspy::model::progress::{CounterInfo, CounterKind, ProgressPoint};
    let mut builder = Builder::trainer();
    builder.counters.push(CounterInfo {
        process: ProcessId(0),
        number: 0,
        kind: CounterKind::TrainerSteps,
        class: "TrainerState".to_owned(),
        file: String::new(),
        line: 0,
        facts: Vec::new(),
    });
    let forward = [
        user("main", 9),
        lib("torch/nn/modules/module.py", "Module._call_impl"),
    ];
    let reduce = [
        user("main", 10),
        lib("torch/_tensor.py", "Tensor.backward"),
        torch("c10d::Reducer::finalize_backward()"),
        torch("c10d::ProcessGroupGloo::AsyncWork::wait(std::chrono::duration<long>)"),
        libc("pthread_cond_wait"),
    ];
    for step in 0..50_u64 {
        builder.ticks(0, 5, S::Running, &forward);
        builder.ticks(0, 5, S::Futex, &reduce);
        let time_ns = (step * 10 + 10) * TICK_NS - TICK_NS / 2;
        builder.sideband.points.push(ProgressPoint {
            counter: CounterId(0),
            thread: ThreadId(0),
            before_ns: time_ns - TICK_NS,
            time_ns,
            value: step + 1,
        });
    }
    let profile = builder.profile();
    let analysis = analyze(&profile);
    let process = analysis.primary().unwrap();
    let elsewhere = process
        .progress
        .as_ref()
        .unwrap()
        .collectives_elsewhere
        .value;
    let row = process.row_ns(SummaryRow::Communication) as f64 / process.wall_ns as f64;
    assert!((elsewhere - row).abs() < 0.02, "{elsewhere} {row}");
    let shown = text(&profile);
    assert!(
        shown.contains("of these, collectives in other phases"),
        "{shown}"
    );
}

/// Every pass starts workers of its own: how many are set is one thing, how many were seen another.
#[test]
fn worker_processes_are_no_setting() {
    let mut builder = Builder::trainer();
    builder.ticks(0, 100, S::Running, &[user("main", 3)]);
    for pid in 200..206 {
        let process = builder.process(pid, 100, &["python", "train.py"]);
        let thread = builder.thread(process, pid, "pt_data_worker", true);
        builder.ticks(thread, 20, S::Running, &fetch(&[]));
    }
    let shown = text(&builder.profile());
    assert!(
        shown.contains("6 DataLoader worker processes seen"),
        "{shown}"
    );
    assert!(
        shown.contains("6 DataLoader worker processes of trainer"),
        "{shown}"
    );
    assert!(!shown.contains("DataLoader workers"), "{shown}");
}

#[test]
fn lines_have_intervals() {
    let mut builder = Builder::trainer();
    for _ in 0..10 {
        builder.ticks(0, 70, S::Running, &[user("main", 3)]);
        builder.ticks(0, 30, S::Running, &[user("main", 4)]);
    }
    let profile = builder.profile();
    let shown = text(&profile);
    let line = shown
        .lines()
        .find(|line| line.contains("70.0 % ±") && line.contains("train.py:3 main"));
    assert!(line.is_some(), "{shown}");
    let json = torchspy::report::json::render_json(&profile, &analyze(&profile)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let share = &json["lines"][0]["self_share"];
    assert!(
        (share["share"].as_f64().unwrap() - 0.7).abs() < 1e-9,
        "{share}"
    );
    assert!(share["low"].as_f64().unwrap() < 0.7);
}

/// The value of an attribute of the element with an id.
fn attribute(svg: &str, id: &str, name: &str) -> f64 {
    let (_, tag) = svg.split_once(&format!("id=\"{id}\"")).unwrap();
    let (_, value) = tag.split_once(&format!(" {name}=\"")).unwrap();
    value.split_once('"').unwrap().0.parse().unwrap()
}

/// At half of a screen's width all of the head can be read, and matches have a line of their own.
#[test]
fn the_head_of_a_drawing_fits_700_pixels() {
    use torchspy::report::flamegraph::render;
    let mut builder = Builder::trainer();
    builder.run.host = "a-node-with-a-long-name.cluster.example.org".to_owned();
    builder.run.command = ["python", "train.py"].map(str::to_owned).to_vec();
    builder
        .run
        .command
        .extend((0..20).map(|number| format!("--option-{number}")));
    let module = lib("torch/nn/modules/module.py", "Module._call_impl");
    for leaf in [
        user("main", 3),
        module,
        torch("at::_ops::mm::call(at::Tensor const&)"),
        libc("read"),
    ] {
        builder.ticks(0, 50, S::Running, &[user("<module>", 1), leaf]);
    }
    let mut svg = Vec::new();
    render(&builder.profile(), &Default::default(), &mut svg).unwrap();
    let svg = String::from_utf8(svg).unwrap();
    let text_of = |id: &str| {
        let (_, tag) = svg.split_once(&format!("id=\"{id}\"")).unwrap();
        let (_, text) = tag.split_once('>').unwrap();
        text.split_once('<').unwrap().0.chars().count() as f64
    };
    assert!(text_of("title") * 17.0 * 0.59 <= 700.0);
    assert!(text_of("subtitle") * 12.0 * 0.59 <= 700.0);
    let (_, legend) = svg.split_once("<g id=\"legend\">").unwrap();
    let (legend, _) = legend.split_once("</g>").unwrap();
    for part in legend.split("<text x=\"").skip(1) {
        let (x, rest) = part.split_once('"').unwrap();
        let (_, rest) = rest.split_once('>').unwrap();
        let letters = rest.split_once('<').unwrap().0.chars().count();
        let end = x.parse::<f64>().unwrap() + letters as f64 * 12.0 * 0.59;
        assert!(end <= 700.0, "{part}");
    }
    let apart = attribute(&svg, "details", "y") - attribute(&svg, "matched", "y");
    assert!(apart >= 12.0, "{apart}");
}

#[test]
fn a_recording_of_start_up_alone_says_so() {
    let mut builder = Builder::trainer();
    let import = [
        user("<module>", 1),
        py("<frozen importlib._bootstrap>", "_find_and_load", 1),
    ];
    builder.ticks(0, 300, S::Running, &import);
    let shown = text(&builder.profile());
    assert!(
        shown.contains("VERDICT none: nothing after start-up was recorded"),
        "{shown}"
    );
    assert!(
        shown.contains("MISSING no samples after start-up"),
        "{shown}"
    );
    assert!(!shown.contains("\nWHY"), "{shown}");
}

/// What the GPU did was not seen: the host may only have waited for it, and nothing is advised.
#[test]
fn without_a_gpu_track_its_waits_have_no_next_step() {
    let run = Run {
        cuda: true,
        ..host(&[(Do::Launch, 50), (Do::Sync, 50)])
    };
    assert_eq!(cause(&run).0, None);
    assert_eq!(cause(&run).1.costs, []);
}

/// CPUs that others take look idle, but are not to be had by more threads or workers.
#[test]
fn a_crowded_run_is_not_told_to_use_more_cpus() {
    // Too few ticks are without a CPU to be what it is bound by.
    let step = &[(Do::Gemm, 90), (Do::Python, 10)];
    let run = |queue| Run {
        affinity: Some(4),
        loads: vec![(100, 0.8)],
        queues: vec![queue],
        ..host(step)
    };
    let (found, verdict) = cause(&run(0.13));
    assert_eq!(found, Some(Cause::HostCompute), "{:#?}", verdict.findings);
    let next = verdict.next_step.unwrap();
    assert!(
        next.starts_with(
            "0.8 of 4.0 CPUs compute, and threads lack one 13 % of the time that they want it (1 OpenMP"
        ),
        "{next}"
    );

    let run = Run {
        affinity: Some(4),
        loads: vec![(100, 0.8)],
        workers: Workers {
            count: 2,
            decode: 60,
            starved: 15,
            idle: 25,
            ..Workers::default()
        },
        ..host(&[(Do::Wait, 70), (Do::Gemm, 30)])
    };
    let (found, verdict) = cause(&run);
    assert_eq!(found, Some(Cause::InputWork), "{:#?}", verdict.findings);
    let next = verdict.next_step.unwrap();
    assert!(
        next.starts_with(
            "no CPU is left for more workers (now 2) (0.8 of 4 CPUs used), and threads"
        ),
        "{next}"
    );
}

/// Programs that the training script starts are no strangers.
#[test]
fn programs_of_the_run_that_take_its_cpus_are_named() {
    let said = |cpus: f64| {
        let mut builder = Builder::trainer();
        builder.run.cpus = 2;
        for pid in [101, 102] {
            let child = builder.process(pid, 100, &["/usr/bin/ffmpeg", "-i", "film.mkv"]);
            builder.processes[child].has_torch = false;
            builder.processes[child].cpu_ns = (cpus / 2.0 * 10e9) as u64;
        }
        for _ in 0..1000 {
            let sample = builder.sample(0, TICK_NS, S::Running, &[user("main", 3)]);
            sample.queue_ns = TICK_NS / 2;
        }
        cpus_of(&mut builder, 100, 0.5);
        cpus_of(&mut builder, 101, cpus);
        let verdict = analyze(&builder.profile()).verdict.unwrap();
        assert_eq!(verdict.cause, Some(Cause::CpuStarved));
        verdict.next_step.unwrap()
    };
    assert_eq!(
        said(1.2),
        "2 processes of ffmpeg, which this run starts, use 1.2 CPUs (1.7 of 2 CPUs used): run them \
         before or later, with fewer threads, or on other CPUs"
    );
    // Others take more.
    let next = said(0.3);
    assert!(
        next.starts_with("stop other programs on these CPUs"),
        "{next}"
    );
}

fn cpus_of(builder: &mut Builder, pid: i32, used: f64) {
    cpus(builder, pid, 10_000_000_000, used);
}

#[test]
fn workers_without_work_end_their_sentence() {
    let run = Run {
        workers: Workers {
            count: 2,
            decode: 2,
            idle: 98,
            ..Workers::default()
        },
        ..host(&[(Do::Wait, 70), (Do::Gemm, 30)])
    };
    let shown = text(&run.profile());
    assert!(
        shown.contains("; workers busy 3 % of their time\n"),
        "{shown}"
    );
}
