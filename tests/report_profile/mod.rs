//! Profiles made up for tests of the report formats.

#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test file uses a part"
)]

pub mod svg;
pub mod training;

use torchspy::model::category::{Activity, FrameKind, Phase};
use torchspy::model::frame::{Partial, Trust};
use torchspy::model::ids::{FunctionId, ProcessId, ThreadId};
use torchspy::model::process::{ProcessInfo, ThreadInfo};
use torchspy::model::profile::{
    Function, Profile, ProfileFrame, ProfileProcess, ProfileSample, Role,
};
use torchspy::model::sample::{Capture, ThreadState};

pub const MS: u64 = 1_000_000;

/// Builds a profile piece by piece.
pub struct Builder {
    pub profile: Profile,
    /// Where each thread's next sample starts.
    clocks: Vec<u64>,
}

/// One frame of a stack to be added.
#[derive(Clone, Copy)]
pub enum At {
    Python(FunctionId, u32),
    Native(FunctionId),
    Guessed(FunctionId),
    Partial(Partial),
}

impl Builder {
    pub fn new(command: &str) -> Self {
        let mut profile = Profile::default();
        profile.run.torchspy = "0.1.0".to_owned();
        profile.run.host = "node1".to_owned();
        profile.run.command = command.split(' ').map(str::to_owned).collect();
        profile.run.rate_hz = 100.0;
        profile.run.pid = 100;
        profile.start_ns = 5_000 * MS;
        profile.end_ns = profile.start_ns;
        Self {
            profile,
            clocks: Vec::new(),
        }
    }

    pub fn process(&mut self, role: Role, pid: i32) -> ProcessId {
        let info = ProcessInfo {
            pid,
            command: vec!["python".to_owned(), "train.py".to_owned()],
            ..ProcessInfo::default()
        };
        self.profile.processes.push(ProfileProcess {
            info,
            role,
            job: None,
            training_thread: None,
        });
        ProcessId::from_index(self.profile.processes.len() - 1)
    }

    /// A thread; the first Python thread of a process is its training thread.
    pub fn thread(
        &mut self,
        process: ProcessId,
        tid: i32,
        name: &str,
        is_python: bool,
    ) -> ThreadId {
        self.profile.threads.push(ThreadInfo {
            process,
            tid,
            name: name.to_owned(),
            is_python,
            first_seen_ns: self.profile.start_ns,
            last_seen_ns: self.profile.start_ns,
            ..ThreadInfo::default()
        });
        self.clocks.push(self.profile.start_ns);
        let id = ThreadId::from_index(self.profile.threads.len() - 1);
        let owner = &mut self.profile.processes[process.index()];
        if is_python && owner.training_thread.is_none() {
            owner.training_thread = Some(id);
        }
        id
    }

    fn function(&mut self, function: Function) -> FunctionId {
        if let Some(known) = self
            .profile
            .functions
            .iter()
            .position(|other| *other == function)
        {
            return FunctionId::from_index(known);
        }
        self.profile.functions.push(function);
        FunctionId::from_index(self.profile.functions.len() - 1)
    }

    pub fn python(
        &mut self,
        name: &str,
        file: &str,
        first_line: u32,
        kind: FrameKind,
    ) -> FunctionId {
        self.function(Function {
            name: name.to_owned(),
            short_name: name.to_owned(),
            file: file.to_owned(),
            first_line,
            kind,
            is_python: true,
            ..Function::default()
        })
    }

    pub fn native(&mut self, name: &str, short: &str, module: &str, kind: FrameKind) -> FunctionId {
        self.function(Function {
            name: name.to_owned(),
            short_name: short.to_owned(),
            file: module.to_owned(),
            kind,
            plumbing: kind == FrameKind::Plumbing,
            ..Function::default()
        })
    }

    /// Adds a sample after the thread's last one and returns it for changes.
    pub fn sample(
        &mut self,
        thread: ThreadId,
        weight_ns: u64,
        stack: &[At],
        phase: Phase,
        activity: Activity,
    ) -> &mut ProfileSample {
        let marker = FunctionId::from_index(self.profile.functions.len());
        let frames: Vec<ProfileFrame> = stack
            .iter()
            .map(|&at| match at {
                At::Python(function, line) => ProfileFrame {
                    function,
                    line,
                    ..ProfileFrame::default()
                },
                At::Native(function) => ProfileFrame {
                    function,
                    trust: Some(Trust::Unwound),
                    ..ProfileFrame::default()
                },
                At::Guessed(function) => ProfileFrame {
                    function,
                    trust: Some(Trust::Scanned),
                    ..ProfileFrame::default()
                },
                At::Partial(why) => ProfileFrame {
                    function: marker,
                    partial: Some(why),
                    ..ProfileFrame::default()
                },
            })
            .collect();
        let stack = self.profile.stacks.intern(frames);
        let clock = &mut self.clocks[thread.index()];
        let waits = matches!(
            activity,
            Activity::LockWait
                | Activity::Sleep
                | Activity::GilWait
                | Activity::OmpIdle
                | Activity::Io
                | Activity::GpuSync
        );
        self.profile.samples.push(ProfileSample {
            thread,
            stack,
            start_ns: *clock,
            weight_ns,
            ticks: u32::try_from(weight_ns.div_ceil(10 * MS)).unwrap_or(1),
            capture: Capture::Stopped,
            state: if waits {
                ThreadState::Sleeping
            } else {
                ThreadState::Running
            },
            phase,
            activity,
            ..ProfileSample::default()
        });
        *clock += weight_ns;
        self.profile.end_ns = self.profile.end_ns.max(*clock);
        self.profile.samples.last_mut().unwrap()
    }

    /// Leaves a stretch of a thread without samples.
    pub fn gap(&mut self, thread: ThreadId, length_ns: u64) {
        self.clocks[thread.index()] += length_ns;
    }

    pub fn build(mut self) -> Profile {
        self.profile
            .samples
            .sort_by_key(|sample| (sample.thread, sample.start_ns));
        self.profile
    }
}

pub fn rank(number: u32) -> Role {
    Role::Trainer {
        rank: Some(number),
        world_size: Some(2),
        local_rank: Some(number),
    }
}

/// A small profile with one of everything: a training thread with waits, CPU waits, a gap, a
/// partial stack, a guess and plumbing; an autograd thread; a DataLoader worker that mostly waits.
pub fn small() -> Profile {
    let mut builder = Builder::new("python train.py --lr 0.1");
    let trainer = builder.process(rank(0), 100);
    let main = builder.thread(trainer, 100, "python", true);
    let engine = builder.thread(trainer, 101, "pt_autograd_0", false);
    let worker = builder.process(
        Role::DataLoaderWorker {
            number: 0,
            trainer: Some(trainer),
        },
        200,
    );
    let loader = builder.thread(worker, 200, "pt_data_worker", true);

    let script = builder.python("<module>", "/home/u/train.py", 1, FrameKind::PythonUser);
    let train = builder.python("train", "/home/u/train.py", 10, FrameKind::PythonUser);
    let forward = builder.python(
        "Module._call_impl",
        "/v/lib/python3.11/site-packages/torch/nn/modules/module.py",
        1700,
        FrameKind::PythonTorch,
    );
    let dispatch = builder.native(
        "c10::Dispatcher::call()",
        "c10::Dispatcher::call",
        "/v/libtorch_cpu.so",
        FrameKind::Plumbing,
    );
    let conv = builder.native(
        "at::native::conv2d<float, 4>(at::Tensor const&, long)",
        "at::native::conv2d",
        "/v/libtorch_cpu.so",
        FrameKind::Aten,
    );
    let jit = builder.native(
        "[anonymous]+0x40",
        "[anonymous]+0x40",
        "",
        FrameKind::Native,
    );
    let apply = builder.native(
        "torch::autograd::Engine::thread_main()",
        "Engine::thread_main",
        "/v/libtorch_cpu.so",
        FrameKind::Autograd,
    );
    let wait = builder.native(
        "pthread_cond_wait",
        "pthread_cond_wait",
        "/lib/libc.so.6",
        FrameKind::Wait,
    );
    let fetch = builder.python(
        "_worker_loop",
        "/v/lib/python3.11/site-packages/torch/utils/data/worker.py",
        200,
        FrameKind::DataLoader,
    );

    let in_conv = [
        At::Python(script, 30),
        At::Python(train, 12),
        At::Python(forward, 1750),
        At::Native(dispatch),
        At::Native(conv),
    ];
    builder.sample(
        main,
        10 * MS,
        &in_conv,
        Phase::Forward,
        Activity::AtenCompute,
    );
    builder
        .sample(
            main,
            20 * MS,
            &in_conv,
            Phase::Forward,
            Activity::AtenCompute,
        )
        .queue_ns = 5 * MS;
    builder.gap(main, 7 * MS);
    builder.sample(
        main,
        10 * MS,
        &[
            At::Python(script, 30),
            At::Python(train, 14),
            At::Native(wait),
        ],
        Phase::User,
        Activity::LockWait,
    );
    builder.sample(
        main,
        10 * MS,
        &[
            At::Partial(Partial::NoUnwindInfo),
            At::Guessed(jit),
            At::Native(conv),
        ],
        Phase::Forward,
        Activity::Gemm,
    );
    builder.sample(
        engine,
        30 * MS,
        &[At::Native(apply), At::Native(conv)],
        Phase::Backward,
        Activity::AtenCompute,
    );
    builder.sample(
        engine,
        20 * MS,
        &[At::Native(apply), At::Native(wait)],
        Phase::Backward,
        Activity::LockWait,
    );
    builder
        .sample(
            loader,
            40 * MS,
            &[At::Python(fetch, 220), At::Native(wait)],
            Phase::Input,
            Activity::LockWait,
        )
        .queue_ns = MS;
    builder.sample(
        loader,
        10 * MS,
        &[At::Python(fetch, 240)],
        Phase::Input,
        Activity::Python,
    );
    builder
        .sample(loader, 7 * MS, &[], Phase::User, Activity::Unclassified)
        .capture = Capture::NotCaptured;
    builder.build()
}
