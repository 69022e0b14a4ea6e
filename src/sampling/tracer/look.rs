//! A look at each thread: did it run, does it sleep on, and the reading of those that sleep.

use super::stopping::gil_holders;
use super::{Candidate, Passed, Seen, Tick, TracedProcess, TracedThread, Tracer};
use crate::memory::ReadError;
use crate::model::frame::Partial;
use crate::model::ids::ThreadId;
use crate::model::registers::Registers;
use crate::model::sample::{Capture, Gil, ThreadState};
use crate::os::clock::process_cpu_ns;
use crate::os::syscalls::{is_restarted, sleeps_interruptibly};
use crate::os::threads::{FUTEX, SchedStat, ThreadFiles, Whereabouts};
use crate::sampling::capture::{Subject, capture};

/// Threads of one process past which its CPU clock is asked first. The clock of a thread that just woke does not move
/// before the scheduler's tick, so it may miss the first milliseconds of a burst, while asking every thread never does:
/// up to here exactness is cheaper than what it costs.
const GATED_THREADS: usize = 400;
/// How many ticks pass before a dead first thread is looked at again: another thread's exec gives its tid a new life.
const DEAD_LOOKS: u64 = 10;
/// System calls on x86-64 during which a thread may hold its process's mmap lock for writing: reading memory would block.
const MMAP_LOCKERS: [u32; 7] = [9, 10, 11, 12, 25, 28, 216];
/// Sleeps that ended while they were read, and whose ticks wait for one that does not: after so many the thread is stopped.
const MAX_WOKEN: u32 = 4;
/// How often it is asked whether there are new Python thread states: a C++ thread takes and drops one whenever it likes
/// (PyGILState_Ensure), and a thread that was just started has none for a moment.
const PYTHON_THREADS_NS: u64 = 5_000_000;

impl Tracer {
    pub(super) fn look_at_process(
        &mut self,
        index: usize,
        tick: Tick,
        candidates: &mut Vec<Candidate>,
    ) {
        let process = &mut self.processes[index];
        let Ok(link_count) = process.tasks.link_count() else {
            process.exited = true;
            return;
        };
        let all_asleep = || {
            process
                .threads
                .iter()
                .all(|thread| matches!(thread.seen, Seen::Asleep(_)))
        };
        let gated = process.threads.len() > GATED_THREADS && all_asleep();
        let cpu_ns = if gated {
            process_cpu_ns(process.pid).unwrap_or(0)
        } else {
            0
        };
        let unchanged = gated && cpu_ns == process.last_cpu_ns;
        process.last_cpu_ns = cpu_ns;
        if link_count != process.link_count {
            self.list_threads(index, link_count);
        }
        if self.processes[index].by_fallback {
            return;
        }
        let process = &mut self.processes[index];
        if process.interpreter.is_some()
            && tick.start_ns >= process.python_read_ns + PYTHON_THREADS_NS
        {
            process.match_python_threads(tick.start_ns);
            self.take_python_names(index);
        }
        let process = &mut self.processes[index];
        process.stopped = None;
        let (before, after) = (self.reached, self.reached_after(tick));
        if unchanged {
            for thread in &mut self.processes[index].threads {
                thread.reach(before, after);
                thread.reuse(tick.start_ns, Passed::of(tick));
            }
            return;
        }
        let (ticks, weight_ns) = (before.ticks, tick.weight_ns());
        let mut gone = false;
        for at in 0..self.processes[index].turns.len() {
            if self.processes[index].turns[at].has_come(ticks, weight_ns) {
                gone |= !self.look_at_thread(index, at, tick, candidates);
            }
            // One that was asked to stop is not to be stopped for as long as all the others are polled.
            self.take_late();
        }
        if gone {
            self.processes[index].link_count = 0;
        }
    }

    /// Looks at one thread: reused, read asleep, or a candidate for a stop. `false` if it is gone.
    fn look_at_thread(
        &mut self,
        index: usize,
        at: usize,
        tick: Tick,
        candidates: &mut Vec<Candidate>,
    ) -> bool {
        let (before, after) = (self.reached, self.reached_after(tick));
        let process = &mut self.processes[index];
        let (thread, turn) = (&mut process.threads[at], &mut process.turns[at]);
        let stays_dead = thread.is_dead && !before.ticks.is_multiple_of(DEAD_LOOKS);
        if !thread.wanted || stays_dead {
            thread.reached = after;
            return true;
        }
        if self.options.once && !thread.begin_look() {
            return true;
        }
        thread.reach(before, after);
        if std::mem::take(&mut thread.is_dead) {
            thread.skipped = Passed::default();
        }
        let Ok(now) = thread.files.schedstat() else {
            return false;
        };
        let passed = Passed::of(tick);
        let unscheduled = now.is_kept() && now == thread.last;
        let wants_stack = thread.wants_stack(&now);
        let wants_registers = unscheduled && thread.wants_registers(&now);
        if unscheduled
            && matches!(thread.seen, Seen::Asleep(_))
            && !(wants_registers || wants_stack)
        {
            turn.slept_on();
            thread.reuse(tick.start_ns, passed);
            return true;
        }
        turn.comes_at_once();
        let slices = now.slices;
        let previous = thread.last;
        let (run_ns, queue_ns) = thread.advance(now);
        thread.may_be_renamed = true;
        let whereabouts = match thread.files.whereabouts() {
            Ok(whereabouts) => whereabouts,
            Err(error) => return self.unreadable(index, at, tick, (run_ns, queue_ns), &error),
        };
        let mut candidate = Candidate {
            process: index,
            thread: at,
            run_ns,
            queue_ns,
            slices,
            asleep: None,
            // One that ran for less than half of the tick waits for a CPU: it may have been woken in its call.
            keeps_running: thread.calls.would_be_cut(
                slices != previous.slices || run_ns < tick.weight_ns() / 2,
                tick.start_ns,
            ),
        };
        // What an earlier look asked to stop, and stands by now, is no sleeper: it is taken with the next of those.
        if whereabouts == Whereabouts::Running || self.late.contains(thread.tid) {
            process.stopped = Some(false);
            candidates.push(candidate);
            return true;
        }
        thread.calls.slept(&whereabouts, tick.start_ns);
        if self.options.gil_only && !holds_gil(&self.processes[index], at) {
            self.processes[index].threads[at].seen = Seen::Unknown;
            return true;
        }
        let thread = &mut self.processes[index].threads[at];
        if is_back_in_its_sleep(thread, &whereabouts, &previous, &now)
            && !(wants_registers || wants_stack)
        {
            let passed = Passed {
                run_ns,
                queue_ns,
                ..passed
            };
            thread.reuse(tick.start_ns, passed);
            return true;
        }
        // The kernel refused the last stop: the thread is read as it is, and asked again at the next poll.
        let was_refused =
            std::mem::take(&mut thread.own_stop) && matches!(thread.seen, Seen::Running);
        // SIGSTOP holds a thread at any instruction of its code, where only its registers say who called it.
        let stopped_in_code = matches!(whereabouts, Whereabouts::Blocked { .. })
            && matches!(thread.files.stat(), Ok((ThreadState::Stopped, _)));
        if stopped_in_code {
            thread.state = ThreadState::Stopped;
        }
        // A stop interrupts nothing in a thread that SIGSTOP stopped already: it goes from one stop to the other and back.
        let undisturbed = stopped_in_code
            || thread.state == ThreadState::Stopped
            || whereabouts.syscall().is_some_and(is_restarted);
        let wants_registers = wants_registers || (stopped_in_code && !was_refused);
        if wants_registers && undisturbed && !self.options.nonblocking && self.may_stop(index) {
            candidate.asleep = Some(whereabouts);
            candidates.push(candidate);
            return true;
        }
        if !self.read_asleep(candidate, whereabouts, now, tick) {
            // It woke while it was being read.
            self.quality.torn_retries += 1;
            if self.processes[index].threads[at].deferred_sleep.ticks < MAX_WOKEN {
                self.put_off_sleep(candidate, tick);
            } else {
                candidates.push(candidate);
            }
        }
        true
    }

    /// Whether threads of a process may be stopped. A thread that execs a setuid program while it is seized runs it without its
    /// privileges, so whoever may be about to is not seized: children that run no Python (shells, sudo), and those that have just been
    /// forked or have just begun a program.
    pub(super) fn may_stop(&self, index: usize) -> bool {
        let process = &self.processes[index];
        if process.is_root() || self.options.once {
            return true;
        }
        !process.is_beginning() && (self.options.stop_any_child || process.interpreter.is_some())
    }

    /// Puts off the tick of a thread that slept when it was looked at, to the next sleep of its that can be read. To stop it where
    /// it runs by now would take as much from every sleep, and give it to what follows.
    fn put_off_sleep(&mut self, candidate: Candidate, tick: Tick) {
        let thread = &mut self.processes[candidate.process].threads[candidate.thread];
        thread.seen = Seen::Unknown;
        thread.deferred_sleep.add(Passed {
            run_ns: candidate.run_ns,
            queue_ns: candidate.queue_ns,
            ..Passed::of(tick)
        });
    }

    fn unreadable(
        &mut self,
        index: usize,
        at: usize,
        tick: Tick,
        ran: (u64, u64),
        error: &std::io::Error,
    ) -> bool {
        let why = match error.raw_os_error() {
            Some(nix::libc::ESRCH | nix::libc::ENOENT) => return false,
            Some(nix::libc::EPERM | nix::libc::EACCES) => Partial::PermissionDenied,
            _ => Partial::StackUnreadable,
        };
        let stretch = self.stretch(index, at, tick, ran, Capture::Unread);
        self.flush_reused(index, at, false);
        self.outbox.span(stretch, Some(why));
        true
    }

    /// Reads a sleeper as it is and checks that it slept on. `false` if it did not.
    fn read_asleep(
        &mut self,
        candidate: Candidate,
        whereabouts: Whereabouts,
        now: SchedStat,
        tick: Tick,
    ) -> bool {
        let (index, at) = (candidate.process, candidate.thread);
        let process = &mut self.processes[index];
        let is_stopped = process.is_stopped();
        let thread = &mut process.threads[at];
        let state = if is_stopped {
            ThreadState::Stopped
        } else {
            sleep_state(&thread.files, &whereabouts)
        };
        thread.state = state;
        let registers = whereabouts.registers();
        thread.stack_pointer = registers
            .and_then(|registers| registers.stack_pointer())
            .unwrap_or(0);
        let ran = (candidate.run_ns, candidate.queue_ns);
        if is_dead(state, &whereabouts) {
            self.flush_reused(index, at, true);
            self.processes[index].threads[at].is_dead = true;
            return true;
        }
        if !self.options.native
            && self.processes[index].threads[at]
                .plan
                .state_address
                .is_none()
        {
            let why = self.processes[index].why_no_python();
            self.unread(index, at, tick, ran, why);
            self.processes[index].threads[at].seen = Seen::Asleep(whereabouts);
            return true;
        }
        let syscall = whereabouts.syscall();
        if state == ThreadState::Uninterruptible
            && syscall.is_some_and(|number| MMAP_LOCKERS.contains(&number))
        {
            self.unread(index, at, tick, ran, Partial::Uninterruptible);
            return true;
        }
        let mut sample = self.sample(candidate);
        sample.registers = registers.filter(|_| self.options.native);
        let process = &mut self.processes[index];
        let thread = &mut process.threads[at];
        let stack = self.buffers.prepare(&mut thread.plan, &thread.shared);
        let read = capture(
            Subject {
                memory: &process.memory,
                interpreter: process.interpreter.as_deref(),
                stack_pointer: sample.registers.as_ref().and_then(Registers::stack_pointer),
            },
            &mut thread.plan,
            stack,
            &mut self.buffers,
            &mut sample,
        );
        process.copy_codes(&mut self.buffers, &mut sample);
        // Who has the interpreter's lock is read before it is known that the thread slept on: it is of the same moment.
        let has_gil = self.options.once && holds_gil(&self.processes[index], at);
        // A thread that waits for that lock sleeps in a futex: who has it is worth a small read.
        let gil_holder = match syscall {
            Some(FUTEX) => other_holder(&self.processes[index], at),
            _ => None,
        };
        let thread = &mut self.processes[index].threads[at];
        let slept_on = match thread.files.schedstat() {
            Ok(after) if now.is_kept() => after == now,
            Ok(_) => thread
                .files
                .whereabouts()
                .is_ok_and(|after| after == whereabouts),
            Err(_) => true,
        };
        if !slept_on {
            self.put_back(sample);
            return false;
        }
        if matches!(read, Err(ReadError::Gone)) {
            // A process on its way out gives up its memory before its threads are gone.
            self.put_back(sample);
            self.unread(index, at, tick, ran, Partial::Exited);
            return true;
        }
        thread.seen = if now.is_kept() {
            Seen::Asleep(whereabouts)
        } else {
            Seen::Unknown
        };
        sample.stretch = self.stretch(index, at, tick, ran, Capture::Asleep);
        sample.stretch.syscall = syscall;
        sample.stretch.gil = if has_gil { Gil::Held } else { Gil::NotHeld };
        sample.stretch.gil_holder = gil_holder;
        sample.failure = read.err().map(|_| Partial::StackUnreadable);
        self.hand_on(index, at, sample);
        true
    }
}

/// The thread that holds the GIL while a Python thread sleeps, if it is another.
fn other_holder(process: &TracedProcess, at: usize) -> Option<ThreadId> {
    let thread = process.threads.get(at)?;
    thread.plan.state_address?;
    gil_holders(process)
        .into_iter()
        .find_map(|(_, holder)| holder)
        .filter(|&holder| holder != thread.id)
}

/// Whether a thread that sleeps holds the GIL all the same: it waits in a call that does not give it up.
fn holds_gil(process: &TracedProcess, at: usize) -> bool {
    let plan = &process.threads[at].plan;
    let holders = || gil_holders(process);
    plan.state_address.is_some() && holders().iter().any(|(holder, _)| plan.has_state(*holder))
}

/// The state of a thread off the CPU. Calls that always sleep interruptibly need no look at `stat`.
fn sleep_state(files: &ThreadFiles, whereabouts: &Whereabouts) -> ThreadState {
    let is_plain = whereabouts.syscall().is_some_and(sleeps_interruptibly);
    if is_plain {
        return ThreadState::Sleeping;
    }
    files
        .stat()
        .map_or(ThreadState::Unknown, |(state, _)| state)
}

/// A first thread that is dead while others live stays in /proc, with neither registers nor memory.
fn is_dead(state: ThreadState, whereabouts: &Whereabouts) -> bool {
    let registers = whereabouts.registers();
    state == ThreadState::Unknown
        && registers.and_then(|registers| registers.stack_pointer()) == Some(0)
}

/// Whether a thread that ran a little is back in the very sleep that we stopped it in.
fn is_back_in_its_sleep(
    thread: &TracedThread,
    now: &Whereabouts,
    before: &SchedStat,
    after: &SchedStat,
) -> bool {
    let Seen::Asleep(then) = thread.seen else {
        return false;
    };
    thread.own_stop && then.is_same_sleep(*now) && after.slices.saturating_sub(before.slices) <= 3
}
