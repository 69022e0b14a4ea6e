//! State of a process between polls.

use super::account::TimePoint;
use super::by_kernel::ThreadSampler;
use super::memory::{AllocatedReadings, ResidentReadings};
use super::thread::{Backoff, LastPoll, TracedThread};
use crate::model::frame::Partial;
use crate::model::ids::{ProcessId, ThreadId};
use crate::model::sample::ThreadState;
use crate::os::resident::ResidentMemory;
use crate::os::threads::{TaskDirectory, Whereabouts, keeps_schedstat};
use crate::python::discover::Interpreter;
use crate::python::threads::{
    GilRange, PythonThread, read_gil_range, read_newest_threads, read_threads_again,
};
use crate::sampling::capture::Buffers;
use crate::sampling::code_copies::CodeCopies;
use crate::sampling::execs::Execs;
use crate::sampling::old_threads::read_words;
use crate::sampling::raw::RawSample;
use crate::sampling::thread_match::{OsThread, match_threads};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// CPU time within which a new child process may still call exec, ns. After a fork by Python that
/// takes 1 to 10 ms; DataLoader workers run on without one.
const BEGINNING_NS: u64 = 100_000_000;
/// Longest time between two reads of all thread states, ns.
const ALL_STATES_NS: u64 = 1_000_000_000;
/// The same while a state has had no known thread for longer than [`ALL_STATES_NS`].
const UNMATCHED_NS: u64 = 100_000_000;

/// `struct _gil_runtime_state` has up to 232 bytes (3.15).
const MAX_GIL_BYTES: u64 = 256;

#[derive(Debug)]
pub(super) struct TracedProcess {
    pub(super) id: ProcessId,
    pub(super) pid: i32,
    pub(super) parent_pid: i32,
    pub(super) memory: ResidentMemory,
    pub(super) tasks: TaskDirectory,
    pub(super) link_count: u64,
    /// When its threads were last listed, CLOCK_MONOTONIC.
    pub(super) listed_ns: u64,
    pub(super) threads: Vec<TracedThread>,
    /// One per thread, in the same order.
    pub(super) backoffs: Vec<Backoff>,
    pub(super) interpreter: Option<Arc<Interpreter>>,
    /// Code objects that were copied for the worker.
    pub(super) codes: CodeCopies,
    /// Addresses of the interpreter states; each may have a GIL of its own.
    pub(super) interpreter_states: Vec<u64>,
    /// Interpreter states, and where the states of their GILs are.
    pub(super) gils: Vec<(u64, GilRange)>,
    pub(super) python_read_ns: u64,
    /// The newest thread state of each interpreter at the last read.
    newest_states: Vec<Option<u64>>,
    states_read_ns: u64,
    /// Addresses of the thread states at the last read.
    thread_states: Vec<u64>,
    /// When a new state was last found.
    states_changed_ns: u64,
    /// Whether every state had a known thread at the last read.
    all_matched: bool,
    pub(super) last_cpu_ns: u64,
    /// torchspy started it: the launcher, not the tracer, takes its exit status.
    pub(super) is_own_child: bool,
    pub(super) exited: bool,
    /// It is not sampled any more, because of its rank: the note that says so.
    pub(super) left_out: Option<String>,
    /// Whether it is in a group stop (SIGSTOP), read at most once per tick.
    pub(super) stopped: Option<bool>,
    /// The fallback reads its stacks; the tracer does not.
    pub(super) by_fallback: bool,
    /// When the fallback last delivered stacks, CLOCK_MONOTONIC.
    pub(super) named_ns: u64,
    /// Interpreter discovery has ended, with or without a result.
    pub(super) discovery_done: bool,
    pub(super) execs: Execs,
    pub(super) resident: ResidentReadings,
    pub(super) allocated: AllocatedReadings,
}

impl TracedProcess {
    /// Whether it is the process given by the user: it is found first.
    pub(super) fn is_root(&self) -> bool {
        self.id.index() == 0
    }

    /// Whether it may be between a fork and an exec, or between two execs: it has a single thread
    /// that has hardly run.
    pub(super) fn may_exec_soon(&self) -> bool {
        matches!(&self.threads[..], [thread] if keeps_schedstat() && thread.last.run_ns < BEGINNING_NS)
    }

    /// Index of its first thread (in a trainer, the one that trains). `None` if the last poll found
    /// that thread in an unchanged sleep, or if the process is not a Python with known threads.
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
            listed_ns: 0,
            threads: Vec::new(),
            backoffs: Vec::new(),
            interpreter: None,
            codes: CodeCopies::default(),
            interpreter_states: Vec::new(),
            gils: Vec::new(),
            python_read_ns: 0,
            newest_states: Vec::new(),
            states_read_ns: 0,
            thread_states: Vec::new(),
            states_changed_ns: 0,
            all_matched: false,
            last_cpu_ns: 0,
            is_own_child,
            exited: false,
            left_out: None,
            stopped: None,
            by_fallback: false,
            named_ns: 0,
            discovery_done: false,
            execs: Execs::default(),
            resident: ResidentReadings::new(pid),
            allocated: AllocatedReadings::new(pid),
        }
    }

    pub(super) fn add_thread(&mut self, thread: TracedThread) {
        self.backoffs.push(Backoff::new(&thread));
        self.threads.push(thread);
    }

    /// Removes a thread; the last one takes its index.
    pub(super) fn remove_thread(&mut self, at: usize) {
        self.backoffs.swap_remove(at);
        self.threads.swap_remove(at);
    }

    /// Sets the interpreter after discovery, or after an exec. Resets all Python state.
    pub(super) fn set_interpreter(
        &mut self,
        interpreter: Option<Arc<Interpreter>>,
        exec: bool,
        now: TimePoint,
    ) {
        self.set_fallback(false, now);
        self.memory.forget_pages();
        self.interpreter = interpreter;
        self.codes.forget();
        self.interpreter_states.clear();
        self.gils.clear();
        self.python_read_ns = 0;
        self.states_read_ns = 0;
        self.thread_states.clear();
        if exec {
            self.memory.open_again();
            self.allocated.forget();
        }
        for thread in &mut self.threads {
            thread.plan.set_states(&[]);
            if exec {
                thread.shared.roots.forget();
                thread.shared.watched.forget();
                // Of the thread that had this tid before, if another one called exec.
                thread.sampler = ThreadSampler::Unopened;
            }
        }
    }

    /// Excludes `by_ns` after `from` from the record.
    pub(super) fn exclude(&mut self, from: TimePoint, by_ns: u64) {
        for thread in &mut self.threads {
            thread.ledger.exclude(from, by_ns);
        }
    }

    /// Sets whether the fallback reads its stacks from `now` on.
    pub(super) fn set_fallback(&mut self, reads: bool, now: TimePoint) {
        let was_read = std::mem::replace(&mut self.by_fallback, reads);
        for (thread, backoff) in self.threads.iter_mut().zip(&mut self.backoffs) {
            thread.last_poll = LastPoll::Unknown;
            backoff.reset();
            if was_read {
                thread.ledger.discard_to(now);
            }
        }
    }

    /// Reads the Python thread states and matches them to threads, if there may be new ones, and at
    /// least every [`ALL_STATES_NS`].
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
        let states = &self.thread_states;
        let Ok(mut python) = read_threads_again(&interpreter, &self.memory, states) else {
            return;
        };
        self.thread_states = python.iter().map(|thread| thread.state_address).collect();
        self.name_old_threads(&mut python);
        let interpreters = interpreters_of(&python);
        if interpreters != self.interpreter_states {
            self.newest_states.clear();
            self.interpreter_states = interpreters;
        }
        let states = self.interpreter_states.iter();
        let gil_of = |&state: &u64| {
            let range = read_gil_range(&interpreter, state, &self.memory).ok()?;
            Some((state, range))
        };
        self.gils = states.filter_map(gil_of).collect();
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
        // The state of a thread that was just started may not have that thread's id yet, and the
        // stack of a thread that was not captured yet may not be known.
        let settled = matched.values().map(|states| match states[..] {
            [_] => 1,
            _ => states.len().min(interpreters_among(states, &python)),
        });
        self.all_matched = settled.sum::<usize>() == python.len();
        let gil_of_state: FxHashMap<u64, u64> = python
            .iter()
            .filter_map(|thread| {
                let mut gils = self.gils.iter();
                let (_, range) = gils.find(|(state, _)| *state == thread.interpreter)?;
                Some((thread.state_address, range.address))
            })
            .collect();
        for (thread, backoff) in self.threads.iter_mut().zip(&mut self.backoffs) {
            let states = matched.get(&thread.tid).map_or(&[][..], Vec::as_slice);
            if !states.is_empty() && !thread.plan.has_states(states) {
                // Its stack was captured without Python frames, or with those of another state.
                thread.last_poll = LastPoll::Unknown;
                thread.captures = 0;
                backoff.reset();
            }
            thread.plan.set_states(states);
            let state = thread.plan.state_address;
            thread.plan.gil_address = state.and_then(|state| gil_of_state.get(&state).copied());
        }
    }

    /// [`Self::match_python_threads`] without a wait, after threads were added: an unchanged state
    /// address may belong to a new thread that replaced one that has exited.
    pub(super) fn match_new_threads(&mut self, now_ns: u64) {
        self.states_read_ns = 0;
        self.match_python_threads(now_ns);
    }

    /// Whether interpreter discovery is still running.
    pub(super) fn is_python_pending(&self) -> bool {
        self.interpreter.is_none() && !self.discovery_done && !self.by_fallback
    }

    /// Why a thread has no stack where only Python frames could be read.
    pub(super) fn why_no_python(&self) -> Partial {
        match self.is_python_pending() {
            true => Partial::PythonPending,
            false => Partial::NativeNotRead,
        }
    }

    /// Fills in thread ids before 3.11: a thread state then has the `pthread_self()` of its thread,
    /// and libc keeps the tid there.
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

    /// Copies the code objects on the stack of a thread that was just resumed, or read without a
    /// stop.
    pub(super) fn copy_codes(&mut self, buffers: &mut Buffers, sample: &mut RawSample) {
        if let Some(interpreter) = &self.interpreter {
            self.codes
                .copy_rest(interpreter, &self.memory, buffers, sample);
        }
    }

    /// Copies code objects that were never seen before, while the thread is stopped.
    pub(super) fn copy_new_codes(&mut self, buffers: &mut Buffers, sample: &mut RawSample) {
        if let Some(interpreter) = &self.interpreter {
            self.codes
                .copy_new(interpreter, &self.memory, buffers, sample);
        }
    }

    /// Whether a thread that sleeps at `whereabouts` may wait for a GIL: at a futex in its state
    /// (`cond` of `struct _gil_runtime_state`, Include/internal/pycore_gil.h), or any if it is not
    /// known where that is.
    pub(super) fn may_await_gil(&self, at: usize, whereabouts: &Whereabouts) -> bool {
        let Some(address) = whereabouts.futex_address() else {
            return false;
        };
        if self.threads[at].plan.state_address.is_none() {
            return false;
        }
        self.gils.is_empty()
            || self.gils.iter().any(|(_, gil)| {
                let around = gil.address.saturating_sub(MAX_GIL_BYTES)
                    ..gil.address.saturating_add(MAX_GIL_BYTES);
                around.contains(&address)
            })
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

/// Number of interpreters that `states` belong to.
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
