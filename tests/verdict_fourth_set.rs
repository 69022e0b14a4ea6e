//! A fourth set of made-up runs for the verdict, held out: it was written by someone who had seen neither the rules nor their
//! thresholds, and who decided each answer from what happens in such a run.
//!
//! Each run has the answers that an expert would accept. "No single cause" is never wrong; where one cause is clear and all that
//! shows it was recorded, the run counts toward recall, and saying nothing is a miss. A cause that is not among the answers is
//! wrong, and must not be told with high confidence.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

mod analysis_builder;
mod lane_builder;
mod verdict_scenarios;

use torchspy::analysis::verdict::{Confidence, Verdict};
use verdict_scenarios::Do::*;
use verdict_scenarios::{Device, Do, Feed, Loader, Run, ranks};

type Answers = &'static [Option<&'static str>];

const NONE: Answers = &[None];
const INPUT: Answers = &[Some("input-bound")];
const LAUNCH: Answers = &[Some("launch-bound")];
const PYTHON: Answers = &[Some("Python-bound")];
const GPU: Answers = &[Some("GPU-bound")];
const COMMUNICATION: Answers = &[Some("communication-bound")];
const SYNC: Answers = &[Some("sync-bound")];
const COPY: Answers = &[Some("copy-bound")];
const STARVED: Answers = &[Some("CPU-starved")];
const THROTTLED: Answers = &[Some("throttled")];
const HOST: Answers = &[Some("host-compute-bound")];

/// Reasons for which clocks are held down.
const IDLE: u64 = 0x1;
const APPLICATION_CLOCKS: u64 = 0x2;
const POWER_CAP: u64 = 0x4;
const SLOWDOWN: u64 = 0x8;
const HEAT_SOFTWARE: u64 = 0x20;
const HEAT_HARDWARE: u64 = 0x40;
const POWER_BRAKE: u64 = 0x80;

/// What may be told beside the cause; to tell nothing is always right.
#[derive(Clone, Debug)]
enum Detail {
    Any,
    Only(&'static str),
    /// Nothing was recorded that would tell.
    Unseen,
}

struct Case {
    run: Run,
    answers: Answers,
    /// Whether it counts toward recall.
    counts: bool,
    detail: Detail,
}

impl Case {
    fn detail(mut self, detail: Detail) -> Self {
        self.detail = detail;
        self
    }
}

/// One clear cause.
fn clear(run: Run, answers: Answers) -> Case {
    Case {
        run,
        answers,
        counts: true,
        detail: Detail::Any,
    }
}

/// No single cause, or one that may be told and need not be.
fn open(run: Run, answers: Answers) -> Case {
    Case {
        counts: false,
        ..clear(run, answers)
    }
}

fn run(name: &'static str, step: &[(Do, u64)], device: Device) -> Run {
    Run::new(name, None, step).device(device)
}

/// The same with NCCL; each rank's device does one thing all along.
fn nccl(name: &'static str, steps: &[&[(Do, u64)]], devices: &[Device]) -> Run {
    Run {
        nccl: true,
        devices: devices.iter().map(|&device| vec![(1, device)]).collect(),
        ..ranks(name, steps)
    }
}

fn idle() -> Device {
    Device::gpm(0.02, 0.01, 0.01, 0.14)
}

/// Dense matrix products.
fn dense() -> Device {
    Device::gpm(0.98, 0.88, 0.41, 0.93)
}

/// NCCL's kernels wait for another rank, or for a link.
fn spinning() -> Device {
    Device::gpm(0.99, 0.11, 0.05, 0.26)
}

fn input_by_workers() -> Vec<Case> {
    let jpeg = run(
        "ResNet-50, eight workers decode JPEG",
        &[(Wait, 19), (Copy, 1), (Launch, 6), (Sync, 3)],
        Device::busy(0.31),
    )
    .feed(8, &[(Feed::Decode, 27), (Feed::Idle, 2)])
    .uses(0.6, 0.93, 32);
    let nfs = run(
        "video clips from a network file system",
        &[(Wait, 41), (Launch, 9), (Sync, 7)],
        Device::busy(0.22),
    )
    .feed(6, &[(Feed::Read, 50), (Feed::Decode, 6), (Feed::Idle, 1)])
    .uses(0.4, 0.12, 48);
    let bucket = run(
        "shards from an object store",
        &[(Wait, 26), (Launch, 8), (Backward, 5)],
        Device::busy(0.27),
    )
    .feed(
        10,
        &[(Feed::Socket, 33), (Feed::Decode, 5), (Feed::Collate, 1)],
    )
    .uses(0.4, 0.2, 64);
    // The device has nothing to do for 40 % of the time, all of it for want of a batch.
    let moderate = Run {
        devices: vec![vec![
            (22, idle()),
            (33, Device::gpm(0.97, 0.84, 0.37, 0.88)),
        ]],
        ..Run::new(
            "segmentation, two fifths wait for crops",
            None,
            &[(Wait, 22), (Launch, 5), (Sync, 28)],
        )
    }
    .feed(5, &[(Feed::Decode, 53), (Feed::Idle, 2)])
    .uses(0.7, 0.95, 40);
    let burst = Run {
        steps: 9,
        devices: vec![vec![(118, idle()), (82, Device::gpm(0.71, 0.6, 0.3, 0.66))]],
        ..Run::new(
            "prefetched batches run out, then a long wait",
            None,
            &[(Wait, 118), (Launch, 49), (Sync, 33)],
        )
    }
    .feed(3, &[(Feed::Decode, 61), (Feed::Read, 135), (Feed::Idle, 4)]);
    vec![
        clear(jpeg, INPUT).detail(Detail::Only("batch work")),
        clear(nfs, INPUT).detail(Detail::Only("storage")),
        clear(bucket, INPUT).detail(Detail::Only("storage")),
        clear(moderate, INPUT).detail(Detail::Only("batch work")),
        clear(burst, INPUT).detail(Detail::Only("storage")),
    ]
}

fn input_otherwise() -> Vec<Case> {
    let single = run(
        "num_workers=0, byte pairs merged in the loop",
        &[(Tokenize, 23), (Launch, 9), (Sync, 4), (Python, 1)],
        Device::busy(0.19),
    )
    .feed(0, &[]);
    // Workers wait; the thread that pins their batches copies without pause.
    let pinning = Run {
        pinning: Some(0.96),
        pin_memory: Some(true),
        ..run(
            "a single thread pins large volumes",
            &[(WaitPinned, 25), (Launch, 8), (Sync, 3)],
            Device::busy(0.24),
        )
    }
    .feed(12, &[(Feed::Decode, 9), (Feed::Idle, 27)]);
    let python_only = Run {
        native: false,
        ..run(
            "audio, recorded without native frames",
            &[(Wait, 33), (Launch, 9), (Python, 4)],
            Device::busy(0.21),
        )
    }
    .feed(6, &[(Feed::Decode, 44), (Feed::Idle, 2)]);
    let slice = Run {
        mig: true,
        ..run(
            "a small classifier on a MIG slice",
            &[(Wait, 28), (Launch, 9), (Sync, 6)],
            Device::gpm(0.0, 0.13, 0.06, 0.0),
        )
    }
    .feed(2, &[(Feed::Decode, 42), (Feed::Idle, 1)]);
    let recompiles = run(
        "slow augmentation beside some recompilation",
        &[(Wait, 61), (Compile, 15), (Launch, 11), (Sync, 9)],
        Device::busy(0.14),
    )
    .feed(7, &[(Feed::Decode, 93), (Feed::Idle, 3)]);
    // The other process may be all of the utilization; the wait is the trainer's own.
    let shared = Run {
        neighbour: Some(9_321),
        ..run(
            "waits for data beside a busy neighbour",
            &[(Wait, 27), (Launch, 9), (Sync, 5)],
            Device::gpm(0.97, 0.83, 0.4, 0.86),
        )
    }
    .feed(4, &[(Feed::Decode, 40), (Feed::Idle, 1)]);
    vec![
        clear(single, INPUT).detail(Detail::Only("batch work")),
        clear(pinning, INPUT),
        clear(python_only, INPUT),
        clear(slice, INPUT),
        clear(recompiles, INPUT),
        open(shared, INPUT),
    ]
}

fn starved() -> Vec<Case> {
    let spot = run(
        "a spot machine of four CPUs, twelve workers",
        &[(Wait, 31), (Launch, 9), (Sync, 5)],
        Device::busy(0.23),
    )
    .feed(
        12,
        &[(Feed::Starved, 30), (Feed::Decode, 14), (Feed::Idle, 1)],
    )
    .uses(0.49, 0.29, 4);
    let pod = Run {
        held: 0.58,
        ..run(
            "a pod of two CPUs, eight workers",
            &[(Wait, 27), (Launch, 9), (Python, 4)],
            Device::busy(0.18),
        )
        .feed(
            8,
            &[(Feed::Starved, 27), (Feed::Decode, 12), (Feed::Idle, 1)],
        )
        .quota(0.3, 0.21, 2.0)
    };
    let mut preempted = Run {
        queues: vec![0.62],
        ..run(
            "a simulator has both CPUs of the trainer",
            &[(Launch, 20), (Dispatch, 10), (Python, 6)],
            Device::busy(0.16),
        )
        .uses(0.38, 0.0, 2)
    };
    preempted.loads.push((7_777, 1.6));
    let both = Run {
        queues: vec![0.55],
        held: 0.49,
        ..run(
            "a quota of three CPUs holds back trainer and workers",
            &[(Wait, 12), (Launch, 19), (Backward, 5), (Python, 2)],
            Device::busy(0.2),
        )
        .feed(
            9,
            &[(Feed::Starved, 25), (Feed::Decode, 11), (Feed::Idle, 2)],
        )
        .quota(0.36, 0.29, 3.0)
    };
    vec![
        clear(spot, STARVED),
        clear(pod, STARVED),
        clear(preempted, STARVED),
        clear(both, STARVED),
    ]
}

fn launch() -> Vec<Case> {
    let eager = run(
        "a small language model in eager mode",
        &[(Launch, 21), (Dispatch, 9), (ModelPython, 4), (Sync, 1)],
        Device::busy(0.28),
    );
    let backward = run(
        "many small layers, most launches from backward",
        &[(Backward, 18), (Launch, 10), (OptLaunch, 6), (Sync, 2)],
        Device::busy(0.24),
    );
    let optimizer = run(
        "an optimizer without fusion over nine hundred tensors",
        &[(OptLaunch, 24), (Launch, 6), (Sync, 3)],
        Device::plain(0.21, 0.27),
    );
    let accumulate = nccl(
        "four micro-batches of tiny kernels on two ranks",
        &[
            &[(Launch, 34), (Backward, 37), (BackReduce, 2), (Sync, 5)],
            &[(Launch, 35), (Backward, 36), (BackReduce, 2), (Sync, 5)],
        ],
        &[Device::busy(0.31)],
    );
    let bursts = Run {
        steps: 14,
        devices: vec![vec![
            (63, Device::gpm(0.18, 0.1, 0.05, 0.24)),
            (11, Device::gpm(0.9, 0.6, 0.3, 0.6)),
        ]],
        ..Run::new(
            "a long row of launches before each log line",
            None,
            &[(Launch, 46), (Dispatch, 17), (Sync, 11)],
        )
    };
    let moderate = run(
        "object detection, half of it launches",
        &[
            (Launch, 16),
            (Dispatch, 5),
            (Python, 5),
            (ModelPython, 4),
            (Sync, 5),
            (Copy, 3),
        ],
        Device::busy(0.26),
    );
    vec![
        clear(eager, LAUNCH),
        clear(backward, LAUNCH),
        clear(optimizer, LAUNCH),
        clear(accumulate, LAUNCH),
        clear(bursts, LAUNCH),
        clear(moderate, LAUNCH),
    ]
}

fn python() -> Vec<Case> {
    let optimizer = run(
        "an optimizer of the user's, tensor by tensor",
        &[(OptPython, 23), (OptLaunch, 4), (Launch, 5), (Sync, 2)],
        Device::busy(0.15),
    );
    let mut simulator = run(
        "reinforcement learning, the environment in Python",
        &[(Python, 33), (Launch, 7), (ToHost, 1), (Copy, 1)],
        Device::plain(0.08, 0.17),
    )
    .uses(0.99, 0.0, 64);
    // Others use the machine, but nobody waits for a CPU.
    simulator.loads.push((8_080, 57.3));
    let scan = run(
        "a scan whose backward is Python",
        &[(BackPython, 22), (Launch, 7), (OptLaunch, 2), (Sync, 2)],
        Device::busy(0.18),
    );
    let routing = run(
        "experts are routed by a loop over tokens",
        &[
            (ModelPython, 17),
            (Python, 4),
            (Launch, 8),
            (Mask, 3),
            (Sync, 1),
        ],
        Device::busy(0.2),
    );
    let moderate = run(
        "metrics after each batch, 46 percent",
        &[
            (Python, 17),
            (Launch, 8),
            (Sync, 5),
            (Copy, 3),
            (Backward, 4),
        ],
        Device::busy(0.25),
    );
    let lock = run(
        "a thread of the user's holds the interpreter",
        &[(Gil, 18), (Python, 7), (Launch, 8)],
        Device::busy(0.19),
    );
    vec![
        clear(optimizer, PYTHON),
        clear(simulator, PYTHON),
        clear(scan, PYTHON),
        clear(routing, PYTHON),
        clear(moderate, PYTHON),
        open(lock, PYTHON),
    ]
}

fn gpu() -> Vec<Case> {
    let llm = run(
        "pretraining with activation checkpointing",
        &[(Launch, 12), (Backward, 13), (Sync, 29)],
        Device::gpm(0.985, 0.87, 0.42, 0.95),
    );
    let decode = run(
        "decoding by graphs, limited by weights' bandwidth",
        &[(GraphLaunch, 5), (Sync, 31)],
        Device::gpm(0.97, 0.93, 0.89, 0.62),
    );
    let older = run(
        "a device without counters, near its power limit",
        &[(Launch, 9), (DeviceSync, 25)],
        Device::plain(0.98, 0.94),
    );
    let slice = Run {
        mig: true,
        ..run(
            "fine-tuning fills a MIG slice",
            &[(Launch, 7), (Backward, 5), (Sync, 27)],
            Device::gpm(0.0, 0.91, 0.34, 0.0),
        )
    };
    let step: &[(Do, u64)] = &[(Launch, 10), (BackReduce, 3), (Sync, 27)];
    let overlap = nccl(
        "four ranks, all-reduce hidden behind backward",
        &[step, step, step, step],
        &[Device::gpm(0.99, 0.86, 0.42, 0.92)],
    );
    let shallow = Run {
        native: false,
        ..run(
            "a full device, recorded without native frames",
            &[(Launch, 11), (Sync, 26)],
            dense(),
        )
    };
    let clocks = run(
        "a full device at clocks set by the operator",
        &[(Launch, 9), (Sync, 28)],
        Device {
            throttle: APPLICATION_CLOCKS,
            ..Device::gpm(0.98, 0.89, 0.38, 0.74)
        },
    );
    let shared = Run {
        neighbour: Some(31_337),
        ..run(
            "two processes fill one device",
            &[(Launch, 30), (Sync, 7)],
            Device::gpm(0.99, 0.9, 0.4, 0.9),
        )
    };
    vec![
        clear(llm, GPU).detail(Detail::Only("compute")),
        clear(decode, GPU).detail(Detail::Only("DRAM")),
        clear(older, GPU).detail(Detail::Unseen),
        clear(slice, GPU),
        clear(overlap, GPU).detail(Detail::Only("compute")),
        clear(shallow, GPU),
        clear(clocks, GPU),
        open(shared, GPU),
    ]
}

/// Runs whose host seems to be busy or waiting with something else, while the device is full.
fn full_device() -> Vec<Case> {
    let pressure = run(
        "launches wait for room in a full queue",
        &[(Launch, 37), (Dispatch, 3), (Sync, 1)],
        dense(),
    );
    let graphs = run(
        "replays of graphs wait for the one before",
        &[(GraphLaunch, 33), (Python, 3)],
        Device::gpm(0.99, 0.91, 0.36, 0.96),
    );
    let ahead = run(
        "Python bookkeeping behind which the device works",
        &[(Python, 21), (Launch, 6), (Sync, 10)],
        dense(),
    );
    let upload = run(
        "pageable copies queue behind kernels",
        &[(Copy, 25), (Launch, 9), (Python, 2)],
        Device::gpm(0.97, 0.86, 0.4, 0.91),
    );
    let download = run(
        "losses are fetched by .cpu() from a full device",
        &[(ToHost, 26), (Launch, 8), (Backward, 3)],
        Device::gpm(0.98, 0.9, 0.33, 0.94),
    );
    // One CPU is all it may use, and spinning for the device takes all of it.
    let spin = run(
        "a wait that spins uses up a quota of one CPU",
        &[(Launch, 6), (Sync, 31)],
        dense(),
    )
    .quota(0.99, 0.0, 1.0);
    let held = Run {
        held: 0.35,
        ..run(
            "workers are held back, the device is full",
            &[(Launch, 9), (Sync, 29)],
            Device::gpm(0.985, 0.88, 0.45, 0.92),
        )
        .feed(
            4,
            &[(Feed::Starved, 13), (Feed::Decode, 8), (Feed::Idle, 17)],
        )
        .quota(0.95, 0.26, 2.0)
    };
    // Nothing in it waits for the next batch but the host.
    let hidden = run(
        "the host waits for data while the device still works",
        &[(Wait, 21), (Launch, 14), (Backward, 6)],
        Device::gpm(0.98, 0.88, 0.4, 0.93),
    )
    .feed(4, &[(Feed::Decode, 36), (Feed::Idle, 5)]);
    vec![
        clear(pressure, GPU),
        clear(graphs, GPU),
        clear(ahead, GPU),
        clear(upload, GPU),
        clear(download, GPU),
        clear(spin, GPU),
        clear(held, GPU),
        open(hidden, GPU),
    ]
}

fn throttled() -> Vec<Case> {
    let step: &[(Do, u64)] = &[(Launch, 7), (Backward, 4), (Sync, 27)];
    let hot = |name, throttle, device| run(name, step, Device { throttle, ..device });
    let heat = hot(
        "a dusty workstation, slowed by heat",
        HEAT_HARDWARE | SLOWDOWN,
        Device::gpm(0.98, 0.9, 0.4, 0.47),
    );
    let passive = hot(
        "a card without airflow",
        HEAT_SOFTWARE,
        Device::plain(0.99, 0.44),
    );
    // Large products do this on every such card: normal to some, a limit to others.
    let cap = hot(
        "dense training at the power limit",
        POWER_CAP,
        Device::gpm(0.99, 0.92, 0.5, 0.99),
    );
    let later = Run {
        steps: 48,
        devices: vec![vec![
            (912, Device::gpm(0.98, 0.88, 0.4, 0.92)),
            (
                912,
                Device {
                    throttle: SLOWDOWN | POWER_BRAKE,
                    ..Device::gpm(0.99, 0.9, 0.3, 0.5)
                },
            ),
        ]],
        ..Run::new(
            "a rack pulls the brake in the second half of the run",
            None,
            step,
        )
    };
    let rare = Run {
        steps: 45,
        devices: vec![vec![
            (
                55,
                Device {
                    throttle: HEAT_SOFTWARE,
                    ..dense()
                },
            ),
            (900, dense()),
        ]],
        ..Run::new("a moment of heat now and then", None, step)
    };
    // Heat from the past, of a neighbour or of the room: the device has little to do.
    let waiting = run(
        "a hot device that waits for data",
        &[(Wait, 27), (Launch, 8), (Sync, 4)],
        Device {
            throttle: HEAT_SOFTWARE,
            ..Device::busy(0.2)
        },
    )
    .feed(3, &[(Feed::Decode, 38), (Feed::Idle, 1)]);
    let drowsy = run(
        "low clocks because nothing is to be done",
        &[(Python, 26), (Launch, 6), (ToHost, 2)],
        Device {
            throttle: IDLE,
            ..Device::busy(0.09)
        },
    );
    let step: &[(Do, u64)] = &[(Launch, 7), (BackReduce, 2), (Sync, 28)];
    let cool = Device::gpm(0.99, 0.5, 0.22, 0.58);
    let one = Device {
        throttle: HEAT_HARDWARE,
        ..Device::gpm(0.99, 0.9, 0.4, 0.5)
    };
    let straggler = nccl(
        "one of four devices is too hot",
        &[step, step, step, step],
        &[cool, cool, cool, one],
    );
    vec![
        clear(heat, THROTTLED),
        clear(passive, THROTTLED),
        open(cap, &[Some("throttled"), Some("GPU-bound")]),
        open(later, &[Some("throttled"), Some("GPU-bound")]),
        clear(rare, GPU),
        clear(waiting, INPUT),
        clear(drowsy, PYTHON),
        clear(straggler, THROTTLED),
    ]
}

fn sync() -> Vec<Case> {
    let tokens = run(
        "a stop token is looked for after every token",
        &[(Sync, 21), (Launch, 9), (Python, 3)],
        Device::busy(0.22),
    );
    let masks = run(
        "masks as indices in every layer",
        &[(Mask, 19), (Launch, 10), (ModelPython, 4)],
        Device::busy(0.24),
    );
    let hooks = run(
        "gradient hooks that print norms",
        &[(BackSync, 20), (Launch, 8), (OptLaunch, 4)],
        Device::plain(0.2, 0.25),
    );
    let moderate = run(
        "branches on values, 42 percent",
        &[
            (Sync, 14),
            (Launch, 7),
            (Python, 5),
            (ModelPython, 4),
            (OptLaunch, 3),
        ],
        Device::busy(0.2),
    );
    let step: &[(Do, u64)] = &[(Sync, 20), (Launch, 8), (BackReduce, 2), (Python, 3)];
    let pair = nccl(
        "two ranks log every loss term",
        &[step, step],
        &[Device::busy(0.21)],
    );
    let shallow = Run {
        native: false,
        ..run(
            "synchronize() seen by its Python function alone",
            &[(DeviceSync, 21), (Launch, 8), (Python, 3)],
            Device::busy(0.19),
        )
    };
    let slice = Run {
        mig: true,
        ..run(
            "an .item() per layer on a MIG slice",
            &[(Sync, 23), (Launch, 8), (Python, 2)],
            Device::gpm(0.0, 0.07, 0.03, 0.0),
        )
    };
    // Host and device take turns: without the wait they would overlap.
    let turns = Run {
        devices: vec![vec![(34, idle()), (35, Device::gpm(0.98, 0.84, 0.4, 0.9))]],
        steps: 20,
        ..Run::new(
            "launches and a wait for them, in turns",
            None,
            &[(Launch, 34), (Sync, 35)],
        )
    };
    let any: Answers = &[Some("sync-bound"), Some("launch-bound"), Some("GPU-bound")];
    vec![
        clear(tokens, SYNC),
        clear(masks, SYNC),
        clear(hooks, SYNC),
        clear(moderate, SYNC),
        clear(pair, SYNC),
        clear(shallow, SYNC),
        open(slice, SYNC),
        open(turns, any),
    ]
}

fn copy() -> Vec<Case> {
    let video = Run {
        pin_memory: Some(false),
        ..run(
            "pageable copies of video batches",
            &[(Copy, 20), (Launch, 7), (Sync, 4)],
            Device::busy(0.22),
        )
    }
    .feed(4, &[(Feed::Decode, 12), (Feed::Idle, 19)]);
    let offload = run(
        "saved tensors come back from the host",
        &[(BackCopy, 21), (Launch, 8), (OptLaunch, 3)],
        Device::busy(0.25),
    );
    let swap = run(
        "optimizer states are swapped both ways",
        &[(Copy, 10), (ToHost, 11), (Launch, 9), (Sync, 1)],
        Device::plain(0.24, 0.29),
    );
    let moderate = run(
        "copies of label maps, 44 percent",
        &[(Copy, 14), (Launch, 8), (Python, 4), (Sync, 3), (Wait, 3)],
        Device::busy(0.23),
    );
    vec![
        clear(video, COPY),
        clear(offload, COPY),
        clear(swap, COPY),
        clear(moderate, COPY),
    ]
}

fn host() -> Vec<Case> {
    let bert = Run {
        cuda: false,
        omp: 7,
        ..Run::new(
            "an encoder trained on eight CPUs",
            None,
            &[(Gemm, 14), (BackGemm, 13), (Elementwise, 6), (Python, 2)],
        )
        .uses(7.6, 0.0, 8)
    };
    let offload = run(
        "an optimizer that was moved to the host",
        &[(HostAdam, 22), (BackCopy, 4), (Launch, 7), (Sync, 3)],
        Device::busy(0.24),
    );
    let fused = run(
        "adapters on the device, a fused step on the host",
        &[(HostFused, 19), (ToHost, 4), (Copy, 3), (Launch, 7)],
        Device::busy(0.2),
    );
    let embeddings = run(
        "a recommender looks up embeddings on the host",
        &[(Elementwise, 21), (Copy, 5), (Launch, 8)],
        Device::busy(0.17),
    );
    let step: &[(Do, u64)] = &[(Gemm, 18), (BackGemm, 13), (Reduce, 4)];
    let gloo = Run {
        cuda: false,
        ..ranks("two ranks on CPUs that mostly compute", &[step, step])
    };
    let moderate = Run {
        devices: vec![vec![(19, Device::gpm(0.93, 0.74, 0.35, 0.8)), (15, idle())]],
        ..Run::new(
            "an optimizer on the host, 44 percent",
            None,
            &[(Launch, 5), (Backward, 3), (Sync, 11), (HostAdam, 15)],
        )
    };
    vec![
        clear(bert, HOST),
        clear(offload, HOST),
        clear(fused, HOST),
        clear(embeddings, HOST),
        clear(gloo, HOST),
        clear(moderate, HOST),
    ]
}

fn communication() -> Vec<Case> {
    let step: &[(Do, u64)] = &[(Gemm, 8), (BackGemm, 6), (Reduce, 22)];
    let gloo = Run {
        cuda: false,
        ..ranks(
            "four ranks that mostly wait for Gloo",
            &[step, step, step, step],
        )
    };
    let step: &[(Do, u64)] = &[(Launch, 8), (Sync, 3), (Blocked, 23)];
    let blocked = nccl(
        "all ranks block in collectives over a thin link",
        &[step, step, step, step],
        &[Device::gpm(0.95, 0.15, 0.08, 0.28)],
    );
    let step: &[(Do, u64)] = &[(Launch, 9), (Backward, 4), (Reduce, 21)];
    let staged = Run {
        devices: vec![vec![(1, Device::busy(0.19))]],
        ..ranks(
            "gradients reduced by Gloo, models on devices",
            &[step, step],
        )
    };
    // No host frame names it: small kernels one after the other would look the same.
    let step: &[(Do, u64)] = &[(Launch, 7), (BackReduce, 3), (Sync, 27)];
    let quiet = nccl(
        "four ranks, full utilization at low power",
        &[step, step, step, step],
        &[spinning()],
    );
    // A rank on the other node may be the one that all wait for.
    let step: &[(Do, u64)] = &[(Launch, 9), (Sync, 4), (Blocked, 25)];
    let node = Run {
        world: 8,
        node: Some(4),
        first_rank: 4,
        ..nccl(
            "the second of two nodes blocks",
            &[step, step, step, step],
            &[spinning()],
        )
    };
    vec![
        clear(gloo, COMMUNICATION),
        clear(blocked, COMMUNICATION),
        clear(staged, COMMUNICATION),
        open(quiet, COMMUNICATION),
        open(node, COMMUNICATION),
    ]
}

/// Ranks that wait, and the one that they wait for.
fn stragglers() -> Vec<Case> {
    let victim: &[(Do, u64)] = &[(Launch, 7), (BackReduce, 2), (Sync, 28)];
    let loader = Run {
        loaders: vec![Loader {
            rank: 0,
            count: 2,
            step: vec![(Feed::Decode, 36), (Feed::Idle, 1)],
        }],
        ..nccl(
            "rank 0 waits for data, three devices spin",
            &[
                &[(Wait, 26), (Launch, 7), (BackReduce, 2), (Sync, 2)],
                victim,
                victim,
                victim,
            ],
            &[Device::busy(0.22), spinning()],
        )
    };
    let blocked: &[(Do, u64)] = &[(Launch, 8), (Sync, 3), (Blocked, 26)];
    let python = nccl(
        "rank 1 keeps the books for all",
        &[
            blocked,
            &[(Python, 25), (Launch, 8), (Sync, 3), (Blocked, 1)],
        ],
        &[spinning(), Device::busy(0.2)],
    );
    let eager = nccl(
        "rank 0 runs its part in eager mode, one device spins",
        &[
            &[(Launch, 24), (Dispatch, 9), (BackReduce, 2), (Sync, 2)],
            victim,
        ],
        &[Device::busy(0.29), spinning()],
    );
    let starved = Run {
        queues: vec![0.0, 0.0, 0.63],
        ..nccl(
            "rank 2 shares its CPU with a daemon",
            &[
                blocked,
                blocked,
                &[(Launch, 27), (Dispatch, 8), (Blocked, 2)],
                blocked,
            ],
            &[spinning(), spinning(), Device::busy(0.18), spinning()],
        )
    };
    let longer = nccl(
        "rank 0 has the longest sequences",
        &[
            &[(Launch, 7), (Sync, 28), (Blocked, 2)],
            &[(Launch, 7), (Sync, 9), (Blocked, 21)],
            &[(Launch, 7), (Sync, 10), (Blocked, 20)],
        ],
        &[dense(), Device::gpm(0.99, 0.4, 0.2, 0.5)],
    );
    let reads = Run {
        cuda: false,
        ..ranks(
            "rank 1 reads from a far disk, Gloo waits",
            &[
                &[(Gemm, 10), (Reduce, 27)],
                &[(ReadBatch, 26), (Gemm, 10), (Reduce, 1)],
            ],
        )
    };
    let waits: &[(Do, u64)] = &[(Wait, 15), (Blocked, 15), (Launch, 8)];
    let turns = nccl(
        "the ranks are late in turns, each for its data",
        &[waits, &[(Blocked, 15), (Wait, 15), (Launch, 8)]],
        &[Device::gpm(0.55, 0.12, 0.06, 0.24)],
    );
    vec![
        clear(loader, INPUT),
        clear(python, PYTHON),
        clear(eager, LAUNCH),
        clear(starved, STARVED),
        clear(longer, GPU),
        clear(reads, INPUT).detail(Detail::Only("storage")),
        open(turns, INPUT),
    ]
}

/// Ranks that wait for what has no name, or was not recorded.
fn unseen_ranks() -> Vec<Case> {
    let blocked: &[(Do, u64)] = &[(Launch, 8), (Sync, 3), (Blocked, 26)];
    let server = nccl(
        "rank 0 talks to a server that keeps logs",
        &[&[(Post, 25), (Launch, 8), (Sync, 3), (Blocked, 1)], blocked],
        &[Device::busy(0.2), spinning()],
    );
    let saves = Run {
        steps: 6,
        ..nccl(
            "rank 0 writes checkpoints, all others block",
            &[
                &[(Checkpoint, 131), (Launch, 39), (Sync, 15)],
                &[(Blocked, 131), (Launch, 39), (Sync, 15)],
                &[(Blocked, 131), (Launch, 39), (Sync, 15)],
            ],
            &[Device::busy(0.15), spinning()],
        )
    };
    // The fourth may be the one that all wait for.
    let missing = Run {
        world: 4,
        node: Some(4),
        ..nccl(
            "three of four ranks, all block",
            &[blocked, blocked, blocked],
            &[spinning()],
        )
    };
    let alone = Run {
        world: 8,
        node: Some(8),
        first_rank: 3,
        ..nccl(
            "one of eight ranks waits for its device",
            &[&[(Launch, 7), (BackReduce, 2), (Sync, 28)]],
            &[spinning()],
        )
    };
    vec![
        open(server, NONE),
        open(saves, NONE),
        open(missing, NONE),
        open(alone, NONE),
    ]
}

/// What was not recorded, or does not show what it seems to.
fn unseen_devices() -> Vec<Case> {
    let launches = Run::new(
        "launches, no device was recorded",
        None,
        &[(Launch, 29), (Dispatch, 5), (Sync, 2)],
    );
    let waits = Run::new(
        "waits for a device that was not recorded",
        None,
        &[(Launch, 7), (Sync, 29)],
    );
    let slice = Run {
        mig: true,
        ..run(
            "waits for a MIG slice without any counter",
            &[(Launch, 7), (Sync, 30)],
            Device::plain(0.0, 0.0),
        )
    };
    let spin = run(
        "full utilization at idle power",
        &[(Launch, 6), (Sync, 30)],
        Device::plain(1.0, 0.21),
    );
    let tiny = run(
        "a recurrent kernel of a few blocks, always on",
        &[(Launch, 5), (Sync, 31)],
        Device::gpm(0.99, 0.05, 0.03, 0.2),
    );
    // Seen as Python of the training loop: neither launches nor waits are told apart from it.
    let shallow = Run {
        native: false,
        ..run(
            "an .item() per layer, recorded without native frames",
            &[(Sync, 22), (Launch, 9), (Wait, 1)],
            Device::busy(0.21),
        )
    };
    vec![
        open(launches, NONE),
        open(waits, NONE),
        open(slice, NONE),
        open(spin, NONE),
        open(tiny, NONE),
        open(shallow, SYNC),
    ]
}

/// Two causes, or more, of one size.
fn halves() -> Vec<Case> {
    let flat = |name, step: &[(Do, u64)]| run(name, step, Device::busy(0.21));
    let data = flat(
        "data and launches, half and half",
        &[(Wait, 17), (Launch, 17), (Sync, 2)],
    )
    .feed(2, &[(Feed::Decode, 35), (Feed::Idle, 1)]);
    let moves = flat(
        "an .item() and a copy, half and half",
        &[(Sync, 16), (Copy, 16), (Launch, 3)],
    );
    let fifths = flat(
        "a little of everything",
        &[
            (Wait, 7),
            (Launch, 8),
            (Python, 8),
            (Sync, 7),
            (ToHost, 7),
            (HostFused, 7),
        ],
    );
    let after = Run {
        steps: 2,
        devices: vec![vec![
            (411, idle()),
            (398, Device::gpm(0.24, 0.13, 0.08, 0.3)),
        ]],
        ..Run::new(
            "first a cold cache, then launches",
            None,
            &[(Wait, 411), (Launch, 398)],
        )
    }
    .feed(
        3,
        &[(Feed::Read, 405), (Feed::Decode, 6), (Feed::Idle, 398)],
    );
    let evaluation = Run {
        steps: 5,
        devices: vec![vec![(173, dense()), (169, idle())]],
        ..Run::new(
            "a full device in training, none in evaluation",
            None,
            &[(Launch, 31), (Sync, 142), (MakeBatch, 169)],
        )
    };
    vec![
        open(data, NONE),
        open(moves, NONE),
        open(fifths, NONE),
        open(after, NONE),
        open(evaluation, NONE),
    ]
}

/// What dominates has no name among the causes.
fn others() -> Vec<Case> {
    let flat = |name, step: &[(Do, u64)]| run(name, step, Device::busy(0.13));
    let sleeps = flat(
        "a loop that polls for a job",
        &[(Sleep, 26), (Sync, 6), (Launch, 5)],
    );
    let saves = flat(
        "a checkpoint after every few steps",
        &[(Checkpoint, 33), (Wait, 8), (Launch, 7)],
    )
    .feed(2, &[(Feed::Decode, 14), (Feed::Idle, 34)]);
    let compiles = flat(
        "shapes that change, compiled each time",
        &[(Compile, 29), (CompileWait, 14), (Launch, 8), (Python, 4)],
    );
    let unknown = flat(
        "code that nothing names",
        &[(Unknown, 26), (Launch, 8), (Copy, 3)],
    );
    vec![
        open(sleeps, NONE),
        open(saves, NONE),
        open(compiles, NONE),
        open(unknown, NONE),
    ]
}

fn all() -> Vec<Case> {
    let groups: [fn() -> Vec<Case>; 17] = [
        input_by_workers,
        input_otherwise,
        starved,
        launch,
        python,
        gpu,
        full_device,
        throttled,
        sync,
        copy,
        host,
        communication,
        stragglers,
        unseen_ranks,
        unseen_devices,
        halves,
        others,
    ];
    groups.iter().flat_map(|group| group()).collect()
}

/// What was told of a run, and how far that is right.
struct Told<'a> {
    cause: Option<String>,
    detail: Option<String>,
    confidence: Option<&'a Confidence>,
    findings: String,
    is_right: bool,
}

fn judge<'a>(case: &Case, verdict: Option<&'a Verdict>) -> Told<'a> {
    let cause = verdict.and_then(|verdict| verdict.cause.as_ref());
    let name = cause.map(|cause| cause.name().to_owned());
    let detail = cause.and_then(|cause| cause.detail().map(str::to_owned));
    let fits = match (&case.detail, detail.as_deref()) {
        (Detail::Any, _) | (_, None) => true,
        (Detail::Only(wanted), Some(told)) => *wanted == told,
        (Detail::Unseen, Some(_)) => false,
    };
    Told {
        is_right: name.is_none() || (case.answers.contains(&name.as_deref()) && fits),
        cause: name,
        detail,
        confidence: verdict.and_then(|verdict| verdict.confidence.as_ref()),
        findings: verdict.map_or_else(String::new, |verdict| format!("{:?}", verdict.findings)),
    }
}

fn wanted(case: &Case) -> String {
    let answers: Vec<&str> = case
        .answers
        .iter()
        .map(|answer| answer.unwrap_or("no single one"))
        .collect();
    let detail = match &case.detail {
        Detail::Any => String::new(),
        Detail::Only(detail) => format!(" ({detail})"),
        Detail::Unseen => " (without a detail)".to_owned(),
    };
    answers.join(" or ") + &detail
}

fn line(case: &Case, told: &Told<'_>) -> String {
    format!(
        "{}: told {}, {:?}, {:?}; expected {}\n    {}",
        case.run.name,
        told.cause.as_deref().unwrap_or("no single one"),
        told.detail,
        told.confidence,
        wanted(case),
        told.findings
    )
}

#[test]
fn runs_are_whole() {
    let length = |step: &[(Do, u64)]| step.iter().map(|&(_, ticks)| ticks).sum::<u64>();
    let cases = all();
    let mut names: Vec<&str> = cases.iter().map(|case| case.run.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), cases.len(), "two runs have one name");
    for case in &cases {
        let run = &case.run;
        let whole = length(&run.step);
        for other in &run.others {
            assert_eq!(length(other), whole, "{}: ranks", run.name);
        }
        for loader in run.loaders.iter().filter(|loader| loader.count > 0) {
            let fed: u64 = loader.step.iter().map(|&(_, ticks)| ticks).sum();
            assert_eq!(fed, whole, "{}: workers", run.name);
        }
    }
}

#[test]
fn causes_are_told_and_none_is_wrong_with_high_confidence() {
    let cases = all();
    let (mut counted, mut found) = (0, 0);
    let (mut high, mut medium, mut low) = (Vec::new(), 0, 0);
    for case in &cases {
        let verdict = case.run.told();
        let told = judge(case, verdict.as_ref());
        let is_found = told.is_right && told.cause.is_some();
        counted += u32::from(case.counts);
        found += u32::from(case.counts && is_found);
        if !told.is_right {
            match told.confidence {
                Some(Confidence::High) => high.push(line(case, &told)),
                Some(Confidence::Medium) => medium += 1,
                _ => low += 1,
            }
        }
        if !told.is_right || (case.counts && !is_found) {
            eprintln!("{}", line(case, &told));
        }
    }
    eprintln!(
        "{} runs; {found} of {counted} causes told; wrong: {} high, {medium} medium, {low} low",
        cases.len(),
        high.len()
    );
    assert!(
        high.is_empty(),
        "wrong and sure of it:\n{}",
        high.join("\n")
    );
    assert!(
        found * 5 >= counted * 4,
        "only {found} of {counted} causes were told"
    );
}
