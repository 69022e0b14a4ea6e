//! A recording, symbolized and classified: the only input of analysis and reports.

use super::category::{Activity, FrameKind, Phase, SummaryRow};
use super::collective::CollectivePart;
use super::compile::CompileMark;
use super::dump::JobKey;
use super::facts::{Facts, Wait};
use super::frame::{Partial, Trust};
use super::ids::{CollectiveId, CounterId, FunctionId, NnModuleId, ProcessId, StackId, ThreadId};
use super::input::{InputPart, InputTask};
use super::nn_module::NnModuleInfo;
use super::operator::OperatorMark;
use super::process::{ProcessInfo, ThreadInfo};
use super::progress::{CounterInfo, LeftOutStep};
use super::region::region_names;
use super::run::{ClockPair, RunInfo};
use super::sample::{Capture, Gil, ThreadState};
use super::sideband::Sideband;
use super::stack_table::StackTable;
use super::wait::WaitPart;
use schemars::JsonSchema;
use serde::Serialize;

/// What a process is in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Starts and watches ranks: torchrun.
    Launcher,
    /// A trainer: one of the ranks, or the only one.
    Trainer {
        /// Its rank, where the environment names one.
        rank: Option<u32>,
        /// Ranks in the job, from the environment.
        world_size: Option<u32>,
        /// Its rank on this node.
        local_rank: Option<u32>,
    },
    DataLoaderWorker {
        /// Counts from 0 within its trainer, by order of start.
        number: u32,
        /// The trainer that it feeds.
        trainer: Option<ProcessId>,
    },
    Other,
}

impl Role {
    /// The stable names, as in JSON and Parquet.
    pub const NAMES: [&'static str; 4] = ["launcher", "trainer", "dataloader_worker", "other"];

    /// Index of the role's name in [`Role::NAMES`].
    pub fn number(self) -> usize {
        match self {
            Role::Launcher => 0,
            Role::Trainer { .. } => 1,
            Role::DataLoaderWorker { .. } => 2,
            Role::Other => 3,
        }
    }

    /// The stable name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self.number()]
    }

    /// The rank of a trainer, where its environment names one.
    pub fn rank(self) -> Option<u32> {
        match self {
            Role::Trainer { rank, .. } => rank,
            _ => None,
        }
    }

    /// Ranks in a trainer's job, where its environment says.
    pub fn world_size(self) -> Option<u32> {
        match self {
            Role::Trainer { world_size, .. } => world_size,
            _ => None,
        }
    }

    /// The number of a DataLoader worker.
    pub fn worker(self) -> Option<u32> {
        match self {
            Role::DataLoaderWorker { number, .. } => Some(number),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct ProfileProcess {
    pub info: ProcessInfo,
    pub role: Role,
    /// What its environment says of its job; `None` if nothing.
    pub job: Option<JobKey>,
    /// The thread whose wall time the summary is of: the one that runs the training loop. `None`
    /// without Python threads.
    pub training_thread: Option<ThreadId>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Function {
    /// Python: qualified name. Native: demangled name, or `module+0xaddress` without a symbol.
    /// Markers: the reason.
    pub name: String,
    /// A short form for reading: template arguments and namespaces of long C++ names left out.
    /// Equal to `name` if short.
    pub short_name: String,
    /// Python: source file. Native: the module's path.
    pub file: String,
    /// First line of a Python function; 0 for others.
    pub first_line: u32,
    pub kind: FrameKind,
    /// Whether flamegraphs fold it away unless `--plumbing` asks for it.
    pub plumbing: bool,
    pub is_python: bool,
    /// Whether it is not a function but a named block of one.
    pub is_region: bool,
    pub operator: OperatorMark,
    pub compile: CompileMark,
    pub wait: WaitPart,
    pub collective: CollectivePart,
    pub input: InputPart,
}

impl Function {
    /// Whether it is backward's engine, or called by it.
    pub fn is_engine(&self) -> bool {
        matches!(self.operator, OperatorMark::Node(_) | OperatorMark::Engine)
            || self.compile == CompileMark::Backward
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProfileFrame {
    pub function: FunctionId,
    /// Source line, 0 where unknown.
    pub line: u32,
    /// How the unwinder came here; `None` for Python frames and markers.
    pub trust: Option<Trust>,
    /// The reason, where this is a truncation marker.
    pub partial: Option<Partial>,
    /// The `nn.Module`, where this marks that a call of one comes next.
    pub nn_module: Option<NnModuleId>,
}

/// A sample, classified. Fields that [`Sample`](super::sample::Sample) has as well mean the same.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProfileSample {
    pub thread: ThreadId,
    /// Its stack; `None` where nothing was read.
    pub stack: Option<StackId>,
    pub start_ns: u64,
    pub weight_ns: u64,
    /// The part of the interval in which the thread could have run but had no CPU; never more than
    /// `weight_ns`.
    pub queue_ns: u64,
    /// For how long it ran or waited for a CPU since the sample before, ns.
    pub awake_ns: u64,
    pub ticks: u32,
    pub capture: Capture,
    pub state: ThreadState,
    pub syscall: Option<u32>,
    pub gil: Gil,
    /// The thread that held the GIL, where it is known and another.
    pub gil_holder: Option<ThreadId>,
    pub phase: Phase,
    /// The activity of the part that is not `queue_ns`.
    pub activity: Activity,
    /// The summary's row of the part that is not `queue_ns`.
    pub row: SummaryRow,
    /// What the part that is not `queue_ns` waits for; `None` where it does not wait.
    pub wait: Option<Wait>,
    pub collective: Option<CollectiveId>,
    /// What making a batch the part that is not `queue_ns` is about, should it be input.
    pub task: InputTask,
}

/// Rules that the user added.
#[derive(Clone, Copy, Debug, JsonSchema, PartialEq, Eq, Serialize)]
pub struct AddedRules {
    /// Rows of the files that `--rules` named, of all kinds.
    pub rows: usize,
    /// Functions of the recording that any of these rows matched.
    pub functions: usize,
}

/// A recording, ready to be summed up and drawn.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    pub run: RunInfo,
    /// Start of the first sample and end of the last, CLOCK_MONOTONIC.
    pub start_ns: u64,
    pub end_ns: u64,
    /// Start and end of the recording that this is a part of; `None` if this is all of it.
    pub whole_ns: Option<(u64, u64)>,
    /// Steps of the recording that this is a part of whose lengths means leave out, by process and
    /// start: a part alone does not show which steps are usual. Empty if this is all of it.
    pub left_out_steps: Vec<LeftOutStep>,
    /// Of the recording that this is a part of: how often a step changes a counter of an optimizer.
    /// A part with few steps does not show it. Empty if this is all of it.
    pub step_changes: Vec<(CounterId, u64)>,
    /// When torch.profiler ran in a process (`record --trace`): from, to, CLOCK_MONOTONIC.
    pub profiled: Vec<(ProcessId, u64, u64)>,
    /// End of what there was of a recording that was still being written, CLOCK_MONOTONIC; `None`
    /// if it was complete.
    pub growing_until_ns: Option<u64>,
    /// Names of the user's own are hashes (`--confidential`).
    pub is_confidential: bool,
    /// What is missing of the recording (its end, corrupt segments). Empty if nothing.
    pub missing: Vec<String>,
    /// Times of which nothing is known: from, to, ascending, CLOCK_MONOTONIC.
    pub gaps: Vec<(u64, u64)>,
    /// Processes by [`ProcessId`].
    pub processes: Vec<ProfileProcess>,
    /// Threads by [`ThreadId`].
    pub threads: Vec<ThreadInfo>,
    /// CPU time over the recording by [`ThreadId`], ns.
    pub thread_cpu_ns: Vec<u64>,
    /// Functions by [`FunctionId`].
    pub functions: Vec<Function>,
    /// `nn.Module`s by [`NnModuleId`].
    pub nn_modules: Vec<NnModuleInfo>,
    /// Counters of progress by [`CounterId`](super::ids::CounterId).
    pub counters: Vec<CounterInfo>,
    pub stacks: StackTable<ProfileFrame>,
    pub facts: Facts,
    /// Samples by thread and start.
    pub samples: Vec<ProfileSample>,
    /// That of the complete recording.
    pub sideband: Sideband,
    /// The user's rules, if any were applied.
    pub added_rules: Option<AddedRules>,
}

impl Function {
    /// The name for reading: short where it is native.
    pub fn shown_name(&self) -> &str {
        match self.is_python {
            true => &self.name,
            false => &self.short_name,
        }
    }
}

impl Profile {
    /// Length of the complete recording, to which the sampler's counters apply, ns.
    pub fn recorded_ns(&self) -> u64 {
        let (start_ns, end_ns) = self.whole_ns.unwrap_or((self.start_ns, self.end_ns));
        end_ns.saturating_sub(start_ns)
    }

    /// Whether something is known of all of the time between two moments of CLOCK_MONOTONIC.
    pub fn is_known(&self, from_ns: u64, to_ns: u64) -> bool {
        let mut gaps = self.gaps.iter();
        !gaps.any(|&(start_ns, end_ns)| from_ns < end_ns && start_ns < to_ns)
    }

    /// The wall clock at a moment of CLOCK_MONOTONIC, ns since 1970, from the last pair of clocks
    /// before it.
    pub fn wall_ns(&self, at_ns: u64) -> Option<i64> {
        let head = ClockPair {
            monotonic_ns: self.run.started_ns,
            wall_ns: self.run.started_wall_ns,
        };
        let pairs = &self.sideband.clocks;
        let later = pairs.partition_point(|pair| pair.monotonic_ns <= at_ns);
        let pair = later.checked_sub(1).and_then(|last| pairs.get(last));
        let pair = pair.or(pairs.first()).unwrap_or(&head);
        let wall_ns = i128::from(pair.wall_ns) - i128::from(pair.monotonic_ns) + i128::from(at_ns);
        i64::try_from(wall_ns).ok()
    }

    /// CLOCK_MONOTONIC at a time of the wall clock, ns since 1970.
    pub fn monotonic_ns(&self, wall_ns: u64) -> Option<u64> {
        let mut at_ns = self.start_ns;
        // The second time with the pair of clocks that was read nearest to it.
        for _ in 0..2 {
            let there = i128::from(self.wall_ns(at_ns)?);
            let at = i128::from(at_ns) + i128::from(wall_ns) - there;
            at_ns = u64::try_from(at).ok()?;
        }
        Some(at_ns)
    }

    /// The wall clock at the first sample, ns since 1970; 0 if it is not known.
    pub fn start_wall_ns(&self) -> u64 {
        let wall_ns = self.wall_ns(self.start_ns);
        wall_ns.map_or(0, |ns| u64::try_from(ns).unwrap_or(0))
    }

    /// The process; like the functions below, `None` for an invalid id of a damaged recording.
    pub fn process(&self, id: ProcessId) -> Option<&ProfileProcess> {
        self.processes.get(id.index())
    }

    /// The thread.
    pub fn thread(&self, id: ThreadId) -> Option<&ThreadInfo> {
        self.threads.get(id.index())
    }

    /// The function.
    pub fn function(&self, id: FunctionId) -> Option<&Function> {
        self.functions.get(id.index())
    }

    /// The `nn.Module`.
    pub fn nn_module(&self, id: NnModuleId) -> Option<&NnModuleInfo> {
        self.nn_modules.get(id.index())
    }

    /// Pid of a process, 0 where it is not known, and its rank where it has one.
    pub fn pid_and_rank(&self, id: ProcessId) -> (i32, Option<u32>) {
        self.process(id)
            .map_or((0, None), |process| (process.info.pid, process.role.rank()))
    }

    /// What a phase is called: a region by the name that the user gave it.
    pub fn phase_name(&self, phase: Phase) -> &str {
        let region = phase.region();
        region
            .and_then(|at| region_names(&self.run.regions).nth(at))
            .unwrap_or(phase.name())
    }

    /// The phases that may occur, in the order of reports: torchspy's own, and the regions that the
    /// user named.
    pub fn phases(&self) -> impl Iterator<Item = Phase> + '_ {
        let named = region_names(&self.run.regions).zip(Phase::REGIONS);
        let own = Phase::BUILT_IN.iter().copied();
        own.chain(named.map(|(_, &phase)| phase))
    }
}
