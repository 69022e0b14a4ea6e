//! Recordings made of names: what a test says happened, as a sampler would have written it.
#![allow(dead_code, unreachable_pub)]

use torchspy::model::address::CodeAddress;
use torchspy::model::code::{CodeInfo, PythonVersion};
use torchspy::model::frame::{Frame, Partial, Trust};
use torchspy::model::ids::{CodeId, ModuleId, NnModuleId, ProcessId, ThreadId};
use torchspy::model::module::{ModuleInfo, ModuleKind, SymbolInfo};
use torchspy::model::nn_module::NnModuleInfo;
use torchspy::model::process::{ProcessInfo, ThreadInfo};
use torchspy::model::profile::Profile;
use torchspy::model::progress::{Condition, CounterInfo, ProgressPoint};
use torchspy::model::quality::Quality;
use torchspy::model::run::{Loss, RunInfo};
use torchspy::model::sample::{Capture, Gil, Sample, ThreadState};
use torchspy::model::segment::Segment;
use torchspy::model::stack_table::StackTable;
use torchspy::model::tables::Tables;
use torchspy::model::track::CounterTracks;
use torchspy::recording::Recording;
use torchspy::resolve::{Names, resolve};
use torchspy::torch::rules::RuleSet;

/// Site-packages of a target.
pub const SITE: &str = "/env/lib/python3.11/site-packages/";
/// A tick.
pub const TICK_NS: u64 = 10_000_000;

/// A frame by name.
#[derive(Clone, Debug)]
pub enum F {
    Py(String, String, u32),
    Native(String, Option<String>),
    Guess(String, Option<String>),
    Anonymous,
    Cut(Partial),
    /// The module whose call comes next.
    Module(NnModuleInfo),
    /// What stands on it compiles this Python function.
    Compiles(Box<F>),
}

/// The user's script.
pub fn user(function: &str, line: u32) -> F {
    F::Py("/home/u/train.py".to_owned(), function.to_owned(), line)
}

/// A file of an installed package.
pub fn lib(file: &str, function: &str) -> F {
    F::Py(format!("{SITE}{file}"), function.to_owned(), 7)
}

/// A file of Python's own library.
pub fn std_lib(file: &str, function: &str) -> F {
    F::Py(
        format!("/usr/lib/python3.11/{file}"),
        function.to_owned(),
        9,
    )
}

/// Any Python function.
pub fn py(file: &str, function: &str, line: u32) -> F {
    F::Py(file.to_owned(), function.to_owned(), line)
}

/// A native function of libtorch_cpu.
pub fn torch(symbol: &str) -> F {
    native("libtorch_cpu.so", symbol)
}

/// A native function of libc.
pub fn libc(symbol: &str) -> F {
    native("libc.so.6", symbol)
}

/// A native function of libpython.
pub fn cpython(symbol: &str) -> F {
    native("libpython3.11.so.1.0", symbol)
}

/// A native function.
pub fn native(module: &str, symbol: &str) -> F {
    F::Native(format!("/lib/{module}"), Some(symbol.to_owned()))
}

/// A DataLoader worker that gets an item of its dataset, and what that calls.
pub fn fetch(more: &[F]) -> Vec<F> {
    let mut frames = vec![
        lib("torch/utils/data/_utils/worker.py", "_worker_loop"),
        lib(
            "torch/utils/data/_utils/fetch.py",
            "_MapDatasetFetcher.fetch",
        ),
        py("/home/u/data.py", "Images.__getitem__", 12),
    ];
    frames.extend_from_slice(more);
    frames
}

/// A native address without a symbol.
pub fn unnamed(module: &str) -> F {
    F::Native(format!("/lib/{module}"), None)
}

/// What a thread was in while it slept.
#[derive(Clone, Copy, Debug)]
pub enum S {
    Running,
    Futex,
    Read,
    Poll,
    Nanosleep,
    Ioctl,
    Disk,
}

pub struct Builder {
    pub run: RunInfo,
    pub processes: Vec<ProcessInfo>,
    pub threads: Vec<ThreadInfo>,
    pub modules: Vec<ModuleInfo>,
    pub codes: Vec<CodeInfo>,
    pub nn_modules: Vec<NnModuleInfo>,
    /// Counters of progress.
    pub counters: Vec<CounterInfo>,
    /// Their readings.
    pub points: Vec<ProgressPoint>,
    /// Conditions.
    pub conditions: Vec<Condition>,
    pub tracks: CounterTracks,
    pub stacks: StackTable<Frame>,
    pub samples: Vec<Sample>,
    pub symbols: Vec<SymbolInfo>,
    pub quality: Quality,
    pub losses: Vec<Loss>,
    pub missing: Vec<String>,
    clocks: Vec<u64>,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// A recording without processes.
    pub fn new() -> Self {
        Self {
            run: RunInfo {
                torchspy: "0.1.0".to_owned(),
                host: "n17".to_owned(),
                architecture: "x86_64".to_owned(),
                command: vec!["python".to_owned(), "train.py".to_owned()],
                pid: 100,
                launched: true,
                rate_hz: 100.0,
                native: true,
                max_stopped: 0.02,
                ..RunInfo::default()
            },
            processes: Vec::new(),
            threads: Vec::new(),
            modules: Vec::new(),
            codes: Vec::new(),
            nn_modules: Vec::new(),
            counters: Vec::new(),
            points: Vec::new(),
            conditions: Vec::new(),
            tracks: CounterTracks::default(),
            stacks: StackTable::default(),
            samples: Vec::new(),
            symbols: Vec::new(),
            quality: Quality::default(),
            losses: Vec::new(),
            missing: Vec::new(),
            clocks: Vec::new(),
        }
    }

    /// A recording of one trainer with its main thread: process 0, thread 0.
    pub fn trainer() -> Self {
        let mut builder = Self::new();
        builder.process(100, 1, &["python", "train.py"]);
        builder.thread(0, 100, "python", true);
        builder
    }

    pub fn process(&mut self, pid: i32, parent_pid: i32, command: &[&str]) -> usize {
        self.processes.push(ProcessInfo {
            pid,
            parent_pid,
            start_ticks: 1000 + self.processes.len() as u64,
            command: command.iter().map(|&word| word.to_owned()).collect(),
            python: "3.11.7".to_owned(),
            torch: "2.15.0".to_owned(),
            has_torch: true,
            ..ProcessInfo::default()
        });
        self.processes.len() - 1
    }

    pub fn environment(&mut self, process: usize, variables: &[(&str, &str)]) {
        self.processes[process].environment = variables
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
    }

    pub fn thread(&mut self, process: usize, tid: i32, name: &str, is_python: bool) -> usize {
        self.threads.push(ThreadInfo {
            process: ProcessId::from_index(process),
            tid,
            start_ticks: 0,
            name: name.to_owned(),
            is_python,
            first_seen_ns: 0,
            last_seen_ns: 0,
        });
        self.clocks.push(0);
        self.threads.len() - 1
    }

    fn module(&mut self, path: &str, kind: ModuleKind) -> ModuleId {
        let at = self
            .modules
            .iter()
            .position(|module| module.path == path)
            .unwrap_or_else(|| {
                self.modules.push(ModuleInfo {
                    kind,
                    path: path.to_owned(),
                    build_id: Vec::new(),
                });
                self.modules.len() - 1
            });
        ModuleId::from_index(at)
    }

    fn native_frame(&mut self, path: &str, symbol: Option<&str>, trust: Trust) -> Frame {
        let module = self.module(path, ModuleKind::File);
        let start = match symbol {
            None => 0x10,
            Some(name) => {
                let known = self
                    .symbols
                    .iter()
                    .find(|each| each.module == module && each.name == name);
                known.map(|symbol| symbol.start).unwrap_or_else(|| {
                    let start = 0x1000 + self.symbols.len() as u64 * 0x100;
                    self.symbols.push(SymbolInfo {
                        module,
                        start,
                        end: start + 0x100,
                        name: name.to_owned(),
                    });
                    start
                })
            }
        };
        Frame::Native {
            module,
            address: CodeAddress::Return(start + 5),
            trust,
        }
    }

    fn frame(&mut self, frame: &F) -> Frame {
        match frame {
            F::Py(file, name, line) => {
                let code = CodeInfo {
                    name: name.clone(),
                    file: file.clone(),
                    first_line: 1,
                    version: PythonVersion::new(3, 11),
                    content_hash: 0,
                };
                let at = self
                    .codes
                    .iter()
                    .position(|each| *each == code)
                    .unwrap_or_else(|| {
                        self.codes.push(code);
                        self.codes.len() - 1
                    });
                Frame::Python {
                    code: CodeId::from_index(at),
                    instruction: line * 2,
                    line: *line,
                }
            }
            F::Native(path, symbol) => self.native_frame(path, symbol.as_deref(), Trust::Unwound),
            F::Guess(path, symbol) => self.native_frame(path, symbol.as_deref(), Trust::Scanned),
            F::Anonymous => {
                let module = self.module("[anonymous]", ModuleKind::Anonymous);
                Frame::Native {
                    module,
                    address: CodeAddress::Ip(0x7f00_0000_1234),
                    trust: Trust::Unwound,
                }
            }
            F::Cut(partial) => Frame::Truncated(*partial),
            F::Module(info) => {
                let known = self.nn_modules.iter().position(|each| each == info);
                let at = known.unwrap_or_else(|| {
                    self.nn_modules.push(info.clone());
                    self.nn_modules.len() - 1
                });
                Frame::NnModule(NnModuleId::from_index(at))
            }
            F::Compiles(subject) => match self.frame(subject) {
                Frame::Python { code, .. } => Frame::Compiles(code),
                other => other,
            },
        }
    }

    /// The next `ticks` of a thread, as one sample each; frames root first.
    pub fn ticks(&mut self, thread: usize, ticks: u64, state: S, frames: &[F]) {
        for _ in 0..ticks {
            self.sample(thread, TICK_NS, state, frames);
        }
    }

    /// The next sample of a thread.
    pub fn sample(&mut self, thread: usize, weight_ns: u64, state: S, frames: &[F]) -> &mut Sample {
        let frames: Vec<Frame> = frames.iter().map(|frame| self.frame(frame)).collect();
        let stack = self.stacks.intern(frames);
        let start_ns = self.clocks[thread];
        self.clocks[thread] += weight_ns;
        self.threads[thread].last_seen_ns = self.clocks[thread];
        let (state, syscall) = match state {
            S::Running => (ThreadState::Running, None),
            S::Futex => (ThreadState::Sleeping, Some(202)),
            S::Read => (ThreadState::Sleeping, Some(0)),
            S::Poll => (ThreadState::Sleeping, Some(7)),
            S::Nanosleep => (ThreadState::Sleeping, Some(230)),
            S::Ioctl => (ThreadState::Sleeping, Some(16)),
            S::Disk => (ThreadState::Uninterruptible, None),
        };
        let running = state == ThreadState::Running;
        self.samples.push(Sample {
            thread: ThreadId::from_index(thread),
            stack,
            start_ns,
            weight_ns,
            ticks: 1,
            capture: if running {
                Capture::Stopped
            } else {
                Capture::Asleep
            },
            state,
            syscall,
            gil: Gil::Unknown,
            gil_holder: None,
            run_ns: if running { weight_ns } else { 0 },
            queue_ns: 0,
        });
        self.samples.last_mut().expect("just pushed")
    }

    /// All of it as a segment that begins at `start_ns`.
    pub fn segment(mut self, index: u64, start_ns: u64) -> Segment {
        let length_ns = self.clocks.iter().copied().max().unwrap_or(0);
        for sample in &mut self.samples {
            sample.start_ns += start_ns;
        }
        for point in &mut self.points {
            point.time_ns += start_ns;
            point.before_ns += start_ns;
        }
        self.quality.ticks = length_ns / TICK_NS;
        let symbols = self.symbols.clone();
        let recording = self.recording(start_ns + length_ns);
        Segment {
            index,
            start_ns,
            end_ns: recording.end_ns,
            tables: recording.tables,
            symbols,
            points: recording.points,
            conditions: recording.conditions,
            tracks: recording.tracks,
            samples: recording.samples,
            quality: recording.quality,
            losses: recording.losses,
            ..Segment::default()
        }
    }

    /// The profile of it all.
    pub fn profile(mut self) -> Profile {
        self.samples
            .sort_by_key(|sample| (sample.thread, sample.start_ns));
        let end_ns = self.clocks.iter().copied().max().unwrap_or(0);
        // Who waited for a CPU did not run meanwhile.
        for sample in &mut self.samples {
            sample.run_ns = sample
                .run_ns
                .min(sample.weight_ns.saturating_sub(sample.queue_ns));
        }
        if self.quality == Quality::default() {
            self.quality.ticks = end_ns / TICK_NS;
        }
        resolve(&self.recording(end_ns), names())
    }

    /// All of it as a recording that ends at `end_ns`, ids as they are.
    pub fn recording(self, end_ns: u64) -> Recording {
        let threads = self.threads.into_iter().enumerate();
        let tables = Tables {
            processes: self.processes,
            threads: threads
                .map(|(at, thread)| (ThreadId::from_index(at), thread))
                .collect(),
            modules: self.modules.into(),
            codes: self.codes.into(),
            nn_modules: self.nn_modules.into(),
            counters: self.counters.into(),
            stacks: self.stacks,
        };
        Recording {
            run: self.run,
            tables,
            symbols: self.symbols.into_iter().collect(),
            points: self.points,
            conditions: self.conditions,
            tracks: self.tracks,
            samples: self.samples,
            quality: self.quality,
            losses: self.losses,
            missing: self.missing,
            end_ns,
            ..Recording::default()
        }
    }
}

/// Names as they are.
pub fn names() -> Names {
    Names {
        demangle: str::to_owned,
        shorten: |name| name.split('(').next().unwrap_or(name).to_owned(),
        rules: RuleSet::built_in(),
    }
}
