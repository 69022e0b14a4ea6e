//! Segments that look like those of a torch process, for tests of the recording.
#![allow(dead_code, clippy::unwrap_used)]

use std::fs::File;
use std::path::Path;
use torchspy::model::address::CodeAddress;
use torchspy::model::code::{CodeInfo, PythonVersion};
use torchspy::model::frame::{Frame, Partial, Trust};
use torchspy::model::ids::{
    CodeId, FrameId, GpuId, ModuleId, ProcessId, StackId, ThreadId, TrackId,
};
use torchspy::model::module::{ModuleInfo, ModuleKind, SymbolInfo};
use torchspy::model::nn_module::NnModuleInfo;
use torchspy::model::process::{ProcessInfo, ThreadInfo};
use torchspy::model::progress::{Condition, CounterInfo, CounterKind, ProgressPoint};
use torchspy::model::quality::Quality;
use torchspy::model::run::{ClockPair, Loss, RunInfo};
use torchspy::model::sample::{Capture, Gil, Sample, ThreadState};
use torchspy::model::segment::Segment;
use torchspy::model::sideband::Sideband;
use torchspy::model::stack_table::StackTable;
use torchspy::model::tables::Tables;
use torchspy::model::track::{
    CounterTracks, GpuClock, GpuInfo, TrackGap, TrackInfo, TrackKind, TrackPoint,
};
use torchspy::recording::{RecordingWriter, segment_of};

const SYMBOLS: &str = include_str!("../fixtures/recording/torch_symbols.txt");
const CODES: &str = include_str!("../fixtures/recording/torch_codes.txt");

/// Small numbers that are the same in every run (xorshift64*).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

pub(crate) fn run_info() -> RunInfo {
    RunInfo {
        torchspy: "0.1.0".into(),
        host: "node17".into(),
        kernel: "6.18.0".into(),
        architecture: "x86_64".into(),
        cpus: 8,
        command: vec!["python".into(), "train.py".into()],
        pid: 4242,
        launched: true,
        rate_hz: 100.0,
        native: true,
        nonblocking: false,
        gil_only: false,
        threads: None,
        max_stopped: 0.02,
        started_ns: 1_000_000_000,
        started_wall_ns: 1_760_000_000_000_000_000,
        notes: vec!["cgroup quota 4.0 CPUs".into()],
        regions: Vec::new(),
        session: None,
    }
}

/// A recording that begins in a new file.
pub(crate) fn create(path: &Path, run: &RunInfo) -> RecordingWriter {
    RecordingWriter::from_file(File::create_new(path).unwrap(), run).unwrap()
}

/// A recording of `segments` in a new file.
pub(crate) fn write(path: &Path, run: &RunInfo, segments: &[Segment]) {
    let mut writer = create(path, run);
    for segment in segments {
        writer.write_segment(segment).unwrap();
    }
    writer.finish().unwrap();
}

struct Symbol {
    module: ModuleId,
    start: u64,
    size: u64,
    name: &'static str,
}

/// A torch process of many threads, of which a few run: a training thread, autograd, OpenMP
/// workers.
///
/// Heavier than what was seen: 300 samples of three training threads (a small CNN and a transformer
/// layer, py-spy --native, functions and not call sites) had 146 distinct stacks of 1,228 nodes,
/// 734 of them unlike what stood there before.
pub(crate) struct TorchProcess {
    pub(crate) tables: Tables,
    symbols: Vec<Symbol>,
    dice: Dice,
    sleepers: Vec<StackId>,
    /// Call sites by depth.
    layers: Vec<Vec<Frame>>,
    index: u64,
}

/// Frames of a running stack, at most; how many of them, at the root, are Python's; call sites at
/// each depth.
const DEPTH: usize = 42;
const PYTHON_DEPTH: usize = 14;
const SITES: usize = 89;

pub(crate) const RUNNING: usize = 5;
const SECOND: u64 = 1_000_000_000;

impl TorchProcess {
    pub(crate) fn new(threads: usize) -> Self {
        let mut tables = Tables::default();
        let mut dice = Dice::new(11);
        let symbols = load_symbols(&mut tables, &mut dice);
        load_codes(&mut tables, &mut dice);
        tables.processes.push(ProcessInfo {
            pid: 4242,
            start_ticks: 991_234,
            parent_pid: 4200,
            exe: "/home/user/venv/bin/python".into(),
            command: vec!["python".into(), "train.py".into(), "--epochs=90".into()],
            environment: vec![
                ("RANK".into(), "3".into()),
                ("WORLD_SIZE".into(), "8".into()),
                ("OMP_NUM_THREADS".into(), "4".into()),
            ],
            python: "3.11.7".into(),
            torch: "2.15.0".into(),
            has_torch: true,
            first_seen_ns: SECOND,
            last_seen_ns: SECOND,
            ..ProcessInfo::default()
        });
        for number in 0..threads {
            let id = ThreadId::from_index(number);
            let info = ThreadInfo {
                process: ProcessId(0),
                tid: 4242 + number as i32,
                start_ticks: 991_234 + number as u64 * 3,
                name: match number {
                    0 => "python".into(),
                    1..=2 => format!("pt_autograd_{}", number - 1),
                    _ => "python".into(),
                },
                is_python: number % 4 == 0,
                first_seen_ns: SECOND + dice.below(50_000_000),
                last_seen_ns: SECOND,
            };
            tables.threads.insert(id, info);
        }
        let mut process = Self {
            tables,
            symbols,
            dice,
            sleepers: Vec::new(),
            layers: Vec::new(),
            index: 0,
        };
        process.prepare();
        process
    }

    fn native(&mut self) -> Frame {
        // A few call sites in each function.
        let symbol = &self.symbols[self.dice.below(self.symbols.len() as u64) as usize];
        let site = self.dice.below(3) * symbol.size / 4 + 5;
        Frame::Native {
            module: symbol.module,
            address: CodeAddress::Return(symbol.start + site.min(symbol.size)),
            trust: Trust::Unwound,
        }
    }

    fn python(&mut self) -> Frame {
        let code = self.dice.below(self.tables.codes.len() as u64) as u32;
        let site = self.dice.below(4) as u32;
        Frame::Python {
            code: CodeId(code),
            instruction: 24 + 86 * site,
            line: self.tables.codes[code as usize].first_line + 3 + 7 * site,
        }
    }

    fn prepare(&mut self) {
        for depth in 0..DEPTH {
            let sites = (0..SITES)
                .map(|_| {
                    if depth < PYTHON_DEPTH {
                        self.python()
                    } else {
                        self.native()
                    }
                })
                .collect();
            self.layers.push(sites);
        }
        for _ in 0..24 {
            let frames: Vec<Frame> = (0..30)
                .map(|depth| {
                    if depth < 10 {
                        self.python()
                    } else {
                        self.native()
                    }
                })
                .collect();
            let stack = self.tables.stacks.intern(frames);
            self.sleepers.extend(stack);
        }
    }

    /// A stack of about 40 frames: most call sites call one function from one place; some call one
    /// of a few.
    fn running_stack(&mut self, thread: usize) -> Option<StackId> {
        let mut frames = Vec::new();
        let mut site = thread * 7 % SITES;
        let length = DEPTH - self.dice.below(5) as usize;
        for depth in 0..length {
            frames.push(self.layers[depth][site]);
            let branches = if (site + depth).is_multiple_of(5) {
                3
            } else {
                1
            };
            site = (site * 37 + depth * 11 + self.dice.below(branches) as usize * 29) % SITES;
        }
        if let Frame::Native {
            module,
            address,
            trust,
        } = self.layers[length - 1][site]
        {
            frames.push(Frame::Native {
                module,
                address: CodeAddress::Ip(address.raw() + self.dice.below(40)),
                trust,
            });
        }
        self.tables.stacks.intern(frames)
    }

    /// The next second: each sleeper once, a fresh sample of some running threads each tick.
    pub(crate) fn second(&mut self, last: bool) -> Segment {
        self.second_with_samples(last).1
    }

    /// The same, with the samples as the session has them.
    pub(crate) fn second_with_samples(&mut self, last: bool) -> (Vec<Sample>, Segment) {
        let start_ns = (1 + self.index) * SECOND;
        let end_ns = start_ns + SECOND;
        let mut samples = Vec::new();
        for thread in RUNNING..self.tables.threads.len() {
            samples.push(Sample {
                thread: ThreadId(thread as u32),
                stack: Some(self.sleepers[thread % self.sleepers.len()]),
                start_ns: start_ns + self.dice.below(100_000),
                weight_ns: SECOND + self.dice.below(200_000) - 100_000,
                ticks: 100,
                capture: Capture::Reused,
                state: ThreadState::Sleeping,
                syscall: Some(202),
                gil: Gil::NotHeld,
                gil_holder: None,
                run_ns: 0,
                queue_ns: 0,
            });
        }
        let mut since = [start_ns; RUNNING];
        for tick in 1..=100 {
            let now = start_ns + tick * 10_000_000 + self.dice.below(1_000_000);
            for (thread, since) in since.iter_mut().enumerate() {
                if self.dice.below(100) < 64 {
                    samples.push(self.running_sample(thread, *since, now));
                    *since = now + self.dice.below(40_000);
                }
            }
        }
        let of_session = Segment {
            index: self.index,
            start_ns,
            end_ns,
            samples: samples.clone(),
            sideband: Sideband {
                quality: self.quality(),
                clocks: vec![ClockPair {
                    monotonic_ns: start_ns,
                    wall_ns: 1_760_000_000_000_000_000 + start_ns,
                }],
                ..Sideband::default()
            },
            last,
            ..Segment::default()
        };
        self.tables.processes[0].last_seen_ns = end_ns;
        for thread in self.tables.threads.values_mut() {
            thread.last_seen_ns = end_ns;
        }
        self.index += 1;
        let symbols = &self.symbols;
        let segment = segment_of(&self.tables, of_session, &[], |module, address| {
            let after = symbols.partition_point(|s| (s.module, s.start) <= (module, address));
            let symbol = symbols.get(after.checked_sub(1)?)?;
            let end = symbol.start + symbol.size;
            (symbol.module == module && address < end)
                .then(|| (symbol.start, end, symbol.name.to_owned()))
        });
        (samples, segment)
    }

    fn running_sample(&mut self, thread: usize, start_ns: u64, now: u64) -> Sample {
        let queue_ns = if self.dice.below(3) == 0 {
            self.dice.below(80_000)
        } else {
            0
        };
        let weight_ns = now - start_ns;
        Sample {
            thread: ThreadId(thread as u32),
            stack: self.running_stack(thread),
            start_ns,
            weight_ns,
            ticks: 1,
            capture: Capture::Stopped,
            state: ThreadState::Running,
            syscall: None,
            gil: if thread == 0 { Gil::Held } else { Gil::NotHeld },
            gil_holder: (thread != 0).then_some(ThreadId(0)),
            run_ns: weight_ns.saturating_sub(queue_ns + self.dice.below(5_000)),
            queue_ns,
        }
    }

    fn quality(&mut self) -> Quality {
        let mut quality = Quality {
            ticks: 100,
            late_ticks: self.dice.below(3),
            target_run_ns: 3 * SECOND + self.dice.below(1_000_000),
            own_cpu_ns: 40_000_000 + self.dice.below(1_000_000),
            ..Quality::default()
        };
        for _ in 0..300 {
            quality.stops.record(60_000 + self.dice.below(60_000));
        }
        quality
    }
}

fn load_symbols(tables: &mut Tables, dice: &mut Dice) -> Vec<Symbol> {
    let mut symbols = Vec::new();
    for line in SYMBOLS.lines() {
        let mut fields = line.split(' ');
        let library = fields.next().unwrap();
        let path = format!("/home/user/venv/lib/python3.11/site-packages/torch/lib/{library}");
        let module = match tables.modules.iter().position(|module| module.path == path) {
            Some(known) => ModuleId::from_index(known),
            None => {
                let build_id = (0..20).map(|_| dice.below(256) as u8).collect();
                tables.modules.intern(&ModuleInfo {
                    kind: ModuleKind::File,
                    path,
                    build_id,
                })
            }
        };
        let mut number = || u64::from_str_radix(fields.next().unwrap(), 16).unwrap();
        symbols.push(Symbol {
            module,
            start: number(),
            size: number().max(8),
            name: fields.next().unwrap(),
        });
    }
    symbols.sort_by_key(|symbol| (symbol.module, symbol.start));
    symbols
}

fn load_codes(tables: &mut Tables, dice: &mut Dice) {
    for line in CODES.lines() {
        let mut fields = line.split('\t');
        let mut text = || fields.next().unwrap().to_owned();
        tables.codes.intern(&CodeInfo {
            file: text(),
            name: text(),
            first_line: text().parse().unwrap(),
            version: PythonVersion::new(3, 11),
            content_hash: dice.below(1 << 31) << 33 | dice.below(1 << 31) << 2,
        });
    }
}

fn sample(thread: u32, stack: Option<u32>, start_ns: u64, weight_ns: u64) -> Sample {
    Sample {
        thread: ThreadId(thread),
        stack: stack.map(StackId),
        start_ns,
        weight_ns,
        ticks: 1,
        capture: Capture::Stopped,
        state: ThreadState::Running,
        syscall: None,
        gil: Gil::Held,
        gil_holder: None,
        run_ns: weight_ns,
        queue_ns: 0,
    }
}

/// Two seconds of a small process, with every kind of thing that a segment holds.
pub(crate) fn small_segments() -> Vec<Segment> {
    vec![first_small_segment(), second_small_segment()]
}

fn small_tables() -> Segment {
    let native = |module: u32, address: CodeAddress, trust: Trust| Frame::Native {
        module: ModuleId(module),
        address,
        trust,
    };
    let python = |code: u32, instruction: u32, line: u32| Frame::Python {
        code: CodeId(code),
        instruction,
        line,
    };
    let code = |name: &str, first_line: u32| CodeInfo {
        name: name.into(),
        file: "/home/user/train.py".into(),
        first_line,
        version: PythonVersion::new(3, 11),
        content_hash: 0x1234_5678_9abc_def0 + u64::from(first_line),
    };
    let module = |kind: ModuleKind, path: &str, build_id: &[u8]| ModuleInfo {
        kind,
        path: path.into(),
        build_id: build_id.into(),
    };
    let tables = Tables {
        processes: vec![ProcessInfo {
            pid: 4242,
            start_ticks: 991_234,
            parent_pid: 4200,
            exe: "/usr/bin/python3.11".into(),
            command: vec!["python".into(), "train.py".into()],
            environment: vec![("RANK".into(), "3".into())],
            python: "3.11.7".into(),
            has_torch: true,
            first_seen_ns: SECOND,
            last_seen_ns: 2 * SECOND,
            cpu_ns: 900_000_000,
            ..ProcessInfo::default()
        }],
        threads: [
            ThreadInfo {
                process: ProcessId(0),
                tid: 4242,
                start_ticks: 991_234,
                name: "python".into(),
                is_python: true,
                first_seen_ns: SECOND,
                last_seen_ns: 2 * SECOND,
            },
            ThreadInfo {
                process: ProcessId(0),
                tid: 4250,
                start_ticks: 991_300,
                name: "pt_autograd_0".into(),
                is_python: false,
                first_seen_ns: SECOND + 5_000_000,
                last_seen_ns: 2 * SECOND,
            },
        ]
        .into_iter()
        .enumerate()
        .map(|(at, thread)| (ThreadId::from_index(at), thread))
        .collect(),
        modules: vec![
            module(
                ModuleKind::File,
                "/venv/torch/lib/libtorch_cpu.so",
                &[0xab; 20],
            ),
            module(ModuleKind::Vdso, "[vdso]", &[1, 2, 3]),
            module(ModuleKind::Anonymous, "[anonymous]", &[]),
        ]
        .into(),
        codes: vec![code("<module>", 1), code("train", 10)].into(),
        stacks: StackTable::from_parts(
            vec![
                python(0, 24, 3),
                python(1, 110, 17),
                python(1, Frame::NO_INSTRUCTION, 10),
                native(0, CodeAddress::Return(0x1010), Trust::Unwound),
                native(0, CodeAddress::Ip(0x2020), Trust::Unwound),
                native(1, CodeAddress::Ip(0x800), Trust::Unwound),
                native(
                    2,
                    CodeAddress::Return(0x7f00_0000_1000),
                    Trust::FramePointer,
                ),
                native(2, CodeAddress::Return(0x7f00_0000_2000), Trust::Scanned),
                Frame::Truncated(Partial::NoUnwindInfo),
            ],
            vec![
                (None, FrameId(0)),
                (Some(StackId(0)), FrameId(1)),
                (Some(StackId(1)), FrameId(3)),
                (Some(StackId(2)), FrameId(4)),
                (Some(StackId(0)), FrameId(2)),
                (None, FrameId(8)),
                (Some(StackId(5)), FrameId(6)),
                (Some(StackId(6)), FrameId(7)),
                (Some(StackId(7)), FrameId(5)),
            ],
        ),
        ..Tables::default()
    };
    Segment {
        tables,
        symbols: vec![SymbolInfo {
            module: ModuleId(0),
            start: 0x1000,
            end: 0x1100,
            name: "_ZN2at6native3addEv".into(),
        }],
        ..Segment::default()
    }
}

fn first_small_segment() -> Segment {
    let mut quality = Quality {
        ticks: 100,
        late_ticks: 2,
        missed_ticks: 1,
        target_run_ns: 900_000_000,
        stop_timeouts: 1,
        ..Quality::default()
    };
    quality.stops.record(65_000);
    quality.stops.record(81_000);
    Segment {
        index: 0,
        start_ns: SECOND,
        end_ns: 2 * SECOND,
        samples: vec![
            sample(0, Some(3), SECOND, 10_000_000),
            Sample {
                capture: Capture::Asleep,
                state: ThreadState::Sleeping,
                syscall: Some(202),
                gil: Gil::NotHeld,
                gil_holder: Some(ThreadId(0)),
                run_ns: 0,
                ticks: 99,
                ..sample(1, Some(8), SECOND + 5_000_000, 990_000_000)
            },
            Sample {
                queue_ns: 1_500_000,
                run_ns: 8_500_000,
                ..sample(0, Some(4), SECOND + 10_000_000, 10_000_000)
            },
            Sample {
                capture: Capture::NotCaptured,
                state: ThreadState::Uninterruptible,
                gil: Gil::Unknown,
                run_ns: 0,
                ..sample(0, None, SECOND + 20_000_000, 30_000_000)
            },
        ],
        sideband: Sideband {
            quality,
            clocks: vec![ClockPair {
                monotonic_ns: SECOND,
                wall_ns: 1_760_000_000_000_000_000,
            }],
            losses: vec![Loss {
                time_ns: SECOND + 500_000_000,
                samples: 7,
                reason: "samples came faster than they could be unwound".into(),
            }],
            ..Sideband::default()
        },
        ..small_tables()
    }
}

fn second_small_segment() -> Segment {
    let mut segment = Segment {
        index: 1,
        start_ns: 2 * SECOND,
        end_ns: 3 * SECOND,
        samples: vec![
            sample(0, Some(3), 2 * SECOND, 10_000_000),
            Sample {
                capture: Capture::Reused,
                state: ThreadState::Sleeping,
                run_ns: 0,
                gil: Gil::NotHeld,
                ticks: 100,
                ..sample(1, Some(8), 2 * SECOND, SECOND)
            },
        ],
        last: true,
        ..small_tables()
    };
    segment.sideband.quality.ticks = 100;
    segment.symbols.push(SymbolInfo {
        module: ModuleId(0),
        start: 0x2000,
        end: 0x2040,
        name: "_ZN2at6native3mulEv".into(),
    });
    let process = &mut segment.tables.processes[0];
    process.torch = "2.15.0".into();
    process.environment.clear();
    process.last_seen_ns = 3 * SECOND;
    process.exited = true;
    segment
}

/// The small segments with what version 2 of the format has besides: modules, counters, conditions,
/// counter tracks of devices.
pub(crate) fn full_segments() -> Vec<Segment> {
    let mut segments = small_segments();
    let segment = &mut segments[0];
    let tables = &mut segment.tables;
    let counter = CounterInfo {
        process: ProcessId(0),
        number: 1,
        kind: CounterKind::ParameterVersion,
        class: "AdamW".into(),
        file: "/home/user/train.py".into(),
        line: 10,
        facts: vec![("function".into(), "train".into())],
    };
    let counter = tables.counters.intern(&counter);
    let module = tables.nn_modules.intern(&NnModuleInfo {
        root: "ResNet".into(),
        number: 0,
        path: "layer1.0".into(),
        class: "Conv2d".into(),
        training: Some(true),
    });
    for frame in [Frame::NnModule(module), Frame::Compiles(CodeId(1))] {
        let frame = tables.stacks.intern_frame(frame);
        tables.stacks.intern_stack(Some(StackId(1)), frame);
    }
    segment.sideband.points.push(ProgressPoint {
        counter,
        thread: ThreadId(0),
        before_ns: SECOND,
        time_ns: SECOND + 10_000_000,
        value: 17,
    });
    segment.sideband.conditions.push(Condition {
        process: ProcessId(0),
        name: "cpu_quota".into(),
        value: "4.00".into(),
    });
    segment.sideband.tracks = device_tracks();
    let quality = &mut segment.sideband.quality;
    (quality.calls_cut_short, quality.calls_left_running) = (1, 2);
    (quality.privileges_lost, quality.skipped_for_late_stop) = (3, 4);
    quality.skipped_for_turn = 5;
    segments
}

fn device_tracks() -> CounterTracks {
    CounterTracks {
        gpus: vec![GpuInfo {
            uuid: "GPU-8d2c".into(),
            index: 3,
            mig: Some(1),
            name: "X100".into(),
            driver: "580.1".into(),
            pci: "0000:3b:00.0".into(),
            memory_bytes: 80 << 30,
            power_limit_mw: 700_000,
            recorded: true,
        }],
        clocks: vec![GpuClock {
            gpu: GpuId(0),
            monotonic_ns: 5,
            driver_ns: 1 << 60,
            error_ns: 7,
            clock: "realtime".into(),
        }],
        tracks: vec![TrackInfo {
            kind: TrackKind::NetworkSent,
            gpu: Some(GpuId(0)),
            pid: 12,
            process: "python".into(),
        }]
        .into(),
        points: vec![TrackPoint {
            track: TrackId(0),
            start_ns: 10,
            end_ns: 20,
            value: 1 << 40,
        }],
        gaps: vec![TrackGap {
            gpu: None,
            kind: Some(TrackKind::Energy),
            start_ns: 1,
            end_ns: 0,
            reason: "not supported".into(),
        }],
    }
}
