//! Which rank arrives last at collectives that run on devices, on made-up runs: each that there is,
//! and each that there is not.

use crate::verdict_scenarios::{Device, Do, Run, ranks};
use torchspy::analysis::slow_rank::SlowRank;
use torchspy::analysis::verdict::{Cause, Confidence, WaitedFor};
use torchspy::analysis::{Analysis, analyze};
use torchspy::model::profile::Profile;
use torchspy::report::json::render_json;
use torchspy::report::text::{Detail, TextOptions, render_summary};

type Step<'a> = &'a [(Do, u64)];

/// Waits for most of a step, which lasts 20 ticks.
const FAST: Step<'static> = &[(Do::Launch, 2), (Do::Reduce, 1), (Do::Sync, 17)];
/// Sleeps for most of it.
const SLOW: Step<'static> = &[
    (Do::Sleep, 12),
    (Do::Launch, 2),
    (Do::Reduce, 1),
    (Do::Sync, 5),
];

/// Ranks over NCCL, whose devices are busy for these shares of the time.
fn job(steps: &[Step<'static>], busy: &[f64]) -> Run {
    let devices = busy
        .iter()
        .map(|&busy| vec![(1, Device::gpm(busy, 0.2, 0.1, 0.3))]);
    Run {
        nccl: true,
        counted: true,
        devices: devices.collect(),
        ..ranks("job", steps)
    }
}

fn analyzed(run: &Run) -> (Profile, Analysis) {
    let profile = run.profile();
    let analysis = analyze(&profile);
    (profile, analysis)
}

fn found(run: &Run) -> Option<SlowRank> {
    analyzed(run).1.slow_rank
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_rank_that_the_others_devices_wait_for_is_named() {
    let run = job(&[FAST, SLOW], &[0.95, 0.35]);
    let (profile, analysis) = analyzed(&run);
    let slow = analysis.slow_rank.as_ref().expect("rank 1");
    assert_eq!(profile.pid_and_rank(slow.process).1, Some(1));
    // Of 20 ticks it waits 5, the other 17.
    assert!((slow.less.value - 0.6).abs() < 0.02, "{slow:?}");
    assert!(slow.less.low > 0.5 && slow.less.high < 0.7, "{slow:?}");
    assert!(
        (slow.step_ns.expect("steps") - 200e6).abs() < 1e6,
        "{slow:?}"
    );
    let (function, line) = slow.at().expect("a line");
    assert_eq!(
        (profile.functions[function.index()].name.as_str(), line),
        ("main", 93)
    );
    assert!((slow.lines[0].share - 0.6).abs() < 0.02, "{slow:?}");

    let verdict = analysis.verdict.as_ref().expect("a trainer");
    assert_eq!(
        verdict.cause,
        Some(Cause::LateRank),
        "{:#?}",
        verdict.findings
    );
    assert_eq!(verdict.confidence, Some(Confidence::High));
    assert_eq!(verdict.process, slow.process);
    assert_eq!(verdict.waits_for, Some(WaitedFor::OnDevices(71)));
    let bound = verdict.bound.expect("a bound");
    assert!((bound.speedup - 2.5).abs() < 0.1, "{bound:?}");

    let text = words(&render_summary(&profile, &analysis, TextOptions::default()));
    for says in [
        "VERDICT communication-bound, one rank arrives last (high). The others wait for this rank 60 % of the time",
        "this is rank 1/2, which arrives last: it waits for its GPU 25.",
        "at train.py:93 in main",
        "NEXT the others wait for what this rank alone does at train.py:93",
        "BOUND with this rank as fast as the others: at most 2.5x (200 -> 80",
        "rank 1 arrives last: it waits for its GPU 25.",
        "more of each step, at train.py:93 main (120 ms)",
    ] {
        assert!(text.contains(says), "{says}:\n{text}");
    }
    let json = render_json(&profile, &analysis).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let slow = &json["slow_rank"];
    assert_eq!(slow["rank"], 1);
    assert!(
        (slow["late_ms"].as_f64().unwrap() - 120.0).abs() < 4.0,
        "{slow}"
    );
    assert_eq!(slow["lines"][0]["at"]["line"], 93);
    assert_eq!(json["verdict"]["detail"], "one rank arrives last");
    assert_eq!(json["verdict"]["waited_for_percent"], 71);
}

/// The first rank, which the report is about, may be the slow one; and of several the others'
/// median is what it is compared with.
#[test]
fn the_first_of_four_ranks_may_be_the_slow_one() {
    let run = job(&[SLOW, FAST, FAST, FAST], &[0.35, 0.95]);
    let (profile, analysis) = analyzed(&run);
    let slow = analysis.slow_rank.as_ref().expect("rank 0");
    assert_eq!(profile.pid_and_rank(slow.process).1, Some(0));
    let verdict = analysis.verdict.as_ref().expect("a trainer");
    assert_eq!(verdict.cause, Some(Cause::LateRank));
}

/// What the slow rank does more of than the others is the cause, if it is one.
#[test]
fn its_own_cause_is_named_where_that_is_the_difference() {
    const PYTHON: Step<'static> = &[
        (Do::Python, 12),
        (Do::Launch, 2),
        (Do::Reduce, 1),
        (Do::Sync, 5),
    ];
    let run = job(&[FAST, PYTHON], &[0.95, 0.3]);
    let (profile, analysis) = analyzed(&run);
    let verdict = analysis.verdict.as_ref().expect("a trainer");
    assert_eq!(
        verdict.cause,
        Some(Cause::Python),
        "{:#?}",
        verdict.findings
    );
    assert_eq!(profile.pid_and_rank(verdict.process).1, Some(1));
    assert_eq!(
        verdict.bound.expect("a bound").without,
        "this rank as fast as the others"
    );
    let text = words(&render_summary(&profile, &analysis, TextOptions::default()));
    assert!(
        text.contains("this is rank 1/2, which arrives last"),
        "{text}"
    );
}

#[test]
fn ranks_that_wait_alike_wait_for_none_of_them() {
    assert_eq!(found(&job(&[FAST, FAST], &[0.95, 0.95])), None);
    // Within the noise: a tick of twenty.
    const NEARLY: Step<'static> = &[
        (Do::Launch, 2),
        (Do::Python, 1),
        (Do::Reduce, 1),
        (Do::Sync, 16),
    ];
    assert_eq!(found(&job(&[FAST, NEARLY], &[0.95, 0.9])), None);
}

/// The host of a rank with a slow device waits for it, as the others do.
#[test]
fn a_slow_device_is_no_slow_host() {
    let run = job(&[FAST, FAST, FAST], &[0.99, 0.99, 0.99]);
    let (_, analysis) = analyzed(&run);
    assert_eq!((analysis.slow_rank, analysis.slow_device), (None, None));
    // Those that spin use few multiprocessors.
    let spins = Device::gpm(0.99, 0.2, 0.1, 0.3);
    let computes = Device::gpm(0.99, 0.8, 0.4, 0.8);
    let run = Run {
        devices: [spins, computes, spins]
            .map(|device| vec![(1, device)])
            .to_vec(),
        ..run
    };
    let (profile, analysis) = analyzed(&run);
    assert_eq!(analysis.slow_rank, None);
    let slow = analysis.slow_device.expect("rank 1");
    assert_eq!(profile.pid_and_rank(slow.process).1, Some(1));
    let options = TextOptions {
        detail: Detail::Full,
        ..TextOptions::default()
    };
    let text = words(&render_summary(&profile, &analysis, options));
    let says = "the GPU of rank 1 computes while the others spin: multiprocessors active 80.0 %, of the others 20.0 % at most";
    assert!(text.contains(says), "{text}");
    // Without GPM by power; without both not at all.
    let plain = |power| vec![(1, Device::plain(0.99, power))];
    for (powers, expected) in [([0.3, 0.8, 0.3], true), ([0.5, 0.5, 0.5], false)] {
        let run = Run {
            devices: powers.map(plain).to_vec(),
            ..run.clone()
        };
        assert_eq!(analyzed(&run).1.slow_device.is_some(), expected);
    }
}

/// Work of the host that its own device hides delays nobody: all devices are busy with the model.
#[test]
fn what_a_busy_device_hides_delays_nobody() {
    assert_eq!(found(&job(&[FAST, SLOW], &[0.97, 0.96])), None);
}

/// Without utilization only a host that waits for nothing is known to be what all wait for.
#[test]
fn without_utilization_its_host_must_never_wait() {
    assert_eq!(found(&job(&[FAST, SLOW], &[])), None);
    const BUSY: Step<'static> = &[(Do::Sleep, 17), (Do::Launch, 2), (Do::Reduce, 1)];
    let slow = found(&job(&[FAST, BUSY], &[])).expect("rank 1");
    assert_eq!(slow.device_idles, None);
    let verdict = job(&[FAST, BUSY], &[]).verdict().1;
    assert_eq!(verdict.cause, Some(Cause::LateRank));
    assert_eq!(verdict.confidence, Some(Confidence::Medium));
}

/// A rank that never asks for a result waits where the launch queue is full.
#[test]
fn a_full_launch_queue_is_no_late_rank() {
    const AHEAD: Step<'static> = &[(Do::Launch, 19), (Do::Reduce, 1)];
    assert_eq!(found(&job(&[FAST, AHEAD], &[0.95, 0.95])), None);
    assert_eq!(found(&job(&[FAST, AHEAD], &[])), None);
}

#[test]
fn ranks_must_be_several_and_step_alike_over_nccl() {
    let run = job(&[FAST, SLOW], &[0.95, 0.35]);
    let alone = Run {
        others: Vec::new(),
        ..run.clone()
    };
    assert_eq!(found(&alone), None);
    let not_counted = Run {
        counted: false,
        ..run.clone()
    };
    assert_eq!(found(&not_counted), None);
    let gloo = Run { nccl: false, ..run };
    assert_eq!(found(&gloo), None);
    // Twice as many steps in the same time.
    const HALF: Step<'static> = &[
        (Do::Sleep, 28),
        (Do::Launch, 2),
        (Do::Reduce, 1),
        (Do::Sync, 9),
    ];
    assert_eq!(found(&job(&[FAST, HALF], &[0.95, 0.35])), None);
}

/// FSDP's parameters tell no steps; its collectives keep the ranks together.
#[test]
fn steps_that_are_not_counted_run_from_backward_to_backward() {
    const FAST: Step<'static> = &[
        (Do::Launch, 2),
        (Do::Backward, 1),
        (Do::Reduce, 1),
        (Do::Sync, 16),
    ];
    const SLOW: Step<'static> = &[
        (Do::Sleep, 12),
        (Do::Launch, 2),
        (Do::Backward, 1),
        (Do::Reduce, 1),
        (Do::Sync, 4),
    ];
    let run = Run {
        counted: false,
        ..job(&[FAST, SLOW], &[0.95, 0.35])
    };
    let (profile, analysis) = analyzed(&run);
    let slow = analysis.slow_rank.as_ref().expect("rank 1");
    assert_eq!(slow.step_ns, None);
    assert!((slow.less.value - 0.6).abs() < 0.02, "{slow:?}");
    let text = words(&render_summary(&profile, &analysis, TextOptions::default()));
    assert!(
        text.contains("more of the time, at train.py:93 main ("),
        "{text}"
    );
    assert!(
        text.contains("BOUND with this rank as fast as the others: at most 2."),
        "{text}"
    );
}

/// Ranks of the node that were not recorded may be slower: no verdict.
#[test]
fn a_rank_that_was_not_recorded_may_be_the_slow_one() {
    let run = Run {
        world: 4,
        node: Some(4),
        ..job(&[FAST, SLOW], &[0.95, 0.35])
    };
    let verdict = run.verdict().1;
    assert_eq!((verdict.cause, verdict.waits_for), (None, None));
}
