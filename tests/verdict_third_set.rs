//! A third set of made-up runs, held out: written from what training jobs do on real machines, by someone who had not seen the
//! rules that make verdicts, nor their thresholds. Each run has the answers that someone who knows such jobs would give, and
//! nobody's rules may be fitted to them.
//!
//! What counts: of the runs with one cause, 80 % must be told it; and nothing that is not among the answers may be told with
//! high confidence.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

mod analysis_builder;
mod lane_builder;
mod verdict_scenarios;

use torchspy::analysis::verdict::Confidence;
use verdict_scenarios::{Device, Do, Feed, Loader, Run, ranks};

const INPUT: Option<&str> = Some("input-bound");
const LAUNCH: Option<&str> = Some("launch-bound");
const PYTHON: Option<&str> = Some("Python-bound");
const GPU: Option<&str> = Some("GPU-bound");
const COMMUNICATION: Option<&str> = Some("communication-bound");
const SYNC: Option<&str> = Some("sync-bound");
const COPY: Option<&str> = Some("copy-bound");
const STARVED: Option<&str> = Some("CPU-starved");
const THROTTLED: Option<&str> = Some("throttled");
const HOST: Option<&str> = Some("host-compute-bound");

/// Reasons why clocks are held down, as NVML has them.
const IDLE: u64 = 0x1;
const APPLICATION_CLOCKS: u64 = 0x2;
const POWER_CAP: u64 = 0x4;
const HARDWARE_SLOWDOWN: u64 = 0x8;
const HEAT_BY_SOFTWARE: u64 = 0x20;
const HEAT_BY_HARDWARE: u64 = 0x40;
const POWER_BRAKE: u64 = 0x80;

/// A run and the answers that are right.
struct Case {
    run: Run,
    accepted: Vec<Option<&'static str>>,
    /// The only detail that may be told with the cause, where that matters.
    detail: Option<&'static str>,
    /// Whether it must be told: it has one cause, and all that is needed to see it was recorded.
    counts: bool,
}

/// The run has this one cause.
fn is(cause: Option<&'static str>, run: Run) -> Case {
    Case {
        run,
        accepted: vec![cause],
        detail: None,
        counts: cause.is_some(),
    }
}

/// The run has this one cause, and this is what is known of it.
fn is_of(cause: Option<&'static str>, detail: &'static str, run: Run) -> Case {
    Case {
        detail: Some(detail),
        ..is(cause, run)
    }
}

/// No single cause, or none that the recording shows.
fn none(run: Run) -> Case {
    is(None, run)
}

/// Any of these is a fair answer.
fn any(accepted: &[Option<&'static str>], run: Run) -> Case {
    Case {
        run,
        accepted: accepted.to_vec(),
        detail: None,
        counts: false,
    }
}

fn run(name: &'static str, step: &[(Do, u64)]) -> Run {
    Run::new(name, None, step)
}

/// A device that large matrix products fill.
fn full() -> Device {
    Device::gpm(0.99, 0.92, 0.35, 0.93)
}

fn held(device: Device, throttle: u64) -> Device {
    Device { throttle, ..device }
}

/// Parts of a step, several times over.
fn times(count: usize, parts: &[(Do, u64)]) -> Vec<(Do, u64)> {
    parts.repeat(count)
}

/// Parts of a step, one list after the other.
fn then(lists: &[&[(Do, u64)]]) -> Vec<(Do, u64)> {
    lists.concat()
}

/// Ranks that all do the same.
fn same(count: usize, step: &[(Do, u64)]) -> Vec<&[(Do, u64)]> {
    vec![step; count]
}

/// The same, with NCCL between them.
fn nccl(name: &'static str, steps: &[&[(Do, u64)]]) -> Run {
    Run {
        nccl: true,
        ..ranks(name, steps)
    }
}

/// The same, with Gloo, and computing on CPUs.
fn gloo(name: &'static str, steps: &[&[(Do, u64)]]) -> Run {
    Run {
        cuda: false,
        ..ranks(name, steps)
    }
}

/// Devices by rank, each doing the same all the time.
fn steady(devices: &[Device]) -> Vec<Vec<(u64, Device)>> {
    devices.iter().map(|&device| vec![(1, device)]).collect()
}

fn input_by_workers() -> Vec<Case> {
    use Do::*;
    vec![
        is_of(
            INPUT,
            "batch work",
            run(
                "four workers decode JPEGs for a small network",
                &[
                    (Wait, 11),
                    (Copy, 1),
                    (Launch, 3),
                    (Backward, 4),
                    (OptLaunch, 1),
                ],
            )
            .feed(4, &[(Feed::Decode, 17), (Feed::Collate, 3)])
            .quota(0.5, 1.0, 16.0)
            .device(Device::gpm(0.36, 0.3, 0.14, 0.36)),
        ),
        is_of(
            INPUT,
            "storage",
            Run {
                pin_memory: Some(true),
                pinning: Some(0.06),
                ..run(
                    "eight workers wait for a file server",
                    &[(WaitPinned, 14), (Launch, 4), (Backward, 5), (OptLaunch, 1)],
                )
            }
            .feed(8, &[(Feed::Read, 20), (Feed::Decode, 4)])
            .uses(0.5, 0.17, 64)
            .device(Device::gpm(0.33, 0.27, 0.12, 0.33)),
        ),
        // Asleep in a socket: more CPU in the workers would not help.
        is_of(
            INPUT,
            "storage",
            run(
                "six workers fetch objects over HTTPS",
                &[(Wait, 15), (Launch, 2), (Backward, 2), (Python, 1)],
            )
            .feed(6, &[(Feed::Socket, 17), (Feed::Decode, 3)])
            .uses(0.3, 0.15, 32)
            .device(Device::gpm(0.2, 0.16, 0.08, 0.26)),
        ),
        // 45 % of waiting, and as much of idle device: moderate, but nothing else is as large.
        is(
            INPUT,
            run(
                "decoding nearly keeps up",
                &[(Wait, 9), (Launch, 4), (Backward, 6), (OptLaunch, 1)],
            )
            .feed(4, &[(Feed::Decode, 18), (Feed::Collate, 2)])
            .uses(0.6, 1.0, 48)
            .device(Device::gpm(0.54, 0.46, 0.2, 0.55)),
        ),
        is_of(
            INPUT,
            "batch work",
            run(
                "one worker, and fifteen CPUs without work",
                &[(Wait, 13), (Launch, 3), (Backward, 3), (Python, 1)],
            )
            .feed(1, &[(Feed::Decode, 15), (Feed::Read, 5)])
            .uses(0.4, 0.8, 16)
            .device(Device::gpm(0.29, 0.24, 0.1, 0.32)),
        ),
    ]
}

fn input_by_more_workers() -> Vec<Case> {
    use Do::*;
    let bursts = then(&[&times(7, &[(Launch, 2), (Backward, 3)]), &[(Wait, 40)]]);
    vec![
        // Eight workers begin together, and so end together.
        is_of(
            INPUT,
            "batch work",
            Run {
                steps: 12,
                devices: vec![vec![
                    (35, Device::gpm(0.9, 0.75, 0.3, 0.8)),
                    (40, Device::gpm(0.02, 0.01, 0.0, 0.14)),
                ]],
                ..run("batches come in bursts", &bursts)
            }
            .feed(8, &[(Feed::Decode, 70), (Feed::Collate, 5)])
            .uses(0.5, 1.0, 64),
        ),
        is_of(
            INPUT,
            "batch work",
            Run {
                pin_memory: Some(true),
                pinning: Some(0.04),
                ..run(
                    "workers tokenize in Python",
                    &[(WaitPinned, 11), (Launch, 3), (Backward, 5), (OptLaunch, 1)],
                )
            }
            .feed(4, &[(Feed::Tokenize, 18), (Feed::Collate, 2)])
            .uses(0.5, 1.0, 32)
            .device(Device::gpm(0.43, 0.36, 0.2, 0.44)),
        ),
        is(
            INPUT,
            Run {
                nccl: true,
                ..ranks(
                    "both ranks of a node wait for workers",
                    &same(
                        2,
                        &[(Wait, 12), (Launch, 3), (Backward, 4), (BackReduce, 1)],
                    ),
                )
            }
            .feed(3, &[(Feed::Decode, 20)])
            .uses(0.4, 1.0, 48)
            .device(Device::gpm(0.32, 0.26, 0.1, 0.33)),
        ),
    ]
}

fn input_without_workers() -> Vec<Case> {
    use Do::*;
    vec![
        is_of(
            INPUT,
            "batch work",
            run(
                "no workers, images decoded in the loop",
                &[
                    (MakeBatch, 13),
                    (Copy, 1),
                    (Launch, 2),
                    (Backward, 3),
                    (Sync, 1),
                ],
            )
            .feed(0, &[])
            .uses(0.95, 0.0, 32)
            .device(Device::gpm(0.25, 0.2, 0.09, 0.28)),
        ),
        is_of(
            INPUT,
            "storage",
            run(
                "no workers, samples on a cold disk",
                &[
                    (ReadBatch, 12),
                    (MakeBatch, 1),
                    (Launch, 3),
                    (Backward, 3),
                    (Python, 1),
                ],
            )
            .feed(0, &[])
            .uses(0.3, 0.0, 32)
            .device(Device::gpm(0.27, 0.22, 0.1, 0.3)),
        ),
        is_of(
            INPUT,
            "batch work",
            run(
                "no workers, text is merged in Python",
                &[(Tokenize, 14), (Launch, 3), (Backward, 3)],
            )
            .feed(0, &[])
            .uses(0.95, 0.0, 32)
            .device(Device::gpm(0.24, 0.2, 0.1, 0.28)),
        ),
        is_of(
            INPUT,
            "batch work",
            Run {
                cuda: false,
                ..run(
                    "a machine without GPU whose two workers are too few",
                    &[(Wait, 12), (Gemm, 3), (BackGemm, 5)],
                )
            }
            .feed(2, &[(Feed::Decode, 20)])
            .uses(0.45, 1.0, 16),
        ),
        // Python's frames tell all that is needed.
        is(
            INPUT,
            Run {
                native: false,
                ..run(
                    "only Python's frames, and the loop waits for workers",
                    &[(Wait, 13), (Launch, 4), (Python, 3)],
                )
            }
            .feed(4, &[(Feed::Decode, 20)])
            .uses(0.4, 1.0, 32)
            .device(Device::gpm(0.3, 0.24, 0.1, 0.32)),
        ),
    ]
}

/// Input with something beside it that misleads, or with less to see.
fn input_beside_others() -> Vec<Case> {
    use Do::*;
    vec![
        // Clocks are down since the device has nothing to do.
        is(
            INPUT,
            run(
                "a starving device lowers its clocks",
                &[(Wait, 14), (Launch, 3), (Backward, 3)],
            )
            .feed(4, &[(Feed::Decode, 20)])
            .uses(0.4, 1.0, 32)
            .device(held(Device::gpm(0.2, 0.15, 0.06, 0.2), IDLE)),
        ),
        // It would not be faster if it were cooler.
        is(
            INPUT,
            run(
                "a device in a hot chassis starves",
                &[(Wait, 14), (Launch, 3), (Backward, 3)],
            )
            .feed(4, &[(Feed::Decode, 20)])
            .uses(0.4, 1.0, 32)
            .device(held(Device::gpm(0.27, 0.22, 0.08, 0.25), HEAT_BY_SOFTWARE)),
        ),
        // Workers that never rest prove it; the device could still be the slower one, had anyone looked.
        any(
            &[INPUT, None],
            run(
                "workers never rest, and no device was looked at",
                &[(Wait, 13), (Launch, 3), (Backward, 4)],
            )
            .feed(4, &[(Feed::Decode, 20)])
            .uses(0.4, 1.0, 32),
        ),
        any(
            &[INPUT, None],
            Run {
                neighbour: Some(7777),
                ..run(
                    "workers never rest, on a device that another job fills",
                    &[(Wait, 13), (Launch, 3), (Backward, 4)],
                )
            }
            .feed(4, &[(Feed::Decode, 20)])
            .uses(0.4, 1.0, 32)
            .device(Device::gpm(0.9, 0.7, 0.3, 0.75)),
        ),
        any(
            &[INPUT, COPY, None],
            Run {
                pin_memory: Some(true),
                pinning: Some(0.96),
                ..run(
                    "the one thread that pins batches is too slow",
                    &[(WaitPinned, 11), (Launch, 4), (Backward, 5)],
                )
            }
            .feed(8, &[(Feed::Decode, 6), (Feed::Idle, 14)])
            .uses(1.4, 0.3, 64)
            .device(Device::gpm(0.4, 0.33, 0.15, 0.42)),
        ),
        any(
            &[INPUT, None],
            run(
                "the user's own thread fills a queue",
                &[(OwnQueue, 13), (Launch, 3), (Backward, 4)],
            )
            .device(Device::gpm(0.35, 0.3, 0.1, 0.36)),
        ),
        // No torch, no interpreter: native code of a library in the user's loop.
        any(
            &[INPUT, HOST, None],
            run(
                "the loop loads its images itself",
                &[(OwnLoad, 12), (Launch, 4), (Backward, 4)],
            )
            .device(Device::gpm(0.38, 0.3, 0.1, 0.36)),
        ),
        any(
            &[INPUT, None],
            Run {
                startup: 300,
                steps: 8,
                devices: vec![vec![
                    (303, Device::gpm(0.0, 0.0, 0.0, 0.12)),
                    (160, Device::gpm(0.3, 0.24, 0.1, 0.32)),
                ]],
                ..run(
                    "two thirds are start-up, and then images are decoded in the loop",
                    &[(MakeBatch, 13), (Launch, 3), (Backward, 4)],
                )
            }
            .feed(0, &[]),
        ),
    ]
}

fn starved() -> Vec<Case> {
    use Do::*;
    let half = run(
        "a quota of one CPU for a trainer with many threads",
        &[(Launch, 6), (Dispatch, 3), (Backward, 5), (Python, 6)],
    );
    vec![
        is(
            STARVED,
            run(
                "eight workers on two CPUs",
                &[(Wait, 14), (Launch, 3), (Backward, 3)],
            )
            .feed(8, &[(Feed::Decode, 5), (Feed::Starved, 15)])
            .quota(0.25, 0.22, 2.0)
            .device(Device::gpm(0.27, 0.22, 0.1, 0.3)),
        ),
        is(
            STARVED,
            Run {
                queues: vec![0.5],
                ..run(
                    "the trainer shares its CPUs with another job",
                    &[(Launch, 9), (Dispatch, 4), (Python, 5), (Sync, 2)],
                )
            }
            .uses(0.48, 0.0, 4)
            .device(Device::gpm(0.25, 0.12, 0.06, 0.24)),
        ),
        is(
            STARVED,
            Run {
                queues: vec![0.48],
                held: 0.5,
                ..half
            }
            .quota(1.0, 0.0, 1.0)
            .device(Device::gpm(0.22, 0.1, 0.05, 0.22)),
        ),
        is(
            STARVED,
            Run {
                cuda: false,
                omp: 7,
                queues: vec![0.7],
                held: 0.7,
                ..run(
                    "eight threads of OpenMP in a container of two CPUs",
                    &[(Gemm, 8), (BackGemm, 10), (Barrier, 2)],
                )
            }
            .quota(2.0, 0.0, 2.0),
        ),
        is(
            STARVED,
            Run {
                queues: vec![0.5],
                ..run(
                    "trainer and workers on two CPUs",
                    &[(Wait, 6), (Launch, 6), (Python, 5), (Backward, 3)],
                )
            }
            .feed(4, &[(Feed::Decode, 7), (Feed::Starved, 13)])
            .quota(0.45, 0.38, 2.0)
            .device(Device::gpm(0.24, 0.18, 0.08, 0.26)),
        ),
        // The rank that is waited for has the cause.
        is(
            STARVED,
            Run {
                queues: vec![0.0, 0.58],
                omp: 1,
                ..gloo(
                    "one of two ranks shares its CPUs",
                    &[
                        &[(Gemm, 4), (BackGemm, 4), (Reduce, 12)],
                        &[(Gemm, 9), (BackGemm, 10), (Reduce, 1)],
                    ],
                )
            }
            .uses(0.8, 0.0, 16),
        ),
        any(
            &[STARVED, HOST],
            Run {
                cuda: false,
                omp: 3,
                queues: vec![0.25],
                ..run(
                    "four threads of OpenMP on three CPUs",
                    &[(Gemm, 8), (BackGemm, 10), (Barrier, 2)],
                )
            }
            .uses(2.9, 0.0, 3),
        ),
        any(
            &[STARVED, INPUT],
            run(
                "four workers that lack a third of a CPU each",
                &[(Wait, 11), (Launch, 4), (Backward, 5)],
            )
            .feed(4, &[(Feed::Decode, 13), (Feed::Starved, 7)])
            .quota(0.35, 0.66, 3.0)
            .device(Device::gpm(0.4, 0.33, 0.13, 0.4)),
        ),
    ]
}

fn launches() -> Vec<Case> {
    use Do::*;
    vec![
        is(
            LAUNCH,
            run(
                "many small kernels, forward and backward",
                &[
                    (Launch, 3),
                    (Dispatch, 4),
                    (Backward, 9),
                    (OptLaunch, 3),
                    (Python, 1),
                ],
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.38, 0.09, 0.05, 0.22)),
        ),
        is(
            LAUNCH,
            run(
                "a rollout of small layers",
                &[(Launch, 7), (Dispatch, 9), (Python, 3), (Sync, 1)],
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.3, 0.05, 0.03, 0.2)),
        ),
        is(
            LAUNCH,
            run(
                "small kernels on a device without GPM",
                &[(Launch, 8), (Dispatch, 6), (Backward, 5), (Sync, 1)],
            )
            .uses(1.0, 0.0, 16)
            .device(Device::plain(0.48, 0.3)),
        ),
        // Utilization is flattered by kernels that fill an eighth of the device; a third of the time there is none at all.
        is(
            LAUNCH,
            run(
                "kernels that are many, and long enough to look busy",
                &[(Launch, 9), (Dispatch, 6), (Backward, 5)],
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.6, 0.12, 0.08, 0.28)),
        ),
        is(
            LAUNCH,
            nccl(
                "two ranks with small kernels",
                &same(
                    2,
                    &[(Dispatch, 5), (Launch, 6), (Backward, 7), (BackReduce, 2)],
                ),
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.4, 0.1, 0.05, 0.24)),
        ),
        is(
            LAUNCH,
            run(
                "nearly all of backward is launches",
                &[(Dispatch, 2), (Launch, 2), (Backward, 15), (OptLaunch, 1)],
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.33, 0.08, 0.05, 0.22)),
        ),
        any(
            &[LAUNCH, None],
            Run {
                native: false,
                ..run(
                    "only Python's frames, and kernels are launched",
                    &[(Launch, 16), (Python, 2), (Sync, 2)],
                )
            }
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.35, 0.1, 0.05, 0.24)),
        ),
        // It may as well be the device that holds launches up.
        none(
            run(
                "kernels are launched, and no device was looked at",
                &[(Launch, 10), (Backward, 8), (Python, 2)],
            )
            .uses(0.9, 0.0, 32),
        ),
        none(
            run(
                "launches, and a device of which only utilization says that it is busy",
                &[(Launch, 12), (Dispatch, 2), (Backward, 6)],
            )
            .device(Device::plain(0.97, 0.3)),
        ),
        none(
            Run {
                neighbour: Some(7777),
                ..run(
                    "launches on a device that another job keeps busy",
                    &[(Launch, 9), (Dispatch, 7), (Python, 4)],
                )
            }
            .device(Device::gpm(0.95, 0.85, 0.3, 0.85)),
        ),
    ]
}

fn python() -> Vec<Case> {
    use Do::*;
    vec![
        is(
            PYTHON,
            run(
                "metrics in Python after each step",
                &[(Python, 13), (Launch, 4), (Copy, 1), (Sync, 2)],
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.18, 0.12, 0.06, 0.22)),
        ),
        is(
            PYTHON,
            run(
                "a recurrent model's loop in Python",
                &[(ModelPython, 13), (Launch, 4), (Backward, 3)],
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.2, 0.05, 0.03, 0.18)),
        ),
        // All of it on the thread of autograd: the main thread only waits.
        is(
            PYTHON,
            run(
                "a function's backward is written in Python",
                &[(Launch, 3), (BackPython, 14), (Backward, 2), (OptLaunch, 1)],
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.16, 0.1, 0.05, 0.2)),
        ),
        is(
            PYTHON,
            run(
                "rewards are computed in Python, on a device without GPM",
                &[(Python, 15), (Launch, 3), (Backward, 2)],
            )
            .uses(1.0, 0.0, 16)
            .device(Device::plain(0.15, 0.18)),
        ),
        is(
            PYTHON,
            Run {
                nccl: true,
                ..ranks(
                    "two ranks, both in Python",
                    &same(
                        2,
                        &[(Python, 13), (Launch, 3), (Backward, 3), (BackReduce, 1)],
                    ),
                )
            }
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.25, 0.15, 0.08, 0.24)),
        ),
        any(
            &[PYTHON, LAUNCH, None],
            run(
                "a small policy and its environment",
                &[(Python, 10), (Launch, 6), (Dispatch, 4)],
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.22, 0.04, 0.02, 0.18)),
        ),
        any(
            &[PYTHON, LAUNCH, None],
            run(
                "an optimizer that goes from parameter to parameter",
                &[(Launch, 3), (Backward, 4), (OptPython, 8), (OptLaunch, 5)],
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.3, 0.12, 0.1, 0.25)),
        ),
        any(
            &[PYTHON, None],
            run(
                "another thread of the trainer keeps the interpreter",
                &[(Gil, 11), (Python, 4), (Launch, 5)],
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.2, 0.14, 0.06, 0.22)),
        ),
        any(
            &[PYTHON, None],
            run(
                "Python, and no device was looked at",
                &[(Python, 14), (Launch, 5), (Sync, 1)],
            )
            .uses(1.0, 0.0, 32),
        ),
        // Without native frames, what runs below a Python function may be anything.
        any(
            &[PYTHON, None],
            Run {
                native: false,
                ..run(
                    "only Python's frames, and metrics in Python",
                    &[(Python, 15), (Launch, 5)],
                )
            }
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.12, 0.08, 0.04, 0.18)),
        ),
    ]
}

fn device_compute() -> Vec<Case> {
    use Do::*;
    vec![
        is_of(
            GPU,
            "compute",
            run(
                "a language model whose loop waits for the loss",
                &[(Launch, 3), (Backward, 3), (Sync, 14)],
            )
            .uses(0.9, 0.0, 64)
            .device(full()),
        ),
        // The queue of the device is full, and a launch waits for a place in it.
        is_of(
            GPU,
            "compute",
            run(
                "launches that wait for a busy device",
                &[(Launch, 9), (Backward, 10), (Python, 1)],
            )
            .uses(1.0, 0.0, 64)
            .device(Device::gpm(0.99, 0.93, 0.4, 0.9)),
        ),
        is(
            GPU,
            run(
                "a busy device without GPM, at its power limit",
                &[(Sync, 12), (Launch, 4), (Backward, 4)],
            )
            .uses(1.0, 0.0, 32)
            .device(Device::plain(0.99, 0.95)),
        ),
        is(
            GPU,
            Run {
                mig: true,
                ..run(
                    "a busy instance of a device",
                    &[(Launch, 4), (Backward, 3), (Sync, 13)],
                )
            }
            .uses(1.0, 0.0, 16)
            .device(Device::gpm(0.99, 0.95, 0.35, 0.9)),
        ),
        // The step's one `.item()` only shows where the host meets the device.
        is_of(
            GPU,
            "compute",
            run(
                "the loss is printed each step of a busy device",
                &[(Launch, 4), (Backward, 4), (Sync, 11), (Python, 1)],
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.96, 0.87, 0.3, 0.85)),
        ),
    ]
}

/// Full devices of which the host's side says something else.
fn device_compute_misread() -> Vec<Case> {
    use Do::*;
    let accumulation = then(&[
        &times(8, &[(Launch, 2), (Backward, 2)]),
        &[(OptLaunch, 2), (Sync, 14)],
    ]);
    vec![
        is(
            GPU,
            nccl(
                "four ranks that fill their devices",
                &same(4, &[(Launch, 4), (Backward, 6), (BackReduce, 1), (Sync, 9)]),
            )
            .uses(1.0, 0.0, 64)
            .device(Device::gpm(0.99, 0.9, 0.3, 0.92)),
        ),
        is_of(
            GPU,
            "compute",
            Run {
                steps: 15,
                ..run("gradients of eight batches are added up", &accumulation)
            }
            .uses(1.0, 0.0, 64)
            .device(Device::gpm(0.98, 0.9, 0.35, 0.9)),
        ),
        is_of(
            GPU,
            "compute",
            run("CUDA graphs", &[(GraphLaunch, 4), (Sync, 16)])
                .uses(1.0, 0.0, 64)
                .device(Device::gpm(0.99, 0.86, 0.3, 0.88)),
        ),
        is_of(
            GPU,
            "compute",
            Run {
                pin_memory: Some(true),
                pinning: Some(0.1),
                ..run(
                    "pinned copies beside a busy device",
                    &[
                        (WaitPinned, 1),
                        (Copy, 1),
                        (Launch, 7),
                        (Backward, 10),
                        (Python, 1),
                    ],
                )
            }
            .feed(4, &[(Feed::Decode, 8), (Feed::Idle, 12)])
            .uses(1.0, 0.4, 64)
            .device(Device::gpm(0.98, 0.9, 0.3, 0.9)),
        ),
        // Pageable copies go in the order of the stream: what they wait for are kernels.
        is(
            GPU,
            Run {
                pin_memory: Some(false),
                ..run(
                    "copies from pageable memory stand behind kernels",
                    &[(Wait, 1), (Copy, 12), (Launch, 4), (Backward, 3)],
                )
            }
            .feed(4, &[(Feed::Decode, 6), (Feed::Idle, 14)])
            .uses(1.0, 0.3, 64)
            .device(Device::gpm(0.98, 0.91, 0.3, 0.92)),
        ),
        // The loop is far ahead of the device, so that it has time to wait for a batch.
        is(
            GPU,
            run(
                "the loop waits for data while the device works",
                &[(Wait, 10), (Launch, 5), (Backward, 5)],
            )
            .feed(4, &[(Feed::Decode, 12), (Feed::Idle, 8)])
            .uses(0.6, 0.6, 64)
            .device(Device::gpm(0.98, 0.9, 0.3, 0.9)),
        ),
        is(
            GPU,
            Run {
                queues: vec![0.08],
                ..run(
                    "a little less CPU than wanted, and a busy device",
                    &[(Launch, 5), (Backward, 5), (Sync, 10)],
                )
            }
            .uses(0.92, 0.0, 8)
            .device(full()),
        ),
    ]
}

fn device_other() -> Vec<Case> {
    use Do::*;
    let sync = [(Launch, 4), (Backward, 4), (Sync, 12)];
    vec![
        is_of(
            GPU,
            "DRAM",
            run(
                "tables of embeddings",
                &[(Launch, 5), (Backward, 5), (Sync, 10)],
            )
            .uses(1.0, 0.0, 64)
            .device(Device::gpm(0.98, 0.9, 0.87, 0.6)),
        ),
        is_of(
            GPU,
            "DRAM",
            run(
                "elementwise kernels, launched ahead",
                &[(Launch, 10), (Backward, 8), (Sync, 2)],
            )
            .uses(1.0, 0.0, 64)
            .device(Device::gpm(0.97, 0.8, 0.82, 0.55)),
        ),
        // Whether compute or memory ends first cannot be seen at 60 % of bandwidth.
        is(
            GPU,
            run("norms and matrix products by turns", &sync)
                .uses(1.0, 0.0, 64)
                .device(Device::gpm(0.98, 0.94, 0.62, 0.8)),
        ),
        // Someone set the clocks so: no fault of the device.
        is(
            GPU,
            run("clocks of the application", &sync)
                .uses(1.0, 0.0, 64)
                .device(held(Device::gpm(0.99, 0.93, 0.35, 0.7), APPLICATION_CLOCKS)),
        ),
        // A second of heat in half a minute.
        is(
            GPU,
            Run {
                steps: 150,
                devices: vec![vec![(2900, full()), (100, held(full(), HEAT_BY_SOFTWARE))]],
                ..run("a busy device that was too hot for a second", &sync)
            }
            .uses(1.0, 0.0, 64),
        ),
        // At the top of what it may take: many would call it by either name.
        any(
            &[GPU, THROTTLED],
            run("a busy device at its power cap", &sync)
                .device(held(Device::gpm(0.99, 0.94, 0.35, 0.99), POWER_CAP)),
        ),
        any(
            &[GPU, None],
            run(
                "a device with a fifth of its time left",
                &[(Wait, 3), (Launch, 5), (Backward, 5), (Sync, 7)],
            )
            .feed(4, &[(Feed::Decode, 16), (Feed::Idle, 4)])
            .device(Device::gpm(0.8, 0.7, 0.3, 0.72)),
        ),
        // A kernel is always there, but on a fifth of the device: more of them at once is what it lacks, and no word says so.
        none(run("long kernels of few blocks", &sync).device(Device::gpm(0.99, 0.2, 0.1, 0.3))),
        none(run("busy by utilization alone", &sync).device(Device::plain(0.99, 0.32))),
        // Whose kernels they are is not known.
        none(
            Run {
                neighbour: Some(7777),
                ..run("a full device, shared with another job", &sync)
            }
            .device(Device::gpm(0.99, 0.9, 0.3, 0.9)),
        ),
        // The device is no victim, for it computes all the time; of the others nothing is known.
        any(
            &[GPU, None],
            Run {
                world: 8,
                node: Some(8),
                nccl: true,
                ..run(
                    "one of eight ranks, whose device is full",
                    &[(Launch, 4), (Backward, 4), (BackReduce, 1), (Sync, 11)],
                )
            }
            .device(full()),
        ),
    ]
}

fn communication() -> Vec<Case> {
    use Do::*;
    let half: &[(Do, u64)] = &[(Gemm, 4), (BackGemm, 4), (Reduce, 12)];
    let spin: &[(Do, u64)] = &[(Launch, 4), (Backward, 5), (BackReduce, 1), (Sync, 10)];
    vec![
        is(
            COMMUNICATION,
            gloo("two ranks, and a slow network between them", &[half; 2]).uses(0.5, 0.0, 16),
        ),
        is(
            COMMUNICATION,
            gloo(
                "four ranks that wait for the network about alike",
                &[
                    half,
                    &[(Gemm, 4), (BackGemm, 5), (Reduce, 11)],
                    &[(Gemm, 3), (BackGemm, 4), (Reduce, 13)],
                    &[(Gemm, 5), (BackGemm, 4), (Reduce, 11)],
                ],
            )
            .uses(0.5, 0.0, 32),
        ),
        is(
            COMMUNICATION,
            Run {
                node: None,
                ..gloo("both ranks of a job that names no node", &[half; 2])
            },
        ),
        // Gradients of CUDA tensors over Gloo: all of it on the host.
        is(
            COMMUNICATION,
            ranks(
                "three ranks with devices, and Gloo",
                &same(3, &[(Launch, 3), (Backward, 4), (Reduce, 13)]),
            )
            .uses(0.4, 0.0, 32)
            .device(Device::gpm(0.27, 0.2, 0.1, 0.28)),
        ),
        // Devices spin in NCCL's kernels, which need few multiprocessors, and the hosts stand in the collective.
        is(
            COMMUNICATION,
            nccl(
                "four ranks meet at a barrier of NCCL's each step",
                &same(
                    4,
                    &[(Launch, 3), (Backward, 5), (BackReduce, 1), (Blocked, 11)],
                ),
            )
            .uses(1.0, 0.0, 64)
            .device(Device::gpm(0.97, 0.18, 0.08, 0.28)),
        ),
        // As above, but the hosts wait in `.item()`: nothing says for certain that it is NCCL.
        any(
            &[COMMUNICATION, None],
            nccl(
                "four devices that spin alike, waiting for a slow fabric",
                &[spin; 4],
            )
            .uses(1.0, 0.0, 64)
            .device(Device::gpm(0.98, 0.2, 0.1, 0.3)),
        ),
        // All of this node are victims, perhaps of the other node.
        any(
            &[COMMUNICATION, None],
            Run {
                world: 8,
                ..gloo("four of eight ranks, all of this node", &[half; 4])
            }
            .uses(0.5, 0.0, 32),
        ),
        none(
            Run {
                world: 4,
                node: Some(4),
                ..gloo("two of the four ranks of a node", &[half; 2])
            }
            .uses(0.5, 0.0, 32),
        ),
        none(Run {
            world: 2,
            node: Some(2),
            cuda: false,
            ..run("one of two ranks, which waits", half)
        }),
        none(
            Run {
                world: 4,
                node: Some(4),
                ..nccl("two of four ranks, whose devices spin", &[spin; 2])
            }
            .device(Device::gpm(0.99, 0.16, 0.07, 0.27)),
        ),
        none(
            Run {
                world: 8,
                node: Some(8),
                nccl: true,
                ..run("one of eight ranks, whose device spins", spin)
            }
            .device(Device::gpm(0.99, 0.15, 0.06, 0.26)),
        ),
    ]
}

/// Ranks of which one is slower than the others: it has the cause, and the others wait.
fn slow_ranks_on_gloo() -> Vec<Case> {
    use Do::*;
    let victim: &[(Do, u64)] = &[(Gemm, 3), (BackGemm, 4), (Reduce, 13)];
    vec![
        is(
            PYTHON,
            gloo(
                "the second of two ranks computes metrics in Python",
                &[
                    victim,
                    &[(Gemm, 3), (BackGemm, 4), (Python, 12), (Reduce, 1)],
                ],
            )
            .uses(0.6, 0.0, 16),
        ),
        is(
            PYTHON,
            Run {
                world: 16,
                node: Some(2),
                first_rank: 4,
                ..gloo(
                    "of a job on eight nodes, one rank of this node holds all others up",
                    &[
                        &[(Gemm, 3), (BackGemm, 4), (Python, 13)],
                        &[(Gemm, 3), (BackGemm, 4), (Reduce, 13)],
                    ],
                )
            }
            .uses(0.6, 0.0, 16),
        ),
        is_of(
            INPUT,
            "storage",
            gloo(
                "the first of two ranks reads a cold disk",
                &[
                    &[(ReadBatch, 12), (Gemm, 3), (BackGemm, 4), (Reduce, 1)],
                    &[(ReadBatch, 1), (Gemm, 3), (BackGemm, 4), (Reduce, 12)],
                ],
            )
            .feed(0, &[])
            .uses(0.4, 0.0, 16),
        ),
        // One rank computes three times as much as the others.
        is(
            HOST,
            Run {
                omp: 3,
                ..gloo(
                    "the longest sentences go to one rank",
                    &[
                        &[(Gemm, 3), (BackGemm, 3), (Reduce, 14)],
                        &[(Gemm, 9), (BackGemm, 10), (Reduce, 1)],
                        &[(Gemm, 3), (BackGemm, 4), (Reduce, 13)],
                    ],
                )
            }
            .uses(2.0, 0.0, 32),
        ),
        // Only the first rank writes checkpoints, and has no name for it.
        none(gloo(
            "one rank writes a checkpoint each step, and one waits for it",
            &[
                &[(Checkpoint, 12), (Gemm, 4), (BackGemm, 3), (Reduce, 1)],
                &[(Gemm, 4), (BackGemm, 3), (Reduce, 13)],
            ],
        )),
        none(gloo(
            "one rank sleeps, and one waits for it",
            &[&[(Reduce, 20)], &[(Sleep, 20)]],
        )),
        none(
            gloo(
                "two ranks, each half in Python and half in the network",
                &same(2, &[(Gemm, 2), (Python, 9), (Reduce, 9)]),
            )
            .uses(0.6, 0.0, 16),
        ),
    ]
}

/// The same with NCCL: hosts enqueue collectives and go on, devices spin until the last rank comes.
fn slow_ranks_on_nccl() -> Vec<Case> {
    use Do::*;
    let victim: &[(Do, u64)] = &[(Launch, 3), (Backward, 3), (BackReduce, 1), (Sync, 13)];
    let fed: &[(Do, u64)] = &[
        (Wait, 1),
        (Launch, 3),
        (Backward, 4),
        (BackReduce, 1),
        (Sync, 11),
    ];
    let spinning = Device::gpm(0.98, 0.15, 0.06, 0.27);
    let loader = |rank, step: &[(Feed, u64)]| Loader {
        rank,
        count: 3,
        step: step.to_vec(),
    };
    let rested = [(Feed::Decode, 8), (Feed::Idle, 12)];
    vec![
        is(
            PYTHON,
            Run {
                devices: steady(&[
                    spinning,
                    Device::gpm(0.32, 0.15, 0.06, 0.22),
                    spinning,
                    spinning,
                ]),
                ..nccl(
                    "one of four ranks is in Python, and three devices spin",
                    &[
                        victim,
                        &[
                            (Python, 12),
                            (Launch, 3),
                            (Backward, 3),
                            (BackReduce, 1),
                            (Sync, 1),
                        ],
                        victim,
                        victim,
                    ],
                )
            }
            .uses(1.0, 0.0, 64),
        ),
        is_of(
            INPUT,
            "batch work",
            Run {
                devices: steady(&[spinning, spinning, Device::gpm(0.35, 0.16, 0.07, 0.25)]),
                loaders: vec![
                    loader(0, &rested),
                    loader(1, &rested),
                    loader(2, &[(Feed::Decode, 20)]),
                ],
                ..nccl(
                    "the last of three ranks has the large images",
                    &[
                        fed,
                        fed,
                        &[
                            (Wait, 11),
                            (Launch, 3),
                            (Backward, 4),
                            (BackReduce, 1),
                            (Sync, 1),
                        ],
                    ],
                )
            }
            .uses(0.9, 0.6, 64),
        ),
    ]
}

fn slow_devices_on_nccl() -> Vec<Case> {
    use Do::*;
    let victim: &[(Do, u64)] = &[(Launch, 3), (Backward, 3), (BackReduce, 1), (Sync, 13)];
    vec![
        is(
            THROTTLED,
            Run {
                devices: steady(&[
                    Device::gpm(0.99, 0.45, 0.2, 0.5),
                    Device::gpm(0.99, 0.46, 0.2, 0.5),
                    Device::gpm(0.99, 0.44, 0.2, 0.5),
                    held(
                        Device::gpm(0.99, 0.96, 0.35, 0.45),
                        HEAT_BY_HARDWARE | HARDWARE_SLOWDOWN,
                    ),
                ]),
                ..nccl("the device of one of four ranks is too hot", &[victim; 4])
            }
            .uses(1.0, 0.0, 64),
        ),
        is(
            SYNC,
            nccl(
                "both ranks ask idle devices for numbers",
                &same(
                    2,
                    &[(Sync, 12), (Launch, 3), (Backward, 4), (BackReduce, 1)],
                ),
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.3, 0.1, 0.05, 0.22)),
        ),
        // One device has twice the others' work; it is the one that computes, not the ones that are busy.
        is(
            GPU,
            Run {
                devices: steady(&[
                    Device::gpm(0.99, 0.5, 0.2, 0.55),
                    Device::gpm(0.99, 0.95, 0.35, 0.95),
                    Device::gpm(0.99, 0.5, 0.2, 0.55),
                ]),
                ..nccl("one of three ranks has the longest sequences", &[victim; 3])
            }
            .uses(1.0, 0.0, 64),
        ),
        // The slow one is among those that were not recorded.
        none(
            Run {
                world: 4,
                node: Some(4),
                devices: steady(&[Device::gpm(0.98, 0.15, 0.06, 0.27)]),
                ..nccl("three of four ranks, all victims", &[victim; 3])
            }
            .uses(1.0, 0.0, 64),
        ),
    ]
}

fn syncs() -> Vec<Case> {
    use Do::*;
    vec![
        is(
            SYNC,
            run(
                "a number is asked for after each small kernel",
                &[(Sync, 12), (Launch, 5), (Python, 3)],
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.3, 0.12, 0.06, 0.22)),
        ),
        is(
            SYNC,
            run(
                "masks as indices in the loss",
                &[(Mask, 12), (Dispatch, 3), (Launch, 3), (Backward, 2)],
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.35, 0.15, 0.08, 0.25)),
        ),
        is(
            SYNC,
            run(
                "timers that synchronize around each layer",
                &[(DeviceSync, 12), (Launch, 5), (Backward, 3)],
            )
            .uses(1.0, 0.0, 16)
            .device(Device::plain(0.36, 0.25)),
        ),
        // On the thread of autograd.
        is(
            SYNC,
            run(
                "a hook on gradients asks for their norms",
                &[(Launch, 3), (BackSync, 13), (Backward, 3), (Python, 1)],
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.3, 0.1, 0.05, 0.22)),
        ),
        any(
            &[SYNC, LAUNCH, None],
            run(
                "as many launches as waits",
                &[(Sync, 8), (Launch, 7), (Backward, 3), (Python, 2)],
            )
            .device(Device::gpm(0.32, 0.13, 0.06, 0.22)),
        ),
        any(
            &[SYNC, None],
            Run {
                mig: true,
                ..run(
                    "waits for an instance of a device that does little",
                    &[(Sync, 13), (Launch, 4), (Python, 3)],
                )
            }
            .device(Device::gpm(0.25, 0.1, 0.04, 0.2)),
        ),
        // Without native frames a wait that spins looks like the Python line that it is in.
        any(
            &[SYNC, None],
            Run {
                native: false,
                ..run(
                    "only Python's frames, and waits for the device",
                    &[(Sync, 14), (Launch, 4), (Python, 2)],
                )
            }
            .device(Device::gpm(0.3, 0.1, 0.05, 0.22)),
        ),
        any(
            &[SYNC, None],
            Run {
                neighbour: Some(7777),
                ..run(
                    "waits for a device that has another job, too, and little of both",
                    &[(Sync, 12), (Launch, 5), (Python, 3)],
                )
            }
            .device(Device::gpm(0.32, 0.14, 0.06, 0.24)),
        ),
        // cudaFree waits for the device, but it is memory that is the matter.
        any(
            &[SYNC, None],
            run(
                "the cache of device memory is emptied each step",
                &[(Alloc, 9), (Launch, 5), (Backward, 5), (Python, 1)],
            )
            .device(Device::gpm(0.45, 0.35, 0.15, 0.42)),
        ),
        none(
            run(
                "waits for a device that nobody looked at",
                &[(Sync, 14), (Launch, 3), (Backward, 3)],
            )
            .uses(1.0, 0.0, 32),
        ),
        none(
            run(
                "a third each of waits, launches and Python",
                &[(Sync, 7), (Python, 6), (Dispatch, 4), (Launch, 3)],
            )
            .device(Device::gpm(0.3, 0.1, 0.05, 0.2)),
        ),
    ]
}

fn copies() -> Vec<Case> {
    use Do::*;
    vec![
        is(
            COPY,
            Run {
                pin_memory: Some(false),
                ..run(
                    "large volumes from pageable memory",
                    &[(Copy, 12), (Launch, 4), (Backward, 4)],
                )
            }
            .feed(4, &[(Feed::Decode, 5), (Feed::Idle, 15)])
            .uses(0.9, 0.3, 32)
            .device(Device::gpm(0.28, 0.22, 0.1, 0.26)),
        ),
        is(
            COPY,
            run(
                "logits go to the host each step",
                &[(ToHost, 12), (Launch, 4), (Backward, 3), (Python, 1)],
            )
            .uses(0.9, 0.0, 32)
            .device(Device::gpm(0.33, 0.26, 0.12, 0.3)),
        ),
        is(
            COPY,
            run(
                "activations are kept on the host",
                &[(Copy, 8), (Launch, 2), (BackCopy, 8), (Backward, 2)],
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.34, 0.27, 0.12, 0.32)),
        ),
        is(
            COPY,
            run(
                "copies to a device without GPM",
                &[(Copy, 13), (Launch, 5), (Python, 2)],
            )
            .uses(0.9, 0.0, 16)
            .device(Device::plain(0.24, 0.2)),
        ),
        is(
            COPY,
            Run {
                pin_memory: Some(true),
                pinning: Some(0.3),
                ..run(
                    "pinned copies over a narrow bus that the loop waits for",
                    &[(WaitPinned, 1), (Copy, 11), (Launch, 4), (Backward, 4)],
                )
            }
            .feed(4, &[(Feed::Decode, 6), (Feed::Idle, 14)])
            .uses(0.9, 0.3, 32)
            .device(Device::gpm(0.36, 0.3, 0.12, 0.33)),
        ),
        any(
            &[COPY, None],
            Run {
                mig: true,
                ..run(
                    "copies to an instance of a device",
                    &[(Copy, 12), (Launch, 5), (Backward, 3)],
                )
            }
            .device(Device::gpm(0.3, 0.22, 0.1, 0.25)),
        ),
        // The copy may stand behind kernels.
        none(
            run(
                "copies to a device that nobody looked at",
                &[(Copy, 12), (Launch, 4), (Backward, 4)],
            )
            .uses(0.9, 0.0, 32),
        ),
        none(
            run(
                "as long in copies as in waits for data",
                &[(Copy, 9), (Wait, 9), (Launch, 2)],
            )
            .feed(4, &[(Feed::Decode, 18), (Feed::Idle, 2)])
            .uses(0.6, 0.9, 32)
            .device(Device::gpm(0.15, 0.12, 0.05, 0.2)),
        ),
        none(
            run(
                "gradients go to the host, where the optimizer computes as long",
                &[(ToHost, 8), (HostAdam, 8), (Launch, 2), (Backward, 2)],
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.2, 0.16, 0.08, 0.24)),
        ),
    ]
}

fn throttled() -> Vec<Case> {
    use Do::*;
    let sync = [(Launch, 4), (Backward, 3), (Sync, 13)];
    let hot = held(Device::gpm(0.99, 0.95, 0.3, 0.5), HEAT_BY_HARDWARE);
    vec![
        is(
            THROTTLED,
            run("the hardware slows a hot device down", &sync)
                .uses(1.0, 0.0, 64)
                .device(held(
                    Device::gpm(0.99, 0.95, 0.35, 0.5),
                    HEAT_BY_HARDWARE | HARDWARE_SLOWDOWN,
                )),
        ),
        is(
            THROTTLED,
            run(
                "a hot device, and launches that wait for it",
                &[(Launch, 9), (Backward, 10), (Python, 1)],
            )
            .uses(1.0, 0.0, 64)
            .device(held(Device::gpm(0.99, 0.94, 0.3, 0.55), HEAT_BY_SOFTWARE)),
        ),
        is(
            THROTTLED,
            run("a weak power supply", &sync)
                .uses(1.0, 0.0, 64)
                .device(held(Device::gpm(0.99, 0.9, 0.3, 0.4), POWER_BRAKE)),
        ),
        is(
            THROTTLED,
            Run {
                devices: vec![vec![(90, full()), (510, hot)]],
                ..run("hot after the first second", &sync)
            }
            .uses(1.0, 0.0, 64),
        ),
        is(
            THROTTLED,
            nccl(
                "both devices of a node are too hot",
                &same(
                    2,
                    &[(Launch, 4), (Backward, 4), (BackReduce, 1), (Sync, 11)],
                ),
            )
            .uses(1.0, 0.0, 64)
            .device(held(Device::gpm(0.99, 0.93, 0.3, 0.5), HEAT_BY_HARDWARE)),
        ),
        is(
            THROTTLED,
            run("a hot device without GPM", &sync)
                .uses(1.0, 0.0, 16)
                .device(held(
                    Device::plain(0.99, 0.62),
                    HEAT_BY_HARDWARE | HARDWARE_SLOWDOWN,
                )),
        ),
        any(
            &[THROTTLED, GPU],
            Run {
                devices: vec![vec![(300, full()), (300, hot)]],
                ..run("hot for half of the time", &sync)
            },
        ),
    ]
}

fn host_compute() -> Vec<Case> {
    use Do::*;
    let accumulation = then(&[&times(6, &[(Gemm, 2), (BackGemm, 3)]), &[(Reduce, 6)]]);
    vec![
        is(
            HOST,
            Run {
                cuda: false,
                omp: 15,
                ..run(
                    "a network on sixteen CPUs",
                    &[(Gemm, 7), (BackGemm, 10), (Elementwise, 2), (Barrier, 1)],
                )
            }
            .quota(15.4, 0.0, 16.0),
        ),
        is(
            HOST,
            Run {
                cuda: false,
                omp: 3,
                ..run(
                    "elementwise work on four CPUs of eight",
                    &[(Elementwise, 9), (Gemm, 3), (BackGemm, 5), (Barrier, 3)],
                )
            }
            .uses(3.7, 0.0, 8),
        ),
        is(
            HOST,
            Run {
                cuda: false,
                ..run(
                    "a network on CPUs, of which no more is known",
                    &[(Gemm, 9), (BackGemm, 9), (Python, 2)],
                )
            },
        ),
        is(
            HOST,
            Run {
                omp: 7,
                ..run(
                    "a model that was never moved to the device",
                    &[(Wait, 1), (Gemm, 8), (BackGemm, 10), (Python, 1)],
                )
            }
            .feed(2, &[(Feed::Decode, 3), (Feed::Idle, 17)])
            .uses(7.6, 0.15, 32)
            .device(Device::gpm(0.0, 0.0, 0.0, 0.1)),
        ),
        is(
            HOST,
            Run {
                omp: 3,
                ..gloo(
                    "four ranks on CPUs, a fifth of the time in the network",
                    &same(4, &[(Gemm, 7), (BackGemm, 9), (Reduce, 4)]),
                )
            }
            .uses(3.3, 0.0, 32),
        ),
        is(
            HOST,
            Run {
                steps: 16,
                omp: 3,
                ..gloo(
                    "two ranks on CPUs that add gradients up",
                    &same(2, &accumulation),
                )
            }
            .uses(3.4, 0.0, 16),
        ),
        any(
            &[HOST, None],
            Run {
                omp: 7,
                ..run(
                    "torch's optimizer on parameters that stay on the host",
                    &[(HostFused, 13), (Copy, 2), (Launch, 2), (Backward, 3)],
                )
            }
            .uses(6.0, 0.0, 32)
            .device(Device::gpm(0.25, 0.2, 0.1, 0.26)),
        ),
        any(
            &[HOST, None],
            run(
                "an extension's optimizer on parameters that stay on the host",
                &[(HostAdam, 13), (Copy, 3), (Launch, 2), (Backward, 2)],
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.22, 0.18, 0.1, 0.25)),
        ),
    ]
}

/// Two causes about as large, or one that changes with time.
fn mixed() -> Vec<Case> {
    use Do::*;
    let idle = Device::gpm(0.03, 0.02, 0.01, 0.14);
    let busy_part: &[(Do, u64)] = &[(Launch, 2), (Backward, 2), (Sync, 6)];
    let halves = then(&[
        &times(30, busy_part),
        &times(30, &[(Python, 8), (Launch, 2)]),
    ]);
    let starving = then(&[&times(30, busy_part), &times(30, &[(Wait, 8), (Launch, 2)])]);
    vec![
        none(
            run(
                "half waits for data, half waits for the device",
                &[(Wait, 9), (Sync, 8), (Launch, 3)],
            )
            .feed(4, &[(Feed::Decode, 16), (Feed::Idle, 4)])
            .uses(0.5, 0.8, 32)
            .device(Device::gpm(0.3, 0.12, 0.05, 0.22)),
        ),
        none(
            run(
                "half waits for data, half launches",
                &[(Wait, 9), (Dispatch, 4), (Launch, 5), (Python, 2)],
            )
            .feed(4, &[(Feed::Decode, 17), (Feed::Idle, 3)])
            .uses(0.5, 0.85, 32)
            .device(Device::gpm(0.25, 0.08, 0.04, 0.2)),
        ),
        none(
            Run {
                steps: 1,
                devices: vec![vec![(300, full()), (300, idle)]],
                ..run("a busy device first, and Python later", &halves)
            }
            .uses(1.0, 0.0, 32),
        ),
        none(
            Run {
                steps: 1,
                devices: vec![vec![(300, full()), (300, idle)]],
                ..run("a busy device first, and no data later", &starving)
            }
            .feed(2, &[(Feed::Decode, 450), (Feed::Idle, 150)])
            .uses(0.7, 0.75, 32),
        ),
        any(
            &[None, GPU],
            Run {
                steps: 10,
                devices: vec![vec![(40, full()), (20, idle)]],
                ..run(
                    "two thirds of training, one third of Python between",
                    &[(Launch, 10), (Backward, 10), (Sync, 20), (Python, 20)],
                )
            }
            .uses(1.0, 0.0, 32),
        ),
        any(
            &[None, GPU],
            Run {
                steps: 1,
                devices: vec![vec![(480, full()), (120, idle)]],
                ..run(
                    "a busy device, and a checkpoint at the end",
                    &then(&[&times(48, busy_part), &[(Checkpoint, 120)]]),
                )
            }
            .uses(0.8, 0.0, 32),
        ),
    ]
}

/// What most of the time goes to has no name among the causes.
fn nameless() -> Vec<Case> {
    use Do::*;
    let step: &[(Do, u64)] = &[(Launch, 2), (Backward, 3), (Sync, 1)];
    let saving = then(&[
        &times(10, &[(Wait, 1), (Launch, 2), (Backward, 2)]),
        &[(Checkpoint, 90)],
    ]);
    let compiling = then(&[
        &times(10, step),
        &[(Compile, 120), (CompileWait, 100)],
        &times(10, step),
    ]);
    let evaluating = then(&[&times(6, step), &[(Evaluate, 64), (Python, 10)]]);
    let idle = Device::gpm(0.01, 0.01, 0.0, 0.13);
    let working = Device::gpm(0.8, 0.65, 0.3, 0.7);
    vec![
        none(
            Run {
                steps: 5,
                devices: vec![vec![(50, working), (90, idle)]],
                ..run("a checkpoint every ten steps", &saving)
            }
            .feed(2, &[(Feed::Decode, 45), (Feed::Idle, 95)])
            .uses(0.4, 0.3, 32),
        ),
        none(
            Run {
                steps: 1,
                devices: vec![vec![(60, working), (220, idle), (60, working)]],
                ..run("torch.compile again in the middle", &compiling)
            }
            .uses(1.0, 0.0, 32),
        ),
        none(
            Run {
                steps: 6,
                devices: vec![vec![(36, working), (74, idle)]],
                ..run("scores of an evaluation in NumPy", &evaluating)
            }
            .uses(1.0, 0.0, 32),
        ),
        none(
            run(
                "the loop sleeps, and waits for the device at times",
                &[(Sleep, 14), (Sync, 3), (Launch, 3)],
            )
            .uses(0.3, 0.0, 32)
            .device(Device::gpm(0.12, 0.06, 0.03, 0.16)),
        ),
        none(
            run(
                "the loop sleeps, and waits for data at times",
                &[(Sleep, 13), (Wait, 4), (Launch, 3)],
            )
            .feed(2, &[(Feed::Decode, 12), (Feed::Idle, 8)])
            .uses(0.2, 0.6, 32)
            .device(Device::gpm(0.1, 0.08, 0.03, 0.16)),
        ),
        none(
            run(
                "each step is told to a server of logs",
                &[(Post, 12), (Launch, 4), (Backward, 3), (Python, 1)],
            )
            .uses(0.4, 0.0, 32)
            .device(Device::gpm(0.3, 0.24, 0.1, 0.3)),
        ),
        // Half of what ran has no name: whatever it is, it is more than the rest.
        none(
            run(
                "code without names, and as much of other things",
                &[(Unknown, 10), (Sync, 5), (Launch, 5)],
            )
            .uses(1.0, 0.0, 32)
            .device(Device::gpm(0.3, 0.12, 0.05, 0.22)),
        ),
        none(
            Run {
                startup: 400,
                steps: 1,
                ..run(
                    "imports, weights, and no step yet",
                    &[(Init, 60), (Load, 60)],
                )
            }
            .uses(0.9, 0.0, 32)
            .device(Device::gpm(0.0, 0.0, 0.0, 0.1)),
        ),
        // A tenth of a second: too little to say anything of a run.
        none(
            Run {
                steps: 1,
                ..run("twelve samples", &[(Wait, 7), (Launch, 3), (Sync, 2)])
            }
            .feed(2, &[(Feed::Decode, 12)])
            .device(Device::gpm(0.2, 0.15, 0.06, 0.24)),
        ),
        none(
            Run {
                steps: 1,
                ..run("nine samples of a wait", &[(Sync, 8), (Launch, 1)])
            }
            .device(Device::gpm(0.2, 0.1, 0.04, 0.2)),
        ),
    ]
}

fn cases() -> Vec<Case> {
    [
        input_by_workers(),
        input_by_more_workers(),
        input_without_workers(),
        input_beside_others(),
        starved(),
        launches(),
        python(),
        device_compute(),
        device_compute_misread(),
        device_other(),
        communication(),
        slow_ranks_on_gloo(),
        slow_ranks_on_nccl(),
        slow_devices_on_nccl(),
        syncs(),
        copies(),
        throttled(),
        host_compute(),
        mixed(),
        nameless(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The threads and processes of a run must fill the same time, or it is no run.
#[test]
fn every_part_of_a_run_takes_as_long() {
    let cases = cases();
    assert!(cases.len() >= 60, "{}", cases.len());
    for Case { run, .. } in &cases {
        let ticks = |step: &[(Do, u64)]| step.iter().map(|(_, length)| length).sum::<u64>();
        let whole = ticks(&run.step);
        for other in &run.others {
            assert_eq!(ticks(other), whole, "{}: ranks", run.name);
        }
        for loader in &run.loaders {
            let length: u64 = loader.step.iter().map(|(_, length)| length).sum();
            let wanted = if loader.count == 0 { 0 } else { whole };
            assert_eq!(length, wanted, "{}: workers", run.name);
        }
    }
    let mut names: Vec<_> = cases.iter().map(|case| case.run.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), cases.len(), "names");
}

#[test]
fn a_third_set_of_runs_is_told_well() {
    let cases = cases();
    let (mut counted, mut told, mut medium, mut low) = (0_u32, 0_u32, 0_u32, 0_u32);
    let mut confident = Vec::new();
    for case in &cases {
        let verdict = case.run.told();
        let found = verdict.as_ref().and_then(|verdict| verdict.cause.as_ref());
        let cause = found.map(|cause| cause.name());
        let detail = found.and_then(|cause| cause.detail());
        let confidence = verdict.as_ref().and_then(|verdict| verdict.confidence);
        let fits = case.detail.is_none() || detail.is_none() || detail == case.detail;
        let right = case.accepted.contains(&cause) && fits;
        counted += u32::from(case.counts);
        told += u32::from(case.counts && right);
        if right {
            if case.detail != detail && case.detail.is_some() {
                eprintln!(
                    "no detail: {}: {cause:?}, not {:?}",
                    case.run.name, case.detail
                );
            }
            continue;
        }
        let line = format!(
            "{}: told {cause:?} {detail:?} ({:?}), expected {:?} {:?}",
            case.run.name, confidence, case.accepted, case.detail
        );
        let findings = verdict.as_ref().map(|verdict| &verdict.findings);
        eprintln!("miss: {line}\n      {findings:?}");
        match confidence {
            Some(Confidence::High) if cause.is_some() => confident.push(line),
            Some(Confidence::Medium) if cause.is_some() => medium += 1,
            Some(Confidence::Low) if cause.is_some() => low += 1,
            _ => {}
        }
    }
    eprintln!(
        "{} runs; {told} of {counted} causes told; wrong: {} high, {medium} medium, {low} low",
        cases.len(),
        confident.len()
    );
    assert!(
        confident.is_empty(),
        "wrong with high confidence:\n{}",
        confident.join("\n")
    );
    assert!(
        f64::from(told) >= 0.8 * f64::from(counted),
        "{told} of {counted}"
    );
}
