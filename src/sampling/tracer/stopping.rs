//! What is done with threads that run: stopped, read and let go; or only read.

use super::{
    Candidate, Passed, RawSample, Seen, Stretch, Tick, TracedProcess, TracedThread, Tracer,
};
use crate::model::frame::Partial;
use crate::model::ids::ThreadId;
use crate::model::registers::Registers;
use crate::model::sample::{Capture, Gil, ThreadState};
use crate::os::clock::monotonic_ns;
use crate::os::stop::{StopError, StoppedThread};
use crate::os::syscalls::Ending;
use crate::os::threads::ThreadFiles;
use crate::python::threads::{GilState, read_gil_holder};
use crate::sampling::budget::Claim;
use crate::sampling::capture::{
    Buffers, ReadPlan, Subject, capture, capture_standing, capture_unstopped, look_up,
};
use crate::sampling::stops::{NAP, Outcome, Request, SHORT_NAP, stop_each};
use rustc_hash::FxHashMap;

/// A thread that ran when it was looked at may be asleep when it stands, some tens of microseconds later. Taking that for what
/// it did would add as much to every sleep, at the cost of what it ran before; so the tick waits for the next stop that finds it
/// running, as ticks over the budget do. After so many ticks the sleep is taken: it hardly ever runs for longer.
const MAX_FALLEN_ASLEEP: u32 = 4;
/// How much of a period may pass before no further sleeper is stopped for its registers: the rest waits for the next tick.
const SLEEPERS_SHARE: u64 = 5;
/// How long a thread's time may be deferred before its Python frames are read without a stop, ns: where stops wait for a CPU, few fit
/// into the budget.
const MAX_DEFERRED_NS: u64 = 250_000_000;

impl Tracer {
    /// Stops, or in nonblocking mode only reads, what runs; the rest of it waits for its turn.
    pub(super) fn take_candidates(&mut self, candidates: Vec<Candidate>, tick: Tick) {
        let weight_ns = tick.weight_ns();
        let mut gil = FxHashMap::default();
        for candidate in &candidates {
            let process = &self.processes[candidate.process];
            gil.entry(candidate.process)
                .or_insert_with(|| gil_holders(process));
        }
        let (mut stoppable, mut sleepers, mut left_running) = (Vec::new(), Vec::new(), 0);
        for candidate in candidates {
            let (index, at) = (candidate.process, candidate.thread);
            let plan = &self.processes[index].threads[at].plan;
            let state_address = plan.state_address;
            let holders = gil.get(&index).map_or(&[][..], Vec::as_slice);
            let holds = holders.iter().any(|(holder, _)| plan.has_state(*holder));
            if candidate.asleep.is_some() {
                sleepers.push(candidate);
                continue;
            }
            self.processes[index].threads[at].state = ThreadState::Running;
            if self.options.gil_only && !holds {
                self.processes[index].threads[at].seen = Seen::Running;
                continue;
            }
            let may_stop = self.may_stop(index);
            let unstopped = self.options.nonblocking || candidate.keeps_running || !may_stop;
            left_running += usize::from(unstopped && !self.options.nonblocking);
            self.quality.calls_left_running += u64::from(candidate.keeps_running && may_stop);
            if state_address.is_none() && (!self.options.native || unstopped) {
                let why = match candidate.keeps_running {
                    true => Partial::Spared,
                    false => self.processes[index].why_no_python(),
                };
                let ran = (candidate.run_ns, candidate.queue_ns);
                self.unread(index, at, tick, ran, why);
                self.processes[index].threads[at].seen = Seen::Running;
            } else if unstopped {
                self.read_unstopped(candidate, tick);
            } else {
                stoppable.push(candidate);
            }
        }
        let running = stoppable.len();
        let claims: Vec<Claim> = stoppable
            .iter()
            .map(|candidate| self.processes[candidate.process].threads[candidate.thread].claim())
            .collect();
        let chosen = self.budget.choose(&claims);
        // Those that run come first: a sleeper stays where it is.
        let mut to_stop: Vec<Candidate> = chosen.iter().map(|&index| stoppable[index]).collect();
        for (index, candidate) in stoppable.into_iter().enumerate() {
            if !chosen.contains(&index) {
                self.quality.skipped_for_budget += 1;
                self.skip(candidate, tick);
            }
        }
        to_stop.append(&mut sleepers);
        // Where threads are read once not only for each of the stops: the CPU is given back a slice later, and a thread that was
        // awaited may be stopped by then.
        if !to_stop.is_empty() {
            self.stand_in_front();
        }
        let mut stopped_ns = 0;
        // Where each thread is read once nothing is put off: they are stopped one by one, and those that come late are awaited.
        let together = match self.options.once {
            true => 1,
            false => to_stop.len().max(1),
        };
        for part in to_stop.chunks(together) {
            stopped_ns += self.stop_candidates(part, tick, &gil);
            if self.options.once {
                self.wait_for_late();
            }
        }
        self.step_back();
        let running_ns = (running + left_running) as u64 * weight_ns;
        self.quality.target_run_ns += running_ns + stopped_ns;
        self.budget.account(stopped_ns, running_ns);
        self.control.show_stops(stopped_ns, running_ns + stopped_ns);
    }

    /// Runs before all others, as long as threads are stopped or asked to stop.
    fn stand_in_front(&mut self) {
        // On a full machine it does so already.
        if self.in_front.is_none() && !self.crowd.is_crowded() {
            self.in_front = Some(self.ahead.stand_in_front());
        }
    }

    /// Runs as the others do, unless a thread that was asked to stop may be stopped any time: it would be for as long as we wait for a
    /// CPU.
    pub(super) fn step_back(&mut self) {
        if self.late.is_empty() {
            self.in_front = None;
        }
    }

    /// Leaves out a stop that the budget has no room for, or that has to wait for another.
    fn skip(&mut self, candidate: Candidate, tick: Tick) {
        let process = &self.processes[candidate.process];
        let thread = &process.threads[candidate.thread];
        let can_be_read = process.interpreter.is_some() && thread.plan.state_address.is_some();
        if can_be_read && self.budget.is_overdrawn() && thread.deferred.weight_ns > MAX_DEFERRED_NS
        {
            self.read_unstopped(candidate, tick);
        } else {
            self.defer(candidate, tick);
        }
    }

    /// Puts the time that a look stands for off to the next capture of the thread.
    fn defer(&mut self, candidate: Candidate, tick: Tick) {
        let thread = &mut self.processes[candidate.process].threads[candidate.thread];
        thread.seen = Seen::Running;
        let mut passed = Passed {
            run_ns: candidate.run_ns,
            queue_ns: candidate.queue_ns,
            ..Passed::of(tick)
        };
        passed.add(std::mem::take(&mut thread.skipped));
        match candidate.asleep {
            None => thread.deferred.add(passed),
            Some(_) => thread.deferred_sleep.add(passed),
        }
    }

    fn read_unstopped(&mut self, candidate: Candidate, tick: Tick) {
        let (index, at) = (candidate.process, candidate.thread);
        let mut sample = self.sample(candidate);
        let process = &mut self.processes[index];
        let thread = &mut process.threads[at];
        thread.seen = Seen::Running;
        let Some(interpreter) = process.interpreter.clone() else {
            self.put_back(sample);
            return;
        };
        let read = capture_unstopped(
            &process.memory,
            &interpreter,
            &mut thread.plan,
            &mut self.buffers,
            &mut sample,
        );
        process.copy_codes(&mut self.buffers, &mut sample);
        self.quality.torn_retries += u64::from(matches!(read, Ok(false)));
        sample.stretch = self.stretch(
            index,
            at,
            tick,
            (candidate.run_ns, candidate.queue_ns),
            Capture::Unstopped,
        );
        sample.failure = read.err().map(|_| Partial::PythonUnreadable);
        self.hand_on(index, at, sample);
    }

    /// Stops, reads and resumes; gives for how long threads stood in all.
    fn stop_candidates(
        &mut self,
        candidates: &[Candidate],
        tick: Tick,
        gil: &FxHashMap<usize, Vec<GilHolder>>,
    ) -> u64 {
        let mut prepared: Vec<Option<(Box<RawSample>, Vec<u8>)>> =
            Vec::with_capacity(candidates.len());
        let mut requests = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let sample = self.sample(*candidate);
            let process = &mut self.processes[candidate.process];
            let thread = &mut process.threads[candidate.thread];
            requests.push(Request {
                tid: thread.tid,
                leader: process.pid,
                is_own_child: process.is_own_child,
                is_asleep: candidate.asleep.is_some(),
            });
            let buffer = self.buffers.prepare(&mut thread.plan, &thread.shared);
            look_up(
                &process.memory,
                process.interpreter.as_deref(),
                &thread.plan,
                &thread.shared,
            );
            prepared.push(Some((sample, buffer)));
        }
        let mut late = std::mem::take(&mut self.late);
        let mut outcomes: Vec<Option<Outcome>> = Vec::new();
        outcomes.resize_with(candidates.len(), || None);
        let mut took_ns = vec![0; candidates.len()];
        let mut endings: Vec<Option<Ending>> = vec![None; candidates.len()];
        let mut samples: Vec<Option<Box<RawSample>>> = Vec::new();
        samples.resize_with(candidates.len(), || None);
        // A single look shows stacks and the lock's holder side by side: both are of the moment in which the thread stands.
        let mut holders: Vec<Option<Vec<GilHolder>>> = Vec::new();
        holders.resize_with(candidates.len(), || None);
        let is_once = self.options.once;
        let (processes, buffers, native) =
            (&mut self.processes, &mut self.buffers, self.options.native);
        let nap = if self.options.once { SHORT_NAP } else { NAP };
        let sleepers_until_ns = monotonic_ns() + self.schedule.period_ns() / SLEEPERS_SHARE;
        stop_each(
            &requests,
            nap,
            self.crowd.is_crowded(),
            sleepers_until_ns,
            &mut late,
            |at, stopped| {
                let Some((mut sample, stack)) = prepared[at].take() else {
                    return;
                };
                let process = &mut processes[candidates[at].process];
                let thread = candidates[at].thread;
                read_stopped(
                    process,
                    thread,
                    stopped,
                    native,
                    stack,
                    buffers,
                    &mut sample,
                );
                endings[at] = stopped.ending();
                holders[at] = is_once.then(|| gil_holders(process));
                samples[at] = Some(sample);
            },
            |at, outcome, ns| {
                outcomes[at] = Some(outcome);
                took_ns[at] = ns;
            },
        );
        for (at, sample) in samples.iter_mut().enumerate() {
            if let Some(sample) = sample {
                processes[candidates[at].process].copy_codes(buffers, sample);
            }
        }
        self.late = late;
        for candidate in candidates {
            self.processes[candidate.process].memory.forget();
        }
        if !self.options.once {
            self.step_back();
        }
        let ticks = self.charge_stops(candidates, &took_ns, tick);
        let mut stopped_ns = 0;
        for (at, candidate) in candidates.iter().enumerate() {
            let outcome = outcomes[at].take();
            if let Some((sample, _)) = prepared[at].take() {
                self.put_back(sample);
            }
            let of_tick = || gil.get(&candidate.process).map_or(&[][..], Vec::as_slice);
            let holders = holders[at].as_deref().unwrap_or_else(of_tick);
            let sample = samples[at].take();
            let stop = (outcome, endings[at]);
            stopped_ns += self.settle(*candidate, stop, sample, ticks[at], holders);
        }
        stopped_ns
    }

    /// Reads and lets go the threads that were asked to stop in an earlier tick and stand now. They waited for a CPU, or in
    /// the kernel: where they stand is where they were in all the ticks since.
    pub(super) fn take_late(&mut self) {
        if self.late.is_empty() {
            return;
        }
        for stopped in self.late.arrived() {
            let tid = stopped.tid();
            let place = self
                .processes
                .iter()
                .enumerate()
                .find_map(|(index, process)| {
                    let at = process
                        .threads
                        .iter()
                        .position(|thread| thread.tid == tid)?;
                    Some((index, at))
                });
            let is_awaited = |&(index, at): &(usize, usize)| {
                let thread: &TracedThread = &self.processes[index].threads[at];
                thread.deferred.weight_ns + thread.deferred_sleep.weight_ns > 0
            };
            match place.filter(is_awaited) {
                Some((index, at)) => self.read_late(index, at, stopped),
                None => {
                    self.late.resume(stopped);
                }
            }
        }
        self.step_back();
    }

    fn read_late(&mut self, index: usize, at: usize, stopped: StoppedThread) {
        let mut sample = self.sample(Candidate {
            process: index,
            thread: at,
            run_ns: 0,
            queue_ns: 0,
            slices: 0,
            asleep: None,
            keeps_running: false,
        });
        let (processes, buffers, native) =
            (&mut self.processes, &mut self.buffers, self.options.native);
        let process = &mut processes[index];
        let thread = &mut process.threads[at];
        let stack = buffers.prepare(&mut thread.plan, &thread.shared);
        read_stopped(process, at, &stopped, native, stack, buffers, &mut sample);
        process.threads[at].stack_pointer = stack_pointer(&sample);
        let holders = gil_holders(process);
        let holds = own_lock(&process.threads[at].plan, &holders);
        let ending = stopped.ending();
        let stop_ns = self.late.resume(stopped);
        process.copy_codes(buffers, &mut sample);
        self.take_ending(index, at, ending);
        self.quality.stops.record(stop_ns);
        // Its running time was accounted for in the tick that asked for the stop.
        self.budget.account(stop_ns, 0);
        self.control.show_stops(stop_ns, 0);
        // All of its time was put off to now. Of a single look what was read last has the latest start.
        let now_ns = match self.options.once {
            true => monotonic_ns(),
            false => self.schedule.stratum_ns(),
        };
        let now = Tick {
            start_ns: now_ns,
            end_ns: now_ns,
            late: false,
            missed: 0,
        };
        sample.stretch = self.stretch(index, at, now, (0, 0), Capture::Stopped);
        sample.stretch.ticks -= 1;
        set_gil(&mut sample.stretch, holds, &holders);
        self.hand_on(index, at, sample);
    }

    /// Postpones the schedule by the longest of the stops, and charges their time. A thread that was asked to stop spent `took_ns` where it
    /// is, stopped, or waiting for a CPU or in the kernel to be: its tick is longer by that. The rest waits for the next poll. Gives
    /// each candidate's tick.
    fn charge_stops(&mut self, candidates: &[Candidate], took_ns: &[u64], tick: Tick) -> Vec<Tick> {
        let longest_ns = took_ns.iter().copied().max().unwrap_or(0);
        self.schedule.put_off(longest_ns);
        self.quality.missed_ticks += self.schedule.take_lost();
        self.reached.ns += longest_ns;
        if self.options.gil_only {
            // Only who holds the GIL is recorded, and who did meanwhile is not known.
            for process in &mut self.processes {
                process.put_off(longest_ns);
            }
        }
        candidates
            .iter()
            .zip(took_ns)
            .map(|(candidate, took_ns)| {
                let end_ns = tick.end_ns + took_ns;
                let thread = &mut self.processes[candidate.process].threads[candidate.thread];
                thread.reached.ns = thread.reached.ns.max(end_ns);
                Tick { end_ns, ..tick }
            })
            .collect()
    }

    /// Learns from what a stop did to the system call that it met.
    fn take_ending(&mut self, index: usize, at: usize, ending: Option<Ending>) {
        let Some(ending) = ending else { return };
        match ending {
            Ending::Interrupted | Ending::CutShort => self.quality.calls_cut_short += 1,
            Ending::Exec {
                privileges_lost: true,
            } => self.quality.privileges_lost += 1,
            Ending::Waits | Ending::Exec { .. } => {}
        }
        let thread = &mut self.processes[index].threads[at];
        thread.calls.stopped(ending, monotonic_ns());
    }

    /// Records what became of one stop.
    fn settle(
        &mut self,
        candidate: Candidate,
        (outcome, ending): (Option<Outcome>, Option<Ending>),
        sample: Option<Box<RawSample>>,
        tick: Tick,
        holders: &[GilHolder],
    ) -> u64 {
        let (index, at) = (candidate.process, candidate.thread);
        let ran = (candidate.run_ns, candidate.queue_ns);
        self.take_ending(index, at, ending);
        let thread = &mut self.processes[index].threads[at];
        thread.seen = Seen::Running;
        match (outcome, sample) {
            (Some(Outcome::Resumed(stop_ns)), Some(mut sample)) => {
                self.quality.stops.record(stop_ns);
                thread.stack_pointer = stack_pointer(&sample);
                let holds = own_lock(&thread.plan, holders);
                let waits = matches!(ending, Some(Ending::Waits | Ending::Interrupted));
                if candidate.asleep.is_none() && waits && thread.fallen_asleep < MAX_FALLEN_ASLEEP {
                    thread.fallen_asleep += 1;
                    self.put_back(sample);
                    self.defer(candidate, tick);
                    return stop_ns;
                }
                thread.fallen_asleep = 0;
                if let Some(whereabouts) = candidate.asleep {
                    thread.seen = Seen::Asleep(whereabouts);
                    thread.own_stop = true;
                }
                sample.stretch = self.stretch(index, at, tick, ran, Capture::Stopped);
                sample.stretch.syscall = candidate
                    .asleep
                    .and_then(|whereabouts| whereabouts.syscall());
                set_gil(&mut sample.stretch, holds, holders);
                self.hand_on(index, at, sample);
                stop_ns
            }
            (outcome, sample) => {
                if let Some(sample) = sample {
                    self.put_back(sample);
                }
                // A sleeper that cannot be stopped is read as it is at the next look, and then asked again.
                self.processes[index].threads[at].own_stop = candidate.asleep.is_some();
                let why = match outcome {
                    Some(Outcome::TimedOut) => {
                        self.quality.stop_timeouts += 1;
                        self.defer(candidate, tick);
                        return 0;
                    }
                    Some(Outcome::NotAsked) => {
                        self.processes[index].threads[at].own_stop = false;
                        if candidate.asleep.is_none() {
                            self.quality.skipped_for_late_stop += 1;
                            self.skip(candidate, tick);
                        } else {
                            self.defer(candidate, tick);
                        }
                        return 0;
                    }
                    Some(Outcome::Failed(StopError::Refused)) if candidate.asleep.is_some() => {
                        self.defer(candidate, tick);
                        return 0;
                    }
                    Some(Outcome::Failed(StopError::Refused)) => {
                        refusal(&self.processes[index].threads[at].files)
                    }
                    _ => Partial::Exited,
                };
                self.unread(index, at, tick, ran, why);
                0
            }
        }
    }
}

/// Reads what stands into `sample`: its registers and, as its plan says, its memory.
fn read_stopped(
    process: &mut TracedProcess,
    at: usize,
    stopped: &StoppedThread,
    native: bool,
    stack: Vec<u8>,
    buffers: &mut Buffers,
    sample: &mut RawSample,
) {
    let subject = Subject {
        memory: &process.memory,
        interpreter: process.interpreter.as_deref(),
        stack_pointer: None,
    };
    let plan = &mut process.threads[at].plan;
    let read = if native {
        capture_standing(subject, plan, stack, buffers, sample, || {
            stopped.registers()
        })
    } else {
        let read = capture(subject, plan, stack, buffers, sample);
        sample.registers = stopped.registers();
        read
    };
    process.copy_new_codes(buffers, sample);
    sample.failure = read.err().map(|_| Partial::StackUnreadable);
}

/// Where the stack of a thread that stood was: of older Pythons that tells whose each thread state is. 0 where it was not read.
fn stack_pointer(sample: &RawSample) -> u64 {
    let registers = sample.registers.as_ref();
    registers.and_then(Registers::stack_pointer).unwrap_or(0)
}

/// A thread state that holds a GIL, and its thread.
type GilHolder = (u64, Option<ThreadId>);

/// Thread states that hold a GIL of the process right now, with their threads.
pub(super) fn gil_holders(process: &TracedProcess) -> Vec<GilHolder> {
    let Some(interpreter) = &process.interpreter else {
        return Vec::new();
    };
    process
        .interpreter_states
        .iter()
        .filter_map(
            |&state| match read_gil_holder(interpreter, state, &process.memory) {
                GilState::HeldBy(holder) => Some((holder, process.thread_of_state(holder))),
                GilState::Free | GilState::Unknown => None,
            },
        )
        .collect()
}

/// Whether a thread holds a GIL; `None` where it has no state.
fn own_lock(plan: &ReadPlan, holders: &[GilHolder]) -> Option<bool> {
    plan.state_address?;
    Some(holders.iter().any(|(holder, _)| plan.has_state(*holder)))
}

fn set_gil(stretch: &mut Stretch, holds: Option<bool>, holders: &[GilHolder]) {
    let Some(holds) = holds else { return };
    stretch.gil = if holds { Gil::Held } else { Gil::NotHeld };
    stretch.gil_holder = holders
        .iter()
        .find_map(|(_, thread)| *thread)
        .filter(|&thread| !holds && thread != stretch.thread);
}

/// Why the kernel refused to let us trace a thread: it says EPERM for every reason.
fn refusal(files: &ThreadFiles) -> Partial {
    match files.tracer_pid() {
        Some(0) | None => match files.stat() {
            Ok((ThreadState::Unknown, _)) | Err(_) => Partial::Exited,
            Ok(_) => Partial::PermissionDenied,
        },
        Some(_) => Partial::AlreadyTraced,
    }
}
