//! What the tracer keeps of each process and thread between looks.

use super::budget::Claim;
use super::calls::Calls;
use super::capture::{Buffers, ReadPlan};
use super::code_copies::CodeCopies;
use super::old_threads::read_words;
use super::raw::{RawSample, Stretch, ThreadShared};
use super::schedule::Tick;
use super::thread_match::{OsThread, match_threads};
use crate::model::frame::Partial;
use crate::model::ids::{ProcessId, ThreadId};
use crate::model::sample::{Capture, Gil, ThreadState};
use crate::os::resident::ResidentMemory;
use crate::os::threads::{SchedStat, TaskDirectory, ThreadFiles, Whereabouts};
use crate::python::discover::Interpreter;
use crate::python::threads::{PythonThread, read_newest_threads, read_threads};
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
    /// Its name when that was last looked at.
    pub(super) name: String,
    /// It ran since then: a thread takes a name by itself.
    pub(super) may_be_renamed: bool,
    /// Its name in Python, looked at where `--threads` goes by names and the kernel's does not match; empty where it has none.
    pub(super) python_name: Option<String>,
    /// Whether `--threads` lets it in.
    pub(super) wanted: bool,
    /// Time that is reused so far and not yet handed on.
    pub(super) reused: Option<Stretch>,
    /// Time in which it ran and was passed over; the next stop stands for it too.
    pub(super) deferred: Passed,
    /// Stops in a row that found it asleep.
    pub(super) fallen_asleep: u32,
    /// What a stop would do to its system calls.
    pub(super) calls: Calls,
    /// Time in which it slept and could not be read; the next sleep that is read stands for it too.
    pub(super) deferred_sleep: Passed,
    /// The process's first thread.
    is_first: bool,
    /// Dead while others live, at the last look: a first thread stays listed then.
    pub(super) is_dead: bool,
    /// Up to where its time is accounted for.
    pub(super) reached: Reached,
    /// Time before the last look in which it was not looked at; that look stands for it too.
    pub(super) skipped: Passed,
    /// How often it was captured, and when it was last.
    pub(super) captures: u32,
    /// See `captures`; CLOCK_MONOTONIC.
    pub(super) captured_ns: u64,
}

/// Up to where time is accounted for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reached {
    /// The moment, CLOCK_MONOTONIC.
    pub(super) ns: u64,
    /// Ticks up to then.
    pub(super) ticks: u64,
}

impl Reached {
    /// What lies between here and `earlier`.
    fn since(self, earlier: Reached) -> Passed {
        Passed {
            weight_ns: self.ns.saturating_sub(earlier.ns),
            ticks: self.ticks.saturating_sub(earlier.ticks) as u32,
            ..Passed::default()
        }
    }
}

/// Whose turn it is to be looked at. Kept apart from the threads, which are large: most are passed over in most ticks.
///
/// A thread that has long been asleep is looked at in every second tick, later in every fourth, eighth, … Which ticks those are
/// does not depend on what it does, and a look stands for the ticks before it, so shares stay unbiased; 160 threads then cost a
/// fifth. A process's first thread, which usually is the one that trains, is looked at in every tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// The thread's number, by which turns are spread over the ticks.
    number: u32,
    is_first: bool,
    /// Looks in a row that found it in the same sleep.
    quiet_looks: u32,
}

impl Turn {
    fn new(thread: &TracedThread) -> Self {
        Self {
            number: thread.id.index() as u32,
            is_first: thread.is_first,
            quiet_looks: 0,
        }
    }

    /// Whether the thread's turn has come, of `tick` counted ticks of `weight_ns`.
    pub(super) fn has_come(self, tick: u64, weight_ns: u64) -> bool {
        let doublings = (self.quiet_looks / LOOKS_PER_STRIDE).min(MAX_DOUBLINGS);
        if doublings == 0 || self.is_first {
            return true;
        }
        let longest = MAX_PASSED_NS / weight_ns.max(1);
        let stride = (1 << doublings).min(longest.checked_ilog2().map_or(1, |log| 1 << log));
        (tick + u64::from(self.number)).is_multiple_of(stride)
    }

    /// It was found in the sleep that it was in.
    pub(super) fn slept_on(&mut self) {
        self.quiet_looks = self.quiet_looks.saturating_add(1);
    }

    /// It is looked at in every tick again.
    pub(super) fn comes_at_once(&mut self) {
        self.quiet_looks = 0;
    }
}

/// Ticks of a thread, and what it did in them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Passed {
    pub(super) weight_ns: u64,
    pub(super) ticks: u32,
    pub(super) run_ns: u64,
    pub(super) queue_ns: u64,
}

impl Passed {
    /// A tick, in which it is not known to have run.
    pub(super) fn of(tick: Tick) -> Self {
        Self {
            weight_ns: tick.weight_ns(),
            ticks: 1,
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, more: Passed) {
        self.weight_ns += more.weight_ns;
        self.ticks += more.ticks;
        self.run_ns += more.run_ns;
        self.queue_ns += more.queue_ns;
    }
}

/// CPU time in which a child process may call exec. Forked by Python, 1 to 10 ms lie between the two; DataLoader workers run on.
const BEGINNING_NS: u64 = 100_000_000;
/// How often all thread states are read even if none is new.
const ALL_STATES_NS: u64 = 1_000_000_000;
/// The same while some state's thread is not known, for longer than that.
const UNMATCHED_NS: u64 = 100_000_000;
/// Looks that a sleeper's state must outlast before it is looked at half as often.
const LOOKS_PER_STRIDE: u32 = 16;
/// Past this many times half is rare enough at any rate.
const MAX_DOUBLINGS: u32 = 7;
/// Longest time between two looks at a sleeper, ns: a wake-up is noticed this late at most.
const MAX_PASSED_NS: u64 = 170_000_000;

impl TracedThread {
    pub(super) fn new(pid: i32, tid: i32, id: ThreadId, reached: Reached) -> Self {
        let files = ThreadFiles::open(pid, tid);
        Self {
            id,
            tid,
            is_first: tid == pid,
            is_dead: false,
            inner_tid: files.inner_tid().unwrap_or(tid),
            shared: Arc::default(),
            plan: ReadPlan::default(),
            last: files.schedstat().unwrap_or_default(),
            files,
            seen: Seen::Unknown,
            state: ThreadState::Unknown,
            stack_pointer: 0,
            own_stop: false,
            name: String::new(),
            may_be_renamed: false,
            python_name: None,
            wanted: true,
            reused: None,
            deferred: Passed::default(),
            fallen_asleep: 0,
            calls: Calls::default(),
            deferred_sleep: Passed::default(),
            reached,
            skipped: Passed::default(),
            captures: 0,
            captured_ns: 0,
        }
    }

    /// Whether it is its process's first thread.
    pub(super) fn is_first(&self) -> bool {
        self.is_first
    }

    /// Whether its time is recorded at all.
    pub(super) fn is_looked_at(&self) -> bool {
        self.wanted && !self.is_dead
    }

    /// What it has to say for a stop while it runs.
    pub(super) fn claim(&self) -> Claim {
        Claim {
            is_first: self.is_first,
            deferred: self.deferred.ticks,
        }
    }

    /// This look accounts for the time from `from` to `to`, and for what lies before it.
    pub(super) fn reach(&mut self, from: Reached, to: Reached) {
        self.skipped.add(from.since(self.reached));
        self.reached = to;
    }

    /// Whether the worker lacked registers in the sleep that the thread is still in.
    pub(super) fn wants_registers(&self, now: &SchedStat) -> bool {
        !self.own_stop
            && now.slices != 0
            && self.shared.registers_wanted.load(Ordering::Relaxed) == now.slices
    }

    /// Whether the worker had too little of the stack of the sleep that the thread is still in. Says so once.
    pub(super) fn wants_stack(&self, now: &SchedStat) -> bool {
        let wanted = &self.shared.stack_wanted;
        let wants = now.slices != 0 && wanted.load(Ordering::Relaxed) == now.slices;
        if wants {
            wanted.store(0, Ordering::Relaxed);
        }
        wants
    }

    /// CPU and queue time since the last look, which this look takes over.
    pub(super) fn advance(&mut self, now: SchedStat) -> (u64, u64) {
        let run_ns = now.run_ns.saturating_sub(self.last.run_ns);
        let queue_ns = now.queue_ns.saturating_sub(self.last.queue_ns);
        self.last = now;
        (run_ns, queue_ns)
    }

    /// Adds `passed`, which begins at `start_ns`, and what was skipped before it, to the reused stretch.
    pub(super) fn reuse(&mut self, start_ns: u64, passed: Passed) {
        let syscall = match self.seen {
            Seen::Asleep(whereabouts) => whereabouts.syscall(),
            _ => None,
        };
        let skipped = std::mem::take(&mut self.skipped);
        let stretch = self.reused.get_or_insert(Stretch {
            thread: self.id,
            start_ns: start_ns.saturating_sub(skipped.weight_ns),
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
        stretch.weight_ns += passed.weight_ns + skipped.weight_ns;
        stretch.ticks += passed.ticks + skipped.ticks;
        stretch.run_ns += passed.run_ns;
        stretch.queue_ns += passed.queue_ns;
    }

    /// The reused stretch, with what was skipped since up to `end`, if no look will follow.
    pub(super) fn take_reused(&mut self, end: Option<Reached>) -> Option<Stretch> {
        if let Some(end) = end {
            if end.ns > self.reached.ns {
                self.reach(end, end);
            }
            if self.skipped.weight_ns > 0 {
                self.reuse(end.ns, Passed::default());
            }
        }
        self.reused.take()
    }
}

/// A process.
#[derive(Debug)]
pub(super) struct TracedProcess {
    pub(super) id: ProcessId,
    pub(super) pid: i32,
    pub(super) memory: ResidentMemory,
    pub(super) tasks: TaskDirectory,
    pub(super) link_count: u64,
    pub(super) threads: Vec<TracedThread>,
    /// Of each thread, in their order.
    pub(super) turns: Vec<Turn>,
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
    /// Whether it stood in a group stop (SIGSTOP), asked at most once in a tick.
    pub(super) stopped: Option<bool>,
    /// Its stacks come from the fallback, and not from here.
    pub(super) by_fallback: bool,
    /// When the fallback's last stacks came.
    pub(super) named_ns: u64,
    /// What became of the search for its interpreter is known.
    pub(super) is_settled: bool,
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

    /// Its first thread (in a trainer, the one that trains), unless that was found in the sleep that it was in before.
    pub(super) fn active_first_thread(&self) -> Option<&TracedThread> {
        let at = self.turns.iter().position(|turn| turn.is_first)?;
        (self.turns[at].quiet_looks == 0).then(|| &self.threads[at])
    }

    pub(super) fn new(id: ProcessId, pid: i32, is_own_child: bool) -> Self {
        Self {
            id,
            pid,
            memory: ResidentMemory::new(pid),
            tasks: TaskDirectory::new(pid),
            link_count: 0,
            threads: Vec::new(),
            turns: Vec::new(),
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
        }
    }

    pub(super) fn add_thread(&mut self, thread: TracedThread) {
        self.turns.push(Turn::new(&thread));
        self.threads.push(thread);
    }

    /// The last thread takes its place.
    pub(super) fn remove_thread(&mut self, at: usize) {
        self.turns.swap_remove(at);
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

    /// `by_ns` from now on are nobody's.
    pub(super) fn put_off(&mut self, by_ns: u64) {
        for thread in &mut self.threads {
            thread.reached.ns += by_ns;
        }
    }

    /// Its stacks come from the fallback from `now` on, or from here again.
    pub(super) fn set_fallback(&mut self, reads: bool, now: Reached) {
        let was_read = std::mem::replace(&mut self.by_fallback, reads);
        for (thread, turn) in self.threads.iter_mut().zip(&mut self.turns) {
            thread.seen = Seen::Unknown;
            turn.comes_at_once();
            if was_read {
                thread.reached = now;
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
        for (thread, turn) in self.threads.iter_mut().zip(&mut self.turns) {
            let states = matched.get(&thread.tid).map_or(&[][..], Vec::as_slice);
            if !states.is_empty() && !thread.plan.has_states(states) {
                // Its stack was read without Python frames, or with another state's.
                thread.seen = Seen::Unknown;
                thread.captures = 0;
                turn.comes_at_once();
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

    /// The same of those never seen before, while the thread stands.
    pub(super) fn copy_new_codes(&mut self, buffers: &mut Buffers, sample: &mut RawSample) {
        if let Some(interpreter) = &self.interpreter {
            self.codes
                .copy_new(interpreter, &self.memory, buffers, sample);
        }
    }

    /// Whether the process stands in a group stop: its threads look like sleepers then.
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
