//! Whether a job hangs, by what its training threads wait for after a long time in which none
//! moved.
//!
//! A hang is a wait that nobody ends. Code that computes, sleeps for a time, writes a file or is
//! stopped goes on by itself or by its user: it is none, and neither is a wait for it.

use super::deadlocks::deadlocks;
use super::moved::positions;
use super::verdict::{best_step, doing, is_idle_worker, training_thread};
use crate::model::dump::{Dump, DumpedProcess, DumpedThread, DumpedWait, Place};
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
}

/// The judgement of a job that has not moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It hangs: what waits for what.
    Hang(String),
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
    match (Judge { dump, since }).all() {
        Ok(reason) => Judgement::Hang(reason),
        Err(reason) => Judgement::No(reason),
    }
}

struct Judge<'d> {
    dump: &'d Dump,
    since: &'d Since,
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

/// Files of debuggers and consoles, which wait for their user (Lib/, CPython 3.10 to 3.15).
const CONSOLES: &[&str] = &["/pdb.py", "/bdb.py", "/cmd.py", "/code.py", "/IPython/"];
/// Functions in which a program waits for a line of its user: `input()` and the console (CPython,
/// Python/bltinmodule.c and Parser/myreadline.c).
const INPUT: &[&str] = &["builtin_input", "PyOS_Readline"];

impl Judge<'_> {
    /// `Ok` for a hang.
    fn all(&self) -> Result<String, String> {
        let ranks: Vec<&DumpedProcess> = trainers(self.dump).collect();
        if ranks.is_empty() {
            return Err("no trainer was found".to_owned());
        }
        self.nothing_goes_on()?;
        let (mut for_ranks, mut here, mut outside) = (0_usize, None, None);
        for process in &ranks {
            let name = name(process);
            let thread = training_thread(process)
                .ok_or_else(|| format!("the stack of {name} was not read"))?;
            let words = || format!("{name}: {}{}", doing(thread), at(thread));
            match self.thread(process, thread)? {
                Stuck::Ranks => for_ranks += 1,
                Stuck::Here => here = here.or_else(|| Some(words())),
                Stuck::Outside => outside = outside.or_else(|| Some(words())),
            }
        }
        let is_cycle = !deadlocks(self.dump).is_empty();
        match (for_ranks, here, outside) {
            (_, Some(here), _) if is_cycle => Ok(format!("a deadlock, {here}")),
            (_, Some(here), _) => Ok(here),
            (1.., None, Some(outside)) => Ok(format!(
                "{outside}, and the others wait in a collective for it"
            )),
            (0, None, outside) => Err(outside.unwrap_or_default()),
            (_, None, None) => self.unseen(&ranks),
        }
    }

    /// All ranks wait for others.
    fn unseen(&self, ranks: &[&DumpedProcess]) -> Result<String, String> {
        let sizes = ranks.iter().filter_map(|process| process.role.world_size());
        let size = sizes.max().unwrap_or(0).min(1 << 20);
        let here: FxHashSet<u32> = ranks.iter().filter_map(|each| each.role.rank()).collect();
        let missing: Vec<u32> = (0..size).filter(|rank| !here.contains(rank)).collect();
        match missing.first() {
            None if ranks.len() < 2 => {
                Err("it waits for other ranks, and how many there are is not known".to_owned())
            }
            None => Ok("all ranks wait in collectives".to_owned()),
            Some(first) if missing.iter().all(|rank| self.since.seen.contains(rank)) => Ok(
                format!("all ranks wait in collectives, and rank {first} has ended"),
            ),
            Some(first) => Err(format!(
                "all ranks here wait in collectives: what rank {first} and others elsewhere do is not known"
            )),
        }
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

    /// What a training thread waits for; an error if it goes on by itself.
    fn thread(&self, process: &DumpedProcess, thread: &DumpedThread) -> Result<Stuck, String> {
        let goes_on = || format!("{} {}{}", name(process), doing(thread), at(thread));
        let wait = match &thread.wait {
            Some(wait) if !is_timed(wait) => wait,
            _ => return Err(goes_on()),
        };
        match wait.kind {
            WaitKind::Collective => Ok(Stuck::Ranks),
            WaitKind::GpuSync | WaitKind::GpuCopy if self.has_collectives() => Ok(Stuck::Ranks),
            // Backward waits for autograd's threads, and these for other ranks.
            WaitKind::Autograd if process.threads.iter().any(in_collective) => Ok(Stuck::Ranks),
            WaitKind::Lock | WaitKind::Gil => {
                self.owner(process, wait)?;
                Ok(Stuck::Here)
            }
            WaitKind::Input => {
                self.workers(process)?;
                Ok(Stuck::Here)
            }
            WaitKind::Io | WaitKind::Socket if self.is_stuck(process, thread) => Ok(Stuck::Outside),
            _ => Err(goes_on()),
        }
    }

    /// An error if the holder of what is waited for goes on by itself, or where it is not known
    /// some thread of the process that reads or writes.
    fn owner(&self, process: &DumpedProcess, wait: &DumpedWait) -> Result<(), String> {
        let others = process.threads.iter().filter(|each| !each.trains);
        let holder = match &wait.owner {
            Some(owner) => process.threads.iter().find(|each| each.tid == owner.tid),
            None => others
                .filter(|each| is_transfer(each))
                .find(|each| self.since.ran.contains(&(process.pid, each.tid))),
        };
        match holder {
            Some(holder) if !self.is_stuck(process, holder) => Err(format!(
                "{} waits for a thread that {}{}",
                name(process),
                doing(holder),
                at(holder)
            )),
            _ => Ok(()),
        }
    }

    /// Whether nothing but another thread, process or machine ends its wait. A thread that reads
    /// or writes and is woken for it gets on.
    fn is_stuck(&self, process: &DumpedProcess, thread: &DumpedThread) -> bool {
        let wait = thread.wait.as_ref().filter(|wait| !is_timed(wait));
        wait.is_some_and(|wait| match wait.kind {
            WaitKind::Collective | WaitKind::Lock | WaitKind::Gil | WaitKind::Input => true,
            WaitKind::Io | WaitKind::Socket => {
                !is_console(thread) && !self.since.ran.contains(&(process.pid, thread.tid))
            }
            _ => false,
        })
    }

    /// An error if a worker of a trainer goes on by itself.
    fn workers(&self, process: &DumpedProcess) -> Result<(), String> {
        let all = self.dump.processes.iter();
        for worker in all.filter(|each| each.trainer_pid == Some(process.pid)) {
            let thread = training_thread(worker);
            let is_stuck = |thread| self.is_stuck(worker, thread) || is_idle_worker(thread);
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
        trainers(self.dump).count() > 1
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
    let place = |at: &Place| {
        let file = at.file.rsplit('/').next().unwrap_or(&at.file);
        format!(" at {file}:{}", at.line)
    };
    thread.at.as_ref().map(place).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::built::{locked, process, thread, waiting};
    use super::*;
    use crate::model::dump::Progress;

    fn rank(number: u32, thread: DumpedThread) -> DumpedProcess {
        DumpedProcess {
            role: Role::Trainer {
                rank: Some(number),
                local_rank: None,
                world_size: Some(3),
            },
            ..process(100 + number as i32, vec![thread])
        }
    }

    fn in_wait(kind: WaitKind) -> DumpedThread {
        waiting(1, &["f:7"], kind, kind.name())
    }

    /// Ranks 0 and 1 wait in a collective; rank 2 is given.
    fn job(last: DumpedThread) -> Dump {
        let waits = |number| rank(number, in_wait(WaitKind::Collective));
        Dump {
            processes: vec![waits(0), waits(1), rank(2, last)],
            ..Dump::default()
        }
    }

    fn is_hang(dump: &Dump) -> bool {
        matches!(judge(dump, &Since::default()), Judgement::Hang(_))
    }

    #[test]
    fn a_wait_that_nobody_ends_is_a_hang() {
        use WaitKind::{Collective, GpuSync, Input, Io, Lock, Socket};
        for kind in [Collective, Lock, Input, Io, Socket, GpuSync] {
            assert!(is_hang(&job(in_wait(kind))), "{kind:?}");
        }
        // Without others that wait for it, a read is a read.
        let alone = Dump {
            processes: vec![rank(0, in_wait(Io))],
            ..Dump::default()
        };
        assert!(!is_hang(&alone));
        assert!(!is_hang(&Dump::default()));
    }

    #[test]
    fn what_goes_on_by_itself_is_none() {
        use WaitKind::{Autograd, Barrier, Child, Cpu, Disk, Events, Sleep};
        for kind in [Sleep, Disk, Child, Events, Cpu, Barrier, Autograd] {
            assert!(!is_hang(&job(in_wait(kind))), "{kind:?}");
        }
        assert!(!is_hang(&job(thread(1, &["f:7"]))));
        for state in [ThreadState::Stopped, ThreadState::Uninterruptible] {
            let mut halted = in_wait(WaitKind::Collective);
            halted.state = state;
            assert!(!is_hang(&job(halted)), "{state:?}");
        }
        let mut console = in_wait(WaitKind::Io);
        console.frames[0].file = "/usr/lib/python3.11/pdb.py".to_owned();
        assert!(!is_hang(&job(console)));
    }

    #[test]
    fn nothing_hangs_while_some_thread_works_or_writes() {
        let dump = job(in_wait(WaitKind::Lock));
        let busy = Since {
            busy: std::iter::once((102, 1)).collect(),
            ..Since::default()
        };
        assert!(matches!(judge(&dump, &busy), Judgement::No(_)));
        let writes = Since {
            transfers: std::iter::once(101).collect(),
            ..Since::default()
        };
        assert!(matches!(judge(&dump, &writes), Judgement::No(_)));
        // A wait for the GPU spins.
        let spins = job(in_wait(WaitKind::GpuSync));
        assert!(matches!(judge(&spins, &busy), Judgement::Hang(_)));
    }

    #[test]
    fn the_holder_of_the_lock_decides() {
        let with = |holder: DumpedThread| {
            let mut dump = job(locked(1, 2));
            dump.processes[2].threads.push(DumpedThread {
                tid: 2,
                trains: false,
                ..holder
            });
            dump
        };
        assert!(!is_hang(&with(in_wait(WaitKind::Sleep))));
        assert!(!is_hang(&with(thread(2, &["work:1"]))));
        assert!(is_hang(&with(in_wait(WaitKind::Io))));
        assert!(is_hang(&with(locked(2, 1))));
        let mut timed = job(locked(1, 2));
        let wait = timed.processes[2].threads[0].wait.as_mut().unwrap();
        wait.lock.as_mut().unwrap().is_timed = true;
        assert!(!is_hang(&timed));
    }

    #[test]
    fn the_worker_decides() {
        let with = |thread: DumpedThread| {
            let mut dump = job(in_wait(WaitKind::Input));
            dump.processes.push(DumpedProcess {
                role: Role::DataLoaderWorker {
                    number: 0,
                    trainer: None,
                },
                trainer_pid: Some(102),
                ..process(200, vec![thread])
            });
            dump
        };
        assert!(is_hang(&with(in_wait(WaitKind::Socket))));
        assert!(!is_hang(&with(in_wait(WaitKind::Sleep))));
        assert!(!is_hang(&with(thread(1, &["decode:1"]))));
    }

    #[test]
    fn who_is_woken_for_its_data_gets_on() {
        let ran = |pid: i32, tid: i32| Since {
            ran: std::iter::once((pid, tid)).collect(),
            ..Since::default()
        };
        let hangs = |dump: &Dump, since: &Since| matches!(judge(dump, since), Judgement::Hang(_));
        let reads = job(in_wait(WaitKind::Socket));
        assert!(!hangs(&reads, &ran(102, 1)) && hangs(&reads, &ran(101, 1)));
        // A lock whose holder is not known, in a process with a thread that sends.
        let mut lock = job(in_wait(WaitKind::Lock));
        lock.processes[2].threads.push(DumpedThread {
            tid: 2,
            trains: false,
            ..in_wait(WaitKind::Socket)
        });
        assert!(!hangs(&lock, &ran(102, 2)) && hangs(&lock, &ran(102, 1)));
        let mut input = job(in_wait(WaitKind::Input));
        input.processes.push(DumpedProcess {
            trainer_pid: Some(102),
            ..process(200, vec![in_wait(WaitKind::Socket)])
        });
        assert!(!hangs(&input, &ran(200, 1)) && hangs(&input, &ran(102, 1)));
    }

    #[test]
    fn ranks_elsewhere_may_compute_and_ranks_that_ended_do_not() {
        let mut dump = job(in_wait(WaitKind::Collective));
        dump.processes.pop();
        assert!(!is_hang(&dump));
        let seen = Since {
            seen: [0, 1, 2].into_iter().collect(),
            ..Since::default()
        };
        assert!(matches!(judge(&dump, &seen), Judgement::Hang(_)));
    }

    #[test]
    fn a_step_or_another_line_is_a_move() {
        let one = job(thread(1, &["f:7"]));
        assert_eq!(Marks::of(&one), Marks::of(&one.clone()));
        assert_ne!(Marks::of(&one), Marks::of(&job(thread(1, &["f:8"]))));
        let mut two = one.clone();
        two.processes[0].progress.push(Progress {
            what: "step".to_owned(),
            value: 1,
            source: String::new(),
        });
        assert_ne!(Marks::of(&one), Marks::of(&two));
        assert_eq!(steps(&one), None);
    }
}
