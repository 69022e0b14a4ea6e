//! Verdicts on made-up runs: each cause, and each guard rail. These were looked at while the rules
//! were written.

use crate::verdict_scenarios::{Device, Do, Run, Workers};
use torchspy::analysis::analyze;
use torchspy::analysis::verdict::{Cause, Confidence};
use torchspy::model::profile::Profile;
use torchspy::model::track::TrackKind;
use torchspy::report::json::render_json;
use torchspy::report::text::{Detail, TextOptions, render_summary};

fn name(cause: Option<Cause>) -> Option<&'static str> {
    cause.map(Cause::name)
}

fn assert_verdict(run: &Run) {
    let (profile, verdict) = run.verdict();
    assert_eq!(
        name(verdict.cause),
        run.expected,
        "{}: {:#?}",
        run.name,
        verdict.findings
    );
    assert_fits_a_screen(&profile);
}

/// What `report` and `record` print if nothing else is asked for: 40 lines of 80 columns, with the
/// verdict.
fn assert_fits_a_screen(profile: &Profile) {
    let analysis = analyze(profile);
    let text = |detail| {
        let options = TextOptions {
            detail,
            ..TextOptions::default()
        };
        render_summary(profile, &analysis, options)
    };
    let (first, last) = (text(Detail::Brief), text(Detail::VerdictLast));
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (mut above, mut below) = (lines(&first), lines(&last));
    assert!(above.len() <= 40, "{} lines: {first}", above.len());
    let fits = |line: &String| line.chars().count() <= 80;
    assert!(above.iter().all(fits), "{first}");
    let at = |lines: &[String], word: &str| lines.iter().position(|line| line.starts_with(word));
    assert!(
        at(&above, "VERDICT") < at(&above, "HOST WALL TIME"),
        "{first}"
    );
    assert!(at(&below, "VERDICT") > at(&below, "SAMPLER"), "{last}");
    let bounds = above.iter().filter(|line| line.contains(": at most "));
    assert_eq!(bounds.count() > 0, at(&above, "BOUND").is_some(), "{first}");
    // What it says to type is taken.
    let subjects = ["op", "module", "phase", "step", "line", "wait"];
    let typed = above.iter().filter_map(|line| line.split_once("--by "));
    for (_, rest) in typed {
        let subject = rest.split(' ').next().unwrap();
        assert!(subjects.contains(&subject), "{rest}: {first}");
    }
    // Only the order differs.
    above.sort_unstable();
    below.sort_unstable();
    assert_eq!(above, below, "{last}");
}

fn starving() -> Run {
    Run {
        workers: Workers {
            count: 2,
            decode: 90,
            idle: 10,
            ..Workers::default()
        },
        cpus: Some((3.0, 16.0)),
        ..Run::new(
            "decoding",
            Some("input-bound"),
            &[(Do::Wait, 60), (Do::Launch, 30), (Do::Python, 10)],
        )
        .device(Device::busy(0.3))
    }
}

#[test]
fn input_bound_by_decoding_asks_for_workers() {
    let run = starving();
    assert_verdict(&run);
    let (profile, verdict) = run.verdict();
    assert_eq!(verdict.cause, Some(Cause::InputWork));
    assert_eq!(verdict.confidence, Some(Confidence::High));
    let bound = verdict.bound.unwrap();
    assert!((2.4..=2.6).contains(&bound.speedup), "{bound:?}");
    let next = verdict.next_step.unwrap();
    // 60 % of the time is waited for two workers: five would do.
    assert!(
        next.contains("workers 2 -> 5 (3.0 of 16 CPUs used)"),
        "{next}"
    );
    assert!(next.contains(" % of their work is at "), "{next}");
    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    for line in [
        "VERDICT input-bound, batch work (high). Training thread waits for data 60 % ±2",
        "        of the time after start-up",
        "        at train.py:88 in main",
        "WHY     input 60 % after start-up (≥ 15 %), gpu busy meanwhile 30 % (≤ 85 %);",
        "NEXT    workers 2 -> 5",
        "BOUND   with free input: at most 2.5x",
    ] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let json = render_json(&profile, &analyze(&profile)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let verdict = &json["verdict"];
    assert_eq!(verdict["cause"], "input-bound");
    assert_eq!(verdict["evidence"][0]["figure"], "input");
    assert_eq!(verdict["evidence"][0]["at_least"], 0.15);
    assert_eq!(verdict["at"]["line"], 88);
    assert_eq!(verdict["at_most"]["without"], "free input");
}

#[test]
fn input_bound_without_workers() {
    let run = Run {
        pin_memory: Some(false),
        ..Run::new(
            "own input",
            Some("input-bound"),
            &[(Do::MakeBatch, 50), (Do::Launch, 40), (Do::Python, 10)],
        )
        .device(Device::busy(0.4))
    };
    assert_verdict(&run);
    let next = run.verdict().1.next_step.unwrap();
    assert!(next.starts_with("workers 0 -> 2"), "{next}");
    // More than there are CPUs for.
    let heavy = Run {
        cpus: Some((1.0, 2.0)),
        pin_memory: Some(false),
        ..Run::new(
            "heavy input",
            Some("input-bound"),
            &[(Do::MakeBatch, 78), (Do::Launch, 17), (Do::Python, 5)],
        )
        .device(Device::busy(0.2))
    };
    let next = heavy.verdict().1.next_step.unwrap();
    for words in ["workers 0 -> 1", "it would take 5 to hide all of it"] {
        assert!(next.contains(words), "{next}");
    }
}

/// Steps need their batches: without its Python this run would wait for its workers.
#[test]
fn bounds_leave_workers_their_time() {
    let run = Run {
        workers: Workers {
            count: 1,
            decode: 90,
            idle: 10,
            ..Workers::default()
        },
        ..Run::new(
            "Python and workers",
            Some("Python-bound"),
            &[(Do::Python, 65), (Do::Launch, 30), (Do::Sync, 5)],
        )
        .device(Device::busy(0.2))
    };
    assert_verdict(&run);
    let verdict = run.verdict().1;
    let bound = verdict.bound.unwrap();
    assert!((1.09..=1.13).contains(&bound.speedup), "{bound:?}");
    let next = verdict.next_step.unwrap();
    let words = "batches come next: workers make them for 90 % of their time";
    assert!(next.contains(words), "{next}");
}

/// Where nothing stands out, a wait for a device that is idle for a quarter of the time is a cost,
/// with no more to gain than that.
#[test]
fn a_wait_for_a_rather_busy_device_is_listed() {
    let step = [(Do::Sync, 47), (Do::Sleep, 46), (Do::Launch, 7)];
    let run = Run::new("rather busy", None, &step).device(Device::busy(0.77));
    assert_verdict(&run);
    let costs = run.verdict().1.costs;
    let wait = costs.iter().find(|cost| cost.what == "waiting for the GPU");
    let most = wait.unwrap().at_most.unwrap();
    assert!((1.25..=1.35).contains(&most), "{costs:?}");
}

/// What a part costs holds the time in which the thread had no CPU for it.
#[test]
fn bounds_hold_the_waits_for_a_cpu_of_what_is_removed() {
    let run = Run {
        queues: vec![0.5],
        ..Run::new(
            "starved input",
            None,
            &[(Do::MakeBatch, 80), (Do::Launch, 20)],
        )
    };
    let (_, verdict) = run.verdict();
    use torchspy::analysis::verdict::figures::Part;
    let own = verdict.figures.of(Part::InputOwn);
    let gained = verdict.figures.gained(&[Part::InputOwn]);
    assert!(own < 0.6 && gained > 0.78, "{own} {gained}");
}

#[test]
fn input_bound_by_storage() {
    let run = Run {
        workers: Workers {
            count: 2,
            decode: 10,
            read: 80,
            idle: 10,
            ..Workers::default()
        },
        ..Run::new(
            "storage",
            Some("input-bound"),
            &[(Do::Wait, 60), (Do::Launch, 30), (Do::Python, 10)],
        )
        .device(Device::busy(0.3))
    };
    assert_verdict(&run);
    assert_eq!(run.verdict().1.cause, Some(Cause::InputStorage));
}

#[test]
fn launch_and_python() {
    let launch = Run::new(
        "launch",
        Some("launch-bound"),
        &[(Do::Launch, 70), (Do::Python, 20), (Do::Sync, 10)],
    )
    .device(Device::busy(0.35));
    assert_verdict(&launch);
    let python = Run::new(
        "Python",
        Some("Python-bound"),
        &[(Do::Python, 65), (Do::Launch, 30), (Do::Sync, 5)],
    )
    .device(Device::busy(0.2));
    assert_verdict(&python);
    let (_, verdict) = python.verdict();
    assert!(verdict.next_step.unwrap().contains("train.py:30"));
}

#[test]
fn gpu_bound_by_compute_and_by_memory() {
    let step = [(Do::Launch, 20), (Do::Sync, 80)];
    let compute = Run::new("compute", Some("GPU-bound"), &step).device(Device::busy(0.97));
    assert_verdict(&compute);
    assert_eq!(compute.verdict().1.cause, Some(Cause::GpuCompute));
    let memory = Run::new("memory", Some("GPU-bound"), &step).device(Device {
        sm: Some(0.55),
        dram: Some(0.8),
        ..Device::busy(0.96)
    });
    assert_verdict(&memory);
    assert_eq!(memory.verdict().1.cause, Some(Cause::GpuMemory));
}

#[test]
fn sync_and_copy_bound() {
    let sync = Run::new(
        "sync",
        Some("sync-bound"),
        &[(Do::Sync, 45), (Do::Launch, 35), (Do::Python, 20)],
    )
    .device(Device::busy(0.4));
    assert_verdict(&sync);
    let next = sync.verdict().1.next_step.unwrap();
    assert!(next.contains(".item() at train.py:97"), "{next}");
    let copy = Run {
        pin_memory: Some(false),
        ..Run::new(
            "copy",
            Some("copy-bound"),
            &[(Do::Copy, 40), (Do::Launch, 40), (Do::Python, 20)],
        )
        .device(Device::busy(0.35))
    };
    assert_verdict(&copy);
    let next = copy.verdict().1.next_step.unwrap();
    assert!(
        next.contains(
            "from pinned memory at train.py:89 (pin_memory=True in the DataLoader, now off)"
        ),
        "{next}"
    );
}

#[test]
fn cpu_starved() {
    let run = Run {
        cpus: Some((2.0, 2.0)),
        ..Run::new(
            "starved",
            Some("CPU-starved"),
            &[(Do::Starved, 80), (Do::Launch, 20)],
        )
        .device(Device::busy(0.2))
    };
    assert_verdict(&run);
    let next = run.verdict().1.next_step.unwrap();
    assert!(next.contains("the cgroup's 2 CPUs"), "{next}");
}

#[test]
fn throttled_by_heat() {
    let run = Run::new(
        "hot",
        Some("throttled"),
        &[(Do::Launch, 20), (Do::Sync, 80)],
    )
    .device(Device {
        throttle: 0x20,
        ..Device::busy(0.95)
    });
    assert_verdict(&run);
}

/// Start-up is paid once; and an import in the middle is none.
#[test]
fn start_up_is_no_part_of_it() {
    let run = Run {
        step: vec![(Do::Wait, 60), (Do::Import, 2), (Do::Launch, 38)],
        startup: 4000,
        ..starving()
    };
    assert_verdict(&run);
    let (_, verdict) = run.verdict();
    assert_eq!(verdict.figures.ticks, 3000);
}

/// CPUs that others took are not to be had by fewer workers.
#[test]
fn cpus_that_others_take() {
    let run = Run {
        cpus: Some((0.3, 2.0)),
        ..Run::new(
            "crowded",
            Some("CPU-starved"),
            &[(Do::Starved, 80), (Do::Launch, 20)],
        )
        .device(Device::busy(0.2))
    };
    assert_verdict(&run);
    let next = run.verdict().1.next_step.unwrap();
    assert!(
        next.starts_with("stop other programs on these CPUs")
            && next.contains("this run got 0.3 of 2 CPUs"),
        "{next}"
    );
}

#[test]
fn operators_on_the_host_ask_for_idle_cpus_first() {
    let run = |cpus| Run {
        cuda: false,
        cpus: Some(cpus),
        ..Run::new(
            "matrices on a CPU",
            Some("host-compute-bound"),
            &[(Do::Gemm, 85), (Do::Python, 15)],
        )
    };
    for (cpus, says) in [
        ((1.0, 8.0), "1.0 of 8.0 CPUs compute: more threads"),
        (
            (7.5, 8.0),
            "7.5 of 8.0 CPUs compute (1 OpenMP thread seen, OMP_NUM_THREADS",
        ),
    ] {
        assert_verdict(&run(cpus));
        let next = run(cpus).verdict().1.next_step.unwrap();
        assert!(next.starts_with(says), "{next}");
    }
}

/// Guard rail: what takes the time need not be one of the causes.
#[test]
fn a_small_cause_beside_a_large_other_is_not_the_one() {
    let step = [(Do::Sleep, 55), (Do::Wait, 17), (Do::Launch, 28)];
    let run = Run::new("checkpoints", None, &step).device(Device::busy(0.3));
    assert_verdict(&run);
    let (profile, verdict) = run.verdict();
    assert_eq!(verdict.findings.len(), 1);
    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    assert!(
        text.contains("VERDICT no single one: input-bound, but something that is none of these"),
        "{text}"
    );
}

/// Guard rail: without native frames all of torch is the Python that called it; `--nonblocking`
/// reads none of what runs.
#[test]
fn without_native_frames_launches_are_not_told_from_python() {
    for (native, nonblocking) in [(false, false), (true, true)] {
        let run = Run::new("no native", None, &[(Do::Python, 90), (Do::Launch, 10)]);
        let mut profile = run.device(Device::busy(0.3)).profile();
        (profile.run.native, profile.run.nonblocking) = (native, nonblocking);
        let verdict = analyze(&profile).verdict.unwrap();
        assert_eq!(verdict.cause, None, "{:#?}", verdict.findings);
        assert!(
            verdict.missing[0].contains("native frames of running threads were not recorded"),
            "{:?}",
            verdict.missing
        );
        let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
        assert!(text.contains("\n  Python or native  "), "{text}");
        assert!(!text.contains("take Python out"), "{text}");
    }
}

fn reducing() -> Run {
    let step = [
        (Do::Launch, 30),
        (Do::Python, 10),
        (Do::Sync, 10),
        (Do::Reduce, 50),
    ];
    Run {
        world: 2,
        node: Some(2),
        others: vec![step.to_vec()],
        ..Run::new("collectives", Some("communication-bound"), &step).device(Device::busy(0.5))
    }
}

#[test]
fn communication_bound_with_all_ranks() {
    assert_verdict(&reducing());
}

/// Guard rail: launches block while the device has enough to do.
#[test]
fn launches_of_a_busy_device_are_back_pressure() {
    let run = Run::new("back-pressure", Some("GPU-bound"), &[(Do::Launch, 100)])
        .device(Device::busy(0.98));
    assert_verdict(&run);
}

/// Guard rail: who waits for a device that is busy waits for work that it has to do anyway.
#[test]
fn waits_for_a_busy_device_are_not_the_cause() {
    for what in [Do::Sync, Do::Copy] {
        let run = Run::new("waits", Some("GPU-bound"), &[(what, 70), (Do::Launch, 30)])
            .device(Device::busy(0.95));
        assert_verdict(&run);
        // Neither busy nor idle: it is not known.
        let run =
            Run::new("between", None, &[(what, 70), (Do::Launch, 30)]).device(Device::busy(0.78));
        assert_verdict(&run);
    }
}

/// Guard rail: a kernel that runs need not compute.
#[test]
fn utilization_alone_is_no_gpu_bound() {
    let spinning = Device {
        sm: Some(0.1),
        dram: Some(0.05),
        power: 0.25,
        ..Device::busy(0.97)
    };
    let step = [(Do::Sync, 80), (Do::Launch, 20)];
    assert_verdict(&Run::new("spinning", None, &step).device(spinning));
    let unknown = Device {
        sm: None,
        dram: None,
        ..spinning
    };
    assert_verdict(&Run::new("not known", None, &step).device(unknown));
    // Power says something only where multiprocessors were not measured.
    let hot = Device {
        power: 0.9,
        ..spinning
    };
    assert_verdict(&Run::new("hot", None, &step).device(hot));
}

/// Guard rail: victims wait at 100 %.
#[test]
fn one_rank_of_several_is_no_verdict() {
    let run = Run {
        others: Vec::new(),
        expected: None,
        ..reducing()
    };
    assert_verdict(&run);
    let (_, verdict) = run.verdict();
    assert!(
        verdict.missing[0].contains("1 of 2 ranks"),
        "{:?}",
        verdict.missing
    );
}

/// Guard rail: what was not seen is not claimed.
#[test]
fn without_a_gpu_track_what_needs_it_is_not_told() {
    for step in [
        &[(Do::Sync, 70), (Do::Launch, 30)][..],
        &[(Do::Launch, 80), (Do::Python, 20)],
        &[(Do::Copy, 50), (Do::Launch, 50)],
    ] {
        let run = Run::new("no counter track", None, step);
        assert_verdict(&run);
        let (profile, verdict) = run.verdict();
        assert!(
            verdict.missing[0].contains("was not recorded"),
            "{:?}",
            verdict.missing
        );
        let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
        assert!(
            text.contains("MISSING the GPU's activity was not recorded"),
            "{text}"
        );
    }
    // Input is the host's own; but a device that is busy all the same was not excluded.
    let run = Run {
        device: None,
        ..starving()
    };
    assert_verdict(&run);
    assert_ne!(run.verdict().1.confidence, Some(Confidence::High));
}

#[test]
fn a_short_recording_is_no_verdict() {
    let run = Run {
        steps: 1,
        expected: None,
        step: vec![(Do::Wait, 50), (Do::Launch, 20)],
        ..starving()
    };
    assert_verdict(&run);
    let (_, verdict) = run.verdict();
    assert!(
        verdict.missing[0].contains("record for longer"),
        "{:?}",
        verdict.missing
    );
}

/// Free Python does not make launches free.
#[test]
fn the_bound_is_that_of_what_it_names() {
    let run = Run::new(
        "Python and launches",
        Some("Python-bound"),
        &[(Do::Python, 50), (Do::Launch, 30), (Do::Sync, 20)],
    )
    .device(Device::busy(0.2));
    assert_verdict(&run);
    let bound = run.verdict().1.bound.unwrap();
    assert_eq!(bound.without, "free Python");
    assert!((1.9..=2.1).contains(&bound.speedup), "{bound:?}");
}

/// A lack of CPUs for workers is irrelevant to a thread that hardly waits for them.
#[test]
fn batches_of_its_own_are_not_for_want_of_cpus() {
    let run = Run {
        workers: Workers {
            count: 2,
            starved: 100,
            ..Workers::default()
        },
        ..Run::new(
            "own input beside workers",
            Some("input-bound"),
            &[(Do::MakeBatch, 55), (Do::Wait, 5), (Do::Launch, 40)],
        )
        .device(Device::busy(0.2))
    };
    assert_verdict(&run);
    assert_eq!(run.verdict().1.cause, Some(Cause::InputWork));
}

#[test]
fn a_quota_of_less_than_a_cpu_is_not_rounded_to_none() {
    let run = Run {
        cpus: Some((0.4, 0.5)),
        ..starving()
    };
    let next = run.verdict().1.next_step.unwrap();
    assert!(next.contains("(0.4 of 0.5 CPUs used)"), "{next}");
}

/// In a container the driver lists the process under its pid on the host: it is not another one.
#[test]
fn in_a_container_the_process_does_not_share_with_itself() {
    let run = |neighbour| Run {
        neighbour,
        ..Run::new("container", None, &[(Do::Sync, 80), (Do::Launch, 20)])
            .device(Device::gpm(0.97, 0.9, 0.3, 0.9))
    };
    for (neighbour, cause) in [(None, Some(Cause::GpuCompute)), (Some(7777), None)] {
        let mut profile = run(neighbour).profile();
        for track in profile.sideband.tracks.tracks.values_mut() {
            if track.kind == TrackKind::ProcessMemory && track.pid == 100 {
                track.pid = 4_000_000;
            }
        }
        let verdict = analyze(&profile).verdict.unwrap();
        assert_eq!(verdict.cause, cause, "{neighbour:?}");
        let is_shared = verdict
            .missing
            .iter()
            .any(|text| text.contains("other processes"));
        assert_eq!(is_shared, neighbour.is_some(), "{:?}", verdict.missing);
    }
}
