//! Whether a job hangs, by what its training threads wait for after a long time in which none
//! moved.
//!
//! A hang is a wait that nobody ends. Code that computes, sleeps for a time, writes a file or is
//! stopped goes on by itself or by its user: it is none, and neither is a wait for it.

use super::deadlocks::deadlocks;
use super::moved::positions;
use super::odd_ranks;
use super::verdict::{best_step, doing, is_idle_worker, training_thread};
use super::wakers::may_end;
use crate::model::dump::{Dump, DumpedProcess, DumpedThread, DumpedWait};
use crate::model::profile::Role;
use crate::model::sample::ThreadState;
use crate::model::wait::WaitKind;
use rustc_hash::FxHashSet;

/// What is known of the time in which no training thread moved.
#[derive(Clone, Debug, Default)]
pub struct Since {
    /// Threads that used a CPU for a good part of it: pid and tid.
    pub busy: FxHashSet<(i32, i32)>,
    /// Threads that were on a CPU at all in its second half.
    pub ran: FxHashSet<(i32, i32)>,
    /// Processes that read or wrote storage in it.
    pub transfers: FxHashSet<i32>,
    /// Ranks that were seen at any time.
    pub seen: FxHashSet<u32>,
    /// Threads that wait with a timeout: pid and tid.
    pub timed: FxHashSet<(i32, i32)>,
    /// Threads that read the output of a living child: pid and tid.
    pub from_child: FxHashSet<(i32, i32)>,
}

/// The judgement of a job that has not moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It hangs: what waits for what.
    Hang(String),
    /// It hangs unless ranks on other machines work: all that were seen wait for others.
    Elsewhere(String),
    /// It does not, or that is not known: why.
    No(String),
}

/// What moves in a job: for each trainer the position of its training thread, and its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    trainers: Vec<Mark>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Mark {
    pid: i32,
    /// Function, file and line of each frame.
    positions: Vec<(String, String, u32)>,
    counters: Vec<(String, u64)>,
}

impl Marks {
    /// The marks of a snapshot.
    pub fn of(dump: &Dump) -> Self {
        let marks = trainers(dump).map(|process| Mark {
            pid: process.pid,
            positions: training_thread(process).map(positions).unwrap_or_default(),
            counters: process
                .progress
                .iter()
                .map(|each| (each.what.clone(), each.value))
                .collect(),
        });
        Self {
            trainers: marks.collect(),
        }
    }

    /// Whether nothing moves because there is nothing.
    pub fn is_empty(&self) -> bool {
        self.trainers.is_empty()
    }

    /// Number of trainers.
    pub fn len(&self) -> usize {
        self.trainers.len()
    }
}

/// The step of the trainer that is least far, where all count steps.
pub fn steps(dump: &Dump) -> Option<u64> {
    let counts = trainers(dump).map(|process| best_step(process).map(|step| step.value));
    let counts: Option<Vec<u64>> = counts.collect();
    counts?.into_iter().min()
}

/// The trainers of a dump.
pub fn trainers(dump: &Dump) -> impl Iterator<Item = &DumpedProcess> {
    let all = dump.processes.iter();
    all.filter(|process| matches!(process.role, Role::Trainer { .. }))
}

/// Judges a job in which no training thread moved for long.
pub fn judge(dump: &Dump, since: &Since) -> Judgement {
    judge_all(&[(dump, since)])
}

/// The same of a job on several machines.
pub fn judge_all(machines: &[(&Dump, &Since)]) -> Judgement {
    all(machines).unwrap_or_else(Judgement::No)
}

/// An error for no hang.
fn all(machines: &[(&Dump, &Since)]) -> Result<Judgement, String> {
    let each = machines.iter().flat_map(|(dump, _)| trainers(dump));
    let ranks: Vec<&DumpedProcess> = each.collect();
    if ranks.is_empty() {
        return Err("no trainer was found".to_owned());
    }
    let mut found = Waits::default();
    for (dump, since) in machines {
        let has_others = ranks.len() > 1;
        let machine = Judge {
            dump,
            since,
            has_others,
        };
        machine.add_to(&mut found)?;
    }
    match found {
        Waits {
            here: Some(here),
            is_cycle,
            ..
        } => Ok(Judgement::Hang(match is_cycle {
            true => format!("a deadlock, {here}"),
            false => here,
        })),
        Waits {
            for_ranks: 1..,
            outside: Some(outside),
            ..
        } => Ok(Judgement::Hang(format!(
            "{outside}, and the others wait in a collective for it"
        ))),
        Waits {
            for_ranks: 0,
            outside,
            ..
        } => {
            let why = outside.unwrap_or_default();
            match missing(&ranks).is_empty() {
                true => Err(why),
                false => Ok(Judgement::Elsewhere(why)),
            }
        }
        Waits { .. } => {
            let seen = |rank: &u32| machines.iter().any(|(_, since)| since.seen.contains(rank));
            Ok(all_wait(&ranks, seen))
        }
    }
}

/// All ranks wait for others. `seen`: whether a rank was seen at any time.
fn all_wait(ranks: &[&DumpedProcess], seen: impl Fn(&u32) -> bool) -> Judgement {
    let missing = missing(ranks);
    match missing.first() {
        None if ranks.len() < 2 => Judgement::Elsewhere(
            "it waits for other ranks, and how many there are is not known".to_owned(),
        ),
        None => Judgement::Hang(format!(
            "all ranks wait in collectives{}",
            odd_ranks::odd_ranks(ranks)
        )),
        Some(first) if missing.iter().all(seen) => Judgement::Hang(format!(
            "all ranks wait in collectives, and rank {first} has ended"
        )),
        Some(first) => Judgement::Elsewhere(format!(
            "all ranks here wait in collectives: what rank {first} and others elsewhere do is not known"
        )),
    }
}

/// Ranks of the job that are not among these, as far as its size is known.
fn missing(ranks: &[&DumpedProcess]) -> Vec<u32> {
    let sizes = ranks.iter().filter_map(|process| process.role.world_size());
    let size = sizes.max().unwrap_or(0).min(1 << 20);
    let here: FxHashSet<u32> = ranks.iter().filter_map(|each| each.role.rank()).collect();
    (0..size).filter(|rank| !here.contains(rank)).collect()
}

/// What the training threads of a job wait for.
#[derive(Default)]
struct Waits {
    /// Those that wait for other ranks.
    for_ranks: usize,
    /// The first that waits for something in its own process or its workers.
    here: Option<String>,
    /// The first that waits for something outside.
    outside: Option<String>,
    is_cycle: bool,
}

struct Judge<'d> {
    dump: &'d Dump,
    since: &'d Since,
    /// Whether the job has more than one rank.
    has_others: bool,
}

/// What a training thread waits for.
enum Stuck {
    /// Other ranks.
    Ranks,
    /// Something in its own process or its workers: others wait for it.
    Here,
    /// Something outside: a hang only if others wait for it.
    Outside,
}

/// Who ends a wait.
enum End<'p> {
    /// The thread goes on by itself.
    Itself,
    /// Somebody that no snapshot shows: why that is not known.
    Outside(&'static str),
    /// The thread that holds what is waited for goes on by itself.
    By(&'p DumpedThread),
    /// The holder is not known, and this thread may be it.
    PerhapsBy(&'p DumpedThread),
}

/// Files of debuggers and consoles, which wait for their user (Lib/, CPython 3.10 to 3.15).
const CONSOLES: &[&str] = &["/pdb.py", "/bdb.py", "/cmd.py", "/code.py", "/IPython/"];
/// Functions in which a program waits for a line of its user: `input()` and the console (CPython,
/// Python/bltinmodule.c and Parser/myreadline.c).
const INPUT: &[&str] = &["builtin_input", "PyOS_Readline"];

impl Judge<'_> {
    /// Adds what the training threads of this machine wait for; an error if something goes on.
    fn add_to(&self, found: &mut Waits) -> Result<(), String> {
        self.nothing_goes_on()?;
        for process in trainers(self.dump) {
            let name = name(process);
            let thread = training_thread(process)
                .ok_or_else(|| format!("the stack of {name} was not read"))?;
            let words = || Some(format!("{name}: {}{}", doing(thread), at(thread)));
            match self.thread(process, thread)? {
                Stuck::Ranks => found.for_ranks += 1,
                Stuck::Here => found.here = found.here.take().or_else(words),
                Stuck::Outside => found.outside = found.outside.take().or_else(words),
            }
        }
        found.is_cycle |= !deadlocks(self.dump).is_empty();
        Ok(())
    }

    /// An error if some process works, transfers data or is stopped.
    fn nothing_goes_on(&self) -> Result<(), String> {
        for process in &self.dump.processes {
            if self.since.transfers.contains(&process.pid) {
                return Err(format!("{} reads or writes files", name(process)));
            }
            for thread in &process.threads {
                if thread.state == ThreadState::Stopped {
                    return Err(format!("{} is stopped", name(process)));
                }
                if thread.state == ThreadState::Uninterruptible {
                    return Err(format!("{} waits for a file or a device", name(process)));
                }
                let spins = is_spinning(thread) || in_nccl(thread);
                if self.since.busy.contains(&(process.pid, thread.tid)) && !spins {
                    return Err(format!("{} computes{}", name(process), at(thread)));
                }
            }
        }
        Ok(())
    }

    /// What a training thread waits for; an error if it goes on by itself, or may.
    fn thread(&self, process: &DumpedProcess, thread: &DumpedThread) -> Result<Stuck, String> {
        let words = || format!("{} {}{}", name(process), doing(thread), at(thread));
        let wait = match &thread.wait {
            Some(wait) if !self.is_timed(process, thread) => wait,
            _ => return Err(words()),
        };
        let stuck = match wait.kind {
            WaitKind::Collective => return Ok(Stuck::Ranks),
            WaitKind::GpuSync | WaitKind::GpuCopy if self.has_collectives() => {
                return Ok(Stuck::Ranks);
            }
            // Backward waits for autograd's threads, and these for other ranks.
            WaitKind::Autograd if process.threads.iter().any(in_collective) => {
                return Ok(Stuck::Ranks);
            }
            WaitKind::Input => {
                self.workers(process)?;
                return Ok(Stuck::Here);
            }
            WaitKind::Lock | WaitKind::Gil => Stuck::Here,
            WaitKind::Io | WaitKind::Socket => Stuck::Outside,
            _ => return Err(words()),
        };
        match self.ends(process, thread) {
            None => Ok(stuck),
            Some(End::Itself) => Err(words()),
            Some(End::Outside(why)) => Err(format!("{}: {why}", words())),
            Some(End::By(other)) => Err(format!(
                "{} waits for a thread that {}{}",
                name(process),
                doing(other),
                at(other)
            )),
            Some(End::PerhapsBy(other)) => Err(format!(
                "{}, and whether a thread ends that which {}{} is not known",
                words(),
                doing(other),
                at(other)
            )),
        }
    }

    /// Who ends the wait of a thread; `None` if nobody does as far as can be seen.
    fn ends<'p>(&self, process: &'p DumpedProcess, thread: &'p DumpedThread) -> Option<End<'p>> {
        let mut thread = thread;
        let mut passed: Vec<i32> = Vec::new();
        // From a lock to its holder, and from there to what that waits for.
        loop {
            let is_first = passed.is_empty();
            if passed.contains(&thread.tid) {
                return None;
            }
            passed.push(thread.tid);
            let wait = thread
                .wait
                .as_ref()
                .filter(|_| !self.is_timed(process, thread));
            match wait.map(|wait| (wait.kind, &wait.owner)) {
                Some((WaitKind::Collective | WaitKind::Input, _)) => return None,
                Some((WaitKind::Lock | WaitKind::Gil, Some(owner))) => {
                    let all = &process.threads;
                    thread = all.iter().find(|each| each.tid == owner.tid)?;
                }
                Some((WaitKind::Lock | WaitKind::Gil, None)) => {
                    return self.perhaps(process, thread, &passed);
                }
                Some((WaitKind::Io | WaitKind::Socket, _)) => {
                    let outside = self.outside(process, thread)?;
                    return Some(if is_first { outside } else { End::By(thread) });
                }
                _ if is_first => return Some(End::Itself),
                _ => return Some(End::By(thread)),
            }
        }
    }

    /// A thread that may end a wait whose holder is not known: one that is woken for data, or, if
    /// it is not for the GIL, one that runs Python and goes on by itself or is woken from outside.
    fn perhaps<'p>(
        &self,
        process: &'p DumpedProcess,
        waiter: &DumpedThread,
        passed: &[i32],
    ) -> Option<End<'p>> {
        let is_gil = |wait: &DumpedWait| wait.kind == WaitKind::Gil;
        let for_gil = waiter.wait.as_ref().is_some_and(is_gil);
        let all = process.threads.iter();
        let mut others = all.filter(|each| !passed.contains(&each.tid));
        let found = others.find(|each| {
            let is_woken = || self.since.ran.contains(&(process.pid, each.tid));
            is_transfer(each) && is_woken()
                || !for_gil && may_end(waiter, each, self.is_timed(process, each))
        });
        found.map(End::PerhapsBy)
    }

    /// Why a thread that reads or writes may get on; `None` if it was not even woken for data.
    fn outside<'p>(&self, process: &DumpedProcess, thread: &DumpedThread) -> Option<End<'p>> {
        let of = (process.pid, thread.tid);
        if is_console(thread) || self.since.ran.contains(&of) {
            return Some(End::Itself);
        }
        if is_accept(thread) {
            return Some(End::Outside("whether anybody connects is not known"));
        }
        let from_child = self.since.from_child.contains(&of);
        from_child.then_some(End::Outside(
            "it reads the output of a child, and whether that ends is not known",
        ))
    }

    fn is_timed(&self, process: &DumpedProcess, thread: &DumpedThread) -> bool {
        let wait = thread.wait.as_ref();
        wait.is_some_and(|wait| {
            is_timed(wait)
                || wait.kind == WaitKind::Lock
                    && self.since.timed.contains(&(process.pid, thread.tid))
        })
    }

    /// An error if a worker of a trainer goes on by itself.
    fn workers(&self, process: &DumpedProcess) -> Result<(), String> {
        let all = self.dump.processes.iter();
        for worker in all.filter(|each| each.trainer_pid == Some(process.pid)) {
            let thread = training_thread(worker);
            let is_stuck = |thread| self.ends(worker, thread).is_none() || is_idle_worker(thread);
            if thread.is_some_and(is_stuck) {
                continue;
            }
            let what = thread.map(|thread| format!(" {}{}", doing(thread), at(thread)));
            return Err(format!(
                "a DataLoader worker of {}{}",
                name(process),
                what.unwrap_or_else(|| " was not read".to_owned())
            ));
        }
        Ok(())
    }

    /// Whether a wait for a GPU may be one for other ranks.
    fn has_collectives(&self) -> bool {
        let mut threads = self.dump.processes.iter().flat_map(|each| &each.threads);
        self.has_others
            || threads.any(|thread| in_nccl(thread) || thread.name.starts_with("pt_nccl"))
    }
}

fn is_timed(wait: &DumpedWait) -> bool {
    wait.lock.as_ref().is_some_and(|lock| lock.is_timed)
}

fn is_transfer(thread: &DumpedThread) -> bool {
    let wait = thread.wait.as_ref();
    wait.is_some_and(|wait| matches!(wait.kind, WaitKind::Io | WaitKind::Socket))
}

/// accept(2), which ends when somebody connects; with a timeout Python polls before it
/// (`sock_accept` of CPython's Modules/socketmodule.c).
fn is_accept(thread: &DumpedThread) -> bool {
    let call = thread.syscall.as_deref();
    call.is_some_and(|call| call.starts_with("accept"))
        || thread
            .frames
            .iter()
            .any(|frame| frame.name == "sock_accept")
}

fn in_collective(thread: &DumpedThread) -> bool {
    let wait = thread.wait.as_ref();
    wait.is_some_and(|wait| wait.kind == WaitKind::Collective)
}

/// The driver's waits for a GPU spin.
fn is_spinning(thread: &DumpedThread) -> bool {
    let wait = thread.wait.as_ref();
    wait.is_some_and(|wait| matches!(wait.kind, WaitKind::GpuSync | WaitKind::GpuCopy))
}

/// NCCL's own threads spin while a collective waits.
fn in_nccl(thread: &DumpedThread) -> bool {
    let mut files = thread.frames.iter().filter(|frame| !frame.is_python);
    !thread.trains && files.any(|frame| frame.file.contains("/libnccl.so"))
}

fn is_console(thread: &DumpedThread) -> bool {
    thread.frames.iter().any(|frame| match frame.is_python {
        true => CONSOLES.iter().any(|file| frame.file.contains(file)),
        false => INPUT.contains(&frame.name.as_str()),
    })
}

fn name(process: &DumpedProcess) -> String {
    match (process.role.rank(), process.role) {
        (Some(rank), _) => format!("rank {rank}"),
        (None, Role::DataLoaderWorker { number, .. }) => {
            format!("DataLoader worker {number} (pid {})", process.pid)
        }
        _ => format!("pid {}", process.pid),
    }
}

fn at(thread: &DumpedThread) -> String {
    odd_ranks::at(thread.at.as_ref())
}

#[cfg(test)]
#[path = "hang_tests.rs"]
mod tests;
