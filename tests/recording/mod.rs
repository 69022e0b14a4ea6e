//! Segments that look like those of a torch process, for tests of the recording.
#![allow(dead_code)]

use torchspy::model::address::CodeAddress;
use torchspy::model::code::{CodeInfo, PythonVersion};
use torchspy::model::frame::{Frame, Trust};
use torchspy::model::ids::{CodeId, ModuleId, ProcessId, StackId, ThreadId};
use torchspy::model::module::{ModuleInfo, ModuleKind};
use torchspy::model::process::{ProcessInfo, ThreadInfo};
use torchspy::model::quality::Quality;
use torchspy::model::run::{ClockPair, RunInfo};
use torchspy::model::sample::{Capture, Gil, Sample, ThreadState};
use torchspy::model::segment::Segment;
use torchspy::recording::{SegmentFacts, SessionTables, segment_of};

const SYMBOLS: &str = include_str!("../fixtures/recording/torch_symbols.txt");
const CODES: &str = include_str!("../fixtures/recording/torch_codes.txt");

/// Small numbers that are the same in every run (xorshift64*).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

pub fn run_info() -> RunInfo {
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
    }
}

struct Symbol {
    module: ModuleId,
    start: u64,
    size: u64,
    name: &'static str,
}

/// A torch process of many threads, of which a few run: a training thread, autograd, OpenMP workers.
pub struct TorchProcess {
    pub tables: SessionTables,
    symbols: Vec<Symbol>,
    dice: Dice,
    sleepers: Vec<StackId>,
    /// Pieces of stacks that come again and again: a call into an operator and what it calls.
    pieces: Vec<Vec<Frame>>,
    index: u64,
}

pub const RUNNING: usize = 5;
const SECOND: u64 = 1_000_000_000;

impl TorchProcess {
    pub fn new(threads: usize) -> Self {
        let mut tables = SessionTables::default();
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
            tables.threads.push(ThreadInfo {
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
            });
        }
        let mut process = Self {
            tables,
            symbols,
            dice,
            sleepers: Vec::new(),
            pieces: Vec::new(),
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
        for number in 0..160 {
            let length = 3 + self.dice.below(8);
            let piece = (0..length)
                .map(|_| {
                    if number % 3 == 0 {
                        self.python()
                    } else {
                        self.native()
                    }
                })
                .collect();
            self.pieces.push(piece);
        }
        for _ in 0..24 {
            let frames: Vec<Frame> = (0..14)
                .map(|depth| if depth < 6 { self.python() } else { self.native() })
                .collect();
            let stack = self.tables.stacks.intern(frames);
            self.sleepers.extend(stack);
        }
    }

    /// A stack of about 40 frames: a common root, familiar pieces, a leaf that is somewhere in its function.
    fn running_stack(&mut self, thread: usize) -> Option<StackId> {
        let mut frames = self.pieces[thread].clone();
        while frames.len() < 32 {
            // Below a piece comes one of a few others.
            let next = (frames.len() * 31 + self.dice.below(6) as usize * 17 + thread) % self.pieces.len();
            frames.extend_from_slice(&self.pieces[next]);
        }
        let fresh = 4 + self.dice.below(4);
        for _ in 0..fresh {
            let frame = self.native();
            frames.push(frame);
        }
        if let Frame::Native { module, address, trust } = self.native() {
            frames.push(Frame::Native {
                module,
                address: CodeAddress::Ip(address.raw() + self.dice.below(40)),
                trust,
            });
        }
        self.tables.stacks.intern(frames)
    }

    /// The next second: each sleeper once, a fresh sample of some running threads each tick.
    pub fn second(&mut self, last: bool) -> Segment {
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
            for thread in 0..RUNNING {
                if self.dice.below(100) < 60 {
                    samples.push(self.running_sample(thread, since[thread], now));
                    since[thread] = now + self.dice.below(40_000);
                }
            }
        }
        let facts = SegmentFacts {
            index: self.index,
            start_ns,
            end_ns,
            quality: self.quality(),
            clocks: vec![ClockPair {
                monotonic_ns: start_ns,
                wall_ns: 1_760_000_000_000_000_000 + start_ns,
            }],
            last,
            ..SegmentFacts::default()
        };
        self.tables.processes[0].last_seen_ns = end_ns;
        for thread in &mut self.tables.threads {
            thread.last_seen_ns = end_ns;
        }
        self.index += 1;
        let symbols = &self.symbols;
        segment_of(&self.tables, &samples, facts, |module, address| {
            let after = symbols.partition_point(|s| (s.module, s.start) <= (module, address));
            let symbol = symbols.get(after.checked_sub(1)?)?;
            let end = symbol.start + symbol.size;
            (symbol.module == module && address < end)
                .then(|| (symbol.start, end, symbol.name.to_owned()))
        })
    }

    fn running_sample(&mut self, thread: usize, start_ns: u64, now: u64) -> Sample {
        let queue_ns = if self.dice.below(3) == 0 { self.dice.below(80_000) } else { 0 };
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

fn load_symbols(tables: &mut SessionTables, dice: &mut Dice) -> Vec<Symbol> {
    let mut symbols = Vec::new();
    for line in SYMBOLS.lines() {
        let mut fields = line.split(' ');
        let library = fields.next().unwrap();
        let path = format!("/home/user/venv/lib/python3.11/site-packages/torch/lib/{library}");
        let module = match tables.modules.iter().position(|module| module.path == path) {
            Some(known) => ModuleId::from_index(known),
            None => {
                tables.modules.push(ModuleInfo {
                    kind: ModuleKind::File,
                    path,
                    build_id: (0..20).map(|_| dice.below(256) as u8).collect(),
                });
                ModuleId::from_index(tables.modules.len() - 1)
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

fn load_codes(tables: &mut SessionTables, dice: &mut Dice) {
    for line in CODES.lines() {
        let mut fields = line.split('\t');
        let mut text = || fields.next().unwrap().to_owned();
        tables.codes.push(CodeInfo {
            file: text(),
            name: text(),
            first_line: text().parse().unwrap(),
            version: PythonVersion::new(3, 11),
            content_hash: dice.below(1 << 31) << 33 | dice.below(1 << 31) << 2,
        });
    }
}
