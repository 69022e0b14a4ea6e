//! What the tracer keeps of each process and thread between looks.

use super::capture::ReadPlan;
use super::raw::{Stretch, ThreadShared};
use super::thread_match::{OsThread, match_threads};
use crate::model::ids::{ProcessId, ThreadId};
use crate::model::sample::{Capture, Gil, ThreadState};
use crate::os::threads::{SchedStat, TaskDirectory, ThreadFiles, Whereabouts};
use crate::os::vm_read::ProcessMemory;
use crate::python::discover::Interpreter;
use crate::python::threads::{PythonThread, read_threads};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where a thread was found at the last look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Seen {
    /// Not looked at yet, or its stack is not known.
    Unknown,
    /// Running: never taken as unchanged.
    Running,
    /// Asleep, and its stack is known.
    Asleep(Whereabouts),
}

/// A thread.
#[derive(Debug)]
pub(super) struct TracedThread {
    pub(super) id: ThreadId,
    pub(super) tid: i32,
    pub(super) inner_tid: i32,
    pub(super) files: ThreadFiles,
    pub(super) shared: Arc<ThreadShared>,
    pub(super) plan: ReadPlan,
    pub(super) last: SchedStat,
    pub(super) seen: Seen,
    pub(super) state: ThreadState,
    pub(super) stack_pointer: u64,
    /// We stopped it in the sleep that it is in: what it ran since then, it ran because of us.
    pub(super) own_stop: bool,
    /// Whether `--threads` lets it in.
    pub(super) wanted: bool,
    /// Time that is reused so far and not yet handed on.
    pub(super) reused: Option<Stretch>,
    /// Time in which it ran and was passed over; the next stop stands for it too.
    pub(super) deferred: Deferred,
}

/// Time that waits for the next capture of a running thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Deferred {
    pub(super) weight_ns: u64,
    pub(super) ticks: u32,
    pub(super) run_ns: u64,
    pub(super) queue_ns: u64,
}

impl TracedThread {
    pub(super) fn new(pid: i32, tid: i32, id: ThreadId) -> Self {
        let files = ThreadFiles::open(pid, tid);
        Self {
            id,
            tid,
            inner_tid: files.inner_tid().unwrap_or(tid),
            shared: Arc::default(),
            plan: ReadPlan::default(),
            last: files.schedstat().unwrap_or_default(),
            files,
            seen: Seen::Unknown,
            state: ThreadState::Unknown,
            stack_pointer: 0,
            own_stop: false,
            wanted: true,
            reused: None,
            deferred: Deferred::default(),
        }
    }

    /// Takes over what the worker found out.
    pub(super) fn learn_from_worker(&mut self) {
        self.plan.root_stack_pointer = self.shared.root_stack_pointer.load(Ordering::Relaxed);
    }

    /// Whether the worker lacked registers in the sleep that the thread is still in.
    pub(super) fn wants_registers(&self, now: &SchedStat) -> bool {
        !self.own_stop
            && now.slices != 0
            && self.shared.registers_wanted.load(Ordering::Relaxed) == now.slices
    }

    /// CPU and queue time since the last look, which this look takes over.
    pub(super) fn advance(&mut self, now: SchedStat) -> (u64, u64) {
        let run_ns = now.run_ns.saturating_sub(self.last.run_ns);
        let queue_ns = now.queue_ns.saturating_sub(self.last.queue_ns);
        self.last = now;
        (run_ns, queue_ns)
    }

    /// Adds a tick to the reused stretch.
    pub(super) fn reuse(&mut self, start_ns: u64, weight_ns: u64, run_ns: u64, queue_ns: u64) {
        let syscall = match self.seen {
            Seen::Asleep(whereabouts) => whereabouts.syscall(),
            _ => None,
        };
        let stretch = self.reused.get_or_insert(Stretch {
            thread: self.id,
            start_ns,
            weight_ns: 0,
            ticks: 0,
            capture: Capture::Reused,
            state: self.state,
            syscall,
            gil: Gil::NotHeld,
            gil_holder: None,
            run_ns: 0,
            queue_ns: 0,
        });
        stretch.weight_ns += weight_ns;
        stretch.ticks += 1;
        stretch.run_ns += run_ns;
        stretch.queue_ns += queue_ns;
    }
}

/// A process.
#[derive(Debug)]
pub(super) struct TracedProcess {
    pub(super) id: ProcessId,
    pub(super) pid: i32,
    pub(super) memory: ProcessMemory,
    pub(super) tasks: TaskDirectory,
    pub(super) link_count: u64,
    pub(super) threads: Vec<TracedThread>,
    pub(super) interpreter: Option<Arc<Interpreter>>,
    /// Interpreter states seen, each with a GIL that may be its own.
    pub(super) interpreter_states: Vec<u64>,
    pub(super) python_read_ns: u64,
    pub(super) last_cpu_ns: u64,
    /// torchspy started it: its exit status is the launcher's to take.
    pub(super) is_own_child: bool,
    pub(super) exited: bool,
    /// Its stacks come from the fallback, and not from here.
    pub(super) by_fallback: bool,
    /// When the fallback's last stacks came.
    pub(super) named_ns: u64,
}

impl TracedProcess {
    pub(super) fn new(id: ProcessId, pid: i32, is_own_child: bool) -> Self {
        Self {
            id,
            pid,
            memory: ProcessMemory::new(pid),
            tasks: TaskDirectory::new(pid),
            link_count: 0,
            threads: Vec::new(),
            interpreter: None,
            interpreter_states: Vec::new(),
            python_read_ns: 0,
            last_cpu_ns: 0,
            is_own_child,
            exited: false,
            by_fallback: false,
            named_ns: 0,
        }
    }

    /// Another program runs in it, or its interpreter was found: what was known of Python is void.
    pub(super) fn set_interpreter(&mut self, interpreter: Option<Arc<Interpreter>>, exec: bool) {
        self.by_fallback = false;
        self.interpreter = interpreter;
        self.interpreter_states.clear();
        self.python_read_ns = 0;
        for thread in &mut self.threads {
            thread.seen = Seen::Unknown;
            thread.plan.set_state(None);
            if exec {
                thread.shared.root_stack_pointer.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Its stacks come from the fallback from now on, or from here again.
    pub(super) fn set_fallback(&mut self, reads: bool, now_ns: u64) {
        self.by_fallback = reads;
        self.named_ns = now_ns;
        for thread in &mut self.threads {
            thread.seen = Seen::Unknown;
        }
    }

    /// Reads which Python thread states there are and gives them to their threads. Tells whether any thread's changed.
    pub(super) fn match_python_threads(&mut self, now_ns: u64) {
        let Some(interpreter) = self.interpreter.clone() else {
            return;
        };
        self.python_read_ns = now_ns;
        let Ok(python) = read_threads(&interpreter, &self.memory) else {
            return;
        };
        self.interpreter_states = interpreters_of(&python);
        let os: Vec<OsThread> = self
            .threads
            .iter()
            .map(|thread| OsThread {
                tid: thread.tid,
                inner_tid: thread.inner_tid,
                stack_pointer: thread.stack_pointer,
            })
            .collect();
        let matched = match_threads(&python, &os, self.pid);
        for thread in &mut self.threads {
            let state = matched.get(&thread.tid).copied();
            if state.is_some() && thread.plan.state_address != state {
                // Its stack was read without Python frames, or with another state's.
                thread.seen = Seen::Unknown;
            }
            thread.plan.set_state(state);
        }
    }

    /// Tids by thread state, for naming the GIL's holder.
    pub(super) fn threads_by_state(&self) -> FxHashMap<u64, ThreadId> {
        self.threads
            .iter()
            .filter_map(|thread| Some((thread.plan.state_address?, thread.id)))
            .collect()
    }
}

fn interpreters_of(python: &[PythonThread]) -> Vec<u64> {
    let mut states: Vec<u64> = python.iter().map(|thread| thread.interpreter).collect();
    states.sort_unstable();
    states.dedup();
    states.truncate(64);
    states
}
