//! Made-up training runs, each bound by something: parts of a step in ticks, what the device did,
//! and present settings.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use crate::analysis_builder::*;
use crate::track_builder::{cpus, energy, gpu, level, throttle, utilization, windows};
use serde::Deserialize;
use torchspy::analysis::analyze;
use torchspy::analysis::verdict::Verdict;
use torchspy::model::ids::{CounterId, GpuId, ProcessId, ThreadId, TrackId};
use torchspy::model::profile::Profile;
use torchspy::model::progress::{Condition, CounterInfo, CounterKind, ProgressPoint, facts};
use torchspy::model::sample::Gil;
use torchspy::model::track::{SHARE_ONE, TrackGap, TrackInfo, TrackKind, TrackPoint};

/// What the training thread does for some ticks.
#[derive(Clone, Copy, Debug, Deserialize)]
pub enum Do {
    Wait,
    MakeBatch,
    Launch,
    Python,
    Sync,
    Copy,
    Reduce,
    /// Computes on the host.
    Gemm,
    /// Computes in user code that nobody waits for: neither input nor torch.
    Sleep,
    /// Runs Python, half of it without a CPU.
    Starved,
    /// Imports a module.
    Import,
    /// Waits for the thread that pins batches.
    WaitPinned,
    /// Reads samples from storage, without workers.
    ReadBatch,
    /// Makes a batch in Python code, without workers.
    Tokenize,
    /// Waits for a loader that the user wrote: a thread of their own behind a queue.
    OwnQueue,
    /// Loads data in native code that the training loop itself calls, without a DataLoader.
    OwnLoad,
    /// In torch's dispatcher, on the way to a launch.
    Dispatch,
    /// Python code of the model.
    ModelPython,
    /// Replays a CUDA graph.
    GraphLaunch,
    /// An optimizer's Python loop over parameters.
    OptPython,
    /// An optimizer's launches.
    OptLaunch,
    /// Waits for the thread of autograd, which launches kernels.
    Backward,
    /// The same, and it runs a Python function's backward.
    BackPython,
    /// The same, and a hook on it calls `.item()`.
    BackSync,
    /// The same, and it copies saved tensors back from the host.
    BackCopy,
    /// The same, and it enqueues NCCL's all-reduce of a bucket.
    BackReduce,
    /// Computes backward on the host, on the main thread.
    BackGemm,
    /// Computes elementwise on the host.
    Elementwise,
    /// Waits for the other threads of OpenMP at the end of a loop.
    Barrier,
    /// An optimizer of torch's that computes on the host.
    HostFused,
    /// An optimizer of an extension that computes on the host.
    HostAdam,
    /// `torch.cuda.synchronize()`.
    DeviceSync,
    /// A mask as an index, whose size the host must know.
    Mask,
    /// `.cpu()` of a large tensor.
    ToHost,
    /// Gives device memory back to the driver.
    Alloc,
    /// A collective of NCCL's that blocks the host.
    Blocked,
    /// Waits for the interpreter's lock, which another thread holds.
    Gil,
    /// Writes a checkpoint.
    Checkpoint,
    /// Loads weights.
    Load,
    /// Fills weights.
    Init,
    /// torch.compile at work.
    Compile,
    /// torch.compile waits for compilers.
    CompileWait,
    /// Metrics in native code of a library, called by the user.
    Evaluate,
    /// Waits for the answer of a server that keeps logs.
    Post,
    /// Code without a name.
    Unknown,
}

/// What a DataLoader worker does for some ticks.
#[derive(Clone, Copy, Debug, Deserialize)]
pub enum Feed {
    Decode,
    /// Python code of the dataset.
    Tokenize,
    Collate,
    /// Reads a file, in uninterruptible sleep.
    Read,
    /// Receives from a server.
    Socket,
    /// Waits for the trainer to ask.
    Idle,
    /// Could decode, but has no CPU.
    Starved,
}

/// The DataLoader of a rank, and what each of its workers does in a step.
#[derive(Clone, Debug, Deserialize)]
pub struct Loader {
    /// Place among the recorded ranks.
    pub rank: usize,
    pub count: u64,
    pub step: Vec<(Feed, u64)>,
}

/// What the device did, as shares of one.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Device {
    pub busy: f64,
    pub sm: Option<f64>,
    pub dram: Option<f64>,
    pub power: f64,
    #[serde(default)]
    pub throttle: u64,
}

impl Device {
    pub fn busy(busy: f64) -> Self {
        Self {
            busy,
            sm: Some(busy * 0.8),
            dram: Some(busy * 0.4),
            power: 0.15 + 0.7 * busy,
            throttle: 0,
        }
    }

    /// Share of time with a kernel, of multiprocessors with a warp, of memory bandwidth, and of the
    /// power limit.
    pub fn gpm(busy: f64, sm: f64, dram: f64, power: f64) -> Self {
        Self {
            sm: Some(sm),
            dram: Some(dram),
            ..Self::plain(busy, power)
        }
    }

    /// One of which only utilization and power are known.
    pub fn plain(busy: f64, power: f64) -> Self {
        Self {
            busy,
            sm: None,
            dram: None,
            power,
            throttle: 0,
        }
    }
}

/// All ranks of a node, each with its step.
pub fn ranks(name: &'static str, steps: &[&[(Do, u64)]]) -> Run {
    let world = steps.len() as u32;
    Run {
        world,
        node: Some(world),
        others: steps[1..].iter().map(|step| step.to_vec()).collect(),
        ..Run::new(name, None, steps[0])
    }
}

/// What DataLoader workers do, in ticks of a step: decode, read, wait, run without a CPU.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Workers {
    pub count: u64,
    pub decode: u64,
    pub read: u64,
    pub idle: u64,
    pub starved: u64,
}

/// A run.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Run {
    pub name: String,
    pub step: Vec<(Do, u64)>,
    pub device: Option<Device>,
    pub cuda: bool,
    pub workers: Workers,
    pub cpus: Option<(f64, f64)>,
    /// Ranks of the job, on the node, and recorded; each other rank has a step of its own.
    pub world: u32,
    pub node: Option<u32>,
    pub others: Vec<Vec<(Do, u64)>>,
    pub nccl: bool,
    pub steps: u64,
    /// Ticks of start-up, after a few of the loader.
    pub startup: u64,
    pub pin_memory: Option<bool>,
    /// `None`: no single cause, or none that may be told.
    #[serde(skip)]
    pub expected: Option<&'static str>,
    /// Loaders by rank; with any, `workers` is not looked at.
    pub loaders: Vec<Loader>,
    /// By rank what its device does for some ticks, over and over; the last one's also for the
    /// ranks behind it. Before `device`.
    pub devices: Vec<Vec<(u64, Device)>>,
    /// Whether devices are instances of a larger one: neither utilization nor power.
    pub mig: bool,
    /// A process that is not recorded and has memory on every device.
    pub neighbour: Option<i32>,
    /// Whether native frames were asked for.
    pub native: bool,
    /// By rank which share of a running tick its threads have no CPU.
    pub queues: Vec<f64>,
    /// Share of the run in which the cgroup was held back.
    pub held: f64,
    /// CPUs that further processes use, by pid.
    pub loads: Vec<(i32, f64)>,
    /// CPUs that the trainers may run on.
    pub affinity: Option<u64>,
    /// CPUs of the machine; 0 where not known.
    pub host_cpus: u32,
    /// Share of the time that the thread which pins batches copies; `None` without such a thread.
    pub pinning: Option<f64>,
    /// Number of the first rank that was recorded.
    pub first_rank: u32,
    /// Threads of OpenMP beside each trainer's main thread.
    pub omp: u64,
    /// Whether an optimizer counts the steps.
    pub counted: bool,
}

impl Default for Run {
    fn default() -> Self {
        Self::new("", None, &[])
    }
}

impl Run {
    pub fn new(name: &str, expected: Option<&'static str>, step: &[(Do, u64)]) -> Self {
        Self {
            name: name.to_owned(),
            step: step.to_vec(),
            device: None,
            cuda: true,
            workers: Workers::default(),
            cpus: None,
            world: 1,
            node: None,
            others: Vec::new(),
            nccl: false,
            steps: 30,
            startup: 0,
            pin_memory: None,
            expected,
            loaders: Vec::new(),
            devices: Vec::new(),
            mig: false,
            neighbour: None,
            native: true,
            queues: Vec::new(),
            held: 0.0,
            loads: Vec::new(),
            affinity: None,
            host_cpus: 0,
            pinning: None,
            first_rank: 0,
            omp: 0,
            counted: false,
        }
    }

    pub fn device(mut self, device: Device) -> Self {
        self.device = Some(device);
        self
    }

    /// CPUs that each trainer and each worker uses on a machine of `cpus`, without a quota. Comes
    /// after ranks and loaders.
    pub fn uses(mut self, trainer: f64, worker: f64, cpus: u64) -> Self {
        let trainers = (0..=self.others.len()).map(|rank| (100 + rank as i32, trainer));
        let workers = self.loaders.iter().flat_map(|loader| {
            (0..loader.count).map(move |number| (worker_pid(loader.rank, number), worker))
        });
        self.loads = trainers.chain(workers).collect();
        self.affinity = Some(cpus);
        self.host_cpus = cpus as u32;
        self
    }

    /// The same in a cgroup with a quota.
    pub fn quota(self, trainer: f64, worker: f64, allowed: f64) -> Self {
        let mut run = self.uses(trainer, worker, 64);
        run.loads.retain(|&(pid, _)| pid != 100);
        run.cpus = Some((trainer, allowed));
        run
    }

    pub fn verdict(&self) -> (Profile, Verdict) {
        let profile = self.profile();
        let verdict = analyze(&profile).verdict.unwrap();
        (profile, verdict)
    }

    /// The verdict, where there is one at all.
    pub fn reported(&self) -> Option<Verdict> {
        analyze(&self.profile()).verdict
    }

    pub fn profile(&self) -> Profile {
        let mut builder = Builder::new();
        builder.run.native = self.native;
        builder.run.cpus = self.host_cpus;
        let mut pids = Vec::new();
        let steps = std::iter::once(&self.step).chain(&self.others);
        let mut end_ns = 0;
        for (rank, step) in steps.enumerate() {
            let pid = 100 + rank as i32;
            pids.push(pid);
            end_ns = end_ns.max(self.trainer(&mut builder, pid, rank, step));
        }
        self.input(&mut builder, 100);
        if let Some((used, allowed)) = self.cpus {
            cpus(&mut builder, 100, end_ns, used);
            builder.sideband.conditions.push(Condition {
                process: ProcessId(0),
                name: facts::CPU_QUOTA.to_owned(),
                value: allowed.to_string(),
            });
        }
        for &(pid, used) in &self.loads {
            cpus(&mut builder, pid, end_ns, used);
        }
        if let Some(allowed) = self.affinity {
            builder
                .sideband
                .conditions
                .extend((0..pids.len()).map(|rank| Condition {
                    process: ProcessId::from_index(rank),
                    name: facts::AFFINITY.to_owned(),
                    value: allowed.to_string(),
                }));
        }
        if self.held > 0.0 {
            builder.sideband.quality.ticks = end_ns / TICK_NS;
            builder.sideband.quality.throttled_ns = (self.held * end_ns as f64) as u64;
        }
        self.lay_devices(&mut builder, &pids, end_ns);
        // As the reader of recordings sorts them.
        builder
            .sideband
            .tracks
            .points
            .sort_by_key(|point| (point.track, point.end_ns));
        builder.profile()
    }

    fn lay_devices(&self, builder: &mut Builder, pids: &[i32], end_ns: u64) {
        let plain = self.devices.is_empty() && !self.mig && self.neighbour.is_none();
        for (rank, &pid) in pids.iter().enumerate() {
            let own = self.devices.get(rank).or(self.devices.last());
            match (own, self.device) {
                (None, Some(device)) if plain => lay(builder, device, pid, end_ns),
                (None, Some(device)) => self.lay_cycle(builder, &[(1, device)], pid, end_ns),
                (Some(cycle), _) => self.lay_cycle(builder, cycle, pid, end_ns),
                (None, None) => {}
            }
        }
    }

    /// Counter tracks of a device that does other things at other times.
    fn lay_cycle(&self, builder: &mut Builder, cycle: &[(u64, Device)], pid: i32, end_ns: u64) {
        let users: Vec<i32> = std::iter::once(pid).chain(self.neighbour).collect();
        let id = gpu(builder, &users);
        if self.mig {
            let info = &mut builder.sideband.tracks.gpus[id.index()];
            info.uuid = format!("MIG-{}", id.0);
            info.mig = Some(1);
            for kind in [TrackKind::Utilization, TrackKind::Energy] {
                builder.sideband.tracks.gaps.push(TrackGap {
                    gpu: Some(id),
                    kind: Some(kind),
                    start_ns: 0,
                    end_ns: 0,
                    reason: "the driver has none for a MIG instance".to_owned(),
                });
            }
        } else {
            utilization(builder, id, end_ns, |from, to| {
                mean(cycle, from, to, |device| device.busy) * (to - from) as f64
            });
            energy(builder, id, end_ns, |from, to| {
                mean(cycle, from, to, |device| device.power) * 700.0 * (to - from) as f64 / 1e9
            });
            throttle_over(builder, id, end_ns, cycle);
        }
        let share = |builder: &mut Builder, kind, value: fn(&Device) -> Option<f64>| {
            if cycle.iter().any(|(_, device)| value(device).is_some()) {
                windows(
                    builder,
                    kind,
                    Some(id),
                    (10 * TICK_NS, end_ns),
                    |from, to| {
                        let share = mean(cycle, from, to, |device| value(device).unwrap_or(0.0));
                        (share.clamp(0.0, 1.0) * SHARE_ONE as f64) as u64
                    },
                );
            }
        };
        share(builder, TrackKind::SmActive, |device| device.sm);
        share(builder, TrackKind::DramActive, |device| device.dram);
    }

    fn trainer(&self, builder: &mut Builder, pid: i32, rank: usize, step: &[(Do, u64)]) -> u64 {
        let process = builder.process(pid, 1, &["python", "train.py"]);
        builder.processes[process].has_cuda = self.cuda;
        if self.world > 1 {
            let number = rank + self.first_rank as usize;
            let (rank, world) = (number.to_string(), self.world.to_string());
            let node = self.node.map(|node| node.to_string());
            let mut variables = vec![("RANK", rank.as_str()), ("WORLD_SIZE", world.as_str())];
            variables.extend(node.as_deref().map(|node| ("LOCAL_WORLD_SIZE", node)));
            builder.environment(process, &variables);
        }
        let thread = builder.thread(process, pid, "python", true);
        let crew = Crew::new(self, builder, process, pid, step);
        let queue = self.queues.get(rank).copied().unwrap_or(0.0);
        let mut ticks = 0;
        let before = if self.startup > 0 {
            3 + self.startup
        } else {
            0
        };
        for _ in 0..before + 2 * u64::from(self.nccl) {
            crew.tick(builder, Do::Import, 0.0);
        }
        if self.startup > 0 {
            let loads = [native("ld-linux-x86-64.so.2", "_dl_relocate_object")];
            builder.ticks(thread, 3, S::Running, &loads);
            builder.ticks(
                thread,
                self.startup,
                S::Running,
                &frames(Do::Import, false).1,
            );
            ticks += 3 + self.startup;
        }
        if self.nccl {
            builder.ticks(thread, 2, S::Running, &frames(Do::Reduce, true).1);
        }
        let counter = builder.counters.len();
        if self.counted {
            builder.counters.push(CounterInfo {
                process: ProcessId::from_index(process),
                number: 0,
                kind: CounterKind::TrainerSteps,
                class: "SGD".to_owned(),
                file: String::new(),
                line: 0,
                facts: Vec::new(),
            });
        }
        for number in 0..self.steps {
            for &(what, length) in step {
                let (state, frames) = frames(what, self.nccl);
                let frames = self.seen(frames);
                for _ in 0..length {
                    let sample = builder.sample(thread, TICK_NS, state, &frames);
                    if matches!(what, Do::Starved) {
                        sample.queue_ns = TICK_NS / 2;
                    } else if matches!(state, S::Running) {
                        sample.queue_ns = (queue * TICK_NS as f64) as u64;
                    }
                    if matches!(what, Do::Gil) {
                        sample.gil = Gil::NotHeld;
                        sample.gil_holder = crew.rival.map(ThreadId::from_index);
                    }
                    crew.tick(builder, what, queue);
                }
                ticks += length;
            }
            if self.counted {
                let time_ns = builder.threads[thread].last_seen_ns;
                builder.sideband.points.push(ProgressPoint {
                    counter: CounterId::from_index(counter),
                    thread: ThreadId::from_index(thread),
                    before_ns: time_ns - TICK_NS,
                    time_ns,
                    value: number + 1,
                });
            }
        }
        ticks * TICK_NS
    }

    /// What of a stack is read: without native frames only Python's.
    fn seen(&self, mut frames: Vec<F>) -> Vec<F> {
        frames.retain(|frame| self.native || matches!(frame, F::Py(..)));
        frames
    }

    /// A loader and its workers.
    fn load(&self, builder: &mut Builder, number: usize, loader: &Loader) {
        let mut reported = vec![(facts::WORKERS.to_owned(), loader.count.to_string())];
        reported.extend(
            self.pin_memory
                .map(|pinned| (facts::PIN_MEMORY.to_owned(), pinned.to_string())),
        );
        let class = match loader.count {
            0 => "_SingleProcessDataLoaderIter",
            _ => "_MultiProcessingDataLoaderIter",
        };
        builder.counters.push(CounterInfo {
            process: ProcessId::from_index(loader.rank),
            number: number as u32,
            kind: CounterKind::Batches,
            class: class.to_owned(),
            file: String::new(),
            line: 0,
            facts: reported,
        });
        for number in 0..loader.count {
            let pid = worker_pid(loader.rank, number);
            let parent = 100 + loader.rank as i32;
            let process = builder.process(pid, parent, &["python", "train.py"]);
            let thread = builder.thread(process, pid, "pt_data_worker", true);
            for _ in 0..self.steps {
                for &(what, length) in &loader.step {
                    let (state, frames) = fed(what);
                    let frames = self.seen(frames);
                    for _ in 0..length {
                        let sample = builder.sample(thread, TICK_NS, state, &frames);
                        if matches!(what, Feed::Starved) {
                            sample.queue_ns = TICK_NS;
                        }
                    }
                }
            }
        }
    }

    fn input(&self, builder: &mut Builder, parent: i32) {
        for (number, loader) in self.loaders.iter().enumerate() {
            self.load(builder, number, loader);
        }
        if !self.loaders.is_empty() {
            return;
        }
        let workers = self.workers;
        if workers.count == 0 && self.pin_memory.is_none() {
            return;
        }
        let mut reported = vec![(facts::WORKERS.to_owned(), workers.count.to_string())];
        reported.extend(
            self.pin_memory
                .map(|pinned| (facts::PIN_MEMORY.to_owned(), pinned.to_string())),
        );
        builder.counters.push(CounterInfo {
            process: ProcessId(0),
            number: 0,
            kind: CounterKind::Batches,
            class: "_MultiProcessingDataLoaderIter".to_owned(),
            file: String::new(),
            line: 0,
            facts: reported,
        });
        for number in 0..workers.count {
            let pid = 1000 + number as i32;
            let process = builder.process(pid, parent, &["python", "train.py"]);
            let thread = builder.thread(process, pid, "pt_data_worker", true);
            for _ in 0..self.steps {
                let decode = fetch(&[
                    lib("PIL/ImageFile.py", "ImageFile.load"),
                    native("libjpeg-32d42e16.so.62", "jpeg_idct_islow"),
                ]);
                builder.ticks(thread, workers.decode, S::Running, &decode);
                for _ in 0..workers.starved {
                    let sample = builder.sample(thread, TICK_NS, S::Running, &decode);
                    sample.queue_ns = TICK_NS;
                }
                let read = fetch(&[cpython("_io_FileIO_readall"), libc("read")]);
                builder.ticks(thread, workers.read, S::Disk, &read);
                let idle = [
                    lib("torch/utils/data/_utils/worker.py", "_worker_loop"),
                    std_lib("multiprocessing/queues.py", "Queue.get"),
                    std_lib("multiprocessing/connection.py", "Connection.poll"),
                    libc("poll"),
                ];
                builder.ticks(thread, workers.idle, S::Poll, &idle);
            }
        }
    }
}

fn lay(builder: &mut Builder, device: Device, pid: i32, end_ns: u64) {
    let id = gpu(builder, &[pid]);
    utilization(builder, id, end_ns, |from, to| {
        device.busy * (to - from) as f64
    });
    if let Some(sm) = device.sm {
        level(builder, TrackKind::SmActive, id, end_ns, sm);
    }
    if let Some(dram) = device.dram {
        level(builder, TrackKind::DramActive, id, end_ns, dram);
    }
    energy(builder, id, end_ns, |from, to| {
        device.power * 700.0 * (to - from) as f64 / 1e9
    });
    throttle(builder, id, end_ns, device.throttle);
}

/// A worker's pid.
fn worker_pid(rank: usize, number: u64) -> i32 {
    1000 + 100 * rank as i32 + number as i32
}

/// The mean of a figure between two moments.
fn mean(cycle: &[(u64, Device)], from_ns: u64, to_ns: u64, value: impl Fn(&Device) -> f64) -> f64 {
    let ticks = from_ns / TICK_NS..to_ns.div_ceil(TICK_NS);
    let count = ticks.end - ticks.start;
    ticks
        .map(|tick| value(&device_at(cycle, tick)))
        .sum::<f64>()
        / count as f64
}

/// What a device does in a tick.
fn device_at(cycle: &[(u64, Device)], tick: u64) -> Device {
    let whole: u64 = cycle.iter().map(|(length, _)| length).sum();
    let mut left = tick % whole;
    for &(length, device) in cycle {
        if left < length {
            return device;
        }
        left -= length;
    }
    unreachable!("a rest is less than the whole")
}

/// Why clocks were held down, at moments.
fn throttle_over(builder: &mut Builder, gpu: GpuId, end_ns: u64, cycle: &[(u64, Device)]) {
    let tracks = &mut builder.sideband.tracks;
    tracks.tracks.push(TrackInfo {
        kind: TrackKind::Throttle,
        gpu: Some(gpu),
        pid: 0,
        process: String::new(),
    });
    let track = TrackId::from_index(tracks.tracks.len() - 1);
    for at in (0..end_ns).step_by(50 * TICK_NS as usize) {
        tracks.points.push(TrackPoint {
            track,
            start_ns: at,
            end_ns: at,
            value: device_at(cycle, at / TICK_NS).throttle,
        });
    }
}

fn runtime(symbol: &str) -> F {
    native("libcudart.so.13", symbol)
}

fn driver(symbol: &str) -> F {
    native("libcuda.so.1", symbol)
}

fn cuda(symbol: &str) -> F {
    native("libtorch_cuda.so", symbol)
}

fn bound(symbol: &str) -> F {
    native("libtorch_python.so", symbol)
}

fn binding(name: &str) -> F {
    bound(&format!(
        "torch::autograd::THPVariable_{name}(_object*, _object*)"
    ))
}

fn op(name: &str) -> F {
    torch(&format!("at::_ops::{name}::call(at::Tensor const&)"))
}

fn module() -> F {
    lib("torch/nn/modules/module.py", "Module._call_impl")
}

fn loader(more: &[F]) -> Vec<F> {
    let mut frames = vec![
        user("main", 88),
        lib(
            "torch/utils/data/dataloader.py",
            "_BaseDataLoaderIter.__next__",
        ),
    ];
    frames.extend_from_slice(more);
    frames
}

/// State and stack of a moment.
fn frames(what: Do, nccl: bool) -> (S, Vec<F>) {
    match what {
        Do::Wait => {
            let frames = loader(&[
                lib(
                    "torch/utils/data/dataloader.py",
                    "_MultiProcessingDataLoaderIter._try_get_data",
                ),
                std_lib("multiprocessing/queues.py", "Queue.get"),
                std_lib("multiprocessing/connection.py", "Connection.poll"),
                std_lib("selectors.py", "_PollLikeSelector.select"),
                libc("poll"),
            ]);
            (S::Poll, frames)
        }
        Do::MakeBatch => {
            let frames = loader(&[
                lib(
                    "torch/utils/data/dataloader.py",
                    "_SingleProcessDataLoaderIter._next_data",
                ),
                lib(
                    "torch/utils/data/_utils/fetch.py",
                    "_MapDatasetFetcher.fetch",
                ),
                py("/home/u/data.py", "Images.__getitem__", 12),
                native("libjpeg-32d42e16.so.62", "jpeg_idct_islow"),
            ]);
            (S::Running, frames)
        }
        Do::Launch => {
            let frames = vec![
                user("main", 90),
                lib("torch/nn/modules/module.py", "Module._call_impl"),
                op("add"),
                runtime("cudaLaunchKernel"),
            ];
            (S::Running, frames)
        }
        Do::Import => {
            let frames = vec![
                user("<module>", 1),
                py("<frozen importlib._bootstrap>", "_find_and_load", 1176),
                py(
                    "<frozen importlib._bootstrap_external>",
                    "SourceLoader.get_data",
                    1073,
                ),
            ];
            (S::Running, frames)
        }
        Do::Python | Do::Starved => (S::Running, vec![user("main", 91), user("metrics", 30)]),
        Do::Sync => {
            let frames = vec![
                user("main", 97),
                binding("item"),
                op("item"),
                op("_local_scalar_dense"),
                cuda("at::native::_local_scalar_dense_cuda(at::Tensor const&)"),
                runtime("cudaStreamSynchronize"),
            ];
            (S::Running, frames)
        }
        Do::Copy => {
            let frames = vec![
                user("main", 89),
                binding("to"),
                op("_to_copy"),
                op("copy_"),
                cuda("at::native::copy_kernel_cuda(at::TensorIterator&, bool)"),
                runtime("cudaMemcpyAsync"),
                native("libcuda.so.1", "cuMemcpyHtoDAsync_v2"),
            ];
            (S::Running, frames)
        }
        Do::Reduce if nccl => {
            let frames = vec![
                user("main", 95),
                cuda("c10d::ProcessGroupNCCL::allreduce(std::vector<at::Tensor>&)"),
                native("libnccl.so.2", "ncclAllReduce"),
            ];
            (S::Running, frames)
        }
        Do::Reduce => {
            let frames = vec![
                user("main", 95),
                lib("torch/_tensor.py", "Tensor.backward"),
                lib("torch/autograd/graph.py", "_engine_run_backward"),
                torch("torch::autograd::Engine::execute(int)"),
                torch("c10d::Reducer::finalize_backward()"),
                torch("c10::ivalue::Future::wait()"),
                libc("pthread_cond_wait"),
            ];
            (S::Futex, frames)
        }
        Do::Gemm => {
            let frames = vec![
                user("main", 92),
                lib("torch/nn/modules/module.py", "Module._call_impl"),
                op("mm"),
                native("libmkl_core.so.2", "mkl_blas_avx512_sgemm_kernel"),
            ];
            (S::Running, frames)
        }
        Do::Sleep => {
            let frames = vec![
                user("main", 93),
                cpython("time_sleep"),
                libc("clock_nanosleep"),
            ];
            (S::Nanosleep, frames)
        }
        _ => more_frames(what),
    }
}

/// State and stack of a moment, of the rest.
fn more_frames(what: Do) -> (S, Vec<F>) {
    input_frames(what)
        .or_else(|| issue_frames(what))
        .or_else(|| wait_frames(what))
        .or_else(|| compute_frames(what))
        .or_else(|| other_frames(what))
        .expect("every way has a stack")
}

fn input_frames(what: Do) -> Option<(S, Vec<F>)> {
    let single = [
        lib(
            "torch/utils/data/dataloader.py",
            "_SingleProcessDataLoaderIter._next_data",
        ),
        lib(
            "torch/utils/data/_utils/fetch.py",
            "_MapDatasetFetcher.fetch",
        ),
    ];
    let queue = [
        std_lib("queue.py", "Queue.get"),
        std_lib("threading.py", "Condition.wait"),
        cpython("lock_PyThread_acquire_lock"),
        libc("sem_clockwait"),
    ];
    let found = match what {
        Do::WaitPinned => {
            let mut frames = loader(&[lib(
                "torch/utils/data/dataloader.py",
                "_MultiProcessingDataLoaderIter._try_get_data",
            )]);
            frames.extend(queue);
            (S::Futex, frames)
        }
        Do::ReadBatch => {
            let mut frames = loader(&single);
            frames.extend([
                py("/home/u/data.py", "Images.__getitem__", 12),
                cpython("_io_FileIO_readall"),
                libc("read"),
            ]);
            (S::Disk, frames)
        }
        Do::Tokenize => {
            let mut frames = loader(&single);
            frames.extend([
                py("/home/u/data.py", "Corpus.__getitem__", 30),
                py("/home/u/data.py", "merge_pairs", 55),
            ]);
            (S::Running, frames)
        }
        Do::OwnQueue => {
            let mut frames = vec![
                user("main", 88),
                py("/home/u/prefetch.py", "Prefetcher.next", 33),
            ];
            frames.extend(queue);
            (S::Futex, frames)
        }
        Do::OwnLoad => {
            let frames = vec![
                user("main", 88),
                user("load_batch", 70),
                native("cv2.abi3.so", "cv::resize(cv::InputArray const&)"),
            ];
            (S::Running, frames)
        }
        _ => return None,
    };
    Some(found)
}

/// What gives work to the device.
fn issue_frames(what: Do) -> Option<(S, Vec<F>)> {
    let step = |function: &str| {
        vec![
            user("main", 98),
            lib(
                "torch/optim/optimizer.py",
                "Optimizer.profile_hook_step.<locals>.wrapper",
            ),
            lib("torch/optim/adamw.py", "AdamW.step"),
            lib("torch/optim/adam.py", function),
        ]
    };
    let frames = match what {
        Do::Dispatch => vec![
            user("main", 90),
            module(),
            binding("add"),
            torch(
                "torch::autograd::VariableType::(anonymous namespace)::add_Tensor(c10::DispatchKeySet, at::Tensor const&)",
            ),
            op("add"),
            torch("at::TensorIteratorBase::build(at::TensorIteratorConfig&)"),
        ],
        Do::ModelPython => vec![
            user("main", 90),
            module(),
            py("/home/u/model.py", "Decoder.forward", 40),
        ],
        Do::GraphLaunch => vec![
            user("main", 90),
            lib("torch/cuda/graphs.py", "CUDAGraph.replay"),
            cuda("at::cuda::CUDAGraph::replay()"),
            runtime("cudaGraphLaunch"),
        ],
        Do::OptPython => step("_single_tensor_adam"),
        Do::OptLaunch => {
            let mut frames = step("_multi_tensor_adam");
            frames.extend([op("_foreach_add_"), runtime("cudaLaunchKernel")]);
            frames
        }
        Do::HostFused => {
            let mut frames = step("_fused_adam");
            frames.extend([
                op("_fused_adamw_"),
                torch("at::native::(anonymous namespace)::adam_fused_step_impl<float>(at::Tensor const&)"),
            ]);
            frames
        }
        Do::HostAdam => {
            let mut frames = step("_fused_adam");
            frames.truncate(2);
            frames.extend([
                lib("deepspeed/ops/adam/cpu_adam.py", "DeepSpeedCPUAdam.step"),
                native("cpu_adam.so", "Adam_Optimizer::Step_8(float*, float*)"),
            ]);
            frames
        }
        _ => return None,
    };
    Some((S::Running, frames))
}

/// The main thread while autograd's own thread works.
fn in_backward(leaf: &[F]) -> Vec<F> {
    let mut frames = vec![
        user("main", 95),
        lib("torch/_tensor.py", "Tensor.backward"),
        lib("torch/autograd/graph.py", "_engine_run_backward"),
        bound("THPEngine_run_backward(_object*, _object*, _object*)"),
        bound("torch::autograd::python::PythonEngine::execute(int)"),
        torch("torch::autograd::Engine::execute(int)"),
        torch(
            "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)",
        ),
    ];
    frames.extend_from_slice(leaf);
    frames
}

/// What waits for the device, for autograd, or for other ranks.
fn wait_frames(what: Do) -> Option<(S, Vec<F>)> {
    if engine_at(what).is_some() {
        let pop = [
            torch("torch::autograd::ReadyQueue::pop()"),
            libc("pthread_cond_wait"),
        ];
        return Some((S::Futex, in_backward(&pop)));
    }
    let frames = match what {
        Do::DeviceSync => vec![
            user("main", 99),
            lib("torch/cuda/__init__.py", "synchronize"),
            bound("THCPModule_cudaSynchronize(_object*, _object*)"),
            runtime("cudaDeviceSynchronize"),
        ],
        Do::Mask => vec![
            user("main", 94),
            module(),
            py("/home/u/model.py", "Head.loss", 80),
            binding("getitem"),
            op("index_Tensor"),
            cuda("at::native::nonzero_cuda(at::Tensor const&)"),
            cuda("c10::cuda::memcpy_and_sync(void*, void const*, long)"),
            runtime("cudaStreamSynchronize"),
        ],
        Do::ToHost => vec![
            user("main", 100),
            binding("cpu"),
            op("_to_copy"),
            op("copy_"),
            cuda("at::native::copy_kernel_cuda(at::TensorIterator&, bool)"),
            runtime("cudaMemcpyAsync"),
            driver("cuMemcpyDtoHAsync_v2"),
        ],
        Do::Alloc => vec![
            user("main", 90),
            lib("torch/cuda/memory.py", "empty_cache"),
            bound("THCPModule_emptyCache(_object*, _object*)"),
            native(
                "libc10_cuda.so",
                "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::emptyCache()",
            ),
            runtime("cudaFree"),
        ],
        Do::Blocked => vec![
            user("main", 96),
            lib("torch/distributed/distributed_c10d.py", "barrier"),
            cuda("c10d::ProcessGroupNCCL::WorkNCCL::wait(std::chrono::duration<long>)"),
            runtime("cudaStreamSynchronize"),
        ],
        _ => return None,
    };
    Some((S::Running, frames))
}

/// What computes on the host.
fn compute_frames(what: Do) -> Option<(S, Vec<F>)> {
    let gelu = "at::native::(anonymous namespace)::GeluKernelImpl(at::TensorIteratorBase&)";
    let frames = match what {
        Do::BackGemm => in_backward(&[
            torch(
                "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)",
            ),
            torch("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)"),
            op("mm"),
            native("libmkl_core.so.2", "mkl_blas_avx512_sgemm_kernel"),
        ]),
        Do::Elementwise => vec![user("main", 92), module(), op("gelu"), torch(gelu)],
        Do::Barrier => vec![
            user("main", 92),
            module(),
            op("gelu"),
            torch(gelu),
            native("libgomp.so.1", "gomp_team_barrier_wait_end"),
        ],
        Do::Init => vec![
            user("main", 40),
            lib("torch/nn/init.py", "kaiming_uniform_"),
            op("uniform_"),
            torch(
                "at::native::templates::cpu::uniform_kernel<at::CPUGeneratorImpl*>(at::TensorIteratorBase&)",
            ),
        ],
        Do::Evaluate => vec![
            user("main", 120),
            user("evaluate", 140),
            lib("sklearn/metrics/_ranking.py", "roc_auc_score"),
            lib("numpy/_core/fromnumeric.py", "argsort"),
            native(
                "_multiarray_umath.cpython-311-x86_64-linux-gnu.so",
                "npy_aquicksort",
            ),
        ],
        _ => return None,
    };
    Some((S::Running, frames))
}

fn other_frames(what: Do) -> Option<(S, Vec<F>)> {
    let archive = |function: &str, leaf: F| {
        vec![
            user("main", 110),
            lib("torch/serialization.py", function),
            leaf,
        ]
    };
    let compiler = [
        user("main", 90),
        lib("torch/_dynamo/convert_frame.py", "_compile"),
        lib("torch/_inductor/compile_fx.py", "compile_fx_inner"),
    ];
    let found = match what {
        Do::Gil => {
            let frames = vec![
                user("main", 91),
                user("metrics", 30),
                cpython("take_gil"),
                libc("pthread_cond_timedwait"),
            ];
            (S::Futex, frames)
        }
        Do::Checkpoint => {
            let mut frames = archive(
                "save",
                torch("caffe2::serialize::PyTorchStreamWriter::writeRecord(std::string const&)"),
            );
            frames.push(libc("write"));
            (S::Disk, frames)
        }
        Do::Load => {
            let frames = archive("load", libc("read"));
            (S::Disk, frames)
        }
        Do::Compile => {
            let mut frames = compiler.to_vec();
            frames.push(lib("torch/_inductor/scheduler.py", "Scheduler.fuse_nodes"));
            (S::Running, frames)
        }
        Do::CompileWait => {
            let mut frames = compiler.to_vec();
            frames.extend([
                lib("torch/_inductor/async_compile.py", "AsyncCompile.wait"),
                std_lib("concurrent/futures/_base.py", "Future.result"),
                std_lib("threading.py", "Condition.wait"),
                cpython("lock_PyThread_acquire_lock"),
                libc("sem_clockwait"),
            ]);
            (S::Futex, frames)
        }
        Do::Post => {
            let frames = vec![
                user("main", 101),
                lib("requests/sessions.py", "Session.send"),
                std_lib("http/client.py", "HTTPResponse.begin"),
                std_lib("socket.py", "SocketIO.readinto"),
                cpython("sock_recv_into"),
                libc("recv"),
            ];
            (S::Read, frames)
        }
        Do::Unknown => (S::Running, vec![user("main", 91), F::Anonymous]),
        _ => return None,
    };
    Some(found)
}

/// What autograd's own thread does while the main thread waits for it; `None` where it has nothing
/// to do.
fn engine_at(what: Do) -> Option<(S, Vec<F>)> {
    let mut frames = engine();
    frames.push(torch(
        "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)",
    ));
    let copies = [
        op("_to_copy"),
        op("copy_"),
        cuda("at::native::copy_kernel_cuda(at::TensorIterator&, bool)"),
        runtime("cudaMemcpyAsync"),
        driver("cuMemcpyHtoDAsync_v2"),
    ];
    let python = |frame: F| vec![bound("torch::autograd::PyNode::apply(int)"), frame];
    let leaf = match what {
        Do::Backward => vec![
            torch("torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)"),
            op("mm"),
            runtime("cudaLaunchKernel"),
        ],
        Do::BackPython => python(py("/home/u/ops.py", "Scan.backward", 20)),
        Do::BackSync => {
            let mut frames = vec![
                bound("torch::autograd::PyFunctionTensorPreHook::operator()(int)"),
                user("clip_hook", 55),
                binding("item"),
                op("item"),
                op("_local_scalar_dense"),
            ];
            frames.extend([
                cuda("at::native::_local_scalar_dense_cuda(at::Tensor const&)"),
                runtime("cudaStreamSynchronize"),
            ]);
            frames
        }
        Do::BackCopy => {
            let mut frames = python(lib(
                "torch/autograd/graph.py",
                "save_on_cpu.__init__.<locals>.unpack_from_cpu",
            ));
            frames.push(binding("to"));
            frames.extend(copies);
            frames
        }
        Do::BackReduce => vec![
            torch("c10d::Reducer::autograd_hook(unsigned long)"),
            torch("c10d::Reducer::all_reduce_bucket(c10d::Reducer::Bucket&)"),
            cuda("c10d::ProcessGroupNCCL::allreduce(std::vector<at::Tensor>&)"),
            native("libnccl.so.2", "ncclAllReduce"),
        ],
        _ => return None,
    };
    frames.extend(leaf);
    Some((S::Running, frames))
}

/// Autograd's own thread.
fn engine() -> Vec<F> {
    vec![
        libc("clone3"),
        bound("torch::autograd::python::PythonEngine::thread_init(int)"),
        torch(
            "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)",
        ),
    ]
}

/// What a worker does.
fn fed(what: Feed) -> (S, Vec<F>) {
    let decode = || {
        fetch(&[
            lib("PIL/ImageFile.py", "ImageFile.load"),
            native("libjpeg-32d42e16.so.62", "jpeg_idct_islow"),
        ])
    };
    let worker = || lib("torch/utils/data/_utils/worker.py", "_worker_loop");
    match what {
        Feed::Decode | Feed::Starved => (S::Running, decode()),
        Feed::Tokenize => (
            S::Running,
            fetch(&[py("/home/u/data.py", "merge_pairs", 55)]),
        ),
        Feed::Collate => {
            let frames = vec![
                worker(),
                lib(
                    "torch/utils/data/_utils/fetch.py",
                    "_MapDatasetFetcher.fetch",
                ),
                lib("torch/utils/data/_utils/collate.py", "default_collate"),
                op("stack"),
                torch("at::native::(anonymous namespace)::stack_serial_kernel_impl(at::Tensor&)"),
            ];
            (S::Running, frames)
        }
        Feed::Read => (
            S::Disk,
            fetch(&[cpython("_io_FileIO_readall"), libc("read")]),
        ),
        Feed::Socket => {
            let frames = fetch(&[
                std_lib("http/client.py", "HTTPResponse.read"),
                std_lib("socket.py", "SocketIO.readinto"),
                std_lib("ssl.py", "SSLSocket.recv_into"),
                cpython("_ssl__SSLSocket_read"),
                libc("read"),
            ]);
            (S::Read, frames)
        }
        Feed::Idle => {
            let frames = vec![
                worker(),
                std_lib("multiprocessing/queues.py", "Queue.get"),
                std_lib("multiprocessing/connection.py", "Connection.poll"),
                libc("poll"),
            ];
            (S::Poll, frames)
        }
    }
}

/// The other threads of a trainer: those that its step needs.
struct Crew {
    engine: Option<usize>,
    rival: Option<usize>,
    pin: Option<(usize, f64)>,
    omp: Vec<usize>,
    native: bool,
}

impl Crew {
    fn new(run: &Run, builder: &mut Builder, process: usize, pid: i32, step: &[(Do, u64)]) -> Self {
        let needs = |wanted: &dyn Fn(Do) -> bool| step.iter().any(|&(what, _)| wanted(what));
        let mut thread = |number: i32, name: &str, is_python| {
            builder.thread(process, 50_000 + 100 * pid + number, name, is_python)
        };
        // Without native frames there is nothing to see of threads that run no Python.
        let engine = run.native && needs(&|what| engine_at(what).is_some());
        Self {
            engine: engine.then(|| thread(1, "pt_autograd_0", true)),
            rival: needs(&|what| matches!(what, Do::Gil)).then(|| thread(2, "python", true)),
            pin: run
                .pinning
                .map(|share| (thread(3, "pt_data_pin", true), share)),
            omp: (0..if run.native { run.omp } else { 0 })
                .map(|number| thread(10 + number as i32, "python", false))
                .collect(),
            native: run.native,
        }
    }

    /// A tick of each of them, while the main thread does this and running threads lack a CPU for a
    /// share of the time.
    fn tick(&self, builder: &mut Builder, what: Do, queue: f64) {
        let queued = |builder: &mut Builder, thread, state, frames: &[F]| {
            let sample = builder.sample(thread, TICK_NS, state, frames);
            if matches!(state, S::Running) {
                sample.queue_ns = (queue * TICK_NS as f64) as u64;
            }
        };
        if let Some(thread) = self.engine {
            let (state, frames) = engine_at(what).unwrap_or_else(|| {
                let mut frames = engine();
                frames.push(torch("torch::autograd::ReadyQueue::pop()"));
                frames.push(libc("pthread_cond_wait"));
                (S::Futex, frames)
            });
            queued(builder, thread, state, &frames);
        }
        if let Some(thread) = self.rival {
            let frames = [
                std_lib("threading.py", "Thread._bootstrap"),
                py("/home/u/prefetch.py", "Prefetcher.run", 50),
            ];
            builder.sample(thread, TICK_NS, S::Running, &frames).gil = Gil::Held;
        }
        if let Some((thread, share)) = self.pin {
            self.pin_tick(builder, thread, share);
        }
        for &thread in &self.omp {
            let busy = matches!(
                what,
                Do::Gemm | Do::BackGemm | Do::Elementwise | Do::Barrier | Do::HostFused
            );
            let start = native("libgomp.so.1", "gomp_thread_start");
            if busy {
                let kernel = native("libmkl_core.so.2", "mkl_blas_avx512_sgemm_kernel");
                queued(builder, thread, S::Running, &[start, kernel]);
            } else {
                let idle = native("libgomp.so.1", "gomp_team_barrier_wait_end");
                queued(builder, thread, S::Futex, &[start, idle]);
            }
        }
    }

    /// Copies for its share of every fifty ticks, and waits for workers in the rest.
    fn pin_tick(&self, builder: &mut Builder, thread: usize, share: f64) {
        let loop_ = lib("torch/utils/data/_utils/pin_memory.py", "_pin_memory_loop");
        let at = builder.threads[thread].last_seen_ns / TICK_NS % 50;
        let (state, mut frames) = if (at as f64) < share * 50.0 {
            let copies = vec![
                loop_,
                lib("torch/utils/data/_utils/pin_memory.py", "pin_memory"),
                op("copy_"),
                torch("at::native::copy_(at::Tensor&, at::Tensor const&, bool)"),
            ];
            (S::Running, copies)
        } else {
            let waits = vec![
                loop_,
                std_lib("multiprocessing/queues.py", "Queue.get"),
                std_lib("multiprocessing/connection.py", "Connection.poll"),
                libc("poll"),
            ];
            (S::Poll, waits)
        };
        frames.retain(|frame| self.native || matches!(frame, F::Py(..)));
        builder.sample(thread, TICK_NS, state, &frames);
    }
}
