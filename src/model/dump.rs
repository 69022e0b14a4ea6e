//! A snapshot of all threads of a job, resolved: the input of `dump`.

use super::category::FrameKind;
use super::held::Held;
use super::nccl_ras::RasAnswer;
use super::profile::Role;
use super::sample::{Capture, Gil, ThreadState};
use super::tasks::AsyncTask;
use super::wait::WaitKind;

/// A snapshot.
#[derive(Clone, Debug, Default)]
pub struct Dump {
    /// Wall clock just before the first thread was read, ns since 1970.
    pub wall_ns: u64,
    /// Time between the first thread that was read and the last; `None` if nothing was read.
    pub skew_ns: Option<u64>,
    /// Threads that were stopped to be read, and the longest of these stops.
    pub stopped: u64,
    pub longest_stop_ns: u64,
    /// Lengths of the stops, ascending, within 5 %.
    pub stops_ns: Vec<u64>,
    /// Processes, parents before children.
    pub processes: Vec<DumpedProcess>,
    /// What could not be read and why, in sentences.
    pub missing: Vec<String>,
    /// What NCCL reports, of each RAS socket of the processes; empty where none uses NCCL.
    pub nccl_ras: Vec<RasAnswer>,
    /// What modules and optimizers hold, of each process that was read for it; `None` if it was not
    /// requested.
    pub memory: Option<Vec<ProcessMemory>>,
}

/// The memory of a process's tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    pub pid: i32,
    pub tensors: MemoryOfTensors,
}

/// Who holds the memory of tensors, and what torch's allocator has of each device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryOfTensors {
    /// What modules and optimizers hold; `None` if no variable leads to any.
    pub held: Option<Held>,
    /// Right after that was read; empty without CUDA, and for other allocators.
    pub devices: Vec<DeviceTensors>,
    /// Why they are not known, with CUDA.
    pub devices_unread: Option<&'static str>,
}

/// What torch's caching allocator has of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceTensors {
    /// `cuda:0`
    pub device: String,
    /// Given to tensors.
    pub bytes: u64,
    /// Given to tensors, or freed and still in use by a stream.
    pub active_bytes: u64,
    /// Taken from the driver.
    pub reserved_bytes: u64,
}

#[derive(Clone, Debug)]
pub struct DumpedProcess {
    pub pid: i32,
    /// What it is in the job.
    pub role: Role,
    /// The pid of the trainer that a DataLoader worker feeds.
    pub trainer_pid: Option<i32>,
    /// The job that it belongs to; `None` if nothing says so.
    pub job: Option<JobKey>,
    /// The parallel groups of a rank, as [`text_of`](super::parallel::text_of) writes them; empty
    /// if they are not known.
    pub groups: String,
    /// Its command line, without secrets.
    pub command: Vec<String>,
    /// Interpreter version; empty without one.
    pub python: String,
    /// Torch version; empty without torch.
    pub torch: String,
    /// What is missing of it; empty if nothing.
    pub note: String,
    /// Its progress, by every counter that was read.
    pub progress: Vec<Progress>,
    /// The thread that held the interpreter's lock, by tid.
    pub gil_holder: Option<i32>,
    /// Its threads: the training thread first, other Python threads next.
    pub threads: Vec<DumpedThread>,
    /// Its asyncio tasks.
    pub tasks: Vec<AsyncTask>,
}

/// What the ranks of a job have in common, and those of two jobs do not.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobKey {
    /// Ids of the job, the user's first, then the batch system's, then the launcher's.
    pub ids: Vec<String>,
    /// Where its ranks meet: `port 29500`, or `MASTER_ADDR:MASTER_PORT` where it has no id.
    pub address: Option<String>,
    pub world_size: Option<u32>,
}

impl JobKey {
    /// Whether it is of the same job, as far as both say.
    pub fn agrees(&self, other: &Self) -> bool {
        fn agree<T: PartialEq>(one: &Option<T>, other: &Option<T>) -> bool {
            one.is_none() || other.is_none() || one == other
        }
        self.ids == other.ids
            && agree(&self.address, &other.address)
            && agree(&self.world_size, &other.world_size)
    }
}

/// A progress counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is counted: `step`, `batch`, `epoch`, `parameter version`, or the name of a variable.
    pub what: String,
    pub value: u64,
    /// Owner of the counter: a class (`_MultiProcessingDataLoaderIter`), or the function with the
    /// variable.
    pub source: String,
}

#[derive(Clone, Debug)]
pub struct DumpedThread {
    pub tid: i32,
    pub name: String,
    /// Its name in Python, if that was read.
    pub python_name: Option<String>,
    /// Whether it is its process's training thread.
    pub trains: bool,
    pub state: ThreadState,
    pub capture: Capture,
    pub syscall: Option<String>,
    pub gil: Gil,
    pub wait: Option<DumpedWait>,
    /// The innermost `nn.Module` on its stack.
    pub module: Option<String>,
    /// The nearest line of the user's own code.
    pub at: Option<Place>,
    /// Frames, leaf first.
    pub frames: Vec<DumpedFrame>,
    /// Why the stack ends early, or was not read.
    pub partial: Option<&'static str>,
    /// Number of its Python frames, from the leaf on, without variables, because they had changed
    /// when these were read.
    pub moved_frames: usize,
    /// How often it had been put on a CPU when the snapshot ended; `None` if the kernel does not
    /// report it.
    pub slices: Option<u64>,
    /// The kernel function in which it sleeps (`/proc/TID/wchan`).
    pub wchan: Option<String>,
    /// Its stack in the kernel, leaf first, if the kernel reports it.
    pub kernel_stack: Vec<String>,
}

/// What a thread waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpedWait {
    pub kind: WaitKind,
    /// Label: `all_reduce (DDP bucket)`, `Queue.get()`.
    pub what: String,
    /// The thread that holds what it waits for, if known.
    pub owner: Option<Owner>,
    /// The lock, where it was found.
    pub lock: Option<Lock>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub tid: i32,
    /// The evidence: `with` statement, owner field.
    pub by: &'static str,
}

/// The kind of a [`Lock`] that stands for the end of a thread: a thread in `Thread.join()` waits
/// for another thread, which counts as the holder.
pub const THREAD_END: &str = "end of a thread";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lock {
    /// `threading.Lock`, `threading.RLock`, `pthread mutex`, [`THREAD_END`].
    pub kind: &'static str,
    /// The object's address, or the mutex's.
    pub address: u64,
    /// A variable or attribute that contains it: `self.lock`. For the end of a thread that thread's
    /// name.
    pub name: Option<String>,
    /// Whether the wait has a timeout.
    pub is_timed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub function: String,
    pub file: String,
    /// Line; 0 if unknown.
    pub line: u32,
}

#[derive(Clone, Debug)]
pub struct DumpedFrame {
    /// The function's full name.
    pub name: String,
    /// A short form for reading.
    pub short_name: String,
    /// Python: source file. Native: the module's path.
    pub file: String,
    /// Line; 0 if unknown.
    pub line: u32,
    pub is_python: bool,
    /// Whether it is a named block of the function around it.
    pub is_region: bool,
    pub kind: FrameKind,
    pub is_guess: bool,
    /// Whether it is of little interest: the interpreter's own code, bindings, dispatchers.
    pub is_plumbing: bool,
    /// The `nn.Module` whose call it is.
    pub module: Option<String>,
    /// Its variables; `None` if they were not requested, or not read.
    pub locals: Option<Vec<Local>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    pub name: String,
    /// Its value, cut: `Tensor (64, 128) float32 cpu`, `17`, `'train'`, `<Trainer>`.
    pub value: String,
}

/// What was read of a process's objects after a snapshot, while its threads ran.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspected {
    pub pid: i32,
    pub threads: Vec<InspectedThread>,
    /// Number of further threads that were not inspected.
    pub left_out: usize,
    /// Who holds the memory of its tensors, if it was requested.
    pub memory: Option<MemoryOfTensors>,
    /// Its asyncio tasks.
    pub tasks: Vec<AsyncTask>,
    /// What is missing of them, and why.
    pub missing: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InspectedThread {
    pub tid: i32,
    pub python_name: Option<String>,
    /// Its Python frames, leaf first.
    pub frames: Vec<InspectedFrame>,
    /// The lock that it sleeps on, and who holds that.
    pub lock: Option<(Lock, Option<Owner>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedFrame {
    pub place: Place,
    /// Its index, from the leaf on.
    pub index: usize,
    /// Whether it, and all frames that called it, were the same before and after its variables were
    /// read.
    pub is_steady: bool,
    /// Variables, if they were requested.
    pub locals: Vec<Local>,
    /// Variables with names of step or epoch counters, and their values.
    pub counters: Vec<(String, u64)>,
}
