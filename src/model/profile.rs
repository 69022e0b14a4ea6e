//! A recording, symbolized and classified: the only input of analysis and reports.

use super::category::{Activity, FrameKind, Phase, SummaryRow};
use super::collective::CollectivePart;
use super::compile::CompileMark;
use super::facts::{Facts, Wait};
use super::frame::{Partial, Trust};
use super::ids::{CollectiveId, FunctionId, NnModuleId, ProcessId, StackId, ThreadId};
use super::input::{InputPart, InputTask};
use super::lane::Lanes;
use super::nn_module::NnModuleInfo;
use super::operator::OperatorMark;
use super::process::{ProcessInfo, ThreadInfo};
use super::progress::{Condition, CounterInfo, ProgressPoint};
use super::quality::Quality;
use super::region::region_names;
use super::run::{ClockPair, Loss, RunInfo};
use super::sample::{Capture, Gil, ThreadState};
use super::stack_table::StackTable;
use super::wait::WaitPart;

/// What a process is in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Starts and watches ranks: torchrun.
    Launcher,
    /// A trainer: one of the ranks, or the only one.
    Trainer {
        /// Its rank, where the environment names one.
        rank: Option<u32>,
        /// Ranks in the job, where the environment says.
        world_size: Option<u32>,
        /// Its rank on this node.
        local_rank: Option<u32>,
    },
    /// A DataLoader worker.
    DataLoaderWorker {
        /// Counts from 0 within its trainer, by order of start.
        number: u32,
        /// The trainer that feeds on it.
        trainer: Option<ProcessId>,
    },
    /// Anything else.
    Other,
}

impl Role {
    /// The stable names, as they stand in JSON and Parquet.
    pub const NAMES: [&'static str; 4] = ["launcher", "trainer", "dataloader_worker", "other"];

    /// The role's name is that many in [`Role::NAMES`].
    pub fn number(self) -> usize {
        match self {
            Role::Launcher => 0,
            Role::Trainer { .. } => 1,
            Role::DataLoaderWorker { .. } => 2,
            Role::Other => 3,
        }
    }
}

/// A process with its role.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileProcess {
    /// The facts.
    pub info: ProcessInfo,
    /// The role.
    pub role: Role,
    /// The thread whose wall time the summary is of: the one that runs the training loop. `None`
    /// without Python threads.
    pub training_thread: Option<ThreadId>,
}

/// What a function is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
    /// What kind of code it is.
    pub kind: FrameKind,
    /// Whether flamegraphs fold it away unless `--plumbing` asks for it.
    pub plumbing: bool,
    /// Whether it is a Python function.
    pub is_python: bool,
    /// What it tells of operators.
    pub operator: OperatorMark,
    /// What it tells of torch.compile.
    pub compile: CompileMark,
    /// What it tells of waits.
    pub wait: WaitPart,
    /// What it tells of collectives.
    pub collective: CollectivePart,
    /// What it tells of making a batch.
    pub input: InputPart,
}

/// A frame, symbolized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProfileFrame {
    /// The function.
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

/// A sample, classified.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfileSample {
    /// The thread.
    pub thread: ThreadId,
    /// Its stack; `None` where nothing was read.
    pub stack: Option<StackId>,
    /// Start of the stretch, CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// Length of the stretch.
    pub weight_ns: u64,
    /// The part of the stretch in which the thread could have run but had no CPU; never more than
    /// `weight_ns`.
    pub queue_ns: u64,
    /// Ticks that it stands for.
    pub ticks: u32,
    /// How the stack was come by.
    pub capture: Capture,
    /// The thread's state.
    pub state: ThreadState,
    /// The system call that it was in, by number.
    pub syscall: Option<u32>,
    /// Whether it held the GIL.
    pub gil: Gil,
    /// The thread that held the GIL, where it is known and another.
    pub gil_holder: Option<ThreadId>,
    /// The phase.
    pub phase: Phase,
    /// The activity of the part that is not `queue_ns`.
    pub activity: Activity,
    /// The summary's row of the part that is not `queue_ns`.
    pub row: SummaryRow,
    /// What the part that is not `queue_ns` waits for; `None` where it does not wait.
    pub wait: Option<Wait>,
    /// The collective that it is in.
    pub collective: Option<CollectiveId>,
    /// What making a batch the part that is not `queue_ns` is about, should it be input.
    pub task: InputTask,
}

/// Rules that the user added, and what came of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddedRules {
    /// Rows.
    pub rows: usize,
    /// Functions of the recording that any of these is for.
    pub functions: usize,
}

/// A recording, ready to be summed up and drawn.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// The head of the recording.
    pub run: RunInfo,
    /// First and last moment sampled, CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// See `start_ns`.
    pub end_ns: u64,
    /// What is missing of the recording (its end, corrupt segments), for people. Empty if nothing.
    pub missing: Vec<String>,
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
    /// Their readings, by time.
    pub points: Vec<ProgressPoint>,
    /// What processes run under.
    pub conditions: Vec<Condition>,
    /// Lanes of devices and processes; points by lane and end.
    pub lanes: Lanes,
    /// Frames and stacks.
    pub stacks: StackTable<ProfileFrame>,
    /// What the stacks say.
    pub facts: Facts,
    /// Samples by thread and start.
    pub samples: Vec<ProfileSample>,
    /// The sampler's figures.
    pub quality: Quality,
    /// Clock pairs.
    pub clocks: Vec<ClockPair>,
    /// What was lost.
    pub losses: Vec<Loss>,
    /// Rules of the user's own, where it was resolved by any.
    pub added_rules: Option<AddedRules>,
}

impl Profile {
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
