//! What the tracer keeps of each process between polls.

use super::account::Reached;
use super::thread::{Backoff, Seen, TracedThread};
use crate::model::frame::Partial;
use crate::model::ids::{ProcessId, ThreadId};
use crate::model::sample::ThreadState;
use crate::os::resident::ResidentMemory;
use crate::os::threads::TaskDirectory;
use crate::python::discover::Interpreter;
use crate::python::threads::{PythonThread, read_newest_threads, read_threads};
use crate::sampling::capture::Buffers;
use crate::sampling::code_copies::CodeCopies;
use crate::sampling::execs::Execs;
use crate::sampling::old_threads::read_words;
use crate::sampling::raw::RawSample;
use crate::sampling::thread_match::{OsThread, match_threads};
use std::sync::Arc;

/// CPU time in which a child process may call exec. Forked by Python, 1 to 10 ms lie between the two; DataLoader workers run on.
const BEGINNING_NS: u64 = 100_000_000;
/// How often all thread states are read even if none is new.
const ALL_STATES_NS: u64 = 1_000_000_000;
/// The same while some state's thread is not known, for longer than that.
const UNMATCHED_NS: u64 = 100_000_000;

/// A process.
#[derive(Debug)]
pub(super) struct TracedProcess {
    pub(super) id: ProcessId,
    pub(super) pid: i32,
    pub(super) parent_pid: i32,
    pub(super) memory: ResidentMemory,
    pub(super) tasks: TaskDirectory,
    pub(super) link_count: u64,
    pub(super) threads: Vec<TracedThread>,
    /// Of each thread, in their order.
    pub(super) backoffs: Vec<Backoff>,
    pub(super) interpreter: Option<Arc<Interpreter>>,
    /// Code objects that were copied for the worker.
    pub(super) codes: CodeCopies,
    /// Interpreter states seen, each with a GIL that may be its own.
    pub(super) interpreter_states: Vec<u64>,
    pub(super) python_read_ns: u64,
    /// The newest thread state of each interpreter at that time, and when all of them were read.
    newest_states: Vec<Option<u64>>,
    states_read_ns: u64,
    /// When a state was last seen to be new.
    states_changed_ns: u64,
    /// Whether each state's thread was known then.
    all_matched: bool,
    pub(super) last_cpu_ns: u64,
    /// torchspy started it: its exit status is the launcher's to take.
    pub(super) is_own_child: bool,
    pub(super) exited: bool,
    /// Whether it is in a group stop (SIGSTOP), asked at most once in a tick.
    pub(super) stopped: Option<bool>,
    /// Its stacks come from the fallback, and not from here.
    pub(super) by_fallback: bool,
    /// When the fallback's last stacks came.
    pub(super) named_ns: u64,
    /// What became of the search for its interpreter is known.
    pub(super) is_settled: bool,
    pub(super) execs: Execs,
}

impl TracedProcess {
    /// Whether it is the one that was asked for: it is the first to be found.
    pub(super) fn is_root(&self) -> bool {
        self.id.index() == 0
    }

    /// Whether it may be on its way from a fork to an exec, or to the next exec: a single thread that has hardly run.
    pub(super) fn is_beginning(&self) -> bool {
        matches!(&self.threads[..], [thread] if thread.last.is_kept() && thread.last.run_ns < BEGINNING_NS)
    }

    /// The place of its first thread (in a trainer, the one that trains), unless that was found in the sleep that it was in before, or
    /// it is no Python whose threads are known.
    pub(super) fn active_first_thread(&self) -> Option<usize> {
        let is_known = self.python_read_ns > 0 && !self.by_fallback;
        let at = self.backoffs.iter().position(|backoff| backoff.is_first)?;
        (is_known && self.backoffs[at].quiet_polls == 0).then_some(at)
    }

    pub(super) fn new(id: ProcessId, pid: i32, parent_pid: i32, is_own_child: bool) -> Self {
        Self {
            id,
            pid,
            parent_pid,
            memory: ResidentMemory::new(pid),
            tasks: TaskDirectory::new(pid),
            link_count: 0,
            threads: Vec::new(),
            backoffs: Vec::new(),
            interpreter: None,
            codes: CodeCopies::default(),
            interpreter_states: Vec::new(),
            python_read_ns: 0,
            newest_states: Vec::new(),
            states_read_ns: 0,
            states_changed_ns: 0,
            all_matched: false,
            last_cpu_ns: 0,
            is_own_child,
            exited: false,
            stopped: None,
            by_fallback: false,
            named_ns: 0,
            is_settled: false,
            execs: Execs::default(),
        }
    }

    pub(super) fn add_thread(&mut self, thread: TracedThread) {
        self.backoffs.push(Backoff::new(&thread));
        self.threads.push(thread);
    }

    /// The last thread takes its place.
    pub(super) fn remove_thread(&mut self, at: usize) {
        self.backoffs.swap_remove(at);
        self.threads.swap_remove(at);
    }

    /// Another program runs in it, or its interpreter was found: what was known of Python is void.
    pub(super) fn set_interpreter(
        &mut self,
        interpreter: Option<Arc<Interpreter>>,
        exec: bool,
        now: Reached,
    ) {
        self.set_fallback(false, now);
        self.interpreter = interpreter;
        self.codes.forget();
        self.interpreter_states.clear();
        self.python_read_ns = 0;
        self.states_read_ns = 0;
        for thread in &mut self.threads {
            thread.plan.set_states(&[]);
            if exec {
                thread.shared.roots.forget();
                thread.shared.watched.forget();
            }
        }
    }

    /// `by_ns` after `from` are not recorded.
    pub(super) fn postpone(&mut self, from: Reached, by_ns: u64) {
        for thread in &mut self.threads {
            thread.ledger.postpone(from, by_ns);
        }
    }

    /// Its stacks come from the fallback from `now` on, or from here again.
    pub(super) fn set_fallback(&mut self, reads: bool, now: Reached) {
        let was_read = std::mem::replace(&mut self.by_fallback, reads);
        for (thread, backoff) in self.threads.iter_mut().zip(&mut self.backoffs) {
            thread.seen = Seen::Unknown;
            backoff.reset();
            if was_read {
                thread.ledger.leave_out_to(now);
            }
        }
    }

    /// Reads which Python thread states there are and gives them to their threads, if any may have come, and every second.
    pub(super) fn match_python_threads(&mut self, now_ns: u64) {
        let Some(interpreter) = self.interpreter.clone() else {
            return;
        };
        self.python_read_ns = now_ns;
        let newest = read_newest_threads(&interpreter, &self.interpreter_states, &self.memory);
        if newest == self.newest_states {
            let is_recent = now_ns < self.states_changed_ns + ALL_STATES_NS;
            let pause_ns = match (self.all_matched, is_recent) {
                (true, _) => ALL_STATES_NS,
                (false, true) => 0,
                (false, false) => UNMATCHED_NS,
            };
            if now_ns < self.states_read_ns + pause_ns {
                return;
            }
        } else {
            self.states_changed_ns = now_ns;
        }
        self.states_read_ns = now_ns;
        self.newest_states = newest;
        let Ok(mut python) = read_threads(&interpreter, &self.memory) else {
            return;
        };
        self.name_old_threads(&mut python);
        let interpreters = interpreters_of(&python);
        if interpreters != self.interpreter_states {
            self.newest_states.clear();
            self.interpreter_states = interpreters;
        }
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
        // A thread that was just started may not bear its own id, and of one that was not read yet it may not be known where its stack
        // is.
        let settled = matched.values().map(|states| match states[..] {
            [_] => 1,
            _ => states.len().min(interpreters_among(states, &python)),
        });
        self.all_matched = settled.sum::<usize>() == python.len();
        for (thread, backoff) in self.threads.iter_mut().zip(&mut self.backoffs) {
            let states = matched.get(&thread.tid).map_or(&[][..], Vec::as_slice);
            if !states.is_empty() && !thread.plan.has_states(states) {
                // Its stack was read without Python frames, or with another state's.
                thread.seen = Seen::Unknown;
                thread.captures = 0;
                backoff.reset();
            }
            thread.plan.set_states(states);
        }
    }

    /// [`Self::match_python_threads`] at once, where threads have come: a state that looks as it did may be of one of them, which took
    /// the place of a thread that is gone.
    pub(super) fn match_new_threads(&mut self, now_ns: u64) {
        self.states_read_ns = 0;
        self.match_python_threads(now_ns);
    }

    /// Whether it is not known yet what interpreter there is.
    pub(super) fn is_python_pending(&self) -> bool {
        self.interpreter.is_none() && !self.is_settled && !self.by_fallback
    }

    /// Why nothing is read of a thread of which Python frames alone could be.
    pub(super) fn why_no_python(&self) -> Partial {
        match self.is_python_pending() {
            true => Partial::PythonPending,
            false => Partial::NativeNotRead,
        }
    }

    /// Before 3.11 a thread state names its thread by where libc keeps it, which has its tid.
    fn name_old_threads(&self, python: &mut [PythonThread]) {
        if python
            .iter()
            .all(|thread| thread.native_thread_id.is_some())
        {
            return;
        }
        let pthreads: Vec<u64> = python.iter().map(|thread| thread.pthread).collect();
        let words = read_words(&self.memory, &pthreads);
        for (thread, words) in python.iter_mut().zip(words) {
            let is_known = |word: &&i32| self.threads.iter().any(|os| os.inner_tid == **word);
            let found = words.iter().find(is_known).map(|&word| word as u64);
            thread.native_thread_id = thread.native_thread_id.or(found);
        }
    }

    /// Copies what code objects a thread that was just resumed, or read without a stop, has on its stack.
    pub(super) fn copy_codes(&mut self, buffers: &mut Buffers, sample: &mut RawSample) {
        if let Some(interpreter) = &self.interpreter {
            self.codes
                .copy_rest(interpreter, &self.memory, buffers, sample);
        }
    }

    /// The same of those never seen before, while the thread is stopped.
    pub(super) fn copy_new_codes(&mut self, buffers: &mut Buffers, sample: &mut RawSample) {
        if let Some(interpreter) = &self.interpreter {
            self.codes
                .copy_new(interpreter, &self.memory, buffers, sample);
        }
    }

    /// Whether the process is in a group stop: its threads look like sleepers then.
    pub(super) fn is_stopped(&mut self) -> bool {
        *self.stopped.get_or_insert_with(|| {
            let stat = self
                .threads
                .first()
                .and_then(|thread| thread.files.stat().ok());
            stat.is_some_and(|(state, _)| state == ThreadState::Stopped)
        })
    }

    /// The thread that a Python thread state belongs to.
    pub(super) fn thread_of_state(&self, state_address: u64) -> Option<ThreadId> {
        self.threads
            .iter()
            .find(|thread| thread.plan.has_state(state_address))
            .map(|thread| thread.id)
    }
}

/// How many interpreters these states are of.
fn interpreters_among(states: &[u64], python: &[PythonThread]) -> usize {
    let of = |thread: &&PythonThread| states.contains(&thread.state_address);
    let mut found: Vec<u64> = python
        .iter()
        .filter(of)
        .map(|thread| thread.interpreter)
        .collect();
    found.sort_unstable();
    found.dedup();
    found.len()
}

fn interpreters_of(python: &[PythonThread]) -> Vec<u64> {
    let mut states: Vec<u64> = python.iter().map(|thread| thread.interpreter).collect();
    states.sort_unstable();
    states.dedup();
    states.truncate(64);
    states
}
