//! Made-up training runs, each bound by something: parts of a step in ticks, what the device did, and present settings.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use crate::analysis_builder::*;
use crate::lane_builder::{cpus, energy, gpu, level, throttle, utilization};
use torchspy::analysis::analyze;
use torchspy::analysis::verdict::Verdict;
use torchspy::model::ids::ProcessId;
use torchspy::model::lane::LaneKind;
use torchspy::model::profile::Profile;
use torchspy::model::progress::{Condition, CounterInfo, CounterKind, facts};

/// What the training thread does for some ticks.
#[derive(Clone, Copy, Debug)]
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
}

/// What the device did, as shares of one.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    pub busy: f64,
    pub sm: Option<f64>,
    pub dram: Option<f64>,
    pub power: f64,
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
}

/// What DataLoader workers do, in ticks of a step: decode, read, wait, run without a CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct Workers {
    pub count: u64,
    pub decode: u64,
    pub read: u64,
    pub idle: u64,
    pub starved: u64,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Run {
    pub name: &'static str,
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
    pub expected: Option<&'static str>,
}

impl Run {
    pub fn new(name: &'static str, expected: Option<&'static str>, step: &[(Do, u64)]) -> Self {
        Self {
            name,
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
        }
    }

    pub fn device(mut self, device: Device) -> Self {
        self.device = Some(device);
        self
    }

    pub fn verdict(&self) -> (Profile, Verdict) {
        let profile = self.profile();
        let verdict = analyze(&profile).verdict.unwrap();
        (profile, verdict)
    }

    pub fn profile(&self) -> Profile {
        let mut builder = Builder::new();
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
            builder.conditions.push(Condition {
                process: ProcessId(0),
                name: facts::CPU_QUOTA.to_owned(),
                value: allowed.to_string(),
            });
        }
        if let Some(device) = self.device {
            for pid in pids {
                lay(&mut builder, device, pid, end_ns);
            }
        }
        // As the reader of recordings sorts them.
        builder
            .lanes
            .points
            .sort_by_key(|point| (point.lane, point.end_ns));
        builder.profile()
    }

    fn trainer(&self, builder: &mut Builder, pid: i32, rank: usize, step: &[(Do, u64)]) -> u64 {
        let process = builder.process(pid, 1, &["python", "train.py"]);
        builder.processes[process].has_cuda = self.cuda;
        if self.world > 1 {
            let (rank, world) = (rank.to_string(), self.world.to_string());
            let node = self.node.map(|node| node.to_string());
            let mut variables = vec![("RANK", rank.as_str()), ("WORLD_SIZE", world.as_str())];
            variables.extend(node.as_deref().map(|node| ("LOCAL_WORLD_SIZE", node)));
            builder.environment(process, &variables);
        }
        let thread = builder.thread(process, pid, "python", true);
        let mut ticks = 0;
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
        for _ in 0..self.steps {
            for &(what, length) in step {
                let (state, frames) = frames(what, self.nccl);
                for _ in 0..length {
                    let sample = builder.sample(thread, TICK_NS, state, &frames);
                    if matches!(what, Do::Starved) {
                        sample.queue_ns = TICK_NS / 2;
                    }
                }
                ticks += length;
            }
        }
        ticks * TICK_NS
    }

    fn input(&self, builder: &mut Builder, parent: i32) {
        let workers = self.workers;
        if workers.count == 0 && self.pin_memory.is_none() {
            return;
        }
        let mut told = vec![(facts::WORKERS.to_owned(), workers.count.to_string())];
        told.extend(
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
            facts: told,
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
        level(builder, LaneKind::SmActive, id, end_ns, sm);
    }
    if let Some(dram) = device.dram {
        level(builder, LaneKind::DramActive, id, end_ns, dram);
    }
    energy(builder, id, end_ns, |from, to| {
        device.power * 700.0 * (to - from) as f64 / 1e9
    });
    throttle(builder, id, end_ns, device.throttle);
}

/// State and stack of a moment.
fn frames(what: Do, nccl: bool) -> (S, Vec<F>) {
    let runtime = |symbol| native("libcudart.so.13", symbol);
    let cuda = |symbol| native("libtorch_cuda.so", symbol);
    let binding = |name: &str| {
        native(
            "libtorch_python.so",
            &format!("torch::autograd::THPVariable_{name}(_object*, _object*)"),
        )
    };
    let op = |name: &str| torch(&format!("at::_ops::{name}::call(at::Tensor const&)"));
    let loader = |more: &[F]| {
        let mut frames = vec![
            user("main", 88),
            lib(
                "torch/utils/data/dataloader.py",
                "_BaseDataLoaderIter.__next__",
            ),
        ];
        frames.extend_from_slice(more);
        frames
    };
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
    }
}
