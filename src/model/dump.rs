//! One look at all threads of a job, worked out: the input of what `dump` prints.

use super::category::FrameKind;
use super::profile::Role;
use super::sample::{Capture, Gil, ThreadState};
use super::wait::WaitKind;

/// One look.
#[derive(Clone, Debug, Default)]
pub struct Dump {
    /// Wall clock when the first thread was about to be read, ns since 1970.
    pub wall_ns: u64,
    /// Time between the first thread that was read and the last; `None` where nothing was read.
    pub skew_ns: Option<u64>,
    /// Threads that were stopped to be read, and the longest that any of them stood.
    pub stopped: u64,
    /// See `stopped`.
    pub longest_stop_ns: u64,
    /// How long each of them stood, ascending, within 5 %.
    pub stops_ns: Vec<u64>,
    /// Processes, parents before children.
    pub processes: Vec<DumpedProcess>,
    /// What could not be read and why, in sentences for people.
    pub missing: Vec<String>,
}

/// A process.
#[derive(Clone, Debug)]
pub struct DumpedProcess {
    /// Its pid.
    pub pid: i32,
    /// What it is in the job.
    pub role: Role,
    /// The pid of the trainer that a DataLoader worker feeds.
    pub trainer_pid: Option<i32>,
    /// Its command line, without secrets.
    pub command: Vec<String>,
    /// Interpreter version; empty without one.
    pub python: String,
    /// Torch version; empty without torch.
    pub torch: String,
    /// What is missing of it, for people; empty if nothing.
    pub note: String,
    /// How far its training is, by every counter that was read.
    pub progress: Vec<Progress>,
    /// The thread that held the interpreter's lock, by tid.
    pub gil_holder: Option<i32>,
    /// Its threads: the training thread first, other Python threads next.
    pub threads: Vec<DumpedThread>,
}

/// How far something is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is counted: `step`, `batch`, `epoch`, `parameter version`, or the name of a variable.
    pub what: String,
    /// The count.
    pub value: u64,
    /// What counts: a class (`_MultiProcessingDataLoaderIter`), or the function that has the
    /// variable.
    pub source: String,
}

/// A thread.
#[derive(Clone, Debug)]
pub struct DumpedThread {
    /// Its tid.
    pub tid: i32,
    /// What the kernel calls it.
    pub name: String,
    /// What Python calls it, where that was read.
    pub python_name: Option<String>,
    /// Whether it is its process's training thread.
    pub trains: bool,
    /// Its state.
    pub state: ThreadState,
    /// How its stack was come by.
    pub capture: Capture,
    /// The system call that it sleeps in.
    pub syscall: Option<String>,
    /// Whether it held the interpreter's lock.
    pub gil: Gil,
    /// What it waits for.
    pub wait: Option<DumpedWait>,
    /// The innermost `nn.Module` on its stack.
    pub module: Option<String>,
    /// The nearest line of the user's own code.
    pub at: Option<Place>,
    /// Frames, leaf first.
    pub frames: Vec<DumpedFrame>,
    /// Why the stack ends early, or was not read.
    pub partial: Option<&'static str>,
    /// Of how many of its Python frames, from the leaf on, no variables are known, for they had
    /// moved on when these were read.
    pub moved_frames: usize,
    /// How often it had been put on a CPU when the look ended; `None` where the kernel does not
    /// tell.
    pub slices: Option<u64>,
    /// The kernel's word for where it sleeps (`/proc/TID/wchan`).
    pub wchan: Option<String>,
    /// Its stack in the kernel, leaf first, where the kernel tells.
    pub kernel_stack: Vec<String>,
}

/// What a thread waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpedWait {
    /// The kind.
    pub kind: WaitKind,
    /// What exactly: `all_reduce (DDP bucket)`, `Queue.get()`.
    pub what: String,
    /// The thread that holds what it waits for, where that can be told.
    pub owner: Option<Owner>,
    /// The lock, where it was found.
    pub lock: Option<Lock>,
}

/// Who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its tid.
    pub tid: i32,
    /// What tells so, for people: `with` statement, owner field.
    pub by: &'static str,
}

/// The kind of a [`Lock`] that is none: who sleeps in `Thread.join()` waits for a thread, which so
/// holds it.
pub const THREAD_END: &str = "end of a thread";

/// A lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lock {
    /// `threading.Lock`, `threading.RLock`, `pthread mutex`, [`THREAD_END`].
    pub kind: &'static str,
    /// The object's address, or the mutex's.
    pub address: u64,
    /// A variable or attribute that holds it: `self.lock`. Of the end of a thread that thread's
    /// name.
    pub name: Option<String>,
    /// Whether the wait for it ends after a time, with it or without.
    pub is_timed: bool,
}

/// A place in Python code.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Function.
    pub function: String,
    /// File.
    pub file: String,
    /// Line; 0 where not known.
    pub line: u32,
}

/// A frame.
#[derive(Clone, Debug)]
pub struct DumpedFrame {
    /// The function's name, whole.
    pub name: String,
    /// The same for reading.
    pub short_name: String,
    /// Python: source file. Native: the module's path.
    pub file: String,
    /// Line; 0 where not known.
    pub line: u32,
    /// Whether it is Python's.
    pub is_python: bool,
    /// What code it is.
    pub kind: FrameKind,
    /// Whether it was found by a guess.
    pub is_guess: bool,
    /// Whether it says nothing to most people: the interpreter's own code, bindings, dispatchers.
    pub is_plumbing: bool,
    /// The `nn.Module` whose call it is.
    pub module: Option<String>,
    /// Its variables; `None` where they were not asked for, or not read.
    pub locals: Option<Vec<Local>>,
}

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// Its name.
    pub name: String,
    /// Its value, cut: `Tensor (64, 128) float32 cpu`, `17`, `'train'`, `<Trainer>`.
    pub value: String,
}

/// What was read of a process's objects after a look: its threads ran on meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspected {
    /// The process.
    pub pid: i32,
    /// Its Python threads.
    pub threads: Vec<InspectedThread>,
    /// Threads past the most that are inspected.
    pub left_out: usize,
}

/// A thread's objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InspectedThread {
    /// Its tid.
    pub tid: i32,
    /// What Python calls it.
    pub python_name: Option<String>,
    /// Its Python frames, leaf first.
    pub frames: Vec<InspectedFrame>,
    /// The lock that it sleeps on, and who holds that.
    pub lock: Option<(Lock, Option<Owner>)>,
}

/// A Python frame's variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedFrame {
    /// Where it is.
    pub place: Place,
    /// Which frame it is, from the leaf on.
    pub index: usize,
    /// Whether it, and all frames that called it, were the same before and after its variables were
    /// read.
    pub is_steady: bool,
    /// Variables, where they were asked for.
    pub locals: Vec<Local>,
    /// Variables whose names count steps or epochs, and their values.
    pub counters: Vec<(String, u64)>,
}
