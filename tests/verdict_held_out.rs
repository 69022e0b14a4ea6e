//! Verdicts on runs that were written down before the rules were tried, and not looked at while they were mended.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

mod analysis_builder;
mod lane_builder;
mod verdict_scenarios;

use torchspy::analysis::verdict::{Cause, Confidence};
use verdict_scenarios::{Device, Do, Run, Workers};

const DECODING: Workers = Workers {
    count: 2,
    decode: 90,
    read: 0,
    idle: 10,
    starved: 0,
};

fn input_runs() -> Vec<Run> {
    vec![
        Run {
            workers: Workers {
                count: 4,
                decode: 20,
                starved: 60,
                idle: 20,
                read: 0,
            },
            ..Run::new(
                "workers without CPUs",
                Some("CPU-starved"),
                &[(Do::Wait, 50), (Do::Launch, 40), (Do::Python, 10)],
            )
            .device(Device::busy(0.35))
        },
        Run {
            workers: DECODING,
            ..Run::new(
                "input, no lane",
                Some("input-bound"),
                &[(Do::Wait, 70), (Do::Launch, 20), (Do::Python, 10)],
            )
        },
        Run {
            workers: DECODING,
            ..Run::new(
                "input behind a busy GPU",
                Some("GPU-bound"),
                &[(Do::Wait, 30), (Do::Launch, 60), (Do::Python, 10)],
            )
            .device(Device::busy(0.93))
        },
        Run {
            workers: DECODING,
            ..Run::new(
                "input and sync alike",
                None,
                &[(Do::Wait, 35), (Do::Sync, 35), (Do::Launch, 30)],
            )
            .device(Device::busy(0.3))
        },
        Run {
            workers: DECODING,
            cuda: false,
            ..Run::new(
                "input on a CPU",
                Some("input-bound"),
                &[(Do::Wait, 60), (Do::Gemm, 40)],
            )
        },
    ]
}

fn device_runs() -> Vec<Run> {
    let syncing = [(Do::Launch, 30), (Do::Sync, 70)];
    let without_gpm = |power, busy| Device {
        sm: None,
        dram: None,
        power,
        ..Device::busy(busy)
    };
    vec![
        Run::new(
            "tiny kernels without GPM",
            Some("launch-bound"),
            &[(Do::Launch, 60), (Do::Python, 30), (Do::Sync, 10)],
        )
        .device(without_gpm(0.3, 0.3)),
        Run::new("busy by power", Some("GPU-bound"), &syncing).device(without_gpm(0.85, 0.96)),
        Run::new("busy, no power", None, &syncing).device(without_gpm(0.2, 0.96)),
        Run::new("power cap", Some("GPU-bound"), &syncing).device(Device {
            throttle: 0x4,
            ..Device::busy(0.97)
        }),
        Run::new(
            "slowed down by hardware",
            Some("throttled"),
            &[(Do::Launch, 40), (Do::Sync, 60)],
        )
        .device(Device {
            throttle: 0x8,
            ..Device::busy(0.9)
        }),
        Run {
            pin_memory: Some(true),
            ..Run::new(
                "copies from pinned memory",
                Some("copy-bound"),
                &[(Do::Copy, 55), (Do::Python, 20), (Do::Launch, 25)],
            )
            .device(Device::busy(0.3))
        },
        Run::new(
            "item each step",
            Some("sync-bound"),
            &[(Do::Sync, 60), (Do::Launch, 30), (Do::Python, 10)],
        )
        .device(Device::busy(0.45)),
        Run::new(
            "a sleep",
            None,
            &[(Do::Sleep, 60), (Do::Launch, 20), (Do::Sync, 20)],
        )
        .device(Device::busy(0.75)),
        Run {
            cuda: false,
            ..Run::new(
                "matrices on a CPU",
                Some("host-compute-bound"),
                &[(Do::Gemm, 85), (Do::Python, 15)],
            )
        },
    ]
}

fn rank_runs() -> Vec<Run> {
    let equal = [(Do::Launch, 30), (Do::Sync, 15), (Do::Reduce, 55)];
    let spinning = [(Do::Launch, 20), (Do::Sync, 80)];
    vec![
        Run {
            world: 2,
            node: Some(2),
            others: vec![vec![(Do::Python, 70), (Do::Launch, 20), (Do::Reduce, 10)]],
            ..Run::new(
                "one rank in Python",
                Some("Python-bound"),
                &[(Do::Python, 10), (Do::Launch, 20), (Do::Reduce, 70)],
            )
            .device(Device::busy(0.25))
        },
        Run {
            world: 2,
            node: Some(2),
            nccl: true,
            others: vec![spinning.to_vec()],
            ..Run::new("NCCL spins", Some("communication-bound"), &spinning).device(Device {
                sm: Some(0.15),
                dram: Some(0.1),
                power: 0.4,
                ..Device::busy(0.97)
            })
        },
        Run {
            world: 4,
            node: Some(2),
            others: vec![equal.to_vec()],
            ..Run::new("two nodes", Some("communication-bound"), &equal).device(Device::busy(0.5))
        },
        Run {
            world: 4,
            node: Some(4),
            others: vec![equal.to_vec()],
            ..Run::new("two of four", None, &equal).device(Device::busy(0.5))
        },
    ]
}

/// Four of five are right, and none that is wrong is sure of itself.
#[test]
fn verdicts_on_runs_that_the_rules_were_not_made_for() {
    let runs = [input_runs(), device_runs(), rank_runs()].concat();
    let mut right = 0;
    for run in &runs {
        let (_, verdict) = run.verdict();
        let told = verdict.cause.map(Cause::name);
        if told == run.expected {
            right += 1;
            continue;
        }
        eprintln!(
            "{}: {told:?} ({:?}) and not {:?}: {:#?}",
            run.name, verdict.confidence, run.expected, verdict.findings
        );
        assert_ne!(verdict.confidence, Some(Confidence::High), "{}", run.name);
    }
    eprintln!("{right} of {} right", runs.len());
    assert!(right * 5 >= runs.len() * 4, "{right} of {}", runs.len());
}
